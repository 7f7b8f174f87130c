// Tokens (or words) as they follow each other; pointing at one points at its row.

import { button, element } from "./dom.js";

const LEVELS = 50; // shades that are told apart

/** One strip of tokens, shaded by numbers when there are some. */
export class TokenStrip {
  #buttons = [];
  #host;
  #pointer;
  #axis;

  /**
   * @param {HTMLElement} host
   * @param {import("./maps.js").Pointer} pointer
   * @param {{name: string, axis?: "row"|"column"}} options `axis`: what of a map these tokens are
   */
  constructor(host, pointer, { name, axis = "row" }) {
    this.#host = element("div", { className: "tokens", dir: "auto", role: "group", ariaLabel: name });
    host.append(this.#host);
    this.#pointer = pointer;
    this.#axis = axis;
    this.#listen();
  }

  /** @param {boolean[]} special which of them the tokenizer added */
  show(labels, special) {
    this.#buttons = labels.map((label, index) =>
      button(label, null, {
        className: special[index] ? "token special" : "token",
        tabIndex: index ? -1 : 0,
        data: { index },
        ...(special[index] && { dir: "ltr" }), // so that the strip's direction is of the first letter of other tokens
      }),
    );
    this.#host.replaceChildren(...this.#buttons);
  }

  /** Shades each token by a number from 0 to 1; null removes the shades. */
  shade(shares) {
    this.#buttons.forEach(({ style }, index) => {
      const level = String(shares ? Math.round(shares[index] * LEVELS) / LEVELS : 0);
      // Of hundreds of tokens few change, and only they are drawn again.
      if (level !== style.getPropertyValue("--share")) style.setProperty("--share", level);
    });
  }

  /** Marks the token that is pointed at. */
  mark(index) {
    this.#host.querySelector(".pointed")?.classList.remove("pointed");
    this.#buttons[index]?.classList.add("pointed");
  }

  #listen() {
    const point = (kind, show) =>
      this.#host.addEventListener(kind, ({ target }) => {
        if (target.matches(".token")) show({ [this.#axis]: Number(target.dataset.index) });
      });
    point("pointerover", (place) => this.#pointer.hover(place));
    point("focusin", (place) => this.#pointer.hover(place));
    point("click", (place) => this.#pointer.pin(place));
    for (const kind of ["pointerleave", "focusout"]) this.#host.addEventListener(kind, () => this.#pointer.hover());
    this.#host.addEventListener("keydown", (event) => this.#move(event));
  }

  #move(event) {
    const from = Number(event.target.dataset.index);
    const forward = getComputedStyle(this.#host).direction === "rtl" ? -1 : 1;
    const last = this.#buttons.length - 1;
    const steps = { ArrowRight: from + forward, ArrowLeft: from - forward, Home: 0, End: last };
    const to = steps[event.key];
    if (to === undefined) return;
    event.preventDefault();
    const next = this.#buttons[Math.max(0, Math.min(last, to))];
    event.target.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  }
}
