/** A picture as an image classifier takes it: scaled as Pillow does (bicubic, with as wide a filter as it is made smaller). */

/** Keys' cubic kernel with a = -1/2. */
function cubic(x) {
  const t = Math.abs(x);
  if (t < 1) return (1.5 * t - 2.5) * t * t + 1;
  return t < 2 ? ((-0.5 * t + 2.5) * t - 4) * t + 2 : 0;
}

/** For each of `size` samples from `first` on, of `to` in all that stand for `from`: where its sources begin, and their weights. */
function taps(from, to, first, size) {
  const scale = from / to;
  const wide = Math.max(scale, 1);
  return Array.from({ length: size }, (_, i) => {
    const center = (first + i + 0.5) * scale;
    const start = Math.max(0, Math.floor(center - 2 * wide + 0.5));
    const end = Math.min(from, Math.floor(center + 2 * wide + 0.5));
    const weights = Array.from({ length: end - start }, (_, j) => cubic((start + j - center + 0.5) / wide));
    const sum = weights.reduce((a, b) => a + b, 0);
    return { start, weights: weights.map((w) => w / sum) };
  });
}

/**
 * The middle of a picture whose shorter side is made `resize` pixels long.
 * @param {{data: Uint8ClampedArray, width: number, height: number}} picture RGBA
 * @returns {Uint8ClampedArray} RGBA of size by size pixels
 */
export function scaled({ data, width, height }, resize, size) {
  const factor = resize / Math.min(width, height);
  const [wide, high] = [Math.round(width * factor), Math.round(height * factor)];
  const across = taps(width, wide, Math.floor((wide - size) / 2), size);
  const down = taps(height, high, Math.floor((high - size) / 2), size);
  const top = down[0].start;
  const bottom = down[size - 1].start + down[size - 1].weights.length;
  const narrow = new Uint8ClampedArray(4 * size * (bottom - top));
  for (let y = top; y < bottom; y++) {
    across.forEach(({ start, weights }, x) =>
      mix(data, 4 * (y * width + start), 4, weights, narrow, 4 * ((y - top) * size + x)),
    );
  }
  const result = new Uint8ClampedArray(4 * size * size);
  down.forEach(({ start, weights }, y) => {
    for (let x = 0; x < size; x++)
      mix(narrow, 4 * ((start - top) * size + x), 4 * size, weights, result, 4 * (y * size + x));
  });
  return result;
}

function mix(from, at, step, weights, to, place) {
  let [red, green, blue] = [0, 0, 0];
  for (let i = 0; i < weights.length; i++, at += step) {
    red += weights[i] * from[at];
    green += weights[i] * from[at + 1];
    blue += weights[i] * from[at + 2];
  }
  to[place] = red;
  to[place + 1] = green;
  to[place + 2] = blue;
  to[place + 3] = 255;
}

/** The input [1, 3, size, size] of pixels, RGBA. */
export function normalised(pixels, mean, deviation) {
  const area = pixels.length / 4;
  const input = new Float32Array(3 * area);
  for (let i = 0; i < area; i++) {
    for (let c = 0; c < 3; c++) input[c * area + i] = (pixels[4 * i + c] / 255 - mean[c]) / deviation[c];
  }
  return input;
}
