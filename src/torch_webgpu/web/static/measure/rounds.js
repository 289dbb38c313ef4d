import { settle } from "./clock.js";
import { generator } from "./stats.js";

/**
 * What one call measures.
 * @typedef {object} Cell
 * @property {string} experiment
 * @property {string} workload
 * @property {string} method
 * @property {Record<string, number | string>} parameters
 * @property {string[]} metrics what `run` returns a value of, in µs
 * @property {() => Promise<Record<string, number>>} run
 * @property {string[]} [notes]
 */

/**
 * Samples every cell once a round, in random order, so that a drift of the machine's speed meets all alike.
 * @param {Cell[]} cells
 * @param {{samples: number, warmups: number}} size
 * @param {(done: number, total: number, taken: object[]) => void} told at the end of each round
 * @returns {Promise<object[]>} measurements as in the result file
 */
export async function takeRounds(cells, { samples, warmups }, told) {
  const random = generator();
  const taken = cells.map(({ experiment, workload, method, parameters, metrics, notes = [] }) =>
    metrics.map((metric) => ({
      experiment,
      workload,
      method,
      target: 0,
      parameters,
      metric,
      unit: "us",
      samples: [],
      warmup: [],
      notes,
    })),
  );
  const order = cells.map((_, i) => i);
  for (let round = 0; round < warmups + samples; round++) {
    shuffle(order, random);
    for (const i of order) {
      const values = await cells[i].run();
      for (const m of taken[i]) (round < warmups ? m.warmup : m.samples).push(values[m.metric]);
    }
    told(round + 1, warmups + samples, taken.flat());
    await settle();
  }
  return taken.flat();
}

function shuffle(order, random) {
  for (let i = order.length - 1; i > 0; i--) {
    const j = Math.floor(random() * (i + 1));
    [order[i], order[j]] = [order[j], order[i]];
  }
}
