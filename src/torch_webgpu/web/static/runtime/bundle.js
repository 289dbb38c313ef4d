/** `bundle.json` and the plans of a variant, and everything that is checked before they are used. */

import { BundleError, VersionError } from "./errors.js";

/** @import { Bundle, DType, Dispatch, Plans } from "./types.d.ts" */

export const MANIFEST = "bundle.json";
const FORMAT = "torch-webgpu-bundle";
const VERSION = 1;

/** Bytes of an element. @type {Record<DType, number>} */
export const ITEM_SIZES = { float32: 4, float16: 2, bfloat16: 2, int64: 8, int32: 4, int16: 2, int8: 1, uint8: 1, bool: 1 };

/** @param {unknown} condition @param {string} message @returns {asserts condition} */
function require(condition, message) {
  if (!condition) throw new BundleError(`${message}; export the model again`);
}

/** @param {unknown} value */
const natural = (value) => Number.isSafeInteger(value) && /** @type {number} */ (value) >= 0;

/** @param {unknown} value @returns {value is Record<string, unknown>} */
const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

/** A JSON text. @param {string} name of its file @param {BufferSource} bytes @returns {unknown} */
export function parseJson(name, bytes) {
  try {
    return JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(bytes));
  } catch (error) {
    throw new BundleError(`${name} is no JSON: is this the folder of a bundle?`, { cause: error });
  }
}

/** `bundle.json`, checked. @param {unknown} found @returns {Bundle} */
export function checkBundle(found) {
  if (!isObject(found) || found.format !== FORMAT) {
    throw new BundleError(`${MANIFEST} is not of a ${FORMAT}: is this the folder of a bundle?`);
  }
  if (found.version !== VERSION) {
    throw new VersionError(
      `the bundle is of version ${found.version}, this runtime takes version ${VERSION}: ` +
        "export the model again, or use the runtime that lies in the bundle's own folder",
    );
  }
  const { files, buffers, variants } = found;
  const lists = isObject(files) && Array.isArray(buffers) && Array.isArray(variants) && variants.length;
  require(lists, `${MANIFEST} lists no files, buffers or variants`);
  const bundle = /** @type {Bundle} */ (/** @type {unknown} */ (found));
  for (const [name, file] of Object.entries(bundle.files)) {
    const plain = /^[\w.+-]+(\/[\w.+-]+)*$/.test(name) && !name.split("/").includes("..");
    require(plain && isObject(file) && natural(file.size) && /^[0-9a-f]{64}$/.test(file.sha256), `${MANIFEST}: ${name}`);
  }
  bundle.buffers.forEach(({ name, size, data }) => {
    require(natural(size) && size % 4 === 0 && Array.isArray(data), `${MANIFEST}: the buffer ${name}`);
    for (const part of data) {
      const { offset, at } = part;
      require([offset, at, part.size].every(natural) && at % 4 === 0 && part.size % 4 === 0, `${MANIFEST}: ${name}`);
      const inside = offset + part.size <= (bundle.files[part.file]?.size ?? -1) && at + part.size <= size;
      require(inside, `${MANIFEST}: the buffer ${name} is filled from outside of ${part.file}, or overfilled`);
    }
  });
  for (const variant of bundle.variants) {
    require(variant.plans in bundle.files, `${MANIFEST}: ${variant.plans} is not listed`);
    require(Array.isArray(variant.features) && isObject(variant.limits), `${MANIFEST}: the variant ${variant.name}`);
  }
  const named = [...(bundle.language?.files ?? []), ...(bundle.image ? [bundle.image.labels] : [])];
  for (const file of named) require(file in bundle.files, `${MANIFEST}: ${file} is not listed`);
  return bundle;
}

/** A variant's plans, checked against the bundle and against the limits that a device grants.
 * @param {unknown} found @param {string} name of the file @param {Bundle} bundle @param {Record<string, number>} limits
 * @returns {Plans} */
export function checkPlans(found, name, bundle, limits) {
  require(isObject(found) && Array.isArray(found.pipelines) && isObject(found.plans), `${name} holds no plans`);
  const plans = /** @type {Plans} */ (/** @type {unknown} */ (found));
  const sizes = [...bundle.buffers.map((b) => b.size), ...plans.scratch];
  for (const pipeline of plans.pipelines) {
    require(pipeline.wgsl in bundle.files, `${name}: ${pipeline.wgsl} is not listed`);
    require(natural(pipeline.uniform) && pipeline.uniform % 256 === 0, `${name}: the uniform of ${pipeline.name}`);
  }
  require(plans.error === null || plans.error < sizes.length, `${name}: there is no buffer ${plans.error}`);
  for (const [plan, { inputs, outputs, dispatches }] of Object.entries(plans.plans)) {
    for (const tensor of [...inputs, ...outputs]) {
      const { dtype, shape, strides, offset } = tensor;
      require(dtype in ITEM_SIZES && shape.length === strides.length, `${name}: ${plan}: ${tensor.name} is ${dtype}`);
      const end = ITEM_SIZES[dtype] * (offset + extent(shape, strides));
      require(end <= (sizes[tensor.buffer] ?? -1), `${name}: ${plan}: ${tensor.name} lies outside of its buffer`);
    }
    for (const each of dispatches) checkDispatch(each, `${name}: ${plan}: ${each.name}`, plans, sizes, limits);
  }
  return plans;
}

/** @param {Dispatch} dispatch @param {string} where @param {Plans} plans @param {number[]} sizes of all buffers
 * @param {Record<string, number>} limits */
function checkDispatch(dispatch, where, plans, sizes, limits) {
  const pipeline = plans.pipelines[dispatch.pipeline];
  require(pipeline && pipeline.written.length === dispatch.bindings.length, `${where} has no pipeline with these bindings`);
  require(4 * dispatch.words.length <= pipeline.uniform, `${where} has more words than its uniform`);
  require(dispatch.random.every((r) => 4 * r.word + 16 <= pipeline.uniform), `${where} draws outside of its uniform`);
  require(dispatch.groups.every((n) => n <= limits.maxComputeWorkgroupsPerDimension), `${where} has too many workgroups`);
  for (const [buffer, offset, size] of dispatch.bindings) {
    const fits = natural(offset) && size > 0 && offset % 256 === 0 && offset + size <= (sizes[buffer] ?? -1);
    require(fits && size <= limits.maxStorageBufferBindingSize, `${where} binds outside of buffer ${buffer}`);
  }
}

/** Elements from a tensor's first to its last. @param {number[]} shape @param {number[]} strides */
export function extent(shape, strides) {
  if (shape.includes(0)) return 0;
  return shape.reduce((sum, n, i) => sum + (n - 1) * strides[i], 1);
}

/** @param {number[]} shape */
export const count = (shape) => shape.reduce((product, n) => product * n, 1);
