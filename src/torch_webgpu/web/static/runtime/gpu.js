/** Adapter and device: the first variant of a bundle that this machine can run. */

import {
  DeviceLostError,
  GpuError,
  MissingFeatureError,
  NoWebGpuError,
  TooLargeError,
  mebibytes,
  messageOf,
} from "./errors.js";

/** @import { Bundle, PipelineFacts, Variant } from "./types.d.ts" */

// WebGPU's numbers of usages; in Node there are no globals for them.
export const USAGE = { MAP_READ: 1, COPY_SRC: 4, COPY_DST: 8, UNIFORM: 64, STORAGE: 128 };
export const STORAGE = USAGE.STORAGE | USAGE.COPY_SRC | USAGE.COPY_DST;
const SHADER_STAGE_COMPUTE = 4;
const MAP_MODE_READ = 1;

const SOFTWARE = ["swiftshader", "llvmpipe", "lavapipe", "basic render", "warp", "software"];
const SIZES = ["maxBufferSize", "maxStorageBufferBindingSize"];

/** Why an adapter cannot run a variant; empty where it can.
 * @param {GPUAdapter} adapter @param {Variant} variant @returns {{what: string, size: boolean}[]} */
function lacks(adapter, variant) {
  const info = /** @type {Partial<GPUAdapterInfo>} */ (adapter.info ?? {});
  const found = variant.features
    .filter((feature) => !adapter.features.has(feature))
    .map((feature) => ({ what: `the feature ${feature}`, size: false }));
  if (!found.length && variant.subgroups && !((info.subgroupMinSize ?? 0) >= variant.subgroups)) {
    found.push({ what: `subgroups of at least ${variant.subgroups} invocations`, size: false });
  }
  const limits = /** @type {Record<string, number>} */ (/** @type {unknown} */ (adapter.limits));
  for (const [name, needed] of Object.entries(variant.limits)) {
    const size = SIZES.includes(name);
    const told = size ? mebibytes : String;
    if (!(limits[name] >= needed)) found.push({ what: `${name} ${told(needed)}, has ${told(limits[name] ?? 0)}`, size });
  }
  return found;
}

/** The first variant that an adapter can run. @param {GPUAdapter} adapter @param {Bundle} bundle */
export function chooseVariant(adapter, bundle) {
  const all = bundle.variants.map((variant) => ({ variant, missing: lacks(adapter, variant) }));
  const chosen = all.find(({ missing }) => !missing.length);
  if (chosen) return chosen.variant;
  const told = all.map(({ variant, missing }) => `${variant.name} (${missing.map((m) => m.what).join("; ")})`);
  const text = `this adapter (${nameOf(adapter.info)}) lacks what each variant of ${bundle.name} needs: ${told.join(", ")}`;
  if (all.some(({ missing }) => missing.every((m) => m.size))) {
    throw new TooLargeError(`${text}. Export the model with a smaller dtype or quantised weights`);
  }
  throw new MissingFeatureError(`${text}. Update the browser and the driver, or export the model for such adapters`);
}

/** Refuses a bundle that needs more memory than is known to be there.
 * @param {Bundle} bundle @param {Variant} variant
 * @param {number | undefined} memory bytes that there are; where it is not given, what the browser tells of the machine */
export function checkMemory(bundle, variant, memory) {
  const told = /** @type {{deviceMemory?: number}} */ (globalThis.navigator ?? {}).deviceMemory;
  // Browsers tell at most 8 GB, whatever there is.
  const room = memory ?? (told && told < 8 ? told * 2 ** 30 : Infinity);
  if (variant.memory > room) {
    throw new TooLargeError(
      `${bundle.name} takes ${mebibytes(variant.memory)} of memory, there are ${mebibytes(room)}: nothing was downloaded. ` +
        "Use a machine with more memory, or export the model with a smaller dtype or quantised weights",
    );
  }
}

/** @param {Partial<GPUAdapterInfo> | undefined} info */
function nameOf(info = {}) {
  return info.description || [info.vendor, info.architecture, info.device].filter(Boolean).join(" ") || "without a name";
}

/** An adapter of the best kind. @param {GPU | undefined} gpu */
export async function findAdapter(gpu) {
  const found = gpu ?? globalThis.navigator?.gpu;
  if (!found) {
    const why = globalThis.isSecureContext === false ? "pages need https for it, or an address on this very machine" : "";
    const how = "use a current Chrome, Edge, Firefox or Safari; in Node: load(…, { gpu: create([]) }) of the package webgpu";
    throw new NoWebGpuError(`there is no WebGPU here: ${why || how}`);
  }
  const adapter = await found.requestAdapter({ powerPreference: "high-performance" });
  if (!adapter) throw new NoWebGpuError("WebGPU finds no adapter here: the GPU or its driver is missing or blocked");
  return adapter;
}

