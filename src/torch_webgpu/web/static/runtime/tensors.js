/** Values of inputs and outputs: JavaScript's arrays to a tensor's bytes and back. */

import { ITEM_SIZES, count, extent } from "./bundle.js";
import { InputError } from "./errors.js";

/** @import { DType, Given, Nested, Output, Scalar, TensorFacts, TypedArray } from "./types.d.ts" */

/** Arrays that a dtype is taken from as they are; an array of plain numbers is taken for every dtype. */
const TAKEN = /** @type {Record<DType, string[]>} */ ({
  float32: ["Float32Array"],
  float16: ["Float32Array", "Float16Array", "Uint16Array"],
  bfloat16: ["Float32Array", "Uint16Array"],
  int64: ["BigInt64Array", "Int32Array"],
  int32: ["Int32Array"],
  int16: ["Int16Array"],
  int8: ["Int8Array"],
  uint8: ["Uint8Array", "Uint8ClampedArray"],
  bool: ["Uint8Array"],
});

/** @param {unknown} value @returns {value is TypedArray} */
const isTyped = (value) => ArrayBuffer.isView(value) && !(value instanceof DataView);

/** @param {object} value */
const kindOf = (value) => value.constructor?.name ?? typeof value;

/** What a tensor takes, for people. @param {TensorFacts} t */
export const taken = (t) => `${t.dtype} [${t.shape.join(", ")}] as ${TAKEN[t.dtype].join(" or ")} or an array of numbers`;

/** What was given as an input: its values in order, and its shape where that is known.
 * @param {string} name @param {unknown} value @returns {Given} */
export function given(name, value) {
  if (isTyped(value)) return { flat: value, shape: null };
  if (typeof value === "object" && value !== null && "data" in value && "shape" in value) {
    const { data, shape } = value;
    const sizes = Array.isArray(shape) && shape.every((n) => Number.isSafeInteger(n) && n >= 0) ? shape : null;
    if (!(isTyped(data) || Array.isArray(data)) || !sizes) {
      throw new InputError(`input ${name}: { data, shape } holds an array and its shape, whole numbers in an array`);
    }
    if (data.length !== count(sizes)) {
      throw new InputError(`input ${name}: ${data.length} values do not fill the shape [${sizes.join(", ")}]`);
    }
    return { flat: data, shape: sizes };
  }
  if (Array.isArray(value) || ["number", "bigint", "boolean"].includes(typeof value)) {
    /** @type {Scalar[]} */
    const flat = [];
    const shape = flatten(name, /** @type {Nested} */ (value), flat);
    return { flat, shape };
  }
  throw new InputError(`input ${name} is ${value === null ? "null" : typeof value}, it has to be an array of numbers`);
}

/** @param {string} name @param {Nested} value @param {Scalar[]} flat takes the numbers @returns {number[]} the shape */
function flatten(name, value, flat) {
  if (!Array.isArray(value)) {
    if (!["number", "bigint", "boolean"].includes(typeof value)) {
      throw new InputError(`input ${name} holds ${value === null ? "null" : typeof value} among its numbers`);
    }
    flat.push(value);
    return [];
  }
  const shapes = value.map((each) => flatten(name, each, flat));
  const ragged = shapes.find((shape) => shape.join() !== shapes[0].join());
  if (ragged) throw new InputError(`input ${name} is ragged: rows of shape [${shapes[0]}] and of [${ragged}]`);
  return [value.length, ...(shapes[0] ?? [])];
}

/** Whether values can be those of a tensor, by their shape. @param {Given} value @param {TensorFacts} tensor */
export function fits({ flat, shape }, tensor) {
  return shape ? shape.join() === tensor.shape.join() : flat.length === count(tensor.shape);
}

/** The bytes of a tensor, from its first element on, whole words.
 * @param {Given} value that fits the tensor @param {TensorFacts} tensor @returns {Uint8Array<ArrayBuffer>} */
export function encode({ flat }, tensor) {
  const { dtype, shape, strides } = tensor;
  const plain = isTyped(flat);
  if (plain && !TAKEN[dtype].includes(kindOf(flat))) {
    throw new InputError(`input ${tensor.name} is a ${kindOf(flat)}; ${taken(tensor)} is taken`);
  }
  const size = ITEM_SIZES[dtype] * extent(shape, strides);
  const bytes = new Uint8Array(Math.ceil(size / 4) * 4);
  const into = storage(dtype, bytes.buffer, 0, extent(shape, strides));
  const convert = converter(flat, tensor);
  if (isContiguous(shape, strides)) {
    if (plain && !convert) into.set(/** @type {any} */ (flat));
    else for (let i = 0; i < flat.length; i++) into[i] = convert ? convert(flat[i], i) : flat[i];
    return bytes;
  }
  eachPlace(shape, strides, (place, i) => (into[place] = convert ? convert(flat[i], i) : flat[i]));
  return bytes;
}

/** A tensor's values, in order and without gaps.
 * @param {ArrayBuffer} bytes @param {number} at where the tensor's first element lies in them @param {TensorFacts} tensor
 * @returns {Output} */
