// Why one document stands above another: a query, several documents, ranked, and two explanations with their difference.

import { explainWords, rankTexts } from "./api.js";
import { byId, element, quiet } from "./dom.js";
import { bar } from "./effect.js";
import { formatNumber } from "./ink.js";
import { sumsOf } from "./maps.js";
import { describeFailure } from "./notices.js";
import { kindOf } from "./task.js";
import { Turn, whileBusy } from "./turns.js";

const MOST_WORDS = 6; // of a document
const [QUERY, DOCUMENT] = [["query"], ["document", "passage", "corpus"]]; // names of prompts, as the service looks for them
const EXPLAINED = {
  embedding: "What each word of the query adds to the similarity with A and with B.",
  scoring: "What each word of the query adds to the logit of the pair with A and with B.",
};

export class WhyPanel {
  #kind;
  #hasGraph;
  #defaults;
  #turns = { rank: new Turn(), explain: new Turn() };
  #ranked = null; // {query, documents: [{text, score}]} best first, of one request

  constructor(info) {
    this.#kind = kindOf(info);
    this.#hasGraph = "explain.onnx" in info.manifest.files;
    this.#defaults = info.manifest.defaults;
    const canExplain = this.#kind === "embedding" || (this.#kind === "scoring" && this.#hasGraph);
    byId("why").hidden = !canExplain;
    byId("why-rank").onclick = () => this.#rank();
    for (const id of ["why-a", "why-b"]) byId(id).onchange = () => this.#explain();
  }

  async #rank() {
    const query = byId("why-query").value.trim();
    const texts = byId("why-documents").value.split("\n").map((line) => line.trim()).filter(Boolean);
    if (!query || texts.length < 2) return this.#say("Give a query and two documents or more, one a line.");
    const signal = this.#turns.rank.begin();
    this.#turns.explain.end();
    this.#forget();
    await this.#guard(signal, async () => {
      const order = await rankTexts(query, texts, signal);
      this.#ranked = { query, documents: order.map(({ index, score }) => ({ text: texts[index], score })) };
      this.#draw();
      await this.#explain();
    });
  }

  #draw() {
    const { documents } = this.#ranked;
    const most = Math.max(...documents.map(({ score }) => Math.abs(score))) || 1;
    const items = documents.map(({ text, score }) =>
      bar(element("bdi", { textContent: text }), score, Math.max(0, score) / most),
    );
    byId("why-ranked").replaceChildren(...items);
    for (const [place, id] of ["why-a", "why-b"].entries()) {
      const named = documents.map(({ text }, value) => element("option", { value, textContent: `${value + 1}: ${text}` }));
      byId(id).replaceChildren(...named);
      byId(id).value = place;
    }
    byId("why-choice").hidden = false;
  }

  /** Explains the two chosen documents, each with the query of the ranking. */
  async #explain() {
    const { query, documents } = this.#ranked;
    const chosen = ["why-a", "why-b"].map((id) => documents[Number(byId(id).value)]);
    byId("why-answer").replaceChildren();
    const signal = this.#turns.explain.begin();
    await this.#guard(signal, async () => {
      const answers = await Promise.all(chosen.map(({ text }) => explainWords(...this.#question(query, text), signal)));
      const [a, b] = answers.map(this.#kind === "scoring" ? ofLogit : ofSimilarity);
      byId("why-answer").replaceChildren(...this.#tables(a, b));
      this.#say(`A is ahead by ${formatNumber(a.value - b.value)}: ${formatNumber(a.value)} and ${formatNumber(b.value)}.`);
    });
  }

  /** Both texts and how they are compared: as `POST /rerank` does, an embedder's behind the prompt of each. */
  #question(query, document) {
    const through = this.#hasGraph ? "network" : "pooling";
    if (this.#kind === "scoring") return [query, document, { through }];
    const { prompts, default_prompt_name: byDefault, similarity } = this.#defaults;
    const before = (names) => prompts[names.find((name) => name in prompts) ?? byDefault] ?? "";
    return [before(QUERY) + query, before(DOCUMENT) + document, { through, similarity, prompt: "" }];
  }

  #tables(a, b) {
    const rows = a.query.map(([word, value], place) => [word, value, b.query[place]?.[1] ?? 0]);
    rows.sort(([, a1, b1], [, a2, b2]) => Math.abs(a2 - b2) - Math.abs(a1 - b1));
    const sides = [["A", a], ["B", b]].map(([name, { document }]) => {
      const best = [...document].sort(([, one], [, other]) => other - one).slice(0, MOST_WORDS);
      const most = Math.max(...best.map(([, value]) => value), 0) || 1;
      const items = best.map(([word, value]) => bar(element("bdi", { textContent: word }), value, Math.max(0, value) / most));
      return element("div", {}, element("h3", { textContent: `Words of ${name} that add most` }), element("ol", { class: "bars" }, ...items));
    });
    return [quiet(EXPLAINED[this.#kind], "p"), tableOf(rows), element("div", { class: "panes" }, ...sides)];
  }

  async #guard(signal, work) {
    await whileBusy(byId("why-body"), signal, work, (error) => this.#say(describeFailure(error)));
  }

  #forget() {
    this.#ranked = null;
    byId("why-choice").hidden = true;
    for (const id of ["why-ranked", "why-answer"]) byId(id).replaceChildren();
    this.#say("");
  }

  #say(words) {
    byId("why-status").textContent = words;
  }
}

/** {value, query, document}: the similarity, and what each word of either text adds to it; all rows are its sum. */
function ofSimilarity({ similarity, contributions, a, b }) {
  const { byRow, byColumn } = sumsOf(contributions);
  return { value: similarity, query: named(a.words, byRow), document: named(b.words, byColumn) };
}

/** The same of a cross-encoder's logit, of which each text's words and the rest add their own parts. */
function ofLogit({ logits, contributions, text }) {
  const parts = named(text.words, contributions[0]);
  const isOf = (side) => (_, place) => (text.segments[place] ?? null) === side;
  const rest = parts.filter(isOf(null)).reduce((sum, [, value]) => sum + value, 0);
  const document = parts.filter(isOf(1));
  const ofDocument = document.reduce((sum, [, value]) => sum + value, 0);
  const query = [...parts.filter(isOf(0)), ["all words of the document", ofDocument], ["special tokens, biases", rest]];
  return { value: logits[0], query, document };
}

function named(words, values) {
  return values.map((value, place) => [words[place] ?? "biases", value]);
}

function tableOf(rows) {
  const number = (value) => element("td", { class: "number", textContent: formatNumber(value) });
  const names = ["Query", "A", "B", "A − B"].map((textContent) => element("th", { scope: "col", textContent }));
  const lines = rows.map(([word, a, b]) =>
    element("tr", {}, element("th", { scope: "row" }, element("bdi", { textContent: word })), ...[a, b, a - b].map(number)),
  );
  const sum = (place) => rows.reduce((total, row) => total + row[place], 0);
  lines.push(element("tr", {}, element("th", { scope: "row", textContent: "sum" }), ...[sum(1), sum(2), sum(1) - sum(2)].map(number)));
  return element("table", { class: "across" }, element("thead", {}, element("tr", {}, ...names)), element("tbody", { id: "why-rows" }, ...lines));
}
