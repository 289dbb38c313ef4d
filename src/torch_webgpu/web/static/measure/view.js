import { chart } from "./chart.js";
import { $, card, make, number } from "./elements.js";
import { computations, lines, waits } from "./summary.js";

export { number, progress, status } from "./elements.js";

const between = ([low, high]) => `${number(low)} to ${number(high)}`;

/** Why WebGPU is missing, and what to do. */
export function showMissing({ title, text, steps }) {
  $("missing-title").textContent = title;
  $("missing-text").textContent = text;
  $("missing-steps").replaceChildren(...steps.map((step) => make("li", { text: step })));
  $("missing").hidden = false;
}

/** The adapter, the browser and the clock. */
export function showFacts({ target, facts }, browser) {
  const sizes = facts.subgroupSizes ? `, ${[...new Set(facts.subgroupSizes)].join(" to ")} wide` : "";
  const finer = browser.isolated ? "isolated from other origins, so as fine as it gets" : "not isolated, so coarsened";
  const kinds = {
    cpu: "a software adapter: no GPU",
    integrated: "integrated",
    discrete: "discrete",
    unknown: "kind not told",
  };
  $("facts").replaceChildren(
    card(
      "Adapter",
      facts.description,
      `${kinds[target.adapter_kind]}; vendor ${facts.vendor}, architecture ${facts.architecture}`,
    ),
    card("Browser", `${browser.name} ${browser.version}`.trim(), browser.system),
    card("Clock", `${number(browser.timer_step)} µs steps`, finer),
    card("Shaders", facts.f16 ? "f16" : "no f16", facts.subgroups ? `subgroups${sizes}` : "no subgroups"),
  );
  $("features").textContent = `Features: ${target.features.join(", ") || "none"}.`;
  const limits = Object.entries(target.limits).map(([name, value]) =>
    make("tr", {}, make("th", { text: name, scope: "row" }), make("td", { text: number(value), className: "num" })),
  );
  $("limits").replaceChildren(...limits);
  $("more").hidden = false;
}

/** All figures of what is measured by now; returns what it shows. */
export function showResults(measurements, plan, resamples) {
  const rows = lines(measurements, plan.names, resamples);
  const { idle, naive } = waits(measurements, plan.names, resamples);
  if (rows.length) showDispatch(rows, idle, naive, plan.names.methods);
  const found = computations(measurements, plan);
  if (found.length) showFusion(found, plan);
  return { rows, idle, naive, computations: found };
}

let draw = () => {};
let width = 0;
new ResizeObserver(([{ contentRect }]) => {
  if (contentRect.width !== width) draw();
  width = contentRect.width;
}).observe($("chart"));

function showDispatch(rows, idle, naive, methods) {
  const order = Object.values(methods);
  const series = (method) => `s${order.indexOf(method) || 7}`;
  $("dispatch").hidden = false;
  $("dispatch-rows").replaceChildren(
    ...(idle ? [waitRow(methods.idle, idle)] : []),
    ...rows.map(({ method, metric, line }) => lineRow(method, metric, line, series(method))),
  );
  const drawn = rows
    .filter(({ metric }) => metric === "wall")
    .map(({ method, line }) => ({ name: method, series: series(method), line }));
  if (drawn.length) {
    draw = () => $("chart").replaceChildren(chart(drawn, idle?.median ?? null, methods.idle, $("chart").clientWidth || 600));
    draw();
  }
  const slope = (method) => rows.find((r) => r.method === method)?.line;
  const sequential = slope(methods.sequential);
  const onePass = slope(methods.onePass);
  $("figures").hidden = false;
  $("figures").replaceChildren(
    ...[
      sequential && figure("One dispatch more, in a sequence", sequential.slope, sequential.slopeInterval),
      onePass && figure("One dispatch more, in one pass", onePass.slope, onePass.slopeInterval),
      naive && figure("One dispatch and a wait: the naive figure", naive.median, naive.interval),
      idle && figure("The wait of an idle queue, which is in every wait", idle.median, idle.interval),
    ].filter(Boolean),
  );
}

function figure(label, value, interval) {
  const shown = make("span", { text: `${number(value)} `, className: "value" }, make("small", { text: "µs" }));
  return card(label, shown, between(interval));
}

function named(name, series, detail) {
  const swatch = series ? [make("span", { className: `swatch ${series}`, "aria-hidden": "true" })] : [];
  const small = detail ? [make("small", { text: detail })] : [];
  return make("th", { scope: "row" }, ...swatch, name, ...small);
}

function cell(value, interval) {
  const small = interval ? [make("small", { text: between(interval) })] : [];
  return make("td", { className: "num" }, number(value), ...small);
}

function waitRow(method, { median, interval, n }) {
  return make("tr", {}, named(method, "s7"), cell(NaN), cell(median, interval), make("td", { text: n, className: "num" }));
}

function lineRow(method, metric, line, series) {
  return make(
    "tr",
    {},
    named(method, series, metric === "wall" ? "" : "until the calls return"),
    cell(line.slope, line.slopeInterval),
    cell(line.intercept, line.interceptInterval),
    make("td", { text: line.n, className: "num" }),
  );
}

function showFusion(rows, plan) {
  $("fusion").hidden = false;
  $("many").textContent = `a call of ${plan.fusion.many}, µs`;
  $("fusion-rows").replaceChildren(
    ...rows.flatMap((row, i) => {
      const heading = make("th", { text: row.title, scope: "colgroup", colspan: "6" });
      const first = row.title !== rows[i - 1]?.title;
      return [...(first ? [make("tr", { className: "group" }, heading)] : []), variantRow(row)];
    }),
  );
}

function variantRow({ method, dispatches, one, apart, many, gain }) {
  return make(
    "tr",
    { className: "member" },
    named(method),
    make("td", { text: dispatches, className: "num" }),
    ...[one, apart, many].map((us) => cell(us)),
    make("td", { text: Number.isFinite(gain) ? `${number(gain)}×` : "–", className: "num" }),
  );
}

/** What a reader has to know. */
export function showNotes(notes) {
  $("notes").hidden = !notes.length;
  $("note-list").replaceChildren(...notes.map((text) => make("li", { text })));
}

/** Offers the result file. */
export function offer(text, name) {
  const link = $("download");
  if (link.href) URL.revokeObjectURL(link.href);
  link.href = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  link.download = name;
  link.hidden = false;
}

/** The one button. */
export const button = $("start");
