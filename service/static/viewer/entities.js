// The entities that a model finds in a text, as marks in it: each with its label, its score on request, and, once it is
// chosen, the words that carry its label.

import { ask } from "./api.js";
import { Section } from "./asking.js";
import { bdi, byId, element, formatNumber, quiet } from "./dom.js";

const WORDS_SHOWN = 6;

export class EntitiesView {
  #section = new Section("entities", "entities-note");
  #explains;

  /** @param {boolean} explains whether the artifact has the graph that explains a label */
  constructor(explains) {
    this.#explains = explains;
  }

  async load(text) {
    byId("entities-text").textContent = text; // not the marks of the text before
    byId("entities-note").textContent = "";
    await this.#section.ask(async (signal) => {
      const body = { inputs: text, level: "tokens", aggregation: "first" };
      const found = await ask("predict", { body, signal });
      const choose = this.#explains && ((mark, entity) => this.#choose(mark, entity, text));
      byId("entities-text").replaceChildren(...marked(Array.from(text), found, choose));
      const hint = choose ? "Choose an entity to see which words carry its label." : "";
      byId("entities-note").textContent = found.length ? hint : "The model finds none in this text.";
    });
  }

  stop() {
    this.#section.stop();
  }

  async #choose(mark, entity, text) {
    for (const one of byId("entities-text").querySelectorAll("mark")) one.ariaPressed = one === mark;
    await this.#section.ask(async (signal) => {
      const body = { a: text, at: entity.start, through: "network", level: "word" };
      byId("entities-note").replaceChildren(...carriers(await ask("explain", { body, signal })));
    });
  }
}

/** The likeliest label of a token, and the words that add most to its logit. */
function carriers({ labels, logits, contributions, text }) {
  const best = logits.indexOf(Math.max(...logits));
  const parts = [...text.words, "biases"].map((word, index) => ({ word, value: contributions[best][index] }));
  const largest = parts.sort((one, other) => Math.abs(other.value) - Math.abs(one.value)).slice(0, WORDS_SHOWN);
  const shown = largest.flatMap(({ word, value }) => [
    element("span", { className: "carrier" }, bdi(word), " ", quiet(formatNumber(value))),
    " ",
  ]);
  const others = logits[best] - largest.reduce((sum, { value }) => sum + value, 0);
  const logit = `${labels[best]} has a logit of ${formatNumber(logits[best])}, carried by `;
  return [logit, ...shown, quiet(`all others ${formatNumber(others)}`)];
}

/** The text, with a mark around each entity; places count characters, of which some are two units in JavaScript. */
function marked(characters, entities, choose) {
  const parts = [];
  let end = 0;
  for (const entity of entities) {
    const start = Math.max(end, entity.start);
    parts.push(characters.slice(end, start).join(""));
    end = Math.max(end, entity.end);
    const title = `${entity.entity_group} ${formatNumber(entity.score)}`;
    const label = element("small", { textContent: entity.entity_group });
    const mark = element("mark", { title }, bdi(characters.slice(start, end).join("")), label);
    if (choose) makeButton(mark, () => choose(mark, entity));
    parts.push(mark);
  }
  return [...parts, characters.slice(end).join("")];
}

/** A mark that can be chosen: a `button` would break the text's lines around it. */
function makeButton(mark, onChoose) {
  Object.assign(mark, { role: "button", tabIndex: 0, ariaPressed: "false", onclick: onChoose });
  mark.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    onChoose();
  });
}
