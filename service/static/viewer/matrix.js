// A map as a matrix: one cell a pair, in canvas, from a few tokens to hundreds. Zoomed in, it shows a part of the map.

import { LABEL_FONT, TEXT_FONT, fit, oncePerFrame, prepareCanvas, widest } from "./canvas.js";
import { button, element, formatNumber } from "./dom.js";
import { crop, shrink, toImage } from "./maps.js";
import { pageInk, paletteIndex } from "./theme.js";

const LONGEST_LABEL = 112;
const LARGEST_CELL = 34;
const SMALLEST_LABELLED_CELL = 9;
const BARE_MARGIN = 20; // where cells are too small for labels
const LEGEND = { height: 30, width: 120 };
const MOST_CELLS_AT_ONCE = 24; // a side, of a matrix that needs no zoom
const FEWEST_CELLS = 8; // a side, zoomed in as far as possible
const DRAG_PIXELS = 4; // a shorter move between press and release is a click

export class Matrix {
  #canvas;
  #host;
  #pointer;
  #model = null; // of the whole map
  #part = null; // the model of the shown part of it
  #window = null; // {row, column, rows, columns} of that part
  #bar;
  #drag = null; // where a pan began
  #geometry = null;
  #image = null;
  #draw = oncePerFrame(() => this.#paintAll());

