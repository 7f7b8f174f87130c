// Two texts: their similarity, and which pairs of tokens carry it.

import { ask, encodeVectors } from "./api.js";
import { Section, attempt } from "./asking.js";
import { bold, byId, element, formatNumber, quiet, tokenPair } from "./dom.js";
import { turnedBetween } from "./effect.js";
import { NumberMap, Pointer, drawingModel, isSpecial, sumsOf } from "./maps.js";
import { Matrix } from "./matrix.js";
import { promptOptions } from "./source.js";
import { TokenStrip } from "./tokens.js";

const UNSUPPORTED = "Similarity only: behind a dense layer, final vectors do not say which tokens carry it.";
const MEANINGS = {
  pooling:
    "A cell is what a pair of final token vectors adds to the similarity: what the two vectors are made of, though each " +
    "token has read all others by then. Bars under tokens: attention-rollout saliency, each text on its own scale.",
  network:
    "A cell is what a pair of input tokens adds to the similarity through every layer, the biases of the network apart. " +
    "Attention weights and norms are held fixed: it says what moved, not why attention looked there. " +
    "Bars under tokens: what each adds with all of the other text.",
};

export class PairView {
  #state;
  #section = new Section("pair", "pair-readout");
  #pointer = new Pointer();
  #matrix;
  #strips;
  #map; // of the answer's contributions
  answer = null;
  texts = null; // the two that the answer is of

  constructor(state) {
    this.#state = state;
    this.#matrix = new Matrix(byId("pair-matrix"), this.#pointer, { name: "Contributions of pairs of tokens" });
    this.#strips = {
      a: new TokenStrip(byId("pair-a"), this.#pointer, { name: "Tokens of the first text" }),
      b: new TokenStrip(byId("pair-b"), this.#pointer, { name: "Tokens of the second text", axis: "column" }),
    };
    this.#pointer.on(() => this.#point());
    state.on(["through"], () => this.#section.isShown && this.load(...this.texts));
  }

  get drawings() {
    return this.answer ? [{ drawing: this.#matrix, caption: "Contributions to the similarity" }] : [];
  }

  async load(a, b) {
    this.texts = [a, b];
    const { through } = this.#state.values;
    byId("pair-meaning").textContent = MEANINGS[through];
    this.#pointer.clear();
    this.#forget();
    const load = async (signal) => {
      this.answer = withBiases(await ask("explain", { body: { a, b, through, ...this.#prompt }, signal }));
      this.draw();
    };
    await this.#section.ask(load, async (error, signal) => {
      if (!error.isUnsupported || through !== "pooling") return this.#section.fail(error);
      await attempt(() => this.#showSimilarityOnly(a, b, signal), (failure) => this.#section.fail(failure), signal);
    });
  }

  stop() {
    this.#section.stop();
    this.#forget();
  }

  get #prompt() {
    return promptOptions(this.#state.values);
  }

  draw() {
    if (!this.answer) return;
    const { similarity, contributions, a, b } = this.answer;
    byId("pair-matrix").hidden = false;
    byId("similarity").textContent = formatNumber(similarity);
    byId("similarity").dataset.value = similarity;
    byId("pair-note").hidden = !(a.truncated || b.truncated);
    this.#strips.a.show(a.labels, a.special);
    this.#strips.b.show(b.labels, b.special);
    const [first, second] = [{ ...a, title: "first text" }, { ...b, title: "second text" }];
    this.#map = NumberMap.of(contributions);
    this.#matrix.show(drawingModel(this.#map, first, second, { isSigned: true }));
    this.#point();
  }

  #point() {
    if (!this.answer) return;
    const { place } = this.#pointer;
    const { a, b } = this.answer;
    this.#strips.a.shade(relative(a.weights));
    this.#strips.b.shade(relative(b.weights));
    this.#strips.a.mark(place.row);
    this.#strips.b.mark(place.column);
    byId("pair-readout").replaceChildren(...this.#words(place));
  }

  #words({ row, column }) {
    const { similarity, a, b } = this.answer;
    const value = this.#map.sum({ row, column });
    if (row === null && column === null) {
      return [
        element("span", {}, "The similarity ", bold(similarity), " is the sum of all cells: "),
        bold(value, { id: "pair-sum", data: { value } }),
      ];
    }
    const saliencies = [a.saliency?.[row], b.saliency?.[column]].filter((one) => one !== undefined);
    return [
      tokenPair(a.labels[row] ?? "all", "·", b.labels[column] ?? "all"),
      element("span", {}, "contribution ", bold(value)),
      quiet(`${((100 * value) / similarity).toFixed(1)} % of the similarity`),
      ...saliencies.map((one) => quiet(`saliency ${formatNumber(one)}`)),
    ];
  }

  async #showSimilarityOnly(a, b, signal) {
    const [[first], [second]] = await Promise.all(
      [a, b].map((inputs) => encodeVectors({ inputs, ...this.#prompt }, signal)),
    );
    byId("similarity").textContent = formatNumber(1 - turnedBetween(first, second));
    byId("pair-readout").replaceChildren(quiet(UNSUPPORTED));
  }

  /** Takes away what belongs to the texts before. */
  #forget() {
    this.answer = null;
    byId("pair-matrix").hidden = byId("pair-note").hidden = true;
    byId("similarity").textContent = byId("pair-readout").textContent = "";
    for (const strip of Object.values(this.#strips)) strip.show([], []);
  }
}

function relative(values) {
  const most = Math.max(...values);
  return values.map((value) => (most > 0 ? Math.max(0, value / most) : 0));
}

/** The answer with each side's `labels`, which of them are `special`, and `weights` for their bars. */
function withBiases(answer) {
  const { byRow, byColumn } = sumsOf(answer.contributions);
  return { ...answer, a: labelled(answer.a, byRow), b: labelled(answer.b, byColumn) };
}

function labelled(side, sums) {
  const rest = sums.length > side.tokens.length ? ["biases"] : [];
  const special = [...isSpecial(side.offsets), ...rest.map(() => true)];
  return { ...side, labels: [...side.tokens, ...rest], special, weights: side.saliency ?? sums };
}
