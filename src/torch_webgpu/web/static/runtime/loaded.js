/** A bundle on a device: its variant chosen, its files fetched, checked and uploaded, its kernels compiled. */

import { MANIFEST, checkBundle, checkPlans, parseJson } from "./bundle.js";
import { BundleError } from "./errors.js";
import { Gpu, STORAGE, USAGE, checkMemory, chooseVariant, findAdapter } from "./gpu.js";
import { Plan } from "./plan.js";
import { Reading } from "./reading.js";

/** @import { Bundle, Kernel, LoadOptions, Output, Plans, Progress, Random, Source, TensorFacts } from "./types.d.ts" */
/** @import { Variant } from "./types.d.ts" */

const PIECE = 16 << 20; // bytes of one write

/** The manifest of a bundle, checked. @param {Source} source @param {AbortSignal} [signal] */
export async function readBundle(source, signal) {
  return checkBundle(parseJson(MANIFEST, await source.manifest(signal)));
}

export class Loaded {
  /** @param {Source} source @param {Bundle} bundle @param {LoadOptions} options */
  static async open(source, bundle, { gpu, signal, onProgress, memory }) {
    const adapter = await findAdapter(gpu);
    const variant = chooseVariant(adapter, bundle);
    checkMemory(bundle, variant, memory);
    const made = new Loaded(bundle, variant, await Gpu.open(adapter, variant));
    const inner = new AbortController(); // ends what else is on its way once something went wrong
    try {
      const ended = AbortSignal.any(signal ? [signal, inner.signal] : [inner.signal]);
      await made.#fill(source, ended, onProgress ?? (() => {}));
      return made;
    } catch (error) {
      made.gpu.close();
      throw error;
    } finally {
      inner.abort();
    }
  }

  /** @param {Bundle} bundle @param {Variant} variant @param {Gpu} gpu */
  constructor(bundle, variant, gpu) {
    this.bundle = bundle;
    this.variant = variant;
    this.gpu = gpu;
    /** @type {GPUBuffer[]} */
    this.buffers = [];
  }

  /** @type {Map<string, Plan>} */
  #plans = new Map();
  /** @type {GPUBuffer[]} */
  #staging = [];
  /** @type {Plans} */
  facts = { pipelines: [], scratch: [], error: null, plans: {} };
  /** @type {Kernel[]} */
  #pipelines = [];

  /** @param {Source} source @param {AbortSignal} signal @param {(progress: Progress) => void} report */
  async #fill(source, signal, report) {
    const { bundle, variant, gpu } = this;
    const progress = { loaded: 0, total: bundle.files[variant.plans].size, kernels: 0, allKernels: 0 };
    const arrived = (/** @type {number} */ bytes) => {
      progress.loaded += bytes;
      report({ ...progress });
    };
    const fetched = (/** @type {string} */ name) => source.file(name, bundle.files[name], arrived, signal);
    const limits = /** @type {Record<string, number>} */ (/** @type {unknown} */ (gpu.device.limits));
    const facts = checkPlans(parseJson(variant.plans, await fetched(variant.plans)), variant.plans, bundle, limits);
    const shaders = [...new Set(facts.pipelines.map((p) => p.wgsl))];
    const shards = [...new Set(bundle.buffers.flatMap((b) => b.data.map((part) => part.file)))];
    for (const name of [...shaders, ...shards]) progress.total += bundle.files[name].size;
    progress.allKernels = facts.pipelines.length;
    const wanted = bundle.buffers.map(({ name, size }) => ({ label: name, size, usage: STORAGE }));
    facts.scratch.forEach((size, i) => wanted.push({ label: `scratch ${i}`, size, usage: STORAGE }));
    this.buffers = await gpu.buffers(wanted, bundle.name);
    const compiling = this.#compile(facts, shaders, fetched, () => {
      progress.kernels++;
      report({ ...progress });
    });
    compiling.catch(() => {}); // told below
    await this.#upload(shards, fetched);
    this.#pipelines = await compiling;
    this.facts = facts;
    gpu.check();
  }

  /** @param {Plans} facts @param {string[]} shaders
   * @param {(name: string) => Promise<Uint8Array<ArrayBuffer>>} fetched @param {() => void} done */
  async #compile(facts, shaders, fetched, done) {
    const texts = await Promise.all(shaders.map(async (name) => new TextDecoder().decode(await fetched(name))));
    const code = new Map(shaders.map((name, i) => [name, texts[i]]));
    return this.gpu.pipelines(facts.pipelines, (name) => code.get(name) ?? "", done);
  }

  /** One file after the other, the next one on its way meanwhile: two are in memory at most.
   * @param {string[]} shards @param {(name: string) => Promise<Uint8Array<ArrayBuffer>>} fetched */
  async #upload(shards, fetched) {
    const { queue } = this.gpu.device;
    const start = (/** @type {string | undefined} */ name) => {
      const file = name === undefined ? null : fetched(name);
      file?.catch(() => {}); // told where it is awaited
      return file;
    };
    let next = start(shards[0]);
    for (const [i, name] of shards.entries()) {
      const bytes = /** @type {Uint8Array<ArrayBuffer>} */ (await next);
      next = start(shards[i + 1]);
      this.bundle.buffers.forEach((buffer, number) => {
        for (const part of buffer.data.filter((p) => p.file === name)) {
          for (let done = 0; done < part.size; done += PIECE) {
            const size = Math.min(PIECE, part.size - done);
            queue.writeBuffer(this.buffers[number], part.at + done, bytes, part.offset + done, size);
          }
        }
      });
      await this.gpu.whileAlive(queue.onSubmittedWorkDone()); // else all that is written waits in memory
    }
  }

  /** @param {string} name */
  plan(name) {
    const known = this.#plans.get(name);
    if (known) return known;
    const facts = this.facts.plans[name];
    if (!facts) throw new BundleError(`${this.bundle.name} has no plan ${name}; export the model again`);
    const made = new Plan(name, facts, this.gpu, this.buffers, this.#pipelines, this.facts.pipelines);
    this.#plans.set(name, made);
    return made;
  }

  /** Plans in one pass and one submit, and copies of what is to be read.
   * @param {Plan[]} plans @param {Random} random @param {TensorFacts[]} [wanted] read after the plans
   * @returns {() => Promise<Output[]>} waits and reads */
  submit(plans, random, wanted) {
    const { device, queue } = this.gpu;
    const encoder = device.createCommandEncoder();
    const pass = encoder.beginComputePass();
    for (const plan of plans) plan.encode(pass, queue, random);
    pass.end();
    const read = wanted ? new Reading(this, wanted, this.facts.error) : null;
    read?.encode(encoder);
    queue.submit([encoder.finish()]);
    return async () => read?.finish() ?? [];
  }

  /** A staging buffer of so many bytes at least, of its own until it is given back. @param {number} size */
  takeStaging(size) {
    const i = this.#staging.findIndex((buffer) => buffer.size >= size);
    if (i >= 0) return this.#staging.splice(i, 1)[0];
    const usage = USAGE.MAP_READ | USAGE.COPY_DST;
    return this.gpu.device.createBuffer({ label: "staging", size: 2 ** Math.ceil(Math.log2(size + 256)), usage });
  }

  /** @param {GPUBuffer} buffer */
  giveStaging(buffer) {
    if (this.#staging.length < 4) this.#staging.push(buffer);
    else buffer.destroy();
  }
}