/** An open device, and what it complains of. */
export class Gpu {
  /** @param {GPUAdapter} adapter @param {GPUDevice} device */
  constructor(adapter, device) {
    this.device = device;
    this.queue = device.queue;
    /** @type {GPUDeviceLostInfo | null} */
    this.lost = null;
    this.description = describe(adapter, device);
    device.addEventListener("uncapturederror", (event) => {
      event.preventDefault();
      if (this.#complaints.length < 8) this.#complaints.push(event.error.message);
    });
    this.#ended = device.lost.then((info) => {
      this.lost = info;
    });
  }

  /** @type {string[]} */
  #complaints = [];
  #ended;

  /** @param {GPUAdapter} adapter @param {Variant} variant */
  static async open(adapter, variant) {
    const requiredFeatures = /** @type {GPUFeatureName[]} */ (variant.features);
    try {
      const device = await adapter.requestDevice({ requiredFeatures, requiredLimits: variant.limits });
      return new Gpu(adapter, device);
    } catch (error) {
      throw new NoWebGpuError(`the GPU could not be opened: ${messageOf(error)}`);
    }
  }

  /** Throws what the device complained of since the last time. */
  check() {
    if (this.lost) throw new DeviceLostError(`the device was lost (${this.lost.reason}): ${this.lost.message}`);
    const [first] = this.#complaints.splice(0);
    if (first) throw new GpuError(`the device refused a command: ${first}`);
  }

  /** A promise of the device's, unless the device is lost before.
   * @template T @param {Promise<T>} promise @returns {Promise<T>} */
  async whileAlive(promise) {
    const found = await Promise.race([promise.catch((error) => Promise.resolve(error).then(this.#blame)), this.#ended]);
    if (this.lost) this.check();
    return /** @type {T} */ (found);
  }

  #blame = async (/** @type {Error} */ error) => {
    await Promise.race([this.#ended, new Promise((go) => setTimeout(go, 50))]); // a loss may be told a moment later
    this.check();
    throw new GpuError(error.message);
  };

  /** Buffers, all or none.
   * @param {{label: string, size: number, usage: number}[]} wanted @param {string} what they are, for the message */
  async buffers(wanted, what) {
    this.device.pushErrorScope("validation");
    this.device.pushErrorScope("out-of-memory");
    const made = wanted.map((each) => this.device.createBuffer(each));
    const found = await Promise.all([this.device.popErrorScope(), this.device.popErrorScope()]);
    const failure = found.find(Boolean)?.message;
    if (!failure) return made;
    for (const buffer of made) buffer.destroy();
    this.check();
    const total = mebibytes(wanted.reduce((sum, { size }) => sum + size, 0));
    throw new TooLargeError(
      `${what} needs ${total} of GPU memory, more than could be had: close other pages, use a smaller model (${failure})`,
    );
  }

  /** The contents of a staging buffer, once what was submitted has run. @param {GPUBuffer} staging @param {number} size */
  async contents(staging, size) {
    await this.whileAlive(staging.mapAsync(MAP_MODE_READ, 0, size));
    const bytes = staging.getMappedRange(0, size).slice(0);
    staging.unmap();
    return bytes;
  }

  /** All pipelines, compiled beside each other and beside the page's own work.
   * @param {PipelineFacts[]} wanted
   * @param {(file: string) => string} code of a WGSL file
   * @param {() => void} done told for each
   */
  async pipelines(wanted, code, done) {
    /** @type {Map<string, GPUBindGroupLayout>} */
    const layouts = new Map();
    const modules = new Map();
    return Promise.all(
      wanted.map(async ({ name, wgsl, written }) => {
        const key = written.join();
        const layout = layouts.get(key) ?? this.#layout(written);
        layouts.set(key, layout);
        const module = modules.get(wgsl) ?? this.device.createShaderModule({ label: wgsl, code: code(wgsl) });
        modules.set(wgsl, module);
        try {
          const pipeline = await this.device.createComputePipelineAsync({
            label: name,
            layout: this.device.createPipelineLayout({ bindGroupLayouts: [layout] }),
            compute: { module, entryPoint: "main" },
          });
          done();
          return { pipeline, layout };
        } catch (error) {
          this.check();
          throw new GpuError(`the kernel ${name} (${wgsl}) does not compile here: ${messageOf(error)}`);
        }
      }),
    );
  }

  /** @param {boolean[]} written */
  #layout(written) {
    const visibility = SHADER_STAGE_COMPUTE;
    /** @type {GPUBindGroupLayoutEntry[]} */
    const entries = written.map((writes, binding) => ({
      binding,
      visibility,
      buffer: { type: writes ? "storage" : "read-only-storage" },
    }));
    entries.push({ binding: written.length, visibility, buffer: { type: "uniform" } });
    return this.device.createBindGroupLayout({ entries });
  }

  /** Gives everything back. */
  close() {
    this.device.destroy();
  }
}

/** The adapter, for people. @param {GPUAdapter} adapter @param {GPUDevice} device */
function describe(adapter, device) {
  const info = /** @type {Partial<GPUAdapterInfo> & {backend?: string}} */ (adapter.info ?? {});
  const words = [info.description, info.vendor, info.architecture, info.device].join(" ").toLowerCase();
  return {
    adapter: nameOf(info),
    backend: info.backend ?? "",
    software: Boolean(info.isFallbackAdapter) || SOFTWARE.some((word) => words.includes(word)),
    features: [...device.features].sort(),
    subgroups: info.subgroupMinSize ? [info.subgroupMinSize, info.subgroupMaxSize] : null,
    largestBuffer: adapter.limits.maxBufferSize,
  };
}
