// The numbers that describe one head on one text, each with its place among all heads.

import { element, quiet } from "./dom.js";

const STATISTICS = [
  ["entropy", "Entropy", "nats; 0 is one token only"],
  ["normalized_entropy", "Entropy / largest possible", "1 is all tokens alike"],
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

/** @param {Object<string, number[][]|null>} statistics by name [layer][head] */
export function showStatistics(host, statistics, layer, head) {
  const rows = STATISTICS.filter(([name]) => statistics[name]).map(([name, label, unit]) => {
    const value = statistics[name][layer][head];
    return element(
      "tr",
      {},
      element("th", { scope: "row", textContent: label, title: unit }),
      element("td", { class: "number", textContent: value.toFixed(3) }),
      element("td", { class: "place" }, place(value, statistics[name].flat(), label)),
    );
  });
  host.replaceChildren(
    element("table", { class: "statistics" }, element("tbody", {}, ...rows)),
    quiet(CAPTION, "p"),
  );
}

function place(value, all, label) {
  const least = Math.min(...all);
  const most = Math.max(...all);
  const share = most > least ? (value - least) / (most - least) : 0.5;
  const text = `${label}: ${least.toFixed(3)} to ${most.toFixed(3)} over all heads`;
  const track = element("div", { class: "track", role: "img", title: text, aria: { label: text } });
  track.style.setProperty("--place", share);
  return track;
}
