// Why one document stands above another: a query, several documents, ranked, and two explanations with their difference.

import { ask } from "./api.js";
import { Section } from "./asking.js";
import { bars, bdi, byId, element, formatNumber, quiet, tableRow } from "./dom.js";
import { sumsOf } from "./maps.js";

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
  #section = new Section("why-body", "why-status");
  #ranked = null; // {query, documents: [{text, score}]} best first, of one request

  /** @param {string} kind of the model, as of `kindOf` */
  constructor({ files, defaults }, kind) {
    this.#kind = kind;
    this.#hasGraph = "explain.onnx" in files;
    this.#defaults = defaults;
    byId("why").hidden = !(kind === "embedding" || (kind === "scoring" && this.#hasGraph));
    byId("why-rank").onclick = () => this.#rank();
    for (const id of ["why-a", "why-b"]) byId(id).onchange = () => this.#explain();
  }

  async #rank() {
    const query = byId("why-query").value.trim();
    const texts = byId("why-documents").value.split("\n").map((line) => line.trim()).filter(Boolean);
    if (!query || texts.length < 2) return this.#say("Give a query and two documents or more, one a line.");
    byId("why-choice").hidden = true;
    for (const id of ["why-ranked", "why-answer", "why-status"]) byId(id).replaceChildren();
    await this.#section.ask(async (signal) => {
      const order = await ask("rerank", { body: { query, texts, raw_scores: true }, signal });
      this.#ranked = { query, documents: order.map(({ index, score }) => ({ text: texts[index], score })) };
      this.#draw();
      await this.#explain();
    });
  }

  #draw() {
    const { documents } = this.#ranked;
    byId("why-ranked").replaceChildren(...bars(documents.map(({ text, score }) => [bdi(text), score])));
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
    await this.#section.ask(async (signal) => {
      const explain = ({ text }) => ask("explain", { body: this.#question(query, text), signal });
      const answers = await Promise.all(chosen.map(explain));
      const [a, b] = answers.map(this.#kind === "scoring" ? ofLogit : ofSimilarity);
      byId("why-answer").replaceChildren(...this.#tables(a, b));
      this.#say(`A is ahead by ${formatNumber(a.value - b.value)}: ${formatNumber(a.value)} and ${formatNumber(b.value)}.`);
    });
  }

  /** Both texts and how they are compared: as `POST /rerank` does, an embedder's behind the prompt of each. */
  #question(query, document) {
    const how = { level: "word", through: this.#hasGraph ? "network" : "pooling" };
    if (this.#kind === "scoring") return { a: query, b: document, ...how };
    const { prompts, default_prompt_name: byDefault, similarity } = this.#defaults;
    const before = (names) => prompts[names.find((name) => name in prompts) ?? byDefault] ?? "";
    return { a: before(QUERY) + query, b: before(DOCUMENT) + document, ...how, similarity, prompt: "" };
  }

  #tables(a, b) {
    const rows = a.query.map(([word, value], place) => [word, value, b.query[place]?.[1] ?? 0]);
    rows.sort(([, a1, b1], [, a2, b2]) => Math.abs(a2 - b2) - Math.abs(a1 - b1));
    const sides = [["A", a], ["B", b]].map(([name, { document }]) => {
      const best = document.toSorted(([, one], [, other]) => other - one).slice(0, MOST_WORDS);
      const items = bars(best.map(([word, value]) => [bdi(word), value]));
      const heading = element("h3", { textContent: `Words of ${name} that add most` });
      return element("div", {}, heading, element("ol", { className: "bars" }, ...items));
    });
    return [quiet(EXPLAINED[this.#kind], "p"), tableOf(rows), element("div", { className: "panes" }, ...sides)];
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
  const names = ["Query", "A", "B", "A − B"].map((textContent) => element("th", { scope: "col", textContent }));
  const sum = (place) => rows.reduce((total, row) => total + row[place], 0);
  const lines = [...rows, ["sum", sum(1), sum(2)]].map(([word, a, b]) => tableRow(bdi(word), a, b, a - b));
  const head = element("thead", {}, element("tr", {}, ...names));
  return element("table", { className: "across" }, head, element("tbody", { id: "why-rows" }, ...lines));
}
