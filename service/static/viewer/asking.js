// How the page asks: the newest request of a kind counts, what waits is dimmed, and what fails is said.

import { ApiError, hasKey } from "./api.js";
import { button, byId, element, showBusy } from "./dom.js";

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
  }
}

/** Does some work; `onFailure` hears why the service gives no answer, unless it came to be needless. */
export async function attempt(work, onFailure, signal) {
  try {
    await work(signal);
  } catch (error) {
    if (signal?.aborted) return;
    if (!(error instanceof ApiError)) throw error;
    await onFailure(error);
  }
}

/** A part of the page that shows one answer, is dimmed while it waits for it, and is hidden while there is none to ask. */
export class Section {
  #host;
  #said;
  #turn = new Turn();

  /** @param {string} said the id of what says why there is no answer */
  constructor(id, said) {
    this.#host = byId(id);
    this.#said = byId(said);
  }

  /** Says why there is no answer, instead of what the section shows, if it has a part for that. */
  fail(error) {
    this.#said.textContent = describeFailure(error);
    this.#showBody(false);
  }

  #showBody(isShown) {
    const body = this.#host.querySelector(".body");
    if (!body) return;
    body.hidden = !isShown;
    this.#said.hidden = isShown;
  }

  get isShown() {
    return !this.#host.hidden;
  }

  /** @param {(signal: AbortSignal) => Promise} work which the next one makes needless */
  async ask(work, onFailure = (error) => this.fail(error)) {
    const signal = this.#turn.begin();
    const show = async () => {
      await work(signal);
      this.#showBody(true);
    };
    this.#host.hidden = false;
    showBusy(this.#host, true);
    await attempt(show, (error) => onFailure(error, signal), signal);
    if (!signal.aborted) showBusy(this.#host, false);
  }

  stop() {
    this.#turn.end();
    this.#host.hidden = true;
    showBusy(this.#host, false);
  }
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

/** Messages in the page, one for each matter, so that a new one replaces the old one of the same matter only. */
export class Notices {
  #shown = new Map();

  /** @param {{kind?: "problem"|"note", action?: {name: string, run: () => void}}} options */
  show(matter, text, { kind = "problem", action } = {}) {
    if (this.#shown.get(matter)?.firstChild.textContent === text) return;
    const notice = element("p", { className: "notice", data: { kind, matter } }, element("span", { textContent: text }));
    if (action) notice.append(button(action.name, action.run));
    this.clear(matter);
    this.#shown.set(matter, notice);
    byId("notices").append(notice);
  }

  clear(matter) {
    this.#shown.get(matter)?.remove();
    this.#shown.delete(matter);
  }
}

/** A failure in words for a reader. */
export function describeFailure(error) {
  const seconds = Math.ceil(error.retryAfter || 0);
  const words = {
    0: "The server cannot be reached. Your text is still here; nothing is lost.",
    401: hasKey() ? "This server does not know that API key." : "This server needs an API key.",
    413: `Too large for this server: ${error.message}`,
    429: `The server is busy${seconds ? `; it asks to wait ${seconds} s` : ""}. Your text is still here.`,
    503: "The server accepts no requests at the moment. Your text is still here.",
    504: "The server took too long. A shorter text may help.",
  };
  return words[error.status] ?? error.message;
}
