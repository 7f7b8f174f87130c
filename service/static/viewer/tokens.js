// Tokens (or words) as they follow each other; pointing at one points at its row.

import { element } from "./dom.js";

const RIGHT_TO_LEFT = /[\p{Script=Arabic}\p{Script=Hebrew}\p{Script=Syriac}\p{Script=Thaana}\p{Script=Nko}]/u;
const LEVELS = 50; // shades that are told apart

/** One strip of tokens, shaded by numbers when there are some. */
export class TokenStrip {
  #buttons = [];
  #levels = []; // how strongly each is shaded
  #host;
  #pointer;
  #axis;

  /**
   * @param {HTMLElement} host
   * @param {import("./pointer.js").Pointer} pointer
   * @param {{name: string, axis?: "row"|"column"}} options `axis`: what of a map these tokens are
   */
  constructor(host, pointer, { name, axis = "row" }) {
    this.#host = element("div", { class: "tokens", role: "group", aria: { label: name } });
    host.append(this.#host);
    this.#pointer = pointer;
    this.#axis = axis;
    this.#listen();
  }

  /** @param {boolean[]} special which of them the tokenizer added */
  show(labels, special) {
    this.#buttons = labels.map((label, index) =>
      element("button", {
        type: "button",
        class: special[index] ? "token special" : "token",
        dir: "auto",
        textContent: label,
        tabIndex: index ? -1 : 0,
        data: { index },
      }),
    );
    this.#levels = labels.map(() => 0);
    this.#host.dir = directionOf(labels.filter((_, index) => !special[index]));
    this.#host.replaceChildren(...this.#buttons);
  }

  /** Shades each token by a number from 0 to 1; null removes the shades. */
  shade(shares) {
    this.#buttons.forEach((button, index) => {
      const level = shares ? Math.round(shares[index] * LEVELS) / LEVELS : 0;
      if (level === this.#levels[index]) return; // of hundreds of tokens few change, and only they are drawn again
      this.#levels[index] = level;
      button.style.setProperty("--share", level);
    });
  }

  /** Marks the token that is pointed at. */
  mark(index) {
    this.#host.querySelector(".pointed")?.classList.remove("pointed");
    this.#buttons[index]?.classList.add("pointed");
  }

  #listen() {
    const place = (index) => (this.#axis === "row" ? [index, null] : [null, index]);
    const under = (event) => event.target.closest?.(".token")?.dataset.index;
    this.#host.addEventListener("pointerover", (event) => {
      if (under(event) !== undefined) this.#pointer.hover(...place(Number(under(event))));
    });
    this.#host.addEventListener("pointerleave", () => this.#pointer.leave());
    this.#host.addEventListener("focusin", (event) => this.#pointer.hover(...place(Number(under(event)))));
    this.#host.addEventListener("focusout", () => this.#pointer.leave());
    this.#host.addEventListener("click", (event) => {
      if (under(event) !== undefined) this.#pointer.pin(...place(Number(under(event))));
    });
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

/** The direction of the first letter that has one, as `dir="auto"` finds it, but not in names of special tokens. */
function directionOf(labels) {
  const letter = labels.join("").match(/\p{L}/u)?.[0] ?? "";
  return RIGHT_TO_LEFT.test(letter) ? "rtl" : "ltr";
}
