// One map of numbers, queries by keys; what is drawn from it, and what is pointed at in it.

import { amountPalette, paletteIndex, signedPalette } from "./theme.js";

/** Numbers row by row. */
export class NumberMap {
  /**
   * @param {Float32Array} values rows x columns
   * @param {number} rows queries, or tokens of the first text
   * @param {number} columns keys, or tokens of the second text
   */
  constructor(values, rows, columns) {
    this.values = values;
    this.rows = rows;
    this.columns = columns;
    this.largest = values.reduce((largest, value) => Math.max(largest, Math.abs(value)), 0);
  }

  /** @param {number[][]} rows */
  static of(rows) {
    return new NumberMap(Float32Array.from(rows.flat()), rows.length, rows[0]?.length ?? 0);
  }

  at(row, column) {
    return this.values[row * this.columns + column];
  }

  row(row) {
    return this.values.subarray(row * this.columns, (row + 1) * this.columns);
  }

  column(column) {
    return Float32Array.from({ length: this.rows }, (_, row) => this.at(row, column));
  }

  /** The row or column of a place where just one is pointed at; null for any other place. */
  line({ row, column }) {
    if ((row === null) === (column === null)) return null;
    return row !== null ? this.row(row) : this.column(column);
  }

  /** The number of a place; the sum of a row, a column or all numbers where only that is pointed at. */
  sum(place) {
    const { row, column } = place;
    if (row !== null && column !== null) return this.at(row, column);
    return sum(this.line(place) ?? this.values);
  }
}

const sum = (values) => values.reduce((total, value) => total + value, 0);

/** What each row and each column of numbers adds up to. */
export function sumsOf(rows) {
  return { byRow: rows.map(sum), byColumn: rows[0].map((_, column) => sum(rows.map((row) => row[column]))) };
}

/** Which tokens the tokenizer added: they stand for no part of the text. */
export function isSpecial(offsets) {
  return offsets.map(([start, end]) => start === end);
}

/**
 * A map as drawings show it: with its labels, its scale and what is hidden of it.
 *
 * @param {{labels: string[], special?: boolean[], title: string}} rows, columns `special`: which labels the tokenizer added
 * @param {{high?: number, isSigned?: boolean, threshold?: number, palette?: Uint8ClampedArray}} scale as of `toImage`;
 *   the palette is the shown theme's if none is given
 */
export function drawingModel(map, rows, columns, scale = {}) {
  const { high = map.largest, isSigned = false, threshold = 0 } = scale;
  const { palette = isSigned ? signedPalette() : amountPalette() } = scale;
  return { map, rows, columns, palette, high, isSigned, threshold };
}

/** The same of one text's map: rows are queries, columns keys. */
export function ofOneText(map, { labels, special }, scale) {
  return drawingModel(map, { labels, special, title: "query" }, { labels, special, title: "key" }, scale);
}

/** The part of a map where these rows and columns meet. */
export function crop(map, rows, columns) {
  const values = Float32Array.from(rows.flatMap((row) => columns.map((column) => map.at(row, column))));
  return new NumberMap(values, rows.length, columns.length);
}

/**
 * The same map in at most the given rows and columns. Each cell keeps the value of its block farthest from 0: a
 * single strong weight among 512 tokens does not vanish in a small picture.
 */
export function shrink(map, mostRows, mostColumns) {
  const rows = Math.min(map.rows, mostRows);
  const columns = Math.min(map.columns, mostColumns);
  if (rows === map.rows && columns === map.columns) return map;
  const values = new Float32Array(rows * columns);
  for (let row = 0; row < map.rows; row += 1) {
    const target = Math.floor((row * rows) / map.rows) * columns;
    const source = row * map.columns;
    for (let column = 0; column < map.columns; column += 1) {
      const cell = target + Math.floor((column * columns) / map.columns);
      const value = map.values[source + column];
      if (Math.abs(value) > Math.abs(values[cell])) values[cell] = value;
    }
  }
  return new NumberMap(values, rows, columns);
}

/**
 * One pixel a cell.
 *
 * @param {NumberMap} map
 * @param {{palette: Uint8ClampedArray, high: number, isSigned: boolean, threshold: number}} scale `high` has the last
 *   colour, what is smaller than `threshold` the colour of 0
 */
export function toImage(map, { palette, high, isSigned, threshold }) {
  const image = new ImageData(map.columns, map.rows);
  const pixels = new Uint32Array(image.data.buffer);
  const colours = new Uint32Array(palette.buffer);
  for (let cell = 0; cell < pixels.length; cell += 1) {
    const value = Math.abs(map.values[cell]) < threshold ? 0 : map.values[cell];
    const share = high ? value / high : 0;
    pixels[cell] = colours[paletteIndex(isSigned ? (share + 1) / 2 : share)];
  }
  return image;
}

const NOTHING = Object.freeze({ row: null, column: null });

/** What is pointed at: a query (row), a key (column), or both. Every drawing of one map shows the same. */
export class Pointer {
  #hovered = NOTHING;
  #pinned = NOTHING;
  #listeners = [];

  get place() {
    return this.#hovered === NOTHING ? this.#pinned : this.#hovered;
  }

  /** @param {{row?: ?number, column?: ?number}} place nothing where both are null, as when the pointer leaves */
  hover({ row = null, column = null } = NOTHING) {
    if (row === this.#hovered.row && column === this.#hovered.column) return;
    this.#hovered = row === null && column === null ? NOTHING : { row, column };
    this.#tell();
  }

  /** Keeps a place when the pointer leaves; the same place again lets go of it. */
  pin({ row = null, column = null }) {
    const isSame = row === this.#pinned.row && column === this.#pinned.column;
    this.#pinned = isSame ? NOTHING : { row, column };
    this.#tell();
  }

  clear() {
    this.#hovered = this.#pinned = NOTHING;
    this.#tell();
  }

  on(listener) {
    this.#listeners.push(listener);
  }

  #tell() {
    for (const listener of this.#listeners) listener();
  }
}
