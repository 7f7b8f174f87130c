// Numbers of the heads on one text: those of one head, each with its place among all; and heads that are found by them,
// such as those of the previous token. The best of these are listed, and the small maps sorted and filtered.

import { bars, button, byId, element, quiet } from "./dom.js";

export const NORM_SHARE = "norm_share"; // loaded when it is asked for: the service's statistics do not have it
const LISTED = 6;

const STATISTICS = [
  ["entropy", "Entropy", "nats; 0 is one token only"],
  ["normalized_entropy", "Entropy / largest possible", "1 is all tokens that it may see alike"],
  ["confidence", "Confidence", "mean largest weight on an ordinary token"],
  ["distance", "Distance", "tokens, mean"],
  ["signed_distance", "Signed distance", "tokens; above 0 looks back"],
  ["offset_previous", "To the previous token", "mean weight"],
  ["offset_self", "To itself", "mean weight"],
  ["offset_next", "To the next token", "mean weight"],
  ["special_mass", "To special tokens", "mean weight"],
  ["punctuation_mass", "To punctuation", "mean weight"],
  ["repeated_token", "To the same token elsewhere", "mean weight, where tokens repeat"],
];
const CAPTION =
  "Over all tokens, special ones included. The mark is this head, from the smallest to the largest of all heads.";

/** By name: words for a reader, and the statistic that is largest for such heads, with its unit if it is no weight. */
const KINDS = {
  previous: { words: "previous token", statistic: "offset_previous" },
  next: { words: "next token", statistic: "offset_next" },
  self: { words: "itself", statistic: "offset_self" },
  special: { words: "special tokens", statistic: "special_mass" },
  repeated: { words: "same word elsewhere", statistic: "repeated_token" },
  punctuation: { words: "punctuation", statistic: "punctuation_mass" },
  broad: { words: "many tokens (entropy)", statistic: "normalized_entropy", unit: "share of the largest entropy" },
  focused: { words: "one token", statistic: "confidence", unit: "largest weight, mean" },
  far: { words: "far away", statistic: "distance", unit: "tokens, mean" },
  norm: { words: "share of the norm", statistic: NORM_SHARE, unit: "share of the norms ‖α f(x)‖ of its layer" },
};

export const FIND_KINDS = Object.keys(KINDS);

/** @param {Object<string, number[][]|null>} statistics by name [layer][head] */
export function showStatistics(host, statistics, layer, head) {
  const rows = STATISTICS.filter(([name]) => statistics[name]).map(([name, label, unit]) => {
    const value = statistics[name][layer][head];
    return element(
      "tr",
      {},
      element("th", { scope: "row", textContent: label, title: unit }),
      element("td", { className: "number", textContent: value.toFixed(3) }),
      element("td", { className: "place" }, place(value, statistics[name].flat(), label)),
    );
  });
  const table = element("table", { className: "statistics" }, element("tbody", {}, ...rows));
  host.replaceChildren(table, quiet(CAPTION, "p"));
}

function place(value, all, label) {
  const least = Math.min(...all);
  const most = Math.max(...all);
  const title = `${label}: ${least.toFixed(3)} to ${most.toFixed(3)} over all heads`;
  const track = element("div", { className: "track", role: "img", title, ariaLabel: title });
  track.style.setProperty("--place", most > least ? (value - least) / (most - least) : 0.5);
  return track;
}

/** A button that shows a head, "layer.head", large. */
export function headButton(state, key) {
  const [layer, head] = key.split(".").map(Number);
  const open = () => state.set({ map: "head", layer, head });
  return button(nameOf(key), open, { className: "plain" });
}

export function nameOf(key) {
  const [layer, head] = key.split(".");
  return `layer ${layer}, head ${head}`;
}

export class FindPanel {
  #state;
  #grid;
  #statistics = null;

  constructor(state, grid) {
    this.#state = state;
    this.#grid = grid;
    const buttons = Object.entries(KINDS).map(([find, { words }]) =>
      button(words, () => state.set({ find: state.values.find === find ? "" : find }), { data: { find } }),
    );
    byId("find").append(...buttons);
    state.on(["find", "sorted", "least"], () => this.#draw());
    this.#draw();
  }

  /** @param {?Object<string, number[][]|null>} statistics of the shown text by name [layer][head]; null while unknown */
  show(statistics) {
    this.#statistics = statistics;
    this.#draw();
  }

  #draw() {
    const { find, sorted, least } = this.#state.values;
    for (const kind of byId("find").querySelectorAll("button")) {
      const { statistic } = KINDS[kind.dataset.find];
      const isKnown = this.#statistics && (statistic !== NORM_SHARE || statistic in this.#statistics);
      kind.ariaPressed = kind.dataset.find === find;
      kind.disabled = Boolean(isKnown) && !this.#statistics[statistic];
    }
    const found = this.#found(find);
    const kept = found?.filter(({ share }) => share >= least / 100);
    byId("grid").classList.toggle("finding", Boolean(found));
    byId("found-choices").hidden = !found;
    byId("least-value").textContent = kept ? `${least} % of the most: ${kept.length} of ${found.length} heads` : "";
    this.#grid.arrange(sorted && kept ? kept.map(({ key }) => key) : null);
    this.#grid.showEffects(kept ? new Map(kept.map(({ key, share }) => [key, share])) : null);
    byId("found").replaceChildren(...(kept ? this.#list(kept) : []));
  }

  #found(find) {
    const values = find && this.#statistics?.[KINDS[find].statistic];
    if (!values) return null;
    const most = Math.max(...values.flat()) || 1;
    const heads = values.flatMap((row, layer) =>
      row.map((value, head) => ({ key: `${layer}.${head}`, value, share: Math.max(0, value / most) })),
    );
    return heads.sort((a, b) => b.value - a.value);
  }

  #list(found) {
    const items = bars(found.slice(0, LISTED).map(({ key, value }) => [headButton(this.#state, key), value]));
    const { unit = "weight, mean over the text" } = KINDS[this.#state.values.find];
    return [element("ol", { className: "bars" }, ...items), quiet(`${unit}; on this text`, "p")];
  }
}
