// What the reader has chosen, in one place; whoever shows something of it listens.

export const DEFAULTS = Object.freeze({
  mode: "one", // or "pair"
  side: "a", // whose attention is shown in pair mode
  a: "",
  b: "",
  prompt: "", // before the texts: a name, or `NO_PROMPT`; else the model's default
  map: "head", // or "rollout"
  blocks: "head", // between two texts, or "mean", "max" of the layer's heads
  through: "pooling", // or "network": whose contributions to a similarity
  layer: 0,
  head: 0,
  view: "both", // "lines", "matrix"
  measure: "weights", // "norms", "both"
  level: "token", // or "word"
  hide: false, // special tokens
  renormalise: true, // after hiding them
  threshold: 0, // in hundredths of a map's largest number
  shared: false, // one colour scale for all small maps
  sorted: true, // small maps, best first, while a kind of head is looked for
  least: 0, // what such heads have at least, in hundredths of the most
  find: "", // which kind of head is looked for, of `FIND_KINDS`
  off: Object.freeze([]), // heads switched off, "layer.head"
  withText: false, // in the link
});

export class State {
  #values;
  #listeners = [];

  constructor(values) {
    this.#values = { ...DEFAULTS, ...values };
  }

  get values() {
    return this.#values;
  }

  /** The text whose attention is shown. */
  get text() {
    return this.#values.mode === "pair" && this.#values.side === "b" ? this.#values.b : this.#values.a;
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
