/** Rows for people out of measurements: lines over n, and computations side by side. */

import { fitLine, median, summarise } from "./stats.js";

/**
 * One row a method: its line over n where there are three, of the time until all is done, or else of the host's.
 * @returns {{method: string, line: object}[]}
 */
export function lines(measurements, names, resamples) {
  const { wall, host } = names.metrics;
  const rows = [];
  for (const method of Object.values(names.methods)) {
    const own = measurements.filter((m) => m.experiment === "dispatch" && m.method === method && m.samples.length);
    const metric = own.some((m) => m.metric === wall) ? wall : host;
    const groups = new Map(own.filter((m) => m.metric === metric && m.parameters.n).map((m) => [m.parameters.n, m.samples]));
    if (groups.size >= 3) rows.push({ method, metric, line: fitLine(groups, resamples) });
  }
  return rows;
}

/** What one wait takes: of an idle queue, and after one dispatch. */
export function waits(measurements, names, resamples) {
  const { idle, waited } = names.methods;
  const find = (method, n) =>
    measurements.find(
      (m) => m.method === method && m.metric === names.metrics.wall && m.parameters.n === n && m.samples.length,
    );
  const of = (m) => (m ? summarise(m.samples, resamples) : null);
  return { idle: of(find(idle, undefined)), naive: of(find(waited, 1)) };
}

/**
 * One row a way to compute something.
 * @returns {{title: string, method: string, dispatches: number, one: number, apart: number, many: number, gain: number}[]}
 */
export function computations(measurements, plan) {
  const { metrics, submits } = plan.names;
  const rows = new Map();
  for (const m of measurements.filter((m) => m.experiment === "fusion" && m.samples.length)) {
    const { calls, submits: how, ...sizes } = m.parameters;
    const said = Object.entries(sizes).map(([name, value]) => `${name} ${value}`);
    const title = `${m.workload} (${said.join(", ")})`;
    const key = `${title}: ${m.method}`;
    const row = rows.get(key) ?? { title, method: m.method };
    rows.set(key, row);
    if (m.metric === metrics.dispatches) row.dispatches = m.samples[0];
    else if (m.metric === metrics.wall) {
      row[calls > 1 ? "many" : how === submits.apart ? "apart" : "one"] = median(m.samples);
    }
  }
  const found = [...rows.values()];
  for (const row of found) {
    const alike = found.filter((r) => r.title === row.title);
    const base = alike.reduce((a, r) => (r.dispatches > a.dispatches ? r : a));
    row.gain = base !== row && row.many > 0 ? base.many / row.many : NaN;
  }
  return found;
}
