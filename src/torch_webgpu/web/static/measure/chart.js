/** A chart of lines over n on logarithmic axes, drawn by hand. */

const LEFT = 56;
const BOTTOM = 40;
const TOP = 16;
const RIGHT = 16;

function element(name, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, String(value));
  if (text !== undefined) made.textContent = text;
  return made;
}

const powers = (low, high) => {
  const first = Math.floor(Math.log10(low) + 1e-9);
  const last = Math.ceil(Math.log10(high) - 1e-9);
  return Array.from({ length: last - first + 1 }, (_, i) => 10 ** (first + i));
};

const time = (us) => (us >= 1e6 ? `${us / 1e6} s` : us >= 1e3 ? `${us / 1e3} ms` : `${Number(us.toPrecision(1))} µs`);

/** A logarithmic scale from the range of the values, a little wider, to pixels. */
function logarithmic(values, from, to) {
  const [low, high] = [Math.log10(Math.min(...values)), Math.log10(Math.max(...values))];
  return (v) => from + ((Math.log10(v) - low) / (high - low || 1)) * (to - from);
}

/**
 * @param {{name: string, series: string, line: {slope: number, intercept: number, points: number[][]}}[]} lines
 * @param {number | null} floor µs of an idle queue's wait
 * @param {string} floorName
 * @param {number} width pixels that there are
 * @returns {SVGSVGElement}
 */
export function chart(lines, floor, floorName, width) {
  const height = Math.round(Math.min(380, Math.max(250, width * 0.45)));
  const points = lines.flatMap(({ line }) => line.points).filter(([, y]) => y > 0);
  const ys = points.map(([, y]) => y).concat(floor > 0 ? [floor] : []);
  const xs = points.map(([n]) => n);
  const xTicks = powers(Math.min(...xs), Math.max(...xs)).filter((tick) => tick <= Math.max(...xs));
  const yTicks = powers(Math.min(...ys), Math.max(...ys));
  const x = logarithmic(xs, LEFT + 12, width - RIGHT);
  const y = logarithmic(yTicks, height - BOTTOM, TOP);
  const label = lines.map(({ name, line }) => `${name}: ${line.slope.toPrecision(3)} µs a dispatch`).join("; ");
  const svg = element("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  for (const tick of xTicks) {
    svg.append(element("text", { x: x(tick), y: height - BOTTOM + 20, "text-anchor": "middle" }, String(tick)));
  }
  svg.append(element("text", { x: width - RIGHT, y: height - 3, "text-anchor": "end" }, "n, dispatches"));
  for (const tick of yTicks) {
    svg.append(element("line", { x1: LEFT, x2: width - RIGHT, y1: y(tick), y2: y(tick), class: "grid" }));
    svg.append(element("text", { x: LEFT - 8, y: y(tick) + 4, "text-anchor": "end" }, time(tick)));
  }
  if (floor > 0) {
    svg.append(element("line", { x1: LEFT, x2: width - RIGHT, y1: y(floor), y2: y(floor), class: "floor" }));
    svg.append(
      element("text", { x: width - RIGHT, y: y(floor) - 6, "text-anchor": "end", class: "floor-label" }, floorName),
    );
  }
  for (const { series, line } of lines) svg.append(drawn(line, series, x, y, yTicks[0]));
  return svg;
}

function drawn(line, series, x, y, lowest) {
  const group = element("g", { class: series });
  const [first, last] = [line.points[0][0], line.points.at(-1)[0]];
  const path = [];
  for (let i = 0; i <= 60; i++) {
    const n = first * (last / first) ** (i / 60);
    const value = line.intercept + line.slope * n;
    if (value >= lowest) path.push(`${path.length ? "L" : "M"}${x(n).toFixed(1)} ${y(value).toFixed(1)}`);
  }
  if (path.length > 1) group.append(element("path", { d: path.join(""), class: "fit" }));
  for (const [n, value] of line.points) {
    if (value > 0) group.append(element("circle", { cx: x(n).toFixed(1), cy: y(value).toFixed(1), r: 4 }));
  }
  return group;
}
