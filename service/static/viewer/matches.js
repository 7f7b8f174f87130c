// Two texts that a multi-vector model compares token by token: what each token of the first found in the second.

import { rankOne } from "./api.js";
import { Section } from "./asking.js";
import { bdi, bold, byId, element, formatNumber, tableRow, tokenPair } from "./dom.js";
import { Pointer, isSpecial } from "./maps.js";
import { TokenStrip } from "./tokens.js";

export class MatchesView {
  #section = new Section("matches", "matches-failure");
  #pointer = new Pointer();
  #strip = new TokenStrip(byId("matches-query"), this.#pointer, { name: "Tokens of the first text" });
  answer = null;
  texts = null; // the two that the answer is of
  drawings = []; // it has none to keep
  #marks = []; // {start, end, mark}: parts of the document that were found, in characters

  constructor() {
    this.#pointer.on(() => this.#point());
    const rows = byId("matches-rows");
    const under = (event) => ({ row: Number(event.target.closest("tr").dataset.index) });
    rows.addEventListener("pointerover", (event) => this.#pointer.hover(under(event)));
    rows.addEventListener("pointerleave", () => this.#pointer.hover());
    rows.addEventListener("click", (event) => this.#pointer.pin(under(event)));
  }

  async load(query, document) {
    this.texts = [query, document];
    this.answer = null;
    byId("matches-score").textContent = "";
    this.#pointer.clear();
    const load = async (signal) => {
      this.answer = await rankOne(query, document, { matches: true }, signal);
      this.draw();
    };
    await this.#section.ask(load);
  }

  stop() {
    this.#section.stop();
    this.answer = null;
  }

  draw() {
    if (!this.answer) return;
    const { score, matches, truncated } = this.answer;
    Object.assign(byId("matches-score"), { textContent: formatNumber(score) }).dataset.value = score;
    byId("matches-note").hidden = !truncated;
    const labels = matches.map((match) => match.query_token);
    this.#strip.show(labels, isSpecial(matches.map((match) => match.query_offsets)));
    this.#strip.shade(matches.map(({ similarity }) => Math.max(0, similarity)));
    const rows = matches.map(({ query_token: asked, token, similarity }, index) => {
      const row = tableRow(bdi(asked, "mono"), bdi(token, "mono"), similarity);
      row.dataset.index = index;
      return row;
    });
    byId("matches-rows").replaceChildren(...rows);
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
}

function inWords({ query_token: asked, token, similarity }) {
  return [tokenPair(asked, "→", token), element("span", {}, "similarity ", bold(similarity))];
}

function inSum({ score, matches }) {
  const total = matches.reduce((sum, { similarity }) => sum + similarity, 0);
  const sum = bold(total, { id: "matches-sum", data: { value: total } });
  return [element("span", {}, "The score ", bold(score), " is the sum of all similarities: ", sum)];
}
