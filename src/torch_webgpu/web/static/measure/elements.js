/** Elements and texts that the measuring pages share. */

export const $ = (id) => document.getElementById(id);

/** An element with text, classes and children. */
export function make(name, { text, className, ...attributes } = {}, ...children) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

/** Three significant digits, thousands apart. */
export function number(value) {
  if (!Number.isFinite(value)) return "–";
  const places = value === 0 ? 0 : Math.min(6, Math.max(0, 2 - Math.floor(Math.log10(Math.abs(value)))));
  const [whole, rest] = Math.abs(value).toFixed(places).split(".");
  const grouped = whole.replace(/\B(?=(\d{3})+$)/g, "\u202f");
  return (value < 0 ? "−" : "") + (rest ? `${grouped}.${rest}` : grouped);
}

export function card(label, value, detail) {
  const shown = value instanceof Node ? value : make("span", { text: value, className: "value" });
  return make(
    "li",
    {},
    make("span", { text: label, className: "label" }),
    shown,
    make("span", { text: detail, className: "detail" }),
  );
}

/** Says what is going on; `bad` for what went wrong. */
export function status(text, bad = false) {
  $("status").textContent = text;
  $("status").classList.toggle("bad", bad);
}

/** How far the run is, from 0 to 1; null hides the bar. */
export function progress(done) {
  $("running").hidden = done === null;
  if (done !== null) $("bar").value = done;
}
