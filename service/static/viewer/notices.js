// Messages in the page, one for each matter, so that a new one replaces the old one of the same matter only.

import { button, element } from "./dom.js";

export class Notices {
  #host;
  #shown = new Map();

  constructor(host) {
    this.#host = host;
  }

  /** @param {{kind?: "problem"|"note", action?: {name: string, run: () => void}}} options */
  show(matter, text, { kind = "problem", action } = {}) {
    if (this.#shown.get(matter)?.firstChild.textContent === text) return;
    const notice = element("p", { class: "notice", data: { kind, matter } }, element("span", { textContent: text }));
    if (action) notice.append(button(action.name, action.run));
    this.clear(matter);
    this.#shown.set(matter, notice);
    this.#host.append(notice);
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
    401: error.hadKey ? "This server does not know that API key." : "This server needs an API key.",
    413: `Too large for this server: ${error.message}`,
    429: `The server is busy${seconds ? `; it asks to wait ${seconds} s` : ""}. Your text is still here.`,
    503: "The server accepts no requests at the moment. Your text is still here.",
    504: "The server took too long. A shorter text may help.",
  };
  return words[error.status] ?? error.message;
}
