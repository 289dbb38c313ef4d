/** The clock: how fine it is, and what is done with its readings. */

/** Microseconds of a difference of performance.now(), to a tenth of a nanosecond. */
export const micros = (milliseconds) => Math.round(milliseconds * 1e7) / 1e4;

/**
 * The smallest step of performance.now() in µs, seen in a busy loop.
 * Browsers coarsen the clock unless the page is cross-origin isolated.
 */
export function timerStep(changes = 64, longest = 400) {
  const begin = performance.now();
  let last = begin;
  let smallest = Infinity;
  for (let seen = 0; seen < changes && last - begin < longest;) {
    const now = performance.now();
    if (now === last) continue;
    if (seen++ > 0) smallest = Math.min(smallest, now - last);
    last = now;
  }
  if (!Number.isFinite(smallest)) smallest = last - begin;
  return Math.round(smallest * 1e6) / 1e3;
}

/** Lets the page draw, and what drawing costs pass by, before the next measurement. A hidden page draws nothing. */
export async function settle() {
  const frame = () =>
    new Promise((resolve) => {
      const timer = setTimeout(resolve, 50);
      requestAnimationFrame(() => {
        clearTimeout(timer);
        setTimeout(resolve, 0);
      });
    });
  await frame();
  await frame();
}
