// Finds heads by what they do on this text: previous token, special tokens, the same word elsewhere, and so on. It lists
// the best ones, and sorts and filters the small maps.

import { button, byId, element, quiet } from "./dom.js";
import { bar } from "./effect.js";

export const NORM_SHARE = "norm_share"; // loaded when it is asked for: the service's statistics do not have it
const LISTED = 6;

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
      kind.setAttribute("aria-pressed", kind.dataset.find === find);
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
      row.map((value, head) => ({ layer, head, key: `${layer}.${head}`, value, share: Math.max(0, value / most) })),
    );
    return heads.sort((a, b) => b.value - a.value);
  }

  #list(found) {
    const items = found.slice(0, LISTED).map(({ layer, head, value, share }) => {
      const open = () => this.#state.set({ map: "head", layer, head });
      return bar(button(`layer ${layer}, head ${head}`, open, { class: "plain" }), value, share);
    });
    const { unit = "weight, mean over the text" } = KINDS[this.#state.values.find];
    return [element("ol", { class: "bars" }, ...items), quiet(`${unit}; on this text`, "p")];
  }
}
