/** A model of a bundle, ready to run. */

import { ITEM_SIZES } from "./bundle.js";
import { BundleError, DeviceLostError, DisposedError, InputError } from "./errors.js";
import { Loaded } from "./loaded.js";
import { Random } from "./plan.js";
import { encode, fits, given, taken } from "./tensors.js";

/** @import { Bundle, Given, Input, LoadOptions, Output, PlanFacts, Source, TensorFacts } from "./types.d.ts" */

/** @param {TensorFacts[]} tensors */
const listed = (tensors) => tensors.map((t) => `${t.name}: ${taken(t)}`).join("; ") || "none";

export class Runtime {
  /** @param {Source} source @param {Bundle} bundle @param {Loaded} loaded @param {LoadOptions} options */
  constructor(source, bundle, loaded, options) {
    this.bundle = bundle;
    this.loaded = loaded;
    this.random = new Random(options.seed);
    this.#source = source;
    this.#options = { ...options, onProgress: undefined, signal: undefined };
  }

  #source;
  #options;
  #disposed = false;
  /** @type {Promise<void> | null} */
  #reloading = null;

  /** What runs where: for people, and for reports. */
  get info() {
    const { bundle, loaded } = this;
    return { name: bundle.name, variant: loaded.variant.name, memory: loaded.variant.memory, ...loaded.gpu.description };
  }

  /** What each plan takes and returns. */
  get plans() {
    return this.loaded.facts.plans;
  }

  /** Draws from now on what torch_webgpu draws after `torch.manual_seed`. @param {number | bigint} value */
  seed(value) {
    this.random = new Random(value);
  }

  /** Runs the plan that takes inputs of these shapes. Calls may overlap; they run in order.
   *
   * After the loss of the device, a model without state is loaded again and runs; one with state throws.
   * @param {Record<string, Input>} [inputs]
   * @param {{plan?: string}} [options] the plan's name, where the inputs alone do not tell it
   * @returns {Promise<Record<string, Output>>} */
  async run(inputs = {}, { plan } = {}) {
    this.check();
    const values = Object.entries(inputs).map(([name, value]) => /** @type {const} */ ([name, given(name, value)]));
    const chosen = this.#choose(new Map(values), plan);
    try {
      return await this.#once(chosen, new Map(values));
    } catch (error) {
      const remembers = this.bundle.buffers.some((buffer) => buffer.role === "state");
      if (!(error instanceof DeviceLostError) || this.#disposed || remembers) throw this.#explained(error);
      await this.reload();
      return this.#once(chosen, new Map(values));
    }
  }

  /** @param {string} name @param {Map<string, Given>} values */
  async #once(name, values) {
    const { loaded } = this;
    loaded.gpu.check();
    const plan = loaded.plan(name);
    for (const tensor of plan.inputs) {
      this.write(tensor, encode(/** @type {Given} */ (values.get(tensor.name)), tensor));
    }
    const outputs = await loaded.submit([plan], this.random, plan.outputs)();
    return Object.fromEntries(plan.outputs.map((tensor, i) => [tensor.name, outputs[i]]));
  }

  /** Writes a tensor of the bundle, in order with what is submitted.
   * @param {TensorFacts} tensor @param {Uint8Array<ArrayBuffer>} bytes */
  write(tensor, bytes) {
    const at = ITEM_SIZES[tensor.dtype] * tensor.offset;
    if (at % 4) throw new BundleError(`${tensor.name} begins within a word; export the model again`);
    this.loaded.gpu.queue.writeBuffer(this.loaded.buffers[tensor.buffer], at, bytes);
  }

  /** @param {Map<string, Given>} values @param {string | undefined} wanted */
  #choose(values, wanted) {
    const all = Object.entries(this.plans).filter(([name]) => wanted === undefined || name === wanted);
    if (!all.length) throw new InputError(`there is no plan ${wanted}; there are ${Object.keys(this.plans).join(", ")}`);
    const named = all.filter(([, { inputs }]) => inputs.length === values.size && inputs.every((t) => values.has(t.name)));
    if (!named.length) {
      const known = all[0][1].inputs;
      const missing = known.find((t) => !values.has(t.name));
      const surplus = [...values.keys()].find((name) => !known.some((t) => t.name === name));
      const what = missing ? `the input ${missing.name} is missing` : `there is no input ${surplus}`;
      throw new InputError(`${what}; taken are ${listed(known)}`);
    }
    const fitting = named.filter(([, { inputs }]) => inputs.every((t) => fits(/** @type {any} */ (values.get(t.name)), t)));
    if (fitting.length === 1) return fitting[0][0];
    if (fitting.length) {
      const names = fitting.map(([name]) => name).join(", ");
      throw new InputError(`these inputs fit several plans (${names}): give shapes, { data, shape }, or { plan }`);
    }
    throw new InputError(this.#misfit(values, named));
  }

  /** @param {Map<string, Given>} values @param {[string, PlanFacts][]} plans */
  #misfit(values, plans) {
    for (const [name, value] of values) {
      const tensors = plans.map(([, { inputs }]) => /** @type {any} */ (inputs.find((t) => t.name === name)));
      if (tensors.some((t) => fits(value, t))) continue;
      const has = value.shape ? `has the shape [${value.shape.join(", ")}]` : `holds ${value.flat.length} values`;
      return `input ${name} ${has}; taken is ${[...new Set(tensors.map(taken))].join(", or ")}`;
    }
    return `no plan takes these sizes together; taken are ${plans.map(([, p]) => `(${listed(p.inputs)})`).join(", or ")}`;
  }

  /** Throws where the runtime was disposed of. */
  check() {
    if (this.#disposed) throw new DisposedError(`${this.bundle.name} was disposed of; load it again`);
  }

  /** @param {unknown} error */
  #explained(error) {
    if (this.#disposed) return new DisposedError(`${this.bundle.name} was disposed of while it ran`);
    if (!(error instanceof DeviceLostError)) return error;
    return new DeviceLostError(`${error.message}. What the model remembers went with it: reload() begins anew`);
  }

  /** Loads everything again on a new device, all state as at first. Nothing has to be done to the old one. */
  async reload() {
    this.check();
    this.#reloading ??= (async () => {
      try {
        this.loaded.gpu.close();
        const loaded = await Loaded.open(this.#source, this.bundle, this.#options);
        if (this.#disposed) loaded.gpu.close();
        this.loaded = loaded;
      } finally {
        this.#reloading = null;
      }
    })();
    await this.#reloading;
    this.check();
  }

  /** Frees the device and everything on it. What still runs throws. */
  dispose() {
    this.#disposed = true;
    this.loaded.gpu.close();
  }
}
