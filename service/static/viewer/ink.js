// How canvases write and colour: the page's fonts and colours, labels that fit, and the scale of a map.

import { colourAt } from "./palette.js";

export const LABEL_FONT = '12px ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace';
export const TEXT_FONT = '12px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif';
export const LEGEND_HEIGHT = 30;

/** The page's colours as they are now. */
export function pageInk() {
  const style = getComputedStyle(document.documentElement);
  const read = (name) => style.getPropertyValue(`--${name}`).trim();
  return { ink: read("ink"), quiet: read("quiet"), line: read("line"), accent: read("accent"), card: read("card") };
}

/** A label shortened to a width, with an ellipsis; the context's font is used. */
export function fit(context, label, width) {
  if (context.measureText(label).width <= width) return label;
  const characters = [...label];
  let low = 0;
  let high = characters.length;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (context.measureText(`${characters.slice(0, middle).join("")}…`).width <= width) low = middle;
    else high = middle - 1;
  }
  return `${characters.slice(0, low).join("")}…`;
}

/** Width of the longest label, `most` at most. */
export function widest(context, labels, most) {
  let width = 0;
  for (const label of labels) {
    width = Math.max(width, context.measureText(label).width);
    if (width >= most) return most;
  }
  return Math.ceil(width);
}

/** The scale below a map: colours from the smallest to the largest number. */
export function paintLegend(context, model, ink, left, top) {
  const width = 120;
  const gradient = context.createLinearGradient(left, 0, left + width, 0);
  for (let stop = 0; stop <= 16; stop += 1) gradient.addColorStop(stop / 16, colourAt(model.palette, stop / 16));
  context.fillStyle = gradient;
  context.fillRect(left, top + 10, width, 8);
  context.strokeStyle = ink.line;
  context.lineWidth = 1;
  context.strokeRect(left + 0.5, top + 10.5, width - 1, 7);
  context.font = TEXT_FONT;
  context.fillStyle = ink.quiet;
  context.textBaseline = "middle";
  context.textAlign = "left";
  const low = model.signed ? `−${formatNumber(model.high)} to ` : "0 to ";
  context.fillText(low + formatNumber(model.high), left + width + 8, top + 14.5);
}

/** Four decimals, or four digits where that would show none. */
export function formatNumber(value) {
  const size = Math.abs(value);
  if (size !== 0 && size < 0.001) return value.toExponential(2);
  return size < 10 ? value.toFixed(4) : value.toFixed(2);
}
