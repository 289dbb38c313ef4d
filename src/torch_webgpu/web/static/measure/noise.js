/**
 * Numbers of torch_webgpu/bench/noise.py, bit for bit: inputs that need not be loaded.
 * @param {{shape: number[], seed: number, scale: number, offset: number, spread: number}} recipe
 * @returns {Float32Array}
 */
export function noise({ shape, seed, scale, offset, spread }) {
  const count = shape.reduce((a, b) => a * b, 1);
  const values = new Float32Array(count);
  const start = Math.imul(seed, 2654435769) >>> 0;
  const { fround, imul } = Math;
  for (let i = 0; i < count; i++) {
    let x = (start + i) >>> 0;
    x = imul(x ^ (x >>> 16), 0x7feb352d);
    x = imul(x ^ (x >>> 15), 0x846ca68b);
    x ^= x >>> 16;
    const uniform = (x >>> 8) * 2 ** -23 - 1;
    values[i] = fround(offset + fround(scale * fround(uniform * spread)));
  }
  return values;
}
