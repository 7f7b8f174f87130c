// Two texts: their similarity, and which pairs of tokens carry it.

import { encodeVectors, explain } from "./api.js";
import { byId, element, quiet, showBusy, tokenPair } from "./dom.js";
import { formatNumber } from "./ink.js";
import { NumberMap, drawingModel, sumsOf } from "./maps.js";
import { Matrix } from "./matrix.js";
import { describeFailure } from "./notices.js";
import { signedPalette } from "./palette.js";
import { Pointer } from "./pointer.js";
import { shownTheme } from "./theme.js";
import { TokenStrip } from "./tokens.js";
import { Turn, whileBusy } from "./turns.js";
import { turnedBetween } from "./effect.js";
import { promptOptions } from "./source.js";

const UNSUPPORTED = "Similarity only: this server cannot say which tokens carry it (it can for mean pooling).";

const BIASES = "biases";
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
  #turn = new Turn();
  #pointer = new Pointer();
  #matrix;
  #strips;
  answer = null;
  texts = null; // the two that the answer is of

  constructor(state) {
    this.#state = state;
    this.#matrix = new Matrix(byId("pair-matrix"), this.#pointer, { name: "Contributions of pairs of tokens" });
    this.#strips = {
      a: new TokenStrip(byId("pair-a"), this.#pointer, { name: "Tokens of the first text", axis: "row" }),
      b: new TokenStrip(byId("pair-b"), this.#pointer, { name: "Tokens of the second text", axis: "column" }),
    };
    this.#pointer.on(() => this.#point());
    state.on(["through"], () => this.texts && !byId("pair").hidden && this.load(...this.texts));
  }

  get #through() {
    return this.#state.values.through;
  }

  get drawings() {
    return this.answer ? [{ drawing: this.#matrix, caption: "Contributions to the similarity" }] : [];
  }

  async load(a, b) {
    this.texts = [a, b];
    byId("pair").hidden = false;
    byId("pair-meaning").textContent = MEANINGS[this.#through];
    const signal = this.#turn.begin();
    this.#pointer.clear();
    this.#forget();
    await whileBusy(byId("pair"), signal, async () => {
      this.answer = withBiases(await explain(a, b, this.#through, signal, promptOptions(this.#state.values)));
      this.draw();
    }, async (error) => {
      if (error.isUnsupported && this.#through === "pooling") await this.#showSimilarityOnly(a, b, signal);
      else this.#fail(error);
    });
  }

  stop() {
    this.#turn.end();
    this.#forget();
    byId("pair").hidden = true;
    showBusy(byId("pair"), false);
  }

  draw() {
    if (!this.answer) return;
    const { similarity, contributions, a, b } = this.answer;
    byId("pair-matrix").hidden = false;
    byId("similarity").textContent = formatNumber(similarity);
    byId("similarity").dataset.value = similarity;
    byId("pair-note").hidden = !(a.truncated || b.truncated);
    const map = new NumberMap(Float32Array.from(contributions.flat()), a.labels.length, b.labels.length);
    this.#strips.a.show(a.labels, a.special);
    this.#strips.b.show(b.labels, b.special);
    const [first, second] = [{ ...a, title: "first text" }, { ...b, title: "second text" }];
    this.#matrix.show(drawingModel(map, first, second, { palette: signedPalette(shownTheme()), signed: true }));
    this.#point();
  }

  #point() {
    if (!this.answer) return;
    const { row, column } = this.#pointer.place;
    const { a, b } = this.answer;
    this.#strips.a.shade(relative(a.weights));
    this.#strips.b.shade(relative(b.weights));
    this.#strips.a.mark(row);
    this.#strips.b.mark(column);
    byId("pair-readout").replaceChildren(...this.#words(row, column));
  }

  #words(row, column) {
    const { contributions, similarity, a, b } = this.answer;
    if (row === null && column === null) {
      const total = contributions.flat().reduce((sum, value) => sum + value, 0);
      return [
        element("span", {}, "The similarity ", bold(formatNumber(similarity)), " is the sum of all cells: "),
        element("b", { id: "pair-sum", textContent: formatNumber(total), data: { value: total } }),
      ];
    }
    const rows = row === null ? contributions : [contributions[row]];
    const cells = rows.flatMap((one) => (column === null ? one : [one[column]]));
    const value = cells.reduce((sum, one) => sum + one, 0);
    const names = [row === null ? "all" : a.labels[row], column === null ? "all" : b.labels[column]];
    return [
      tokenPair(names[0], "·", names[1]),
      element("span", {}, "contribution ", bold(formatNumber(value))),
      quiet(`${((100 * value) / similarity).toFixed(1)} % of the similarity`),
      ...[a.saliency?.[row], b.saliency?.[column]]
        .filter((one) => one !== undefined)
        .map((one) => quiet(`saliency ${formatNumber(one)}`)),
    ];
  }

  async #showSimilarityOnly(a, b, signal) {
    try {
      const options = { prompt: promptOptions(this.#state.values), signal };
      const [[first], [second]] = await Promise.all([encodeVectors(a, options), encodeVectors(b, options)]);
      byId("similarity").textContent = formatNumber(1 - turnedBetween(first, second));
      byId("pair-readout").replaceChildren(quiet(UNSUPPORTED));
    } catch (error) {
      if (!signal.aborted) this.#fail(error);
    }
  }

  /** Takes away what belongs to the texts before. */
  #forget() {
    this.answer = null;
    byId("pair-matrix").hidden = byId("pair-note").hidden = true;
    byId("similarity").textContent = byId("pair-readout").textContent = "";
    for (const strip of Object.values(this.#strips)) strip.show([], []);
  }

  #fail(error) {
    byId("pair-readout").textContent = describeFailure(error);
  }
}

function bold(textContent) {
  return element("b", { textContent });
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
  const rest = sums.length > side.tokens.length ? [BIASES] : [];
  const special = [...side.offsets.map(([start, end]) => start === end), ...rest.map(() => true)];
  return { ...side, labels: [...side.tokens, ...rest], special, weights: side.saliency ?? sums };
}