  constructor(host, pointer, { name }) {
    this.#canvas = element("canvas", {
      className: "matrix",
      tabIndex: 0,
      role: "application",
      ariaRoleDescription: "matrix",
      ariaLabel: `${name}. Arrow keys move from cell to cell, plus and minus zoom, 0 shows all.`,
    });
    this.#host = host;
    const zoom = (sign, factor, title) => button(sign, () => this.#zoom(factor), { title, ariaLabel: title });
    this.#bar = element(
      "div",
      { className: "bar small zoom", role: "group", ariaLabel: `Zoom of ${name}` },
      zoom("−", 2, "Zoom out"),
      zoom("+", 0.5, "Zoom in"),
      zoom("All", Infinity, "Show the whole matrix"),
      element("span", { className: "quiet" }),
    );
    host.append(this.#bar, this.#canvas);
    this.#pointer = pointer;
    pointer.on(() => this.#draw());
    new ResizeObserver(() => this.#layOut()).observe(host);
    this.#listen();
  }

  /** @param {object} model as of `drawingModel` */
  show(model) {
    const { rows, columns } = model.map;
    const isSameSize = this.#model?.map.rows === rows && this.#model.map.columns === columns;
    this.#model = model;
    this.#look(isSameSize ? this.#window : { row: 0, column: 0, rows, columns });
  }

  /** Which rows and columns are shown; "" if all are. */
  get shown() {
    return this.#bar.lastChild.textContent;
  }

  /** Height that a picture of it takes at a width. */
  heightAt(width) {
    return layOut(this.#part, width).height;
  }

  /** Draws it as it is shown, for a picture. */
  paint(context, width) {
    const geometry = layOut(this.#part, width);
    paintMatrix(context, this.#part, geometry, makeImage(this.#part, geometry, 2), this.#place);
  }

  /** Shows a part of the map, moved so that it lies inside. */
  #look({ row, column, rows, columns }) {
    const { map } = this.#model;
    const inside = (at, size, all) => Math.max(0, Math.min(all - size, at));
    this.#window = { row: inside(row, rows, map.rows), column: inside(column, columns, map.columns), rows, columns };
    this.#part = partOf(this.#model, this.#window);
    const isWhole = rows === map.rows && columns === map.columns;
    const [out, closer, all] = this.#bar.querySelectorAll("button");
    this.#bar.hidden = Math.max(map.rows, map.columns) <= MOST_CELLS_AT_ONCE;
    out.disabled = all.disabled = isWhole;
    closer.disabled = Math.min(rows, columns) <= FEWEST_CELLS;
    this.#bar.lastChild.textContent = isWhole ? "" : describe(this.#window);
    this.#canvas.classList.toggle("zoomed", !isWhole);
    this.#layOut();
  }

  /** Shows `factor` as many rows and columns; around the place that is pointed at, else around the middle. */
  #zoom(factor) {
    const { map } = this.#model;
    const { row, column, rows, columns } = this.#window;
    const place = this.#place;
    const resize = (size, all) => Math.min(all, Math.max(FEWEST_CELLS, Math.round(size * factor)));
    const start = (from, size, at, next) => Math.round(from + ((at ?? (size - 1) / 2) + 0.5) * (1 - next / size));
    const [nextRows, nextColumns] = [resize(rows, map.rows), resize(columns, map.columns)];
    this.#look({
      row: start(row, rows, place.row, nextRows),
      column: start(column, columns, place.column, nextColumns),
      rows: nextRows,
      columns: nextColumns,
    });
  }

  /** What is pointed at, counted from the shown part's first row and column; null for what lies outside. */
  get #place() {
    const { row, column, rows, columns } = this.#window;
    const shown = (at, from, size) => (at !== null && at >= from && at < from + size ? at - from : null);
    const place = this.#pointer.place;
    return { row: shown(place.row, row, rows), column: shown(place.column, column, columns) };
  }

  #layOut() {
    const width = this.#host.clientWidth;
    if (!this.#model || !width) return;
    this.#geometry = layOut(this.#part, width);
    this.#image = makeImage(this.#part, this.#geometry, window.devicePixelRatio);
    this.#draw();
  }

  #paintAll() {
    if (!this.#geometry) return;
    const context = prepareCanvas(this.#canvas, this.#geometry.width, this.#geometry.height);
    paintMatrix(context, this.#part, this.#geometry, this.#image, this.#place);
  }

  #listen() {
    const point = (event) => this.#cellAt(event.offsetX, event.offsetY);
    this.#canvas.addEventListener("pointerdown", (event) => this.#startPan(event));
    this.#canvas.addEventListener("pointermove", (event) => {
      if (!this.#pan(event)) this.#pointer.hover(point(event));
    });
    this.#canvas.addEventListener("click", (event) => {
      if (!this.#drag?.hasMoved) this.#pointer.pin(point(event));
    });
    this.#canvas.addEventListener("wheel", (event) => this.#turnWheel(event), { passive: false });
    for (const kind of ["pointerleave", "blur"]) this.#canvas.addEventListener(kind, () => this.#pointer.hover());
    this.#canvas.addEventListener("keydown", (event) => this.#press(event));
  }

  #startPan({ clientX: x, clientY: y, pointerId }) {
    this.#drag = { x, y, ...this.#window, hasMoved: false };
    if (this.#canvas.classList.contains("zoomed")) this.#canvas.setPointerCapture(pointerId);
  }

  /** Moves the shown part with a pointer that is held down; false if there is nothing to move. */
  #pan({ buttons, clientX, clientY }) {
    if (!buttons || !this.#drag || !this.#canvas.classList.contains("zoomed")) return false;
    const { x, y, row, column } = this.#drag;
    if (!this.#drag.hasMoved && Math.hypot(clientX - x, clientY - y) < DRAG_PIXELS) return true;
    this.#drag.hasMoved = true;
    this.#pointer.hover();
    const cells = (pixels) => Math.round(pixels / this.#geometry.cell);
    this.#look({ ...this.#window, row: row - cells(clientY - y), column: column - cells(clientX - x) });
    return true;
  }

  /** The wheel zooms with Ctrl, as a pinch on a touchpad does; alone it scrolls the page. */
  #turnWheel(event) {
    if (!event.ctrlKey) return;
    event.preventDefault();
    this.#zoom(event.deltaY < 0 ? 0.8 : 1.25);
  }

  #cellAt(x, y) {
    const { left, top, cell } = this.#geometry;
    const inside = (at, from, count) => (at >= 0 && at < count ? at + from : null);
    const row = inside(Math.floor((y - top) / cell), this.#window.row, this.#window.rows);
    const column = inside(Math.floor((x - left) / cell), this.#window.column, this.#window.columns);
    const isLabel = x < left !== y < top; // a label alone points at its whole row or column
    return isLabel || (row !== null && column !== null) ? { row, column } : {};
  }

  #press(event) {
    const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    const zooms = { "+": 0.5, "=": 0.5, "-": 2, 0: Infinity };
    if (event.key === "Escape") this.#pointer.clear();
    if (event.key in zooms && !event.ctrlKey && !event.metaKey) this.#zoom(zooms[event.key]);
    if (!(event.key in steps)) return;
    event.preventDefault();
    const [down, right] = steps[event.key];
    const { row, column } = this.#pointer.place;
    const next = (at, step, count) => (at === null ? 0 : Math.max(0, Math.min(count - 1, at + step)));
    const { rows, columns } = this.#model.map;
    this.#pointer.hover({ row: next(row, down, rows), column: next(column, right, columns) });
    this.#follow(this.#pointer.place);
  }

  /** Moves the shown part just as far as the place that is pointed at. */
  #follow(place) {
    const { row, column, rows, columns } = this.#window;
    const reach = (from, size, at) => Math.min(Math.max(from, at - size + 1), at);
    this.#look({ rows, columns, row: reach(row, rows, place.row), column: reach(column, columns, place.column) });
  }
}

