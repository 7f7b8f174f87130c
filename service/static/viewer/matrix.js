// A map as a matrix: one cell a pair, in canvas, from a few tokens to hundreds.

import { element, oncePerFrame, prepareCanvas } from "./dom.js";
import { LABEL_FONT, LEGEND_HEIGHT, TEXT_FONT, fit, pageInk, paintLegend, widest } from "./ink.js";
import { shrink, toImage } from "./maps.js";

const LONGEST_LABEL = 112;
const LARGEST_CELL = 34;
const SMALLEST_LABELLED_CELL = 9;
const BARE_MARGIN = 20; // where cells are too small for labels

export class Matrix {
  #canvas;
  #host;
  #pointer;
  #model = null;
  #geometry = null;
  #image = null;
  #draw = oncePerFrame(() => this.#paintAll());

  constructor(host, pointer, { name }) {
    this.#canvas = element("canvas", {
      class: "matrix",
      tabIndex: 0,
      role: "application",
      aria: { roledescription: "matrix", label: `${name}. Arrow keys move from cell to cell.` },
    });
    this.#host = host;
    host.append(this.#canvas);
    this.#pointer = pointer;
    pointer.on(() => this.#draw());
    new ResizeObserver(() => this.#layOut()).observe(host);
    this.#listen();
  }

  /** @param {object} model `map`, `rowLabels`, `columnLabels`, `rowSpecial`, `columnSpecial` and the scale */
  show(model) {
    this.#model = model;
    this.#layOut();
  }

  /** Height that a picture of it takes at a width. */
  heightAt(width) {
    return layOut(this.#model, width).height;
  }

  /** Draws it as it is shown, for a picture. */
  paint(context, width) {
    const geometry = layOut(this.#model, width);
    paintMatrix(context, this.#model, geometry, makeImage(this.#model, geometry, 2), this.#pointer.place);
  }

  #layOut() {
    const width = this.#host.clientWidth;
    if (!this.#model || !width) return;
    this.#geometry = layOut(this.#model, width);
    this.#image = makeImage(this.#model, this.#geometry, window.devicePixelRatio || 1);
    this.#draw();
  }

  #paintAll() {
    if (!this.#geometry) return;
    const context = prepareCanvas(this.#canvas, this.#geometry.width, this.#geometry.height);
    paintMatrix(context, this.#model, this.#geometry, this.#image, this.#pointer.place);
  }

  #listen() {
    const point = (event) => this.#cellAt(event.offsetX, event.offsetY);
    this.#canvas.addEventListener("pointermove", (event) => this.#pointer.hover(...point(event)));
    this.#canvas.addEventListener("pointerleave", () => this.#pointer.leave());
    this.#canvas.addEventListener("click", (event) => this.#pointer.pin(...point(event)));
    this.#canvas.addEventListener("blur", () => this.#pointer.leave());
    this.#canvas.addEventListener("keydown", (event) => this.#move(event));
  }

  #cellAt(x, y) {
    const { left, top, cell } = this.#geometry;
    const inside = (at, count) => (at >= 0 && at < count ? at : null);
    const row = inside(Math.floor((y - top) / cell), this.#model.map.rows);
    const column = inside(Math.floor((x - left) / cell), this.#model.map.columns);
    const isLabel = x < left !== y < top; // a label alone points at its whole row or column
    return isLabel || (row !== null && column !== null) ? [row, column] : [null, null];
  }

  #move(event) {
    const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    if (event.key === "Escape") this.#pointer.clear();
    if (!(event.key in steps) || !this.#model) return;
    event.preventDefault();
    const [down, right] = steps[event.key];
    const { row, column } = this.#pointer.place;
    const next = (at, step, count) => (at === null ? 0 : Math.max(0, Math.min(count - 1, at + step)));
    this.#pointer.hover(next(row, down, this.#model.map.rows), next(column, right, this.#model.map.columns));
  }
}

function layOut({ map, rowLabels, columnLabels }, width) {
  const context = document.createElement("canvas").getContext("2d");
  context.font = LABEL_FONT;
  let left = widest(context, rowLabels, Math.min(LONGEST_LABEL, width / 3)) + 8;
  let top = widest(context, columnLabels, LONGEST_LABEL) + 8;
  let cell = Math.min(LARGEST_CELL, (width - left - 2) / map.columns);
  const isLabelled = cell >= SMALLEST_LABELLED_CELL;
  if (!isLabelled) {
    left = top = BARE_MARGIN;
    cell = Math.min(LARGEST_CELL, (width - left - 2) / map.columns);
  }
  return { width, left, top, cell, isLabelled, height: top + cell * map.rows + LEGEND_HEIGHT };
}

/** One pixel a cell, or one a screen pixel where cells are smaller than that. */
export function makeImage(model, { cell }, ratio) {
  const pixels = (cells) => Math.max(1, Math.floor(cells * Math.min(1, cell * ratio)));
  const shrunk = shrink(model.map, pixels(model.map.rows), pixels(model.map.columns));
  const image = element("canvas", { width: shrunk.columns, height: shrunk.rows });
  image.getContext("2d").putImageData(toImage(shrunk, model), 0, 0);
  return image;
}

function paintMatrix(context, model, geometry, image, place) {
  const { left, top, cell } = geometry;
  const { rows, columns } = model.map;
  const ink = pageInk();
  context.imageSmoothingEnabled = false;
  context.drawImage(image, left, top, columns * cell, rows * cell);
  context.strokeStyle = ink.line;
  context.lineWidth = 1;
  context.strokeRect(left - 0.5, top - 0.5, columns * cell + 1, rows * cell + 1);
  if (geometry.isLabelled) paintLabels(context, model, geometry, ink, place);
  else paintAxisNames(context, model, geometry, ink);
  paintPlace(context, model, geometry, ink, place);
  paintLegend(context, model, ink, left, top + rows * cell);
}

function paintLabels(context, model, { left, top, cell }, ink, place) {
  context.font = LABEL_FONT.replace("12px", `${Math.min(12, cell)}px`);
  context.textBaseline = "middle";
  context.textAlign = "right";
  model.rowLabels.forEach((label, row) => {
    context.fillStyle = labelColour(ink, model.rowSpecial[row], row === place.row);
    context.fillText(fit(context, label, left - 8), left - 6, top + (row + 0.5) * cell);
  });
  context.textAlign = "left";
  model.columnLabels.forEach((label, column) => {
    context.fillStyle = labelColour(ink, model.columnSpecial[column], column === place.column);
    context.save();
    context.translate(left + (column + 0.5) * cell, top - 6);
    context.rotate(-Math.PI / 2);
    context.fillText(fit(context, label, top - 8), 0, 0);
    context.restore();
  });
}

function labelColour(ink, isSpecial, isPointed) {
  if (isPointed) return ink.accent;
  return isSpecial ? ink.quiet : ink.ink;
}

function paintAxisNames(context, model, { left, top }, ink) {
  context.font = TEXT_FONT;
  context.fillStyle = ink.quiet;
  context.textAlign = "left";
  context.textBaseline = "middle";
  context.fillText(`${model.columnTitle} →`, left, top / 2);
  context.save();
  context.translate(left / 2, top);
  context.rotate(-Math.PI / 2);
  context.textAlign = "right";
  context.fillText(`← ${model.rowTitle}`, 0, 0);
  context.restore();
}

function paintPlace(context, model, { left, top, cell }, ink, { row, column }) {
  context.strokeStyle = ink.accent;
  context.lineWidth = 1;
  if (row !== null) context.strokeRect(left, top + row * cell, model.map.columns * cell, cell);
  if (column !== null) context.strokeRect(left + column * cell, top, cell, model.map.rows * cell);
  if (row === null || column === null) return;
  context.lineWidth = 2;
  context.strokeRect(left + column * cell, top + row * cell, cell, cell);
}
