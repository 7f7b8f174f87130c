// The state as the part of an address after #, which browsers never send to a server. Text is in it only when asked.

import { FIND_KINDS } from "./find_panel.js";
import { DEFAULTS } from "./state.js";

const choice = (...options) => (text) => (options.includes(text) ? text : undefined);
const flag = (text) => (/^[01]$/.test(text) ? text === "1" : undefined);
const whole = (largest) => (text) => (/^\d{1,4}$/.test(text) && Number(text) <= largest ? Number(text) : undefined);
const heads = (text) => {
  if (!/^\d{1,3}\.\d{1,3}(,\d{1,3}\.\d{1,3}){0,4095}$/.test(text)) return undefined;
  const keys = text.split(",").map((key) => key.split(".").map(Number).join(".")); // one head has one name
  return [...new Set(keys)];
};

const READERS = {
  mode: choice("one", "pair"),
  side: choice("a", "b"),
  prompt: (text) => text, // the page keeps it if the model has it
  map: choice("head", "rollout"),
  blocks: choice("head", "mean", "max"),
  through: choice("pooling", "network"),
  layer: whole(999),
  head: whole(9999),
  view: choice("lines", "matrix", "both"),
  measure: choice("weights", "norms", "both"),
  level: choice("token", "word"),
  hide: flag,
  renormalise: flag,
  threshold: whole(100),
  shared: flag,
  find: choice(...FIND_KINDS),
  sorted: flag,
  least: whole(100),
  off: heads,
};

/** What differs from the defaults, and the texts where `withText` is set. */
export function toHash(values) {
  const fields = new URLSearchParams();
  for (const name of Object.keys(READERS)) {
    if (String(values[name]) !== String(DEFAULTS[name])) fields.set(name, write(values[name]));
  }
  if (values.withText) {
    fields.set("a", values.a);
    if (values.mode === "pair") fields.set("b", values.b);
  }
  return fields.toString();
}

/** The view that an address asks for, with its texts, if any; anything unexpected is dropped. */
export function fromHash(hash) {
  const fields = new URLSearchParams(hash.replace(/^#/, ""));
  const values = {};
  for (const [name, read] of Object.entries(READERS)) {
    values[name] = (fields.has(name) ? read(fields.get(name)) : undefined) ?? DEFAULTS[name];
  }
  for (const name of ["a", "b"]) {
    if (fields.has(name)) Object.assign(values, { [name]: fields.get(name), withText: true });
  }
  return values;
}

function write(value) {
  return typeof value === "boolean" ? String(Number(value)) : String(value);
}
