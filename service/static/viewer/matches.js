// Two texts that a multi-vector model compares token by token: what each token of the first found in the second.

import { matchTexts } from "./api.js";
import { byId, element, showBusy, tokenPair } from "./dom.js";
import { formatNumber } from "./ink.js";
import { describeFailure } from "./notices.js";
import { Pointer } from "./pointer.js";
import { TokenStrip } from "./tokens.js";
import { Turn, whileBusy } from "./turns.js";

export class MatchesView {
  #turn = new Turn();
  #pointer = new Pointer();
  #strip = new TokenStrip(byId("matches-query"), this.#pointer, { name: "Tokens of the first text" });
  answer = null;
  texts = null; // the two that the answer is of
  drawings = []; // it has none to keep
  #marks = []; // {start, end, mark}: parts of the document that were found, in characters

  constructor() {
    this.#pointer.on(() => this.#point());
    const rowUnder = (event) => event.target.closest("tr")?.dataset.index;
    byId("matches-rows").addEventListener("pointerover", (event) => this.#pointer.hover(Number(rowUnder(event)), null));
    byId("matches-rows").addEventListener("pointerleave", () => this.#pointer.leave());
    byId("matches-rows").addEventListener("click", (event) => this.#pointer.pin(Number(rowUnder(event)), null));
  }

  async load(query, document) {
    byId("matches").hidden = false;
    const signal = this.#turn.begin();
    this.texts = [query, document];
    this.answer = null;
    byId("matches-score").textContent = "";
    this.#pointer.clear();
    await whileBusy(byId("matches"), signal, async () => {
      this.answer = await matchTexts(query, document, signal);
      this.draw();
    }, (error) => this.#fail(error));
  }

  stop() {
    this.#turn.end();
    this.answer = null;
    byId("matches").hidden = true;
    showBusy(byId("matches"), false);
  }

  draw() {
    if (!this.answer) return;
    const { score, matches, truncated } = this.answer;
    Object.assign(byId("matches-score"), { textContent: formatNumber(score) }).dataset.value = score;
    byId("matches-failure").hidden = true;
    byId("matches-body").hidden = false;
    byId("matches-note").hidden = !truncated;
    const isSpecial = matches.map(({ query_offsets: [start, end] }) => start === end);
    this.#strip.show(matches.map((match) => match.query_token), isSpecial);
    this.#strip.shade(matches.map(({ similarity }) => Math.max(0, similarity)));
    byId("matches-rows").replaceChildren(...matches.map((match, index) => rowOf(match, index)));
    this.#marks = [];
    byId("matches-document").replaceChildren(...this.#highlight(Array.from(this.texts[1]), matches));
    this.#point();
  }

  /** The document, cut where tokens that were found begin and end; each part as dark as what was found in it. */
  #highlight(characters, matches) {
    const ends = new Set([0, characters.length, ...matches.flatMap(({ offsets }) => offsets)]);
    const places = [...ends].sort((one, other) => one - other);
    const found = new Float64Array(characters.length);
    for (const { offsets: [start, end], similarity } of matches) {
      for (let at = start; at < end; at += 1) found[at] += Math.max(0, similarity);
    }
    const most = found.reduce((largest, one) => Math.max(largest, one), 0) || 1;
    return places.slice(0, -1).map((start, index) => {
      const end = places[index + 1];
      const text = characters.slice(start, end).join("");
      if (!found[start]) return text;
      const mark = element("mark", { textContent: text });
      mark.style.setProperty("--share", found[start] / most);
      this.#marks.push({ start, end, mark });
      return mark;
    });
  }

  /** Shows the token under the pointer, in the table, among the query's tokens and in the document. */
  #point() {
    const { row } = this.#pointer.place;
    const match = this.answer?.matches[row];
    this.#strip.mark(row);
    for (const one of byId("matches-rows").children) one.classList.toggle("pointed", Number(one.dataset.index) === row);
    for (const { start, end, mark } of this.#marks) {
      mark.classList.toggle("pointed", Boolean(match) && start >= match.offsets[0] && end <= match.offsets[1]);
    }
    byId("matches-readout").replaceChildren(...(match ? inWords(match) : this.answer ? inSum(this.answer) : []));
  }

  /** Takes away what belongs to the texts before. */
  #fail(error) {
    byId("matches-body").hidden = true;
    Object.assign(byId("matches-failure"), { hidden: false, textContent: describeFailure(error) });
  }
}

function inWords({ query_token: asked, token, similarity }) {
  return [tokenPair(asked, "→", token), element("span", {}, "similarity ", bold(similarity))];
}

function inSum({ score, matches }) {
  const total = matches.reduce((sum, { similarity }) => sum + similarity, 0);
  const sum = bold(total, { id: "matches-sum", data: { value: total } });
  return [element("span", {}, "The score ", bold(score), " is the sum of all similarities: ", sum)];
}

function rowOf({ query_token: asked, token, similarity }, index) {
  const cells = [element("th", { scope: "row" }, bare(asked)), element("td", {}, bare(token))];
  const number = element("td", { class: "number", textContent: formatNumber(similarity) });
  return element("tr", { data: { index } }, ...cells, number);
}

function bold(value, more = {}) {
  return element("b", { textContent: formatNumber(value), ...more });
}

function bare(textContent) {
  return element("bdi", { class: "mono", textContent });
}