export function decode(bytes, at, { dtype, shape, strides }) {
  const all = storage(dtype, bytes, at, extent(shape, strides));
  let data = all;
  if (!isContiguous(shape, strides)) {
    data = new /** @type {any} */ (all.constructor)(count(shape));
    eachPlace(shape, strides, (place, i) => (data[i] = all[place]));
  }
  if (dtype === "float16") data = Float32Array.from(/** @type {Uint16Array} */ (data), halfToFloat);
  if (dtype === "bfloat16") data = new Float32Array(Uint32Array.from(data, (brain) => brain << 16).buffer);
  return { data: /** @type {Output["data"]} */ (data), shape: [...shape], dtype };
}

/** A view of memory as a dtype's words.
 * @param {DType} dtype @param {ArrayBuffer} bytes @param {number} at @param {number} length
 * @returns {any} of one of several classes, whose elements are numbers or big integers */
function storage(dtype, bytes, at, length) {
  if (dtype === "int64") return new BigInt64Array(bytes, at, length);
  if (dtype === "float32") return new Float32Array(bytes, at, length);
  if (dtype === "int32") return new Int32Array(bytes, at, length);
  if (dtype === "int16") return new Int16Array(bytes, at, length);
  if (dtype === "int8") return new Int8Array(bytes, at, length);
  return dtype === "uint8" || dtype === "bool" ? new Uint8Array(bytes, at, length) : new Uint16Array(bytes, at, length);
}

/** How one value becomes a dtype's; null where an array is taken as it is.
 * @param {TypedArray | Scalar[]} flat @param {TensorFacts} tensor
 * @returns {((value: any, place: number) => number | bigint) | null} */
function converter(flat, tensor) {
  const { dtype } = tensor;
  const kind = kindOf(flat);
  if (dtype === "bool") return (value) => Number(Boolean(value));
  if (dtype === "float16") return kind === "Uint16Array" ? null : (value) => floatToHalf(Number(value));
  if (dtype === "bfloat16") return kind === "Uint16Array" ? null : (value) => floatToBrain(Number(value));
  if (dtype === "int64" && kind === "Int32Array") return BigInt;
  if (isTyped(flat)) return null;
  if (dtype === "float32") return Number;
  const low = dtype === "uint8" ? 0 : -(2 ** (8 * ITEM_SIZES[dtype] - 1));
  const high = low + 2 ** (8 * ITEM_SIZES[dtype]) - 1;
  return (value, place) => {
    const number = Number(value);
    if (dtype === "int64" && typeof value === "bigint" && BigInt.asIntN(64, value) === value) return value;
    if (!Number.isSafeInteger(number) || number < low || number > high) {
      throw new InputError(`input ${tensor.name} is ${dtype}, which value ${place}, ${value}, is not`);
    }
    return dtype === "int64" ? BigInt(value) : number;
  };
}

/** @param {number[]} shape @param {number[]} strides */
function isContiguous(shape, strides) {
  let expected = 1;
  for (let i = shape.length - 1; i >= 0; i--) {
    if (shape[i] !== 1 && strides[i] !== expected) return shape.includes(0);
    expected *= shape[i];
  }
  return true;
}

/** Calls for every element, in order, with its place in memory.
 * @param {number[]} shape @param {number[]} strides @param {(place: number, index: number) => void} visit */
function eachPlace(shape, strides, visit) {
  let index = 0;
  /** @type {(dim: number, place: number) => void} */
  const walk = (dim, place) => {
    if (dim === shape.length) return visit(place, index++);
    for (let i = 0; i < shape[dim]; i++) walk(dim + 1, place + i * strides[dim]);
  };
  walk(0, 0);
}

const float = new Float32Array(1);
const bits = new Uint32Array(float.buffer);

/** A float16's bits, of the nearest, of two as near the even one. @param {number} value */
export function floatToHalf(value) {
  float[0] = value;
  const sign = (bits[0] >>> 16) & 0x8000;
  const magnitude = bits[0] & 0x7fffffff;
  if (magnitude > 0x7f800000) return sign | 0x7e00;
  if (magnitude >= 0x477ff000) return sign | 0x7c00; // 65520 and more round to infinity
  if (magnitude < 0x38800000) {
    float[0] = Math.abs(float[0]) + 0.5; // below the normal ones: units of 2^-24, which is 0.5's last place
    return sign | (bits[0] - 0x3f000000);
  }
  return sign | ((magnitude - 0x38000000 + 0xfff + ((magnitude >>> 13) & 1)) >>> 13);
}

/** @param {number} half */
export function halfToFloat(half) {
  const exponent = (half >>> 10) & 31;
  const fraction = half & 1023;
  const sign = half & 0x8000 ? -1 : 1;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (exponent ? (1024 + fraction) * 2 ** (exponent - 25) : fraction * 2 ** -24);
}

/** A bfloat16's bits, rounded as above. @param {number} value */
export function floatToBrain(value) {
  float[0] = value;
  if (Number.isNaN(value)) return 0x7fc0 | ((bits[0] >>> 16) & 0x8000);
  return ((bits[0] + 0x7fff + ((bits[0] >>> 16) & 1)) >>> 16) & 0xffff;
}
