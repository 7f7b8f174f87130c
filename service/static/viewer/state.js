// What the reader has chosen, in one place; whoever shows something of it listens. All but the texts is also the part of
// the address after #, which browsers never send to a server. Text is in it only when asked.

import { FIND_KINDS } from "./statistics.js";

const choice = (...options) => [options[0], (text) => (options.includes(text) ? text : undefined)];
const flag = (byDefault) => [byDefault, (text) => (/^[01]$/.test(text) ? text === "1" : undefined)];
const whole = (most) => [0, (text) => (/^\d{1,4}$/.test(text) && Number(text) <= most ? Number(text) : undefined)];
const heads = (text) => {
  if (!/^\d{1,3}\.\d{1,3}(,\d{1,3}\.\d{1,3}){0,4095}$/.test(text)) return undefined;
  const keys = text.split(",").map((key) => key.split(".").map(Number).join(".")); // one head has one name
  return [...new Set(keys)];
};

/** What a link may hold: the default, and how it is read; undefined where the text is none of these values. */
const LINKED = {
  mode: choice("one", "pair"),
  side: choice("a", "b"), // whose attention is shown in pair mode
  prompt: ["", (text) => text], // before the texts: a name the model has, or `NO_PROMPT`; else the model's default
  map: choice("head", "rollout"),
  blocks: choice("head", "mean", "max"), // between two texts: of one head, or of the layer's heads
  through: choice("pooling", "network"), // whose contributions to a similarity
  layer: whole(999),
  head: whole(9999),
  view: choice("both", "lines", "matrix"),
  measure: choice("weights", "norms", "both"),
  level: choice("token", "word"),
  hide: flag(false), // special tokens
  renormalise: flag(true), // after hiding them
  threshold: whole(100), // in hundredths of a map's largest number
  shared: flag(false), // one colour scale for all small maps
  find: choice("", ...FIND_KINDS), // which kind of head is looked for
  sorted: flag(true), // small maps, best first, while a kind of head is looked for
  least: whole(100), // what such heads have at least, in hundredths of the most
  off: [[], heads], // heads switched off, "layer.head"
};

/** What differs from the defaults, and the texts where `withText` is set. */
export function toHash(values) {
  const fields = new URLSearchParams();
  for (const [name, [byDefault]] of Object.entries(LINKED)) {
    const value = values[name];
    if (String(value) !== String(byDefault)) fields.set(name, typeof value === "boolean" ? Number(value) : value);
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
  for (const [name, [byDefault, read]] of Object.entries(LINKED)) {
    values[name] = (fields.has(name) ? read(fields.get(name)) : undefined) ?? byDefault;
  }
  for (const name of ["a", "b"]) {
    if (fields.has(name)) Object.assign(values, { [name]: fields.get(name), withText: true });
  }
  return values;
}

export class State {
  #values;
  #listeners = [];

  constructor(values = {}) {
    this.#values = { ...fromHash(""), a: "", b: "", withText: false, ...values };
  }

  get values() {
    return this.#values;
  }

  /** The text whose attention is shown. */
  get text() {
    return this.#values.mode === "pair" && this.#values.side === "b" ? this.#values.b : this.#values.a;
  }

  /** The map that is chosen to be shown large, as small maps are named: "layer.head", or "rollout". */
  get key() {
    const { map, layer, head } = this.#values;
    return map === "rollout" ? "rollout" : `${layer}.${head}`;
  }

  /** Changes some values; listeners hear the names of those that differ. */
  set(patch) {
    const changed = Object.keys(patch).filter((name) => patch[name] !== this.#values[name]);
    if (!changed.length) return;
    this.#values = { ...this.#values, ...patch };
    for (const listener of this.#listeners) listener(new Set(changed));
  }

  /** Calls `listener` after each change of one of `names`. */
  on(names, listener) {
    this.#listeners.push((changed) => {
      if (names.some((name) => changed.has(name))) listener(changed);
    });
  }
}
