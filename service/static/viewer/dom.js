// Elements of the page.

export const byId = (id) => document.getElementById(id);

/** A new element with properties (`data` for its data-* attributes) and children. */
export function element(name, { data = {}, ...properties } = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  Object.assign(made.dataset, data);
  made.append(...children);
  return made;
}

/** A button that does something; more properties as of `element`. */
export function button(textContent, onclick, properties = {}) {
  return element("button", { type: "button", textContent, onclick, ...properties });
}

/** Words of little weight. */
export function quiet(textContent, name = "span") {
  return element(name, { className: "quiet small", textContent });
}

/** A reader's or a model's word, in its own direction of writing. */
export function bdi(textContent, className = "") {
  return element("bdi", { className, textContent });
}

/** Two tokens. */
export function tokenPair(first, between, second) {
  return element("span", { className: "mono" }, bdi(first), ` ${between} `, bdi(second));
}

/** Four decimals, or four digits where that would show none. */
export function formatNumber(value) {
  const size = Math.abs(value);
  if (size !== 0 && size < 0.001) return value.toExponential(2);
  return size < 10 ? value.toFixed(4) : value.toFixed(2);
}

/** A number that a readout is about. */
export function bold(value, properties = {}) {
  return element("b", { textContent: formatNumber(value), ...properties });
}

/** A row of a table: its name, and cells of numbers or of something else. */
export function tableRow(name, ...cells) {
  const cell = (one) => {
    if (typeof one !== "number") return element("td", {}, one);
    return element("td", { className: "number", textContent: formatNumber(one) });
  };
  return element("tr", {}, element("th", { scope: "row" }, name), ...cells.map(cell));
}

/** A figure: a caption, and below it the place for a drawing. */
export function pane(...words) {
  const [caption, host] = [element("figcaption", {}, ...words), element("div")];
  return { figure: element("figure", { className: "pane" }, caption, host), caption, host };
}

/** List entries of [name, number], each with a bar as long as its `size` is of the number farthest from 0. */
export function bars(entries, size = (value) => Math.max(0, value)) {
  const most = Math.max(...entries.map(([, value]) => Math.abs(value))) || 1;
  return entries.map(([name, value]) => {
    const item = element("li", {}, name, element("span", { className: "number", textContent: formatEffect(value) }));
    item.style.setProperty("--share", size(value) / most);
    return item;
  });
}

/** Four decimals, or six where that would show little. */
export function formatEffect(value) {
  const size = Math.abs(value);
  return size >= 0.001 || size < 1e-6 ? value.toFixed(4) : value.toFixed(6);
}

/**
 * Says whether a section waits for an answer. It is dimmed meanwhile, and nothing can be saved: whatever is kept belongs
 * to one request.
 */
export function showBusy(section, isBusy) {
  section.ariaBusy = isBusy;
  const pending = [...document.querySelectorAll("main [aria-busy=true]")].some((one) => !one.hidden);
  for (const button of document.querySelectorAll("[data-saves]")) button.disabled = pending;
}
