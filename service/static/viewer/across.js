// Two texts that a cross-encoder reads together: their score, and what each looks at in the other. The chosen head, or
// what stands for several, is shown as two large blocks, both ways; every head as a small map, one way.

import { ask, rankOne } from "./api.js";
import { Section, Turn, attempt, describeFailure } from "./asking.js";
import { bold, button, byId, element, formatNumber, pane, quiet, tableRow, tokenPair } from "./dom.js";
import { HeadGrid } from "./grid.js";
import { NumberMap, Pointer, crop, drawingModel } from "./maps.js";
import { Matrix } from "./matrix.js";
import { attentionOptions, loadSmallMaps } from "./source.js";

const [QUERY, DOCUMENT] = [0, 1]; // as the service numbers the texts of a pair
const LONGEST_FOR_ALL_HEADS = 1000; // characters of both texts; the maps of longer ones are large
const REDUCED = { mean: "the mean of its heads", max: "the largest of its heads" };
const FILTERS = ["level", "hide", "renormalise"];
const SHOWN = ["layer", "head", "map", "blocks", ...FILTERS];
const GRID_NAME = "Heads of all layers, from the first text to the second";

export class AcrossView {
  #state;
  #section = new Section("across", "across-failure");
  #blocks;
  #grid;
  answer = null;
  texts = null; // the two that the answer is of

