// What is shown, in other programs' forms: SVG, CSV, and the request that gives it, for a shell and for Python.

import { widest } from "./ink.js";
import { makeImage } from "./matrix.js";

const CELL = 18;
const FONT = "12px monospace";
const LINE = 18;

/** A map as comma-separated values (RFC 4180): a row a query, a column a key. */
export function toCsv(labels, map) {
  const quote = (text) => (/[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  const rows = Array.from({ length: map.rows }, (_, row) => [quote(labels[row]), ...map.row(row)].join(","));
  return `${["", ...labels.map(quote)].join(",")}\r\n${rows.join("\r\n")}\r\n`;
}

/**
 * A map as a matrix with its tokens, and above it the lines that say what it is.
 *
 * @param {object} model as of `Matrix.show`
 */
export function toSvg(title, details, model) {
  const { map, rowLabels, columnLabels } = model;
  const context = document.createElement("canvas").getContext("2d");
  const longest = (labels, font = FONT) => {
    context.font = font;
    return 12 + widest(context, labels, Infinity);
  };
  const [left, above] = [longest(rowLabels), LINE * (details.length + 2)];
  const top = above + longest(columnLabels);
  const width = 12 + Math.max(left + CELL * map.columns, longest(details), longest([title], `bold ${FONT}`));
  const text = (x, y, words, more = "") => `<text x="${x}" y="${y}"${more}>${escape(words)}</text>`;
  const parts = [
    text(12, LINE, title, ' font-weight="bold"'),
    ...details.map((line, place) => text(12, LINE * (place + 2), line)),
    `<image x="${left}" y="${top}" width="${CELL * map.columns}" height="${CELL * map.rows}" ` +
      `preserveAspectRatio="none" style="image-rendering:pixelated" href="${makeImage(model, { cell: 1 }, 1).toDataURL()}"/>`,
    ...rowLabels.map((label, row) => text(left - 6, top + CELL * row + 13, label, ' text-anchor="end"')),
    ...columnLabels.map((label, column) =>
      text(0, 0, label, ` transform="translate(${left + CELL * column + 13} ${top - 6}) rotate(-90)"`),
    ),
  ];
  const size = `width="${Math.ceil(width)}" height="${Math.ceil(top + CELL * map.rows + 12)}"`;
  const style = 'font-family="monospace" font-size="12" style="background:#fff"';
  return `<svg xmlns="http://www.w3.org/2000/svg" ${size} ${style}>${parts.join("")}</svg>`;
}

/** A request for a shell; the key, if one is needed, comes from the environment. */
export function toCurl(address, body, hasKey) {
  const key = hasKey ? ` -H "authorization: Bearer $POLYHEAD_API_KEY"` : "";
  const quoted = JSON.stringify(body).replaceAll("'", "'\\''");
  return `curl -s '${address}' -H 'content-type: application/json'${key} -d '${quoted}'`;
}

/** The same request in Python, with its standard library alone. */
export function toPython(address, body, hasKey) {
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
