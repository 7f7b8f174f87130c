// Elements of the page.

export const byId = (id) => document.getElementById(id);

/** A new element with properties (`class`, `data` and `aria` among them) and children. */
export function element(name, { class: className, data = {}, aria = {}, role, ...properties } = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  if (className) made.className = className;
  if (role) made.setAttribute("role", role);
  for (const [key, value] of Object.entries(aria)) made.setAttribute(`aria-${key}`, value);
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
  return element(name, { class: "quiet small", textContent });
}

/** Two tokens, each in its own direction of writing. */
export function tokenPair(first, between, second) {
  const [one, other] = [first, second].map((textContent) => element("bdi", { textContent }));
  return element("span", { class: "mono" }, one, ` ${between} `, other);
}

/**
 * Says whether a section waits for an answer. It is dimmed meanwhile, and nothing can be saved: whatever is kept belongs
 * to one request.
 */
export function showBusy(section, isBusy) {
  section.setAttribute("aria-busy", isBusy);
  const pending = [...document.querySelectorAll("main [aria-busy=true]")].some((one) => !one.hidden);
  for (const button of document.querySelectorAll("[data-saves]")) button.disabled = pending;
}

/** Calls `draw` once in the next frame, however often it is asked to. */
export function oncePerFrame(draw) {
  let frame = 0;
  return () => {
    frame ||= requestAnimationFrame(() => {
      frame = 0;
      draw();
    });
  };
}

/** Sizes a canvas for the screen's pixels; what is drawn in its context is in CSS pixels. */
export function prepareCanvas(canvas, width, height, ratio = window.devicePixelRatio || 1) {
  canvas.width = Math.max(1, Math.round(width * ratio));
  canvas.height = Math.max(1, Math.round(height * ratio));
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  return context;
}