  constructor(state, info) {
    this.#state = state;
    this.#grid = new PairGrid(state, info);
    this.#blocks = {
      query_to_document: new Block("first text", "second text"),
      document_to_query: new Block("second text", "first text"),
    };
    const whileShown = (show) => () => this.#section.isShown && show(state.values.a, state.values.b);
    state.on(SHOWN, whileShown((a, b) => this.#loadBlocks(a, b)));
    state.on(FILTERS, whileShown((a, b) => this.#grid.load(a, b)));
  }

  get drawings() {
    const shown = Object.values(this.#blocks).filter((block) => this.answer && !block.isEmpty);
    return shown.map(({ matrix, title }) => ({ drawing: matrix, caption: title }));
  }

  async load(a, b) {
    await Promise.all([this.#loadBlocks(a, b), this.#grid.load(a, b)]);
  }

  async #loadBlocks(a, b) {
    if (this.texts?.[0] !== a || this.texts[1] !== b) byId("score").textContent = "";
    this.texts = [a, b];
    this.answer = null;
    const { values } = this.#state;
    const attention = { ...selectHeads(values, a.length + b.length), ...attentionOptions(values) };
    const load = async (signal) => {
      this.answer = await rankOne(a, b, { attention }, signal);
      this.#show();
    };
    await this.#section.ask(load, (error) => {
      byId("score").textContent = "";
      this.#section.fail(error);
    });
  }

  stop() {
    this.#section.stop();
    this.#grid.stop();
    this.answer = null;
  }

  draw() {
    if (!this.answer) return;
    for (const block of Object.values(this.#blocks)) block.draw();
    this.#grid.paint();
  }

  #show() {
    const { score, attention, truncated } = this.answer;
    Object.assign(byId("score"), { textContent: formatNumber(score) }).dataset.value = score;
    byId("across-note").hidden = !truncated;
    byId("across-title-of-map").textContent = titleOf(this.#state.values);
    const labels = attention.words ?? attention.tokens;
    const of = (text) => labels.filter((_, at) => attention.segments[at] === text);
    const [query, document] = [of(QUERY), of(DOCUMENT)];
    const at = attention.reduce ? 0 : attention.heads[0].indexOf(this.#state.values.head);
    const show = (name, rows, columns) =>
      this.#blocks[name].show(attention[name][0][at], rows, columns, attention[`${name}_mass`][0][at]);
    show("query_to_document", query, document);
    show("document_to_query", document, query);
    byId("across-table").hidden = Boolean(attention.reduce);
    if (!attention.reduce) this.#listHeads(attention);
  }

  #listHeads({ heads, query_to_document_mass: [forward], document_to_query_mass: [back] }) {
    const host = byId("across-heads");
    const hadFocus = host.contains(document.activeElement);
    const opener = (head) => {
      const ariaPressed = head === this.#state.values.head;
      return button(`head ${head}`, () => this.#state.set({ head }), { className: "plain", ariaPressed });
    };
    host.replaceChildren(...heads[0].map((head, at) => tableRow(opener(head), forward[at], back[at])));
    if (hadFocus) host.querySelector("[aria-pressed=true]")?.focus();
  }
}

/** The maps that are asked for: a rollout, a layer's heads, or what these are reduced to. */
function selectHeads({ map, blocks, layer, head }, length) {
  if (map === "rollout") return { reduce: "rollout" };
  if (blocks !== "head") return { layers: [layer], reduce: blocks };
  return { layers: [layer], heads: length > LONGEST_FOR_ALL_HEADS ? [head] : "all" };
}

function titleOf({ map, blocks, layer, head }) {
  if (map === "rollout") return "Rollout through all layers";
  return `Layer ${layer}, ${REDUCED[blocks] ?? `head ${head}`}`;
}

/** A part of an attention map, from one text's tokens to another's: a matrix and the number pointed at. */
class Block {
  #pointer = new Pointer();
  #pane = pane();
  #readout = element("p", { className: "readout", role: "status" });
  #from;
  #to;
  #map = null;

  constructor(from, to) {
    this.#from = { title: from };
    this.#to = { title: to };
    this.title = `${from} → ${to}`;
    this.matrix = new Matrix(this.#pane.host, this.#pointer, { name: this.title });
    this.#pane.figure.append(this.#readout);
    byId("across-blocks").append(this.#pane.figure);
    this.#pointer.on(() => this.#read());
  }

  get isEmpty() {
    return !this.#map.values.length;
  }

  /**
   * @param {number[][]} weights rows x columns
   * @param {string[]} rows, columns labels
   * @param {number} mass the weight in it
   */
  show(weights, rows, columns, mass) {
    this.#map = NumberMap.of(weights);
    this.#from.labels = rows;
    this.#to.labels = columns;
    this.#pointer.clear();
    this.#pane.caption.replaceChildren(this.title, element("span", {}, "weight in it ", bold(mass, { data: { mass } })));
    this.draw();
  }

  /** Draws it again: it is new, or the theme has changed. */
  draw() {
    this.#pane.host.hidden = this.isEmpty;
    if (!this.isEmpty) this.matrix.show(drawingModel(this.#map, this.#from, this.#to));
  }

  #read() {
    const { row, column } = this.#pointer.place;
    if (row === null && column === null) {
      const words = this.isEmpty ? "A text has no tokens." : "Point at a cell to read its weight.";
      return this.#readout.replaceChildren(quiet(words));
    }
    const word = row === null || column === null ? "sum of weights " : "weight ";
    this.#readout.replaceChildren(
      tokenPair(this.#from.labels[row] ?? "all", "→", this.#to.labels[column] ?? "all"),
      element("span", {}, word, bold(this.#map.sum({ row, column }))),
    );
  }
}

/** What each head looks at from one text to the other: a small map a head, all layers together. */
class PairGrid extends HeadGrid {
  #state;
  #info;
  #host; // on the page while there is something to show
  #turn = new Turn();

  constructor(state, info) {
    const host = element("div");
    super(host, info.manifest.config, state, { name: GRID_NAME, hasRollout: false, opens: { blocks: "head" } });
    this.#state = state;
    this.#info = info;
    this.#host = host;
  }

  /** Maps of every head, layer by layer, the shown layer first. What fails is said in their place. */
  async load(a, b) {
    this.clear();
    byId("across-grid").replaceChildren(this.#host);
    byId("across-filled").textContent = "";
    const fail = (error) => {
      this.stop();
      byId("across-filled").textContent = describeFailure(error);
    };
    await attempt((signal) => this.#fill([a, b], signal), fail, this.#turn.begin());
  }

  stop() {
    this.#turn.end();
    byId("across-grid").replaceChildren();
  }

  async #fill(pair, signal) {
    const sides = (await ask("tokenize", { body: { inputs: pair }, signal })).items;
    const numTokens = sides.reduce((sum, { tokens }) => sum + tokens.length, 0);
    await loadSmallMaps(pair, this.#state.values, { numTokens, info: this.#info, signal }, (maps, segments) => {
      const of = (text) => segments.flatMap((segment, at) => (segment === text ? [at] : []));
      const [rows, columns] = [of(QUERY), of(DOCUMENT)];
      this.put(maps.map(([key, map]) => [key, crop(map, rows, columns)]));
    });
  }
}
