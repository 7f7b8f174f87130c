// The controls around the effect of heads: switching the shown one off, and ranking all of them. What the effect is of,
// an embedding or a score, is the measure's.

import { ApiError } from "./api.js";
import { button, byId, element, quiet } from "./dom.js";
import { bar } from "./effect.js";
import { describeFailure } from "./notices.js";
import { Turn } from "./turns.js";

const LISTED = 10;
const UNSUPPORTED = "This server cannot switch heads off: its artifact has no head mask. A new export has one.";

export class EffectPanel {
  #state;
  #measure;
  #grid;
  #host = byId("effect");
  #ranking = byId("ranking");
  #measuring = new Turn();
  #rankingTurn = new Turn();
  #labels = [];

  /** @param {object} measure as `embeddingEffect` */
  constructor(state, grid, measure) {
    this.#state = state;
    this.#grid = grid;
    this.#measure = measure;
    this.#offerRanking();
  }

  /** The tokens of the text, special ones included, for naming those that move. */
  setLabels(labels) {
    this.#labels = labels;
  }

  /** Forgets the effects measured on another text. */
  reset() {
    this.#rankingTurn.end();
    this.#measuring.end();
    this.#host.replaceChildren();
    this.#grid.showEffects(null);
    this.#offerRanking();
  }

  async refresh() {
    const { off, map, layer, head } = this.#state.values;
    const signal = this.#measuring.begin();
    const result = element("div", { role: "status" });
    const isPossible = this.#measure.isPossible(this.#state);
    if (!isPossible && this.#measure.missing) return this.#host.replaceChildren(quiet(this.#measure.missing, "p"));
    this.#host.replaceChildren(...(map === "head" ? [this.#toggle(`${layer}.${head}`)] : []), this.#listOff(), result);
    if (!off.length || !isPossible) return;
    result.append(element("p", { class: "quiet", textContent: "Measuring…" }));
    try {
      this.#measure.show(result, await this.#measure.measure(this.#state, off, signal), this.#labels);
    } catch (error) {
      if (!signal.aborted) this.#fail(result, error);
    }
  }

  #toggle(key) {
    const { off } = this.#state.values;
    const isOff = off.includes(key);
    const turn = () => {
      this.#state.set({ off: isOff ? off.filter((other) => other !== key) : [...off, key] });
      byId("switch")?.focus();
    };
    const words = isOff ? "Switch this head on again" : "Switch this head off";
    return button(words, turn, { id: "switch", aria: { pressed: isOff } });
  }

  #listOff() {
    const { off } = this.#state.values;
    if (!off.length) {
      const which = this.#state.values.map === "head" ? "this head" : "a head: choose one of them";
      return quiet(this.#measure.hint(which), "p");
    }
    const all = button("All on again", () => this.#state.set({ off: [] }), { class: "plain" });
    return element("p", {}, `Off: ${off.map(nameOf).join("; ")} `, all);
  }

  #offerRanking() {
    if (!this.#measure.isPossible(this.#state)) return this.#ranking.replaceChildren();
    const rank = button("Rank heads by their effect", () => this.#rank(), { id: "rank" });
    const text = `Each head is switched off alone: ${this.#grid.keys.length} runs of this text.`;
    this.#ranking.replaceChildren(element("div", { class: "bar" }, rank, quiet(text)));
  }

  async #rank() {
    const signal = this.#rankingTurn.begin();
    const keys = this.#grid.keys;
    const progress = element("progress", { max: keys.length, value: 0, aria: { label: "Heads measured" } });
    const cancel = button("Cancel", () => {
      this.#rankingTurn.end();
      this.#offerRanking();
    });
    this.#ranking.replaceChildren(element("div", { class: "bar" }, progress, cancel));
    const effects = new Map();
    try {
      await this.#measure.rank(this.#state, keys, signal, (key, effect) => {
        effects.set(key, effect);
        progress.value = effects.size;
      });
      if (!signal.aborted) this.#showRanking(effects);
    } catch (error) {
      if (signal.aborted) return;
      this.#offerRanking();
      const result = element("div", { role: "status" });
      this.#ranking.append(result);
      this.#fail(result, error);
    }
  }

  #showRanking(effects) {
    const ranked = [...effects].sort(([, a], [, b]) => Math.abs(b) - Math.abs(a));
    const most = Math.abs(ranked[0]?.[1]) || 1;
    this.#state.set({ find: "" }); // one kind of bars at a time
    this.#grid.showEffects(new Map(ranked.map(([key, effect]) => [key, Math.abs(effect) / most])));
    const shown = ranked.slice(0, LISTED);
    const items = shown.map(([key, effect]) => bar(this.#opener(key), effect, Math.abs(effect) / most));
    this.#offerRanking();
    this.#ranking.append(
      element("h3", { textContent: this.#measure.rankTitle }),
      element("ol", { class: "bars", id: "ranked" }, ...items),
      quiet("One head at a time; heads can replace each other, so small effects do not add up.", "p"),
    );
  }

  #opener(key) {
    const [layer, head] = key.split(".").map(Number);
    return button(nameOf(key), () => this.#state.set({ map: "head", layer, head }), { class: "plain" });
  }

  #fail(host, error) {
    if (!(error instanceof ApiError)) throw error;
    const isUnsupported = error.isUnsupported && error.param === "head_mask"; // the field, not an entry of it
    const text = isUnsupported ? UNSUPPORTED : describeFailure(error);
    host.replaceChildren(element("p", { class: "notice", data: { kind: "note" }, textContent: text }));
  }
}

function nameOf(key) {
  const [layer, head] = key.split(".");
  return `layer ${layer}, head ${head}`;
}
