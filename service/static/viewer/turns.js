// Work that a newer request of the same kind makes needless.

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

/** Runs `task` on each item, `limit` at a time; stops at the first failure or when aborted. */
export async function inParallel(items, limit, signal, task) {
  const waiting = [...items];
  const run = async () => {
    while (waiting.length && !signal.aborted) await task(waiting.shift());
  };
  await Promise.all(Array.from({ length: limit }, run));
}
