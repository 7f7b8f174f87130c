// The large view: one map as lines, as a matrix or both, of weights, of norms or both; and the numbers pointed at.

import { byId, element, quiet, tokenPair } from "./dom.js";
import { formatNumber } from "./ink.js";
import { Lines } from "./lines.js";
import { ofOneText } from "./maps.js";
import { Matrix } from "./matrix.js";

const NAMES = { weights: "Weights", norms: "Norms ‖α f(x)‖" };
const READINGS = { lines: "left looks at right", matrix: "rows look at columns" };
const DRAWINGS = { lines: Lines, matrix: Matrix };

export class Figure {
  #host = byId("panes");
  #readout = byId("readout");
  #pointer;
  panes = []; // the visible ones
  #made = new Map(); // by measure and kind: each is made once, and listens to the pointer permanently
  #layout = "";
  #maps = {};
  #labels = [];
  #written = []; // of each label, its part of the text; "" for special tokens

  constructor(pointer) {
    this.#pointer = pointer;
    pointer.on(() => this.#read());
  }

  /**
   * @param {{weights?: NumberMap, norms?: NumberMap}} maps
   * @param {{labels: string[], written: string[], special: boolean[], palette: Uint8ClampedArray, threshold: number}} shared
   *   `threshold` is a share of each map's largest number
   * @param {{view: string, measure: string}} choice
   */
  show(maps, shared, { view, measure }) {
    this.#maps = maps;
    this.#labels = shared.labels;
    this.#written = shared.written;
    this.#build(view, measure);
    for (const pane of this.panes) {
      const map = maps[pane.measure];
      pane.host.classList.toggle("missing", !map?.values.length);
      if (map?.values.length) pane.drawing.show(ofOneText(map, { ...shared, threshold: shared.threshold * map.largest }));
    }
    this.#read();
  }

  #build(view, measure) {
    const layout = `${view} ${measure}`;
    if (layout === this.#layout) return;
    this.#layout = layout;
    const views = view === "both" ? ["lines", "matrix"] : [view];
    const measures = measure === "both" ? ["weights", "norms"] : [measure];
    this.panes = measures.flatMap((one) => views.map((kind) => this.#pane(one, kind)));
    this.#host.replaceChildren(...this.panes.map(({ figure }) => figure));
  }

  #pane(measure, kind) {
    const key = `${measure} ${kind}`;
    if (!this.#made.has(key)) this.#made.set(key, this.#make(measure, kind));
    return this.#made.get(key);
  }

  #make(measure, kind) {
    const host = element("div", { class: "drawing" });
    const caption = element("figcaption", {}, NAMES[measure], element("span", { textContent: READINGS[kind] }));
    const figure = element("figure", { class: "pane" }, caption, host);
    return { measure, figure, host, drawing: new DRAWINGS[kind](host, this.#pointer, { name: NAMES[measure] }) };
  }

  #read() {
    const { row, column } = this.#pointer.place;
    const name = (index) => this.#labels[index] ?? "";
    this.#readout.replaceChildren();
    if (!this.#labels.length) {
      this.#readout.append(quiet("Nothing is left of this text without its special tokens."));
    } else if (row === null && column === null) {
      this.#readout.append(quiet("Point at a token or a cell to read its numbers."));
    } else if (row !== null && column !== null) {
      this.#readout.append(tokenPair(name(row), "→", name(column)), ...this.#numbers((map) => map.at(row, column)));
      this.#readout.append(...this.#asWritten([row, column]));
    } else {
      const line = (map) => (row !== null ? map.row(row) : map.column(column));
      const names = row !== null ? [name(row), "→", "all"] : ["all", "→", name(column)];
      this.#readout.append(tokenPair(...names), ...this.#numbers((map) => sum(line(map)), "sum of "));
      this.#readout.append(...this.#asWritten([row ?? column]));
    }
  }

  /** The words as the text has them, if the tokenizer changed them. */
  #asWritten(places) {
    const words = places.map((place) => this.#written[place] || this.#labels[place]);
    if (words.every((word, index) => word === this.#labels[places[index]])) return [];
    return [quiet(`written ${words.map((word) => `“${word}”`).join(" → ")}`)];
  }

  #numbers(read, prefix = "") {
    return ["weights", "norms"]
      .filter((measure) => this.#maps[measure] && isInside(this.#maps[measure], this.#pointer.place))
      .map((measure) => {
        const word = prefix ? prefix + measure : measure.slice(0, -1);
        const number = formatNumber(read(this.#maps[measure]));
        return element("span", { data: { measure } }, `${word} `, element("b", { textContent: number }));
      });
  }
}

function isInside(map, { row, column }) {
  return (row ?? 0) < map.rows && (column ?? 0) < map.columns;
}

function sum(values) {
  return values.reduce((total, value) => total + value, 0);
}
