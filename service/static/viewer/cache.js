// Answers kept for going back to them, the longest unused dropped first, so that memory stays bounded.

export class BoundedCache {
  #entries = new Map(); // in the order of their last use
  #bytes = 0;

  constructor(maxBytes) {
    this.maxBytes = maxBytes;
  }

  get bytes() {
    return this.#bytes;
  }

  get(key) {
    const entry = this.#entries.get(key);
    if (entry === undefined) return undefined;
    this.#entries.delete(key);
    this.#entries.set(key, entry);
    return entry.value;
  }

  set(key, value, bytes) {
    this.#drop(key);
    this.#entries.set(key, { value, bytes });
    this.#bytes += bytes;
    for (const oldest of this.#entries.keys()) {
      if (this.#bytes <= this.maxBytes || oldest === key) break;
      this.#drop(oldest);
    }
  }

  #drop(key) {
    this.#bytes -= this.#entries.get(key)?.bytes ?? 0;
    this.#entries.delete(key);
  }
}
