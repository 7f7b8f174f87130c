// The large view: one map as lines, as a matrix or both, of weights, of norms or both; and the numbers pointed at.

import { bold, byId, element, pane, quiet, tokenPair } from "./dom.js";
import { Lines } from "./lines.js";
import { ofOneText } from "./maps.js";
import { Matrix } from "./matrix.js";

const NAMES = { weights: "Weights", norms: "Norms ‖α f(x)‖" };
const READINGS = { lines: "left looks at right", matrix: "rows look at columns" };
const DRAWINGS = { lines: Lines, matrix: Matrix };

export class Figure {
  #pointer;
  #made; // every pane: each is made once, and listens to the pointer permanently
  #chosen = []; // those that the reader wants
  #maps = {};
  #labels = [];
  #written = []; // of each label, its part of the text; "" for special tokens

  constructor(pointer) {
    this.#pointer = pointer;
    this.#made = Object.keys(NAMES).flatMap((measure) => Object.keys(DRAWINGS).map((kind) => this.#make(measure, kind)));
    pointer.on(() => this.#read());
  }

  /** The visible drawings, with a caption each. */
  get drawings() {
    const visible = this.#chosen.filter(({ host }) => !host.hidden);
    return visible.map(({ drawing, measure }) => {
      return { drawing, caption: [NAMES[measure], drawing.shown].filter(Boolean).join(", ") };
    });
  }

  /**
   * @param {{weights: NumberMap, norms?: NumberMap}} maps
   * @param {{labels: string[], written: string[], special: boolean[]}} tokens
   * @param {{view: string, measure: string, threshold: number}} choice `threshold` in hundredths of each map's largest
   *   number
   */
  show(maps, tokens, { view, measure, threshold }) {
    this.#maps = maps;
    this.#labels = tokens.labels;
    this.#written = tokens.written;
    const isChosen = (one) => [one.kind, "both"].includes(view) && [one.measure, "both"].includes(measure);
    const chosen = this.#made.filter(isChosen);
    if (chosen.join() !== this.#chosen.join()) byId("panes").replaceChildren(...chosen.map(({ figure }) => figure));
    this.#chosen = chosen;
    for (const one of chosen) {
      const map = maps[one.measure];
      one.host.hidden = !map?.values.length;
      if (!one.host.hidden) one.drawing.show(ofOneText(map, tokens, { threshold: (threshold / 100) * map.largest }));
    }
    this.#read();
  }

  #make(measure, kind) {
    const { figure, host } = pane(NAMES[measure], element("span", { textContent: READINGS[kind] }));
    const drawing = new DRAWINGS[kind](host, this.#pointer, { name: NAMES[measure] });
    return { measure, kind, host, drawing, figure, toString: () => `${measure} ${kind}` };
  }

  #read() {
    byId("readout").replaceChildren(...this.#words(this.#pointer.place));
  }

  #words({ row, column }) {
    if (!this.#labels.length) return [quiet("Nothing is left of this text without its special tokens.")];
    if (row === null && column === null) return [quiet("Point at a token or a cell to read its numbers.")];
    const name = (index) => (index === null ? "all" : this.#labels[index] ?? "");
    const pointedAt = tokenPair(name(row), "→", name(column));
    return [pointedAt, ...this.#numbers({ row, column }), ...this.#asWritten([row, column])];
  }

  #numbers(place) {
    const isCell = place.row !== null && place.column !== null;
    const isInside = ({ rows, columns }) => (place.row ?? 0) < rows && (place.column ?? 0) < columns;
    const there = Object.keys(NAMES).filter((measure) => this.#maps[measure] && isInside(this.#maps[measure]));
    return there.map((measure) => {
      const word = isCell ? measure.slice(0, -1) : `sum of ${measure}`;
      return element("span", { data: { measure } }, `${word} `, bold(this.#maps[measure].sum(place)));
    });
  }

  /** The words as the text has them, if the tokenizer changed them. */
  #asWritten(place) {
    const places = place.filter((index) => index !== null);
    const words = places.map((index) => this.#written[index] || this.#labels[index]);
    if (words.every((word, at) => word === this.#labels[places[at]])) return [];
    return [quiet(`written ${words.map((word) => `“${word}”`).join(" → ")}`)];
  }
}
