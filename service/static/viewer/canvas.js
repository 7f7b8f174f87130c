// How canvases are drawn on: for the screen's pixels, once a frame, with the page's fonts and labels that fit.

import { element } from "./dom.js";

export const LABEL_FONT = '12px ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace';
export const TEXT_FONT = '12px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif';

const measuring = element("canvas").getContext("2d");

/** Calls `draw` once in the next frame, however often it is asked to. */
export function oncePerFrame(draw) {
  let frame = 0;
  return () => {
    frame ||= requestAnimationFrame(() => {
      frame = 0;
      draw();
    });
  };
}

/** Sizes a canvas for the screen's pixels; what is drawn in its context is in CSS pixels. */
export function prepareCanvas(canvas, width, height, ratio = window.devicePixelRatio) {
  canvas.width = Math.max(1, Math.round(width * ratio));
  canvas.height = Math.max(1, Math.round(height * ratio));
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  return context;
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
export function widest(labels, most = Infinity, font = LABEL_FONT) {
  measuring.font = font;
  let width = 0;
  for (const label of labels) {
    width = Math.max(width, measuring.measureText(label).width);
    if (width >= most) return most;
  }
  return Math.ceil(width);
}
