// Two texts that a cross-encoder reads together: their score, and what each looks at in the other.

import { scorePair } from "./api.js";
import { Block } from "./block.js";
import { button, byId, element, showBusy } from "./dom.js";
import { formatNumber } from "./ink.js";
import { describeFailure } from "./notices.js";
import { PairGrid } from "./pair_grid.js";
import { attentionOptions } from "./source.js";
import { Turn, whileBusy } from "./turns.js";

const [QUERY, DOCUMENT] = [0, 1]; // as the service numbers the texts of a pair
const LONGEST_FOR_ALL_HEADS = 1000; // characters of both texts; the maps of longer ones are large
const REDUCED = { mean: "the mean of its heads", max: "the largest of its heads" };
const FILTERS = ["level", "hide", "renormalise"];
const SHOWN = ["layer", "head", "map", "blocks", ...FILTERS];

export class AcrossView {
  #state;
  #turn = new Turn();
  #grid;
  #blocks;
  answer = null;
  texts = null; // the two that the answer is of

  constructor(state, info) {
    this.#state = state;
    this.#grid = new PairGrid(state, info);
    this.#blocks = {
      query_to_document: new Block(byId("across-blocks"), { from: "first text", to: "second text" }),
      document_to_query: new Block(byId("across-blocks"), { from: "second text", to: "first text" }),
    };
    const whileShown = (show) => () => byId("across").hidden || show(state.values.a, state.values.b);
    state.on(SHOWN, whileShown((a, b) => this.#loadBlocks(a, b)));
    state.on(FILTERS, whileShown((a, b) => this.#grid.load(a, b)));
  }

  get drawings() {
    if (!this.answer) return [];
    const shown = Object.values(this.#blocks).filter((block) => !block.isEmpty);
    return shown.map(({ matrix, title }) => ({ drawing: matrix, caption: title }));
  }

  async load(a, b) {
    byId("across").hidden = false;
    await Promise.all([this.#loadBlocks(a, b), this.#grid.load(a, b)]);
  }

  async #loadBlocks(a, b) {
    const signal = this.#turn.begin();
    if (this.texts?.[0] !== a || this.texts[1] !== b) byId("score").textContent = "";
    this.texts = [a, b];
    this.answer = null;
    await whileBusy(byId("across"), signal, async () => {
      this.answer = await scorePair(a, b, { attention: this.#wanted(a.length + b.length), signal });
      this.#show();
    }, (error) => this.#fail(error));
  }

  stop() {
    this.#turn.end();
    this.#grid.stop();
    this.answer = null;
    byId("across").hidden = true;
    showBusy(byId("across"), false);
  }

  draw() {
    if (!this.answer) return;
    for (const block of Object.values(this.#blocks)) block.draw();
    this.#grid.draw();
  }

  #wanted(length) {
    const { values } = this.#state;
    return { ...selectHeads(values, length), ...attentionOptions(values, "weights") };
  }

  #show() {
    const { score, attention, truncated } = this.answer;
    Object.assign(byId("score"), { textContent: formatNumber(score) }).dataset.value = score;
    byId("across-failure").hidden = true;
    byId("across-body").hidden = false;
    byId("across-note").hidden = !truncated;
    byId("across-title-of-map").textContent = this.#title;
    const labels = attention.words ?? attention.tokens;
    const of = (text) => labels.filter((_, at) => attention.segments[at] === text);
    const [query, document] = [of(QUERY), of(DOCUMENT)];
    const at = attention.reduce ? 0 : attention.heads[0].indexOf(this.#state.values.head);
    for (const [name, block] of Object.entries(this.#blocks)) {
      const [rows, columns] = name === "query_to_document" ? [query, document] : [document, query];
      block.show({ weights: attention[name][0][at], rows, columns, mass: attention[`${name}_mass`][0][at] });
    }
    byId("across-table").hidden = Boolean(attention.reduce);
    this.#listHeads(attention.reduce ? [] : this.#rowsOfHeads(attention));
  }

  #listHeads(rows) {
    const host = byId("across-heads");
    const hadFocus = host.contains(document.activeElement);
    host.replaceChildren(...rows);
    if (hadFocus) host.querySelector("[aria-pressed=true]")?.focus();
  }

  get #title() {
    const { map, blocks, layer, head } = this.#state.values;
    if (map === "rollout") return "Rollout through all layers";
    return `Layer ${layer}, ${blocks === "head" ? `head ${head}` : REDUCED[blocks]}`;
  }

  #rowsOfHeads({ heads, query_to_document_mass: [forward], document_to_query_mass: [back] }) {
    return heads[0].map((head, at) => {
      const number = (value) => element("td", { class: "number", textContent: formatNumber(value) });
      const name = element("th", { scope: "row" }, this.#opener(head));
      return element("tr", {}, name, number(forward[at]), number(back[at]));
    });
  }

  #opener(head) {
    const isShown = head === this.#state.values.head;
    return button(`head ${head}`, () => this.#state.set({ head }), { class: "plain", aria: { pressed: isShown } });
  }

  /** Takes away what belongs to the texts before. */
  #fail(error) {
    byId("score").textContent = "";
    byId("across-body").hidden = true;
    Object.assign(byId("across-failure"), { hidden: false, textContent: describeFailure(error) });
  }
}

/** The maps that are asked for: a rollout, a layer's heads, or what these are reduced to. */
function selectHeads({ map, blocks, layer, head }, length) {
  if (map === "rollout") return { reduce: "rollout" };
  if (blocks !== "head") return { layers: [layer], reduce: blocks };
  return { layers: [layer], heads: length > LONGEST_FOR_ALL_HEADS ? [head] : "all" };
}
