// What a reader takes along of what is shown, which is always of one request: a link, that request for a shell and for
// Python, pictures (PNG, SVG), numbers (CSV, JSON), and the weights of all heads.

import { encodeBytes, hasKey } from "./api.js";
import { attempt, describeFailure } from "./asking.js";
import { TEXT_FONT, fit, prepareCanvas, widest } from "./canvas.js";
import { writeLink } from "./controls.js";
import { byId, element } from "./dom.js";
import { ofOneText } from "./maps.js";
import { makeImage } from "./matrix.js";
import { NO_PROMPT, largeRequest, promptOptions, requestFor } from "./source.js";
import { amountPalette, pageInk } from "./theme.js";

const COPIED_FOR = 2000; // milliseconds

/** The lengths of a PNG, in CSS pixels. */
const PNG = { drawing: 720, margin: 24, title: 44, detail: 18, ratio: 2 };
const MOST_PIXELS = 16e6; // Safari draws no larger canvas

/** The lengths of an SVG, and its font. */
const SVG = { cell: 18, line: 18, font: "12px monospace" };

/** By the ending of a file. */
const TYPES = { png: "image/png", svg: "image/svg+xml", csv: "text/csv", json: "application/json" };

/** Binds the buttons to what is shown: `explorer.large`, and the drawings of it. */
export function bindKeep({ state, info, explorer, figure, pair }) {
  const address = new URL("encode", location.href.replace(/#.*/s, "")).href;
  const title = () => `${info.manifest.model}: ${explorer.title}`;
  const binds = (id, keep) => (byId(id).onclick = () => explorer.large && keep(explorer.large));
  const copies = (id, write) =>
    binds(id, (large) => {
      const body = largeRequest(large.request.text, large.request, measureOf(state, large));
      copy(byId(id), write(address, body, hasKey()));
    });
  const saves = (kind, write) =>
    binds(`save-${kind}`, async (large) => {
      const content = await write(large);
      if (content) saveFile(`${fileName(large)}.${kind}`, new Blob([content], { type: TYPES[kind] }));
    });
  byId("copy-link").onclick = () => {
    writeLink(state);
    copy(byId("copy-link"), location.href);
  };
  copies("copy-curl", toCurl);
  copies("copy-python", toPython);
  saves("png", (large) => {
    const drawings = [...figure.drawings, ...(state.values.mode === "pair" ? pair.drawings : [])];
    return drawings.length && drawPng(title(), drawings, detailsOf(state, large));
  });
  saves("svg", (large) => large.labels.length && toSvg(title(), detailsOf(state, large), modelOf(state, large)));
  saves("csv", (large) => toCsv(large.labels, chosenMap(state, large)));
  saves("json", () => JSON.stringify(collect(state, info, explorer, pair)));
  binds("save-safetensors", (large) => saveAllHeads(large.request));
}

/** Weights of every head, as the service writes them, its answer with the tokens among them. */
async function saveAllHeads(request) {
  const button = byId("save-safetensors");
  button.disabled = true;
  const save = async () => {
    const bytes = await encodeBytes(requestFor(request.text, request, { layers: "all", heads: "all" }));
    saveFile("attention-all-heads.safetensors", new Blob([bytes]));
    byId("kept").textContent = "";
  };
  await attempt(save, (error) => (byId("kept").textContent = describeFailure(error)));
  button.disabled = false;
}

/** Copies a text, or shows it where the browser lets no page do so: only one from this machine or over https may. */
async function copy(button, text) {
  const name = (button.dataset.name ??= button.textContent);
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
    byId("kept").textContent = `${name}: copied`;
    setTimeout(() => (button.textContent = name), COPIED_FOR);
  } catch {
    byId("link-field").hidden = false;
    byId("link").value = text;
    byId("link").select();
  }
}

/** Gives the browser a file to save. */
function saveFile(download, blob) {
  const href = URL.createObjectURL(blob);
  element("a", { href, download }).click();
  setTimeout(() => URL.revokeObjectURL(href), 10_000);
}

function fileName({ request: { map, layer, head } }) {
  return map === "rollout" ? "attention-rollout" : `attention-layer-${layer}-head-${head}`;
}

/** A rollout has no norms, nor have those artifacts that cannot compute them. */
function measureOf({ values }, { maps }) {
  return values.measure === "norms" && maps.norms ? "norms" : "weights";
}

function chosenMap(state, large) {
  return large.maps[measureOf(state, large)];
}

/** What a picture says of itself besides its title. */
function detailsOf(state, large) {
  const { level, hide, renormalise, text, prompt } = large.request;
  const { threshold, off } = state.values;
  const measure = measureOf(state, large);
  const sums = renormalise && measure === "weights" ? ", rows sum to 1 again" : "";
  const filters = [
    measure,
    level === "word" ? "by words" : "by tokens",
    ...(hide ? [`without special tokens${sums}`] : []),
    ...(prompt ? [prompt === NO_PROMPT ? "no prompt" : `prompt: ${prompt}`] : []),
    ...(threshold ? [`hidden below ${threshold} % of the largest`] : []),
    ...(off.length ? [`heads switched off for the effect: ${off.join(", ")}`] : []),
  ];
  return [`Text: ${text.replaceAll(/\s+/g, " ")}`, filters.join("; ")];
}

/** The present map, with everything needed to read it. */
function collect(state, info, explorer, pair) {
  const { request, labels, offsets, maps } = explorer.large;
  const { map, layer, head, level, hide, renormalise, text } = request;
  const { mode, off } = state.values;
  const ofHead = (name, values) => [name, values && values[layer][head]];
  const statistics = map === "head" && explorer.statistics;
  return {
    model: info.manifest.model,
    source: info.manifest.source,
    precision: info.manifest.precision,
    text,
    ...promptOptions(request),
    [level === "word" ? "words" : "tokens"]: labels,
    offsets,
    ...(map === "rollout" ? { reduce: "rollout" } : { layer, head }),
    exclude_special: hide,
    renormalise: hide && renormalise,
    weights: toRows(maps.weights),
    ...(maps.norms && { norms: toRows(maps.norms) }),
    ...(statistics && {
      statistics: Object.fromEntries(Object.entries(statistics).map(([name, values]) => ofHead(name, values))),
    }),
    ...(off.length && { heads_off: off }),
    ...(mode === "pair" && pair.answer && { pair: { texts: pair.texts, ...pair.answer } }),
  };
}

/** A map as rows of numbers, shortened to what float32 carries. */
function toRows(map) {
  const shorten = (value) => Number(value.toPrecision(9));
  return Array.from({ length: map.rows }, (_, row) => Array.from(map.row(row), shorten));
}

/**
 * One picture of some drawings side by side, under a title and lines that say what they are of.
 *
 * @param {{drawing: {heightAt: Function, paint: Function}, caption: string}[]} panes
 * @returns {Promise<Blob>} a PNG
 */
function drawPng(title, panes, details) {
  const ink = pageInk();
  const above = PNG.title + PNG.detail * details.length;
  const height = above + Math.max(...panes.map(({ drawing }) => drawing.heightAt(PNG.drawing))) + 2 * PNG.margin;
  const width = panes.length * (PNG.drawing + PNG.margin) + PNG.margin;
  const canvas = element("canvas");
  const context = prepareCanvas(canvas, width, height, Math.min(PNG.ratio, Math.sqrt(MOST_PIXELS / (width * height))));
  context.fillStyle = ink.card;
  context.fillRect(0, 0, width, height);
  const write = (text, x, y, font = TEXT_FONT, colour = ink.ink) => {
    context.font = font;
    context.fillStyle = colour;
    context.fillText(fit(context, text, width - 2 * PNG.margin), x, y);
  };
  write(title, PNG.margin, PNG.margin + 4, `600 ${TEXT_FONT.replace("12px", "15px")}`);
  details.forEach((line, place) => write(line, PNG.margin, PNG.margin + 4 + PNG.detail * (place + 1)));
  panes.forEach(({ drawing, caption }, index) => {
    context.save();
    context.translate(PNG.margin + index * (PNG.drawing + PNG.margin), PNG.margin + above);
    write(caption, 0, -16, TEXT_FONT, ink.quiet);
    drawing.paint(context, PNG.drawing);
    context.restore();
  });
  return new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
}

/** What an SVG shows: on white, so in light colours. */
function modelOf(state, large) {
  const map = chosenMap(state, large);
  const threshold = (state.values.threshold / 100) * map.largest;
  return ofOneText(map, large, { palette: amountPalette("light"), threshold });
}

/** A map as a matrix with its tokens, and above it the lines that say what it is. */
function toSvg(title, details, model) {
  const { map, rows, columns } = model;
  const { cell, line, font } = SVG;
  const longest = (labels, ofFont = font) => 12 + widest(labels, Infinity, ofFont);
  const [left, above] = [longest(rows.labels), line * (details.length + 2)];
  const top = above + longest(columns.labels);
  const width = 12 + Math.max(left + cell * map.columns, longest(details), longest([title], `bold ${font}`));
  const image = makeImage(model, { cell: 1 }, 1).toDataURL();
  const text = (x, y, words, more = "") => `<text x="${x}" y="${y}"${more}>${escape(words)}</text>`;
  const parts = [
    text(12, line, title, ' font-weight="bold"'),
    ...details.map((words, place) => text(12, line * (place + 2), words)),
    `<image x="${left}" y="${top}" width="${cell * map.columns}" height="${cell * map.rows}" ` +
      `preserveAspectRatio="none" style="image-rendering:pixelated" href="${image}"/>`,
    ...rows.labels.map((label, row) => text(left - 6, top + cell * row + 13, label, ' text-anchor="end"')),
    ...columns.labels.map((label, column) =>
      text(0, 0, label, ` transform="translate(${left + cell * column + 13} ${top - 6}) rotate(-90)"`),
    ),
  ];
  const size = `width="${Math.ceil(width)}" height="${Math.ceil(top + cell * map.rows + 12)}"`;
  const style = 'font-family="monospace" font-size="12" style="background:#fff"';
  return `<svg xmlns="http://www.w3.org/2000/svg" ${size} ${style}>${parts.join("")}</svg>`;
}

/** A map as comma-separated values (RFC 4180): a row a query, a column a key. */
function toCsv(labels, map) {
  const quote = (text) => (/[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  const rows = Array.from({ length: map.rows }, (_, row) => [quote(labels[row]), ...map.row(row)].join(","));
  return `${["", ...labels.map(quote)].join(",")}\r\n${rows.join("\r\n")}\r\n`;
}

/** A request for a shell; the key, if one is needed, comes from the environment. */
function toCurl(address, body, hasKey) {
  const key = hasKey ? ` -H "authorization: Bearer $POLYHEAD_API_KEY"` : "";
  const quoted = JSON.stringify(body).replaceAll("'", "'\\''");
  return `curl -s '${address}' -H 'content-type: application/json'${key} -d '${quoted}'`;
}

/** The same request in Python, with its standard library alone. */
function toPython(address, body, hasKey) {
  const key = hasKey ? `, "authorization": f"Bearer {os.environ['POLYHEAD_API_KEY']}"` : "";
  return `import json
${hasKey ? "import os\n" : ""}from urllib.request import Request, urlopen

body = ${literal(body)}
request = Request(
    "${address}",
    json.dumps(body).encode(),
    {"content-type": "application/json"${key}},
)
with urlopen(request) as response:
    answer = json.load(response)
print(answer["attention"][0]["weights"])
`;
}

function literal(value) {
  if (Array.isArray(value)) return `[${value.map(literal).join(", ")}]`;
  if (value === true || value === false) return value ? "True" : "False";
  if (typeof value !== "object") return JSON.stringify(value);
  return `{${Object.entries(value).map(([name, held]) => `${JSON.stringify(name)}: ${literal(held)}`).join(", ")}}`;
}

/** A text as XML holds it, without the characters that XML 1.0 has not. */
function escape(text) {
  const held = text.toWellFormed().replaceAll(/[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]/g, "");
  return held.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}
