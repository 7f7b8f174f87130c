// Two maps side by side, and their difference: two heads on one text, or one head on two texts.

import { byId, formatNumber, pane, quiet, tokenPair } from "./dom.js";
import { NumberMap, Pointer, ofOneText } from "./maps.js";
import { Matrix } from "./matrix.js";

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
    this.#panes = ["First map", "Second map", DIFFERENCE].map((name) => {
      const { figure, caption, host } = pane();
      return { figure, caption, drawing: new Matrix(host, this.#pointer, { name }) };
    });
    byId("pin").onclick = () => this.#keep();
    byId("unpin").onclick = () => this.#stop();
    explorer.onDrawn = () => this.#draw();
    this.#pointer.on(() => this.#read());
  }

  #keep() {
    if (!this.#explorer.large?.labels.length) return;
    this.#kept = { title: this.#explorer.title, ...this.#explorer.large };
    this.#draw();
  }

  #stop() {
    this.#kept = null;
    byId("compare").hidden = true;
    byId("pin").focus();
  }

  /** Shows the kept map beside the one that is large now. */
  #draw() {
    const now = this.#explorer.large;
    if (!this.#kept || !now.labels.length) return;
    const pair = [this.#kept, { title: this.#explorer.title, ...now }].map(({ maps, request, ...rest }) => {
      return { ...rest, map: maps.weights, words: request.text, isSigned: false };
    });
    const isSameText = String(now.labels) === String(this.#kept.labels);
    const all = isSameText ? [...pair, differenceOf(...pair)] : pair;
    const high = Math.max(...pair.map(({ map }) => map.largest));
    this.#shown = all.map((content, place) => ({ ...this.#panes[place], ...content }));
    byId("compare").hidden = false;
    byId("compare-panes").replaceChildren(...this.#shown.map(({ figure }) => figure));
    for (const { caption, title, words, drawing, map, isSigned, ...tokens } of this.#shown) {
      caption.replaceChildren(title, quiet(words));
      drawing.show(ofOneText(map, tokens, { isSigned, high: isSigned ? map.largest : high }));
    }
    this.#read();
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

function differenceOf({ map: first }, { map: second, ...tokens }) {
  const values = second.values.map((value, cell) => value - first.values[cell]);
  const map = new NumberMap(values, second.rows, second.columns);
  return { ...tokens, map, title: DIFFERENCE, words: "blue: more, orange: less", isSigned: true };
}

/** How far rows are apart: half the sum of absolute differences, 0 for equal rows and 1 for rows that share no token. */
function distanceOf(map) {
  const half = map.values.reduce((total, value) => total + Math.abs(value), 0) / 2 / map.rows;
  return `On average ${formatNumber(half)} of a row's weight lies on other tokens. Point at a cell to read its numbers.`;
}
