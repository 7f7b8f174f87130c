// A part of an attention map, from one text's tokens to another's: a matrix and the number pointed at.

import { element, quiet, tokenPair } from "./dom.js";
import { formatNumber } from "./ink.js";
import { NumberMap, drawingModel } from "./maps.js";
import { Matrix } from "./matrix.js";
import { amountPalette } from "./palette.js";
import { Pointer } from "./pointer.js";
import { shownTheme } from "./theme.js";

export class Block {
  #pointer = new Pointer();
  #caption = element("figcaption");
  #drawing = element("div", { class: "drawing" });
  #readout = element("p", { class: "readout", role: "status" });
  #names;
  #content = null;

  /** @param {{from: string, to: string}} names of the two texts */
  constructor(host, names) {
    this.#names = names;
    this.title = `${names.from} → ${names.to}`;
    this.matrix = new Matrix(this.#drawing, this.#pointer, { name: this.title });
    host.append(element("figure", { class: "pane" }, this.#caption, this.#drawing, this.#readout));
    this.#pointer.on(() => this.#read());
  }

  /** @param {{weights: number[][], rows: string[], columns: string[], mass: number}} content */
  show(content) {
    this.#content = content;
    this.#pointer.clear();
    const mass = element("b", { textContent: formatNumber(content.mass), data: { mass: content.mass } });
    this.#caption.replaceChildren(this.title, element("span", {}, "weight in it ", mass));
    this.draw();
  }

  /** Draws it again: it is new, or the theme has changed. */
  draw() {
    const { weights, rows, columns } = this.#content;
    const map = new NumberMap(Float32Array.from(weights.flat()), rows.length, columns.length);
    this.isEmpty = this.#drawing.hidden = !map.values.length;
    if (this.isEmpty) return;
    const [from, to] = [{ labels: rows, title: this.#names.from }, { labels: columns, title: this.#names.to }];
    this.matrix.show(drawingModel(map, from, to, { palette: amountPalette(shownTheme()) }));
  }

  #read() {
    const { weights, rows, columns } = this.#content;
    const { row, column } = this.#pointer.place;
    if (row === null && column === null) {
      const words = rows.length && columns.length ? "Point at a cell to read its weight." : "A text has no tokens.";
      return this.#readout.replaceChildren(quiet(words));
    }
    const chosen = row === null ? weights : [weights[row]];
    const total = chosen.flatMap((one) => (column === null ? one : one[column])).reduce((sum, one) => sum + one, 0);
    const word = row === null || column === null ? "sum of weights " : "weight ";
    this.#readout.replaceChildren(
      tokenPair(rows[row] ?? "all", "→", columns[column] ?? "all"),
      element("span", {}, word, element("b", { textContent: formatNumber(total) })),
    );
  }
}