/** The model of a part of a map, with the whole map's colours. */
function partOf(model, { row, column, rows, columns }) {
  if (rows === model.map.rows && columns === model.map.columns) return model;
  const places = (from, size) => Array.from({ length: size }, (_, at) => from + at);
  const slice = ({ labels, special, title }, from, size) => {
    return { title, labels: labels.slice(from, from + size), special: special?.slice(from, from + size) };
  };
  return {
    ...model,
    map: crop(model.map, places(row, rows), places(column, columns)),
    rows: slice(model.rows, row, rows),
    columns: slice(model.columns, column, columns),
  };
}

function describe({ row, column, rows, columns }) {
  return `rows ${row + 1} to ${row + rows}, columns ${column + 1} to ${column + columns}`;
}

function layOut({ map, rows, columns }, width) {
  let left = widest(rows.labels, Math.min(LONGEST_LABEL, width / 3)) + 8;
  let top = widest(columns.labels, LONGEST_LABEL) + 8;
  let cell = Math.min(LARGEST_CELL, (width - left - 2) / map.columns);
  const isLabelled = cell >= SMALLEST_LABELLED_CELL;
  if (!isLabelled) {
    left = top = BARE_MARGIN;
    cell = Math.min(LARGEST_CELL, (width - left - 2) / map.columns);
  }
  return { width, left, top, cell, isLabelled, height: top + cell * map.rows + LEGEND.height };
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
  const colour = (isSpecial, isPointed) => (isPointed ? ink.accent : isSpecial ? ink.quiet : ink.ink);
  context.textAlign = "right";
  model.rows.labels.forEach((label, row) => {
    context.fillStyle = colour(model.rows.special?.[row], row === place.row);
    context.fillText(fit(context, label, left - 8), left - 6, top + (row + 0.5) * cell);
  });
  context.textAlign = "left";
  model.columns.labels.forEach((label, column) => {
    context.fillStyle = colour(model.columns.special?.[column], column === place.column);
    writeUpwards(context, fit(context, label, top - 8), left + (column + 0.5) * cell, top - 6);
  });
}

function writeUpwards(context, text, x, y) {
  context.save();
  context.translate(x, y);
  context.rotate(-Math.PI / 2);
  context.fillText(text, 0, 0);
  context.restore();
}

function paintAxisNames(context, model, { left, top }, ink) {
  context.font = TEXT_FONT;
  context.fillStyle = ink.quiet;
  context.textBaseline = "middle";
  context.textAlign = "left";
  context.fillText(`${model.columns.title} →`, left, top / 2);
  context.textAlign = "right";
  writeUpwards(context, `← ${model.rows.title}`, left / 2, top);
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

/** The scale below a map: colours from the smallest to the largest number. */
function paintLegend(context, { palette, high, isSigned }, ink, left, top) {
  const gradient = context.createLinearGradient(left, 0, left + LEGEND.width, 0);
  for (let stop = 0; stop <= 16; stop += 1) {
    const at = 4 * paletteIndex(stop / 16);
    gradient.addColorStop(stop / 16, `rgb(${palette[at]} ${palette[at + 1]} ${palette[at + 2]})`);
  }
  context.fillStyle = gradient;
  context.fillRect(left, top + 10, LEGEND.width, 8);
  context.strokeStyle = ink.line;
  context.lineWidth = 1;
  context.strokeRect(left + 0.5, top + 10.5, LEGEND.width - 1, 7);
  context.font = TEXT_FONT;
  context.fillStyle = ink.quiet;
  context.textBaseline = "middle";
  context.textAlign = "left";
  const low = isSigned ? `−${formatNumber(high)} to ` : "0 to ";
  context.fillText(low + formatNumber(high), left + LEGEND.width + 8, top + 14.5);
}
