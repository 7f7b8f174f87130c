// What switching heads off does to the embedding, or to the score of a pair: a measurement, unlike attention weights. The
// shown head is switched off with a button, and all can be ranked.

import { encodeVectors, rankOne } from "./api.js";
import { Turn, attempt, describeFailure, inParallel } from "./asking.js";
import { bars, bdi, button, byId, element, formatEffect, quiet } from "./dom.js";
import { promptOptions } from "./source.js";
import { headButton, nameOf } from "./statistics.js";

const LISTED = 10;
const MOST_TOKENS = 5;
const AT_ONCE = 6; // connections that browsers keep to one host; the server batches the requests that wait
const UNSUPPORTED = "This server cannot switch heads off: its artifact has no head mask. A new export has one.";

/** By the kind of a model: what its heads are measured by. `compare` resolves to a function of the heads that are off. */
const MEASURES = {
  embedding: {
    rankTitle: "Without this head the embedding turns by (1 − cos)",
    hint: (which) => `See how far the text's embedding turns without ${which}. A weight alone does not tell.`,
    missing: "",
    isPossible: ({ text }) => Boolean(text),
    async compare({ text, values }, signal) {
      const embed = async (off) => (await vectorsOf(text, values, off, signal))[0];
      const whole = await embed([]);
      return async (off) => turnedBetween(whole, await embed(off));
    },
    show: showTurn,
  },
  scoring: {
    rankTitle: "Without this head the score (a logit) changes by",
    hint: (which) => `See how the score of the two texts changes without ${which}. A weight alone does not tell.`,
    missing: "Give two texts: the score of a pair is what a head is measured by.",
    isPossible: ({ values: { mode, a, b } }) => mode === "pair" && Boolean(a.trim() && b.trim()),
    async compare({ values }, signal) {
      const whole = await logitOf(values, [], signal);
      return async (off) => (await logitOf(values, off, signal)) - whole;
    },
    show: showChange,
  },
  none: {
    missing: "This page measures heads by an embedding or by the score of a pair; this model gives neither.",
    isPossible: () => false,
  },
};

/**
 * The part of a request that switches heads off: as `head_mask` takes them, "3.5" is layer 3, head 5, closed. Without any
 * one is named that stays open: the service may compute what has no mask in fewer bits (OpenVINO).
 */
function without(off, { layer, head }) {
  return { head_mask: off.length ? off.map((key) => [...key.split(".").map(Number), 0]) : [[layer, head, 1]] };
}

function vectorsOf(text, values, off, signal, output = "pooled") {
  return encodeVectors({ inputs: text, ...promptOptions(values), output, ...without(off, values) }, signal);
}

/** One near 0 or 1 as a number from 0 to 1 would hardly move. */
async function logitOf(values, off, signal) {
  return (await rankOne(values.a, values.b, { raw_scores: true, ...without(off, values) }, signal)).score;
}

/** 1 - cos of two vectors of length 1, as half their squared distance: exact where the two are nearly equal. */
export function turnedBetween(a, b) {
  return a.reduce((squares, value, index) => squares + (value - b[index]) ** 2, 0) / 2;
}

/** How far a text's embedding turns without some heads, and which tokens' last vectors turn the most. */
async function showTurn({ text, values }, off, signal, labels) {
  const [[before], [after], tokensBefore, tokensAfter] = await Promise.all([
    vectorsOf(text, values, [], signal),
    vectorsOf(text, values, off, signal),
    vectorsOf(text, values, [], signal, "tokens"),
    vectorsOf(text, values, off, signal, "tokens"),
  ]);
  const turned = turnedBetween(before, after);
  const tokens = labels.map((label, at) => [bdi(label, "mono"), turnedBetween(tokensBefore[at], tokensAfter[at])]);
  tokens.sort(([, a], [, b]) => b - a);
  const cosine = (1 - turned).toFixed(4);
  return [
    sentence("Cosine between the embedding with and without: ", cosine, turned, ` (1 − cos ${formatEffect(turned)})`),
    quiet("Tokens whose last vectors turn the most (1 − cos):", "p"),
    element("ol", { className: "bars" }, ...bars(tokens.slice(0, MOST_TOKENS))),
  ];
}

/** How far the score of a pair changes without some heads. */
async function showChange({ values }, off, signal) {
  const [before, after] = await Promise.all([logitOf(values, [], signal), logitOf(values, off, signal)]);
  const effect = after - before;
  const words = ` (a logit: ${before.toFixed(4)} with, ${after.toFixed(4)} without)`;
  return [sentence("The score changes by ", formatEffect(effect), effect, words)];
}

function sentence(before, number, effect, after) {
  const bold = element("b", { className: "number", textContent: number, data: { effect } });
  return element("p", {}, before, bold, element("span", { className: "quiet", textContent: after }));
}

