// A map as lines from queries (left) to keys (right), in canvas. Only the part in view is drawn, and of very many lines
// only the strongest.

import { LABEL_FONT, fit, oncePerFrame, prepareCanvas, widest } from "./canvas.js";
import { element } from "./dom.js";
import { pageInk } from "./theme.js";

const MOST_LINES = 6000;
const SHADES = 12;
const DIMMED = 0.12; // all lines, while some are pointed at
const LEAVING = 0.3; // of a line's strength, where one end is out of view
const LONGEST_LABEL = 150;
const TALLEST_PICTURE = 8000;

export class Lines {
  #box;
  #canvas;
  #rest;
  #caption;
  #host;
  #pointer;
  #model = null;
  #lines = [];
  #draw = oncePerFrame(() => this.#paintView());

  constructor(host, pointer, { name }) {
    this.#canvas = element("canvas", { className: "lines", role: "img", ariaLabel: `${name}, as lines` });
    this.#rest = element("div");
    this.#box = element("div", { className: "lines-box" }, this.#canvas, this.#rest);
    this.#caption = element("p", { className: "quiet small" });
    this.#host = host;
    this.#pointer = pointer;
    host.append(this.#box, this.#caption);
    pointer.on(() => this.#draw());
    new ResizeObserver(() => this.#layOut()).observe(host);
    this.#listen();
  }

  show(model) {
    this.#model = model;
    this.#lines = strongest(model.map, model.threshold, MOST_LINES);
    this.#caption.textContent = captionOf(this.#lines.length, model);
    this.#layOut();
  }

  heightAt() {
    return Math.min(TALLEST_PICTURE, heightOf(this.#model));
  }

  paint(context, width) {
    const view = { width, height: this.heightAt(), from: 0 };
    paintLines(context, this.#model, this.#lines, view, this.#pointer.place);
  }

  /** Which tokens are in a picture; "" if all are. */
  get shown() {
    const [all, first] = [heightOf(this.#model), this.heightAt()].map((one) => Math.floor(one / rowHeight(this.#model)));
    return first < all ? `the first ${first} of ${all} tokens` : "";
  }

  #layOut() {
    const width = this.#box.clientWidth;
    if (!this.#model || !width) return;
    const full = heightOf(this.#model);
    const most = parseFloat(getComputedStyle(this.#box).maxHeight) || full;
    this.view = { width, height: Math.min(full, most) };
    this.#rest.style.height = `${full - this.view.height}px`;
    this.#draw();
  }

  #paintView() {
    if (!this.view) return;
    const context = prepareCanvas(this.#canvas, this.view.width, this.view.height);
    const view = { ...this.view, from: this.#box.scrollTop };
    paintLines(context, this.#model, this.#lines, view, this.#pointer.place);
  }

  #listen() {
    const point = (event) => this.#tokenAt(event.offsetX, event.offsetY);
    this.#box.addEventListener("scroll", () => this.#draw(), { passive: true });
    this.#canvas.addEventListener("pointermove", (event) => this.#pointer.hover(point(event)));
    this.#canvas.addEventListener("pointerleave", () => this.#pointer.hover());
    this.#canvas.addEventListener("click", (event) => this.#pointer.pin(point(event)));
  }

  #tokenAt(x, y) {
    const index = Math.floor((y + this.#box.scrollTop) / rowHeight(this.#model));
    const { rows, columns } = this.#model.map;
    if (x < this.view.width / 3) return { row: index < rows ? index : null };
    if (x > (2 * this.view.width) / 3) return { column: index < columns ? index : null };
    return {};
  }
}

/** Cells of at least `threshold`, as [row, column, value]; of more than `most`, the `most` largest. */
export function strongest(map, threshold, most) {
  const least = Math.max(threshold, map.values.toSorted().at(-most) ?? 0);
  const found = [];
  for (let cell = 0; cell < map.values.length && found.length < most; cell += 1) {
    const value = map.values[cell];
    if (value > 0 && value >= least) found.push([Math.floor(cell / map.columns), cell % map.columns, value]);
  }
  return found;
}

/** Says how many lines are left out, where some are. */
function captionOf(drawn, { map, threshold }) {
  const all = map.values.reduce((count, value) => count + Number(value > 0 && value >= threshold), 0);
  if (drawn === all) return "";
  const [some, most] = [drawn, all].map((number) => number.toLocaleString("en"));
  return `The ${some} strongest of ${most} lines; point at a token for all of its own.`;
}

function rowHeight({ map }) {
  return Math.max(map.rows, map.columns) > 40 ? 18 : 24;
}

function heightOf(model) {
  return Math.max(model.map.rows, model.map.columns) * rowHeight(model);
}

function shapeOf(model, view) {
  const most = Math.min(LONGEST_LABEL, view.width * 0.34);
  const left = widest(model.rows.labels, most) + 10;
  const right = view.width - widest(model.columns.labels, most) - 10;
  return { ...view, left, right, step: rowHeight(model) };
}

function paintLines(context, model, lines, view, place) {
  const ink = pageInk();
  const shape = shapeOf(model, view);
  const isPointed = place.row !== null || place.column !== null;
  context.strokeStyle = ink.accent;
  strokeAll(context, lines, shape, model.high, isPointed ? DIMMED : 1);
  if (isPointed) strokeAll(context, linesOf(model, place), shape, model.high, 1);
  paintLabels(context, shape, ink, model.rows, "right", sharesOf(model, place, "row"));
  paintLabels(context, shape, ink, model.columns, "left", sharesOf(model, place, "column"));
}

/** Every line of the token under the pointer, also those that were too many to draw. */
function linesOf({ map, threshold }, { row, column }) {
  const values = row !== null ? map.row(row) : map.column(column);
  const line = row !== null ? (value, index) => [row, index, value] : (value, index) => [index, column, value];
  return Array.from(values, line).filter(([, , value]) => value > 0 && value >= threshold);
}

/** How strongly each label of one side is tinted: the one pointed at wholly, the others by their weight. */
function sharesOf({ map, high }, place, axis) {
  if (place[axis] !== null) return (index) => (index === place[axis] ? 1 : 0);
  const values = map.line(place);
  return (index) => (values ? values[index] / (high || 1) : 0);
}

/** One path a shade of strength: a handful of strokes for thousands of lines. */
function strokeAll(context, lines, { left, right, step, from, height }, high, strength) {
  const paths = Array.from({ length: SHADES }, () => new Path2D());
  const middle = (left + right) / 2;
  for (const [row, column, value] of lines) {
    const start = (row + 0.5) * step - from;
    const end = (column + 0.5) * step - from;
    if ((start < 0 && end < 0) || (start > height && end > height)) continue;
    const leaves = start < 0 || end < 0 || start > height || end > height;
    const shade = Math.min(SHADES - 1, Math.floor((value / high) * SHADES * (leaves ? LEAVING : 1)));
    paths[shade].moveTo(left, start);
    paths[shade].bezierCurveTo(middle, start, middle, end, right, end);
  }
  paths.forEach((path, shade) => {
    context.globalAlpha = (strength * (shade + 0.5)) / SHADES;
    context.lineWidth = 0.75 + (2 * (shade + 0.5)) / SHADES;
    context.stroke(path);
  });
  context.globalAlpha = 1;
}

/** The labels of one side, on the tint of their part of the picture. */
function paintLabels(context, { step, from, height, left, right, width }, ink, { labels, special }, align, share) {
  const [start, room, edge] = align === "right" ? [0, left, left - 5] : [right, width - right, right + 5];
  const first = Math.max(0, Math.floor(from / step));
  const last = Math.min(labels.length, Math.ceil((from + height) / step));
  context.font = LABEL_FONT;
  context.textBaseline = "middle";
  context.textAlign = align;
  for (let index = first; index < last; index += 1) {
    const top = index * step - from;
    const tint = Math.max(0, Math.min(1, share(index)));
    context.globalAlpha = 0.45 * tint;
    context.fillStyle = ink.accent;
    context.fillRect(start, top + 1, room, step - 2);
    context.globalAlpha = 1;
    context.fillStyle = special[index] ? `color-mix(in oklab, ${ink.ink} ${100 * tint}%, ${ink.quiet})` : ink.ink;
    context.fillText(fit(context, labels[index], room - 8), edge, top + step / 2 + 0.5);
  }
}
