// Two maps side by side, and their difference: two heads on one text, or one head on two texts.

import { byId, element, quiet, tokenPair } from "./dom.js";
import { formatNumber } from "./ink.js";
import { NumberMap } from "./maps.js";
import { Matrix } from "./matrix.js";
import { amountPalette, signedPalette } from "./palette.js";
import { Pointer } from "./pointer.js";
import { shownTheme } from "./theme.js";

const SHOWN_LETTERS = 60; // of a text in a caption
const DIFFERENCE = "Second minus first";
const NO_DIFFERENCE = "The two are of different tokens, so there is no difference cell by cell.";

export class ComparePanel {
  #explorer;
  #kept = null; // {title, ...explorer.large}
  #pointer = new Pointer();
  #panes = [];

  constructor(explorer) {
    this.#explorer = explorer;
    byId("pin").onclick = () => this.#keep();
    byId("unpin").onclick = () => this.stop();
    explorer.onDrawn = () => this.draw();
    this.#pointer.on(() => this.#read());
  }

  stop() {
    this.#kept = null;
    byId("compare").hidden = true;
    byId("pin").focus();
  }

  /** Shows the kept map beside the one that is large now. */
  draw() {
    const now = this.#explorer.large;
    if (!this.#kept || !now) return;
    const shown = { title: this.#explorer.title, ...now };
    const isSame = String(shown.labels) === String(this.#kept.labels);
    this.#panes = [this.#pane(this.#kept), this.#pane(shown)];
    if (isSame) this.#panes.push(this.#pane({ ...shown, title: DIFFERENCE, maps: { weights: minus(shown, this.#kept) } }));
    byId("compare").hidden = false;
    byId("compare-panes").replaceChildren(...this.#panes.map(({ figure }) => figure));
    const high = Math.max(this.#kept.maps.weights.largest, shown.maps.weights.largest);
    for (const pane of this.#panes) pane.drawing.show(modelOf(pane, pane.isSigned ? pane.map.largest : high));
    this.#read();
  }

  #keep() {
    if (!this.#explorer.large) return;
    this.#kept = { title: this.#explorer.title, ...this.#explorer.large };
    this.draw();
  }

  #pane({ title, labels, offsets, maps, request }) {
    const isSigned = title === DIFFERENCE;
    const host = element("div", { class: "drawing" });
    const text = isSigned ? "blue: more, orange: less" : shorten(request.text);
    const figure = element("figure", { class: "pane" }, element("figcaption", {}, title, quiet(text)), host);
    const drawing = new Matrix(host, this.#pointer, { name: title });
    return { figure, drawing, labels, offsets, map: maps.weights, isSigned };
  }

  #read() {
    if (!this.#panes.length) return;
    const { row, column } = this.#pointer.place;
    const [first, second, difference] = this.#panes;
    const inside = ({ map }) => row !== null && column !== null && row < map.rows && column < map.columns;
    if ([first, second].every(inside)) {
      const names = [second.labels[row], "→", second.labels[column]];
      const values = this.#panes.map(({ map }) => formatNumber(map.at(row, column)));
      byId("compare-readout").replaceChildren(...(difference ? [tokenPair(...names)] : []), quiet(values.join(" · ")));
    } else {
      byId("compare-readout").replaceChildren(quiet(difference ? distanceOf(difference.map) : NO_DIFFERENCE));
    }
  }
}

function minus(second, first) {
  const [a, b] = [second.maps.weights, first.maps.weights];
  return new NumberMap(a.values.map((value, cell) => value - b.values[cell]), a.rows, a.columns);
}

/** How far rows are apart: half the sum of absolute differences, 0 for equal rows and 1 for rows that share no token. */
function distanceOf(map) {
  const half = map.values.reduce((total, value) => total + Math.abs(value), 0) / 2 / Math.max(1, map.rows);
  return `On average ${formatNumber(half)} of a row's weight lies on other tokens. Point at a cell to read its numbers.`;
}

function modelOf({ map, labels, offsets, isSigned }, high) {
  const special = offsets.map(([start, end]) => start === end);
  const palette = isSigned ? signedPalette(shownTheme()) : amountPalette(shownTheme());
  const names = { rowLabels: labels, columnLabels: labels, rowSpecial: special, columnSpecial: special };
  return { map, ...names, rowTitle: "query", columnTitle: "key", palette, high, signed: isSigned, threshold: 0 };
}

function shorten(text) {
  const letters = [...text];
  return letters.length > SHOWN_LETTERS ? `${letters.slice(0, SHOWN_LETTERS).join("")}…` : text;
}
