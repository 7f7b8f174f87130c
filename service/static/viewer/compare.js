// Two maps side by side, and their difference: two heads on one text, or one head on two texts.

import { byId, element, quiet, tokenPair } from "./dom.js";
import { formatNumber } from "./ink.js";
import { NumberMap, ofOneText } from "./maps.js";
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
  #panes; // made once: each listens to the pointer permanently
  #shown = []; // the visible panes

  constructor(explorer) {
    this.#explorer = explorer;
    this.#panes = ["First map", "Second map", DIFFERENCE].map((name) => this.#pane(name));
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
    if (!this.#kept || !now?.labels.length) return;
    const maps = [this.#kept, { title: this.#explorer.title, ...now }];
    if (String(now.labels) === String(this.#kept.labels)) maps.push(differenceOf(...maps));
    const high = Math.max(...maps.slice(0, 2).map(({ maps: { weights } }) => weights.largest));
    this.#shown = maps.map((content, place) => ({ ...this.#panes[place], ...content, map: content.maps.weights }));
    byId("compare").hidden = false;
    byId("compare-panes").replaceChildren(...this.#shown.map(({ figure }) => figure));
    for (const pane of this.#shown) {
      const text = pane.isSigned ? "blue: more, orange: less" : shorten(pane.request.text);
      pane.caption.replaceChildren(pane.title, quiet(text));
      pane.drawing.show(modelOf(pane, pane.isSigned ? pane.map.largest : high));
    }
    this.#read();
  }

  #keep() {
    if (!this.#explorer.large?.labels.length) return;
    this.#kept = { title: this.#explorer.title, ...this.#explorer.large };
    this.draw();
  }

  #pane(name) {
    const [caption, host] = [element("figcaption"), element("div", { class: "drawing" })];
    const figure = element("figure", { class: "pane" }, caption, host);
    return { figure, caption, drawing: new Matrix(host, this.#pointer, { name }) };
  }

  #read() {
    if (!this.#shown.length) return;
    const { row, column } = this.#pointer.place;
    const [first, second, difference] = this.#shown;
    const inside = ({ map }) => row !== null && column !== null && row < map.rows && column < map.columns;
    if ([first, second].every(inside)) {
      const names = [second.labels[row], "→", second.labels[column]];
      const values = this.#shown.map(({ map }) => formatNumber(map.at(row, column)));
      byId("compare-readout").replaceChildren(...(difference ? [tokenPair(...names)] : []), quiet(values.join(" · ")));
    } else {
      byId("compare-readout").replaceChildren(quiet(difference ? distanceOf(difference.map) : NO_DIFFERENCE));
    }
  }
}

function differenceOf(first, second) {
  const [a, b] = [first.maps.weights, second.maps.weights];
  const weights = new NumberMap(b.values.map((value, cell) => value - a.values[cell]), a.rows, a.columns);
  return { ...second, title: DIFFERENCE, isSigned: true, maps: { weights } };
}

/** How far rows are apart: half the sum of absolute differences, 0 for equal rows and 1 for rows that share no token. */
function distanceOf(map) {
  const half = map.values.reduce((total, value) => total + Math.abs(value), 0) / 2 / Math.max(1, map.rows);
  return `On average ${formatNumber(half)} of a row's weight lies on other tokens. Point at a cell to read its numbers.`;
}

function modelOf({ map, labels, offsets, isSigned = false }, high) {
  const special = offsets.map(([start, end]) => start === end);
  const palette = isSigned ? signedPalette(shownTheme()) : amountPalette(shownTheme());
  return ofOneText(map, { labels, special, palette, high, signed: isSigned });
}

function shorten(text) {
  const letters = [...text];
  return letters.length > SHOWN_LETTERS ? `${letters.slice(0, SHOWN_LETTERS).join("")}…` : text;
}
