// Work that a newer request of the same kind makes needless.

import { ApiError } from "./api.js";
import { showBusy } from "./dom.js";

/** One kind of work: beginning it again aborts what was under way. */
export class Turn {
  #controller = null;

  begin() {
    this.end();
    this.#controller = new AbortController();
    return this.#controller.signal;
  }

  end() {
    this.#controller?.abort();
    this.#controller = null;
  }
}

/** Shows a section as busy while `work` waits for an answer; says why the service gives none, unless aborted. */
export async function whileBusy(section, signal, work, onFailure) {
  showBusy(section, true);
  try {
    await work();
  } catch (error) {
    if (signal.aborted) return;
    if (!(error instanceof ApiError)) throw error;
    await onFailure(error);
  }
  if (!signal.aborted) showBusy(section, false);
}

/** Runs `task` on each item, `limit` at a time; stops at the first failure or when aborted. */
export async function inParallel(items, limit, signal, task) {
  const waiting = [...items];
  const run = async () => {
    while (waiting.length && !signal.aborted) await task(waiting.shift());
  };
  try {
    await Promise.all(Array.from({ length: limit }, run));
  } finally {
    waiting.length = 0;
  }
}
