// One map of numbers, queries by keys, and what is drawn from it.

import { paletteIndex } from "./palette.js";

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

  at(row, column) {
    return this.values[row * this.columns + column];
  }

  row(row) {
    return this.values.subarray(row * this.columns, (row + 1) * this.columns);
  }

  column(column) {
    return Float32Array.from({ length: this.rows }, (_, row) => this.at(row, column));
  }
}

/**
 * A map as drawings show it: with its labels, its scale and what is hidden of it.
 *
 * @param {{labels: string[], special?: boolean[], title: string}} rows, columns `special`: which labels the tokenizer added
 * @param {{palette: Uint8ClampedArray, high?: number, signed?: boolean, threshold?: number}} scale as of `toImage`
 */
export function drawingModel(map, rows, columns, { palette, high = map.largest, signed = false, threshold = 0 }) {
  return {
    map,
    rowLabels: rows.labels,
    rowSpecial: rows.special ?? [],
    rowTitle: rows.title,
    columnLabels: columns.labels,
    columnSpecial: columns.special ?? [],
    columnTitle: columns.title,
    palette,
    high,
    signed,
    threshold,
  };
}

/** The same of one text's map: rows are queries, columns keys. */
export function ofOneText(map, { labels, special, ...scale }) {
  return drawingModel(map, { labels, special, title: "query" }, { labels, special, title: "key" }, scale);
}

/** The part of a map where these rows and columns meet. */
export function crop(map, rows, columns) {
  const values = Float32Array.from(rows.flatMap((row) => columns.map((column) => map.at(row, column))));
  return new NumberMap(values, rows.length, columns.length);
}

/** What each row and each column of numbers adds up to. */
export function sumsOf(rows) {
  const sum = (values) => values.reduce((total, value) => total + value, 0);
  return { byRow: rows.map(sum), byColumn: rows[0].map((_, column) => sum(rows.map((row) => row[column]))) };
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
 * @param {{palette: Uint8ClampedArray, high: number, signed: boolean, threshold: number}} scale `high` has the last
 *   colour, what is smaller than `threshold` the colour of 0
 */
export function toImage(map, { palette, high, signed, threshold }) {
  const image = new ImageData(map.columns, map.rows);
  const pixels = new Uint32Array(image.data.buffer);
  const colours = new Uint32Array(palette.buffer);
  for (let cell = 0; cell < pixels.length; cell += 1) {
    const value = Math.abs(map.values[cell]) < threshold ? 0 : map.values[cell];
    pixels[cell] = colours[paletteIndex(placeOf(value, high, signed))];
  }
  return image;
}

/** Where in its palette a value stands, 0 to 1. */
function placeOf(value, high, signed) {
  const place = high ? value / high : 0;
  return signed ? (place + 1) / 2 : place;
}