export class EffectPanel {
  #state;
  #measure;
  #grid;
  #measuring = new Turn();
  #ranking = new Turn();
  #labels = [];

  /** @param {string} kind of the model, as of `kindOf` */
  constructor(state, grid, kind) {
    this.#state = state;
    this.#grid = grid;
    this.#measure = MEASURES[kind] ?? MEASURES.none;
    this.#offerRanking();
    state.on(["layer", "head", "map", "off"], () => this.refresh());
  }

  /** Forgets the effects measured on another text. */
  reset() {
    this.#ranking.end();
    this.#measuring.end();
    this.#labels = [];
    byId("effect").replaceChildren();
    this.#grid.showEffects(null);
    this.#offerRanking();
  }

  /** @param {string[]} labels the tokens of the text, special ones included, for naming those that move */
  async refresh(labels = this.#labels) {
    this.#labels = labels;
    const { off, map } = this.#state.values;
    const signal = this.#measuring.begin();
    const result = element("div", { role: "status" });
    const host = byId("effect");
    if (!this.#measure.isPossible(this.#state)) return host.replaceChildren(quiet(this.#measure.missing, "p"));
    host.replaceChildren(...(map === "head" ? [this.#toggle(this.#state.key)] : []), this.#listOff(), result);
    if (!off.length) return;
    result.append(element("p", { className: "quiet", textContent: "Measuring…" }));
    const show = async () => result.replaceChildren(...(await this.#measure.show(this.#state, off, signal, labels)));
    await attempt(show, (error) => fail(result, error), signal);
  }

  #toggle(key) {
    const { off } = this.#state.values;
    const isOff = off.includes(key);
    const turn = () => {
      this.#state.set({ off: isOff ? off.filter((other) => other !== key) : [...off, key] });
      byId("switch").focus();
    };
    return button(isOff ? "Switch this head on again" : "Switch this head off", turn, { id: "switch", ariaPressed: isOff });
  }

  #listOff() {
    const { off, map } = this.#state.values;
    if (!off.length) return quiet(this.#measure.hint(map === "head" ? "this head" : "a head: choose one of them"), "p");
    const all = button("All on again", () => this.#state.set({ off: [] }), { className: "plain" });
    return element("p", {}, `Off: ${off.map(nameOf).join("; ")} `, all);
  }

  #offerRanking(...results) {
    if (!this.#measure.isPossible(this.#state)) return byId("ranking").replaceChildren();
    const rank = button("Rank heads by their effect", () => this.#rank(), { id: "rank" });
    const text = `Each head is switched off alone: ${this.#grid.keys.length} runs of this text.`;
    byId("ranking").replaceChildren(element("div", { className: "bar" }, rank, quiet(text)), ...results);
  }

  async #rank() {
    const signal = this.#ranking.begin();
    const keys = this.#grid.keys;
    const progress = element("progress", { max: keys.length, value: 0, ariaLabel: "Heads measured" });
    const cancel = button("Cancel", () => {
      this.#ranking.end();
      this.#offerRanking();
    });
    byId("ranking").replaceChildren(element("div", { className: "bar" }, progress, cancel));
    const measure = async () => {
      const effects = [];
      const effectOf = await this.#measure.compare(this.#state, signal);
      await inParallel(keys, AT_ONCE, signal, async (key) => {
        effects.push([key, await effectOf([key])]);
        progress.value = effects.length;
      });
      this.#showRanking(effects.sort(([, a], [, b]) => Math.abs(b) - Math.abs(a)));
    };
    const refuse = (error) => {
      const result = element("div", { role: "status" });
      this.#offerRanking(result);
      fail(result, error);
    };
    await attempt(measure, refuse, signal);
  }

  #showRanking(ranked) {
    const most = Math.abs(ranked[0][1]) || 1;
    this.#state.set({ find: "" }); // one kind of bars at a time
    this.#grid.showEffects(new Map(ranked.map(([key, effect]) => [key, Math.abs(effect) / most])));
    const entries = ranked.slice(0, LISTED).map(([key, effect]) => [headButton(this.#state, key), effect]);
    this.#offerRanking(
      element("h3", { textContent: this.#measure.rankTitle }),
      element("ol", { className: "bars", id: "ranked" }, ...bars(entries, Math.abs)),
      quiet("One head at a time; heads can replace each other, so small effects do not add up.", "p"),
    );
  }
}

function fail(host, error) {
  const isUnsupported = error.isUnsupported && error.param === "head_mask"; // the field, not an entry of it
  const text = isUnsupported ? UNSUPPORTED : describeFailure(error);
  host.replaceChildren(element("p", { className: "notice", data: { kind: "note" }, textContent: text }));
}
