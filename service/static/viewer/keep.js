// What a reader takes along: a link, a picture, the data.

import { element, prepareCanvas } from "./dom.js";
import { TEXT_FONT, fit, pageInk } from "./ink.js";

const PICTURE_WIDTH = 720; // of one drawing, CSS pixels
const PICTURE_RATIO = 2;
const MOST_PIXELS = 16e6; // Safari draws no larger canvas
const MARGIN = 24;
const TITLE_HEIGHT = 44;
const DETAIL_HEIGHT = 18;

/** Copies a text; false where the browser does not let a page do so. */
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false; // only pages from this machine or over https may
  }
}

/**
 * One picture of some drawings side by side, under a title and lines that say what they are of.
 *
 * @param {{drawing: {heightAt: Function, paint: Function}, caption: string}[]} panes
 * @returns {Promise<Blob>} a PNG
 */
export function drawPicture(title, panes, details) {
  const ink = pageInk();
  const above = TITLE_HEIGHT + DETAIL_HEIGHT * details.length;
  const height = above + Math.max(...panes.map(({ drawing }) => drawing.heightAt(PICTURE_WIDTH))) + 2 * MARGIN;
  const width = panes.length * (PICTURE_WIDTH + MARGIN) + MARGIN;
  const canvas = element("canvas");
  const ratio = Math.min(PICTURE_RATIO, Math.sqrt(MOST_PIXELS / (width * height)));
  const context = prepareCanvas(canvas, width, height, ratio);
  context.fillStyle = ink.card;
  context.fillRect(0, 0, width, height);
  context.font = `600 ${TEXT_FONT.replace("12px", "15px")}`;
  context.fillStyle = ink.ink;
  context.fillText(title, MARGIN, MARGIN + 4);
  context.font = TEXT_FONT;
  details.forEach((line, place) => {
    context.fillText(fit(context, line, width - 2 * MARGIN), MARGIN, MARGIN + 4 + DETAIL_HEIGHT * (place + 1));
  });
  panes.forEach(({ drawing, caption }, index) => {
    context.save();
    context.translate(MARGIN + index * (PICTURE_WIDTH + MARGIN), MARGIN + above);
    context.font = TEXT_FONT;
    context.fillStyle = ink.quiet;
    context.fillText(caption, 0, -16);
    drawing.paint(context, PICTURE_WIDTH);
    context.restore();
  });
  return new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
}

/** Gives the browser a file to save. */
export function saveFile(name, blob) {
  const address = URL.createObjectURL(blob);
  const link = element("a", { href: address, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

export function jsonFile(value) {
  return new Blob([JSON.stringify(value)], { type: "application/json" });
}

/** A map as rows of numbers, shortened to what float32 carries. */
export function toRows(map) {
  const shorten = (value) => Number(value.toPrecision(9));
  return Array.from({ length: map.rows }, (_, row) => Array.from(map.row(row), shorten));
}
