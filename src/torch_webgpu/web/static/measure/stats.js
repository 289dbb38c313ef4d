/** The statistics of torch_webgpu/bench/stats.py that the live view needs. */

/** A generator of uniform numbers in [0, 1): Marsaglia's xorshift32, the same ones each time. */
export function generator(seed = 20260401) {
  let x = seed >>> 0;
  return () => {
    x ^= x << 13;
    x ^= x >>> 17;
    x ^= x << 5;
    return (x >>> 0) / 2 ** 32;
  };
}

/** @param {ArrayLike<number>} values */
export function median(values) {
  const sorted = Float64Array.from(values).sort();
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

/** Percentile with linear interpolation, as NumPy's. */
export function percentile(values, percent) {
  const sorted = Float64Array.from(values).sort();
  const at = ((sorted.length - 1) * percent) / 100;
  const below = Math.floor(at);
  return sorted[below] + (at - below) * ((sorted[below + 1] ?? sorted[below]) - sorted[below]);
}

/** Interval of 95 %. */
const interval = (values) => [percentile(values, 2.5), percentile(values, 97.5)];

function resampled(values, random) {
  return values.map(() => values[Math.floor(random() * values.length)]);
}

/** Median with its bootstrap interval. */
export function summarise(samples, resamples = 300) {
  const random = generator();
  const medians = Array.from({ length: resamples }, () => median(resampled(samples, random)));
  return { median: median(samples), interval: interval(medians), n: samples.length };
}

function weighted(x, y, weights) {
  const total = weights.reduce((a, w) => a + w, 0);
  const mean = (values) => values.reduce((a, v, i) => a + v * weights[i], 0) / total;
  const mx = mean(x);
  const my = mean(y);
  let above = 0;
  let below = 0;
  x.forEach((v, i) => {
    above += weights[i] * (v - mx) * (y[i] - my);
    below += weights[i] * (v - mx) ** 2;
  });
  return { slope: above / below, intercept: my - (above / below) * mx };
}

/**
 * The line through the medians of each n, weighted by 1 / median; a median of 0, which a coarse clock could not see,
 * weighs as the smallest that it saw. Intervals come from resampling within each n.
 * @param {Map<number, number[]>} samples by n; at least three
 */
export function fitLine(samples, resamples = 300) {
  const counts = [...samples.keys()].sort((a, b) => a - b);
  const groups = counts.map((n) => samples.get(n));
  const medians = groups.map(median);
  const seen = medians.filter((m) => m > 0);
  const floor = seen.length ? Math.min(...seen) : 1;
  const weights = medians.map((m) => 1 / Math.max(m, floor) ** 2);
  const random = generator();
  const drawn = Array.from({ length: resamples }, () =>
    weighted(
      counts,
      groups.map((g) => median(resampled(g, random))),
      weights,
    ),
  );
  return {
    ...weighted(counts, medians, weights),
    slopeInterval: interval(drawn.map((line) => line.slope)),
    interceptInterval: interval(drawn.map((line) => line.intercept)),
    points: counts.map((n, i) => [n, medians[i]]),
    n: groups.reduce((a, g) => a + g.length, 0),
  };
}
