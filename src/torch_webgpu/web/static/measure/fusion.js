import { micros } from "./clock.js";
import { GpuError, contents, pipelineOf, storage } from "./gpu.js";
import { noise } from "./noise.js";

/** One computation on the device: its inputs, and the ways to compute it. */
export class Computation {
  static async make(gpu, plan) {
    const { device } = gpu;
    const inputs = {};
    for (const [name, recipe] of Object.entries(plan.inputs)) {
      const values = noise(recipe);
      inputs[name] = storage(device, name, values.byteLength);
      device.queue.writeBuffer(inputs[name], 0, values);
    }
    const variants = [];
    for (const variant of plan.variants) variants.push(await Variant.make(gpu, variant, inputs));
    return new Computation(plan, inputs, variants);
  }

  constructor(plan, inputs, variants) {
    this.plan = plan;
    this.inputs = inputs;
    this.variants = variants;
    this.expected = new Float32Array(decoded(plan.expected));
  }

  /** Throws for a variant whose result differs from the float64 one by more than is allowed. */
  async verify() {
    const largest = this.expected.reduce((a, v) => Math.max(a, Math.abs(v)), 1e-30);
    for (const variant of this.variants) {
      await variant.clear();
      variant.call();
      const got = new Float32Array(await contents(variant.device, variant.out));
      let difference = 0;
      got.forEach((v, i) => {
        const d = Math.abs(v - this.expected[i]);
        difference = d <= difference ? difference : d; // keeps NaN
      });
      if (!(difference <= this.plan.tolerance * largest)) {
        const off = `differs from the CPU's by ${difference.toPrecision(3)} where values reach ${largest.toPrecision(3)}`;
        throw new GpuError(`${this.plan.title}, ${variant.name}: ${off}`);
      }
      variant.gpu.check();
    }
  }

  free() {
    for (const buffer of Object.values(this.inputs)) buffer.destroy();
    for (const variant of this.variants) variant.free();
  }
}

function decoded(base64) {
  return Uint8Array.from(atob(base64), (c) => c.charCodeAt(0)).buffer;
}

/** A chain of kernels. */
class Variant {
  static async make(gpu, { name, out, tensors, kernels }, inputs) {
    const own = {};
    for (const [tensor, count] of Object.entries(tensors)) own[tensor] = storage(gpu.device, tensor, 4 * count);
    const launches = [];
    for (const { label, wgsl, reads, writes, groups } of kernels) {
      const pipeline = await pipelineOf(gpu.device, label, wgsl);
      const entries = [...reads, writes].map((tensor, binding) => ({
        binding,
        resource: { buffer: own[tensor] ?? inputs[tensor] },
      }));
      launches.push({
        pipeline,
        groups,
        group: gpu.device.createBindGroup({ layout: pipeline.getBindGroupLayout(0), entries }),
      });
    }
    return new Variant(gpu, name, own, own[out], launches);
  }

  constructor(gpu, name, own, out, launches) {
    Object.assign(this, { gpu, device: gpu.device, name, own, out, launches, dispatches: 0, submits: 0 });
  }

  #submit(launches) {
    const encoder = this.device.createCommandEncoder();
    const pass = encoder.beginComputePass();
    for (const { pipeline, group, groups } of launches) {
      pass.setPipeline(pipeline);
      pass.setBindGroup(0, group);
      pass.dispatchWorkgroups(...groups);
    }
    pass.end();
    this.device.queue.submit([encoder.finish()]);
    this.dispatches += launches.length;
    this.submits += 1;
  }

  /** All launches in one submit, or each in its own. */
  call(apart = false) {
    if (apart) for (const launch of this.launches) this.#submit([launch]);
    else this.#submit(this.launches);
  }

  /** Dispatches and submits of a call, counted where they are made. */
  counted() {
    const before = [this.dispatches, this.submits];
    this.call();
    return [this.dispatches - before[0], this.submits - before[1]];
  }

  /** Forgets the results, so that what is read next was computed next. */
  async clear() {
    const encoder = this.device.createCommandEncoder();
    for (const buffer of Object.values(this.own)) encoder.clearBuffer(buffer);
    this.device.queue.submit([encoder.finish()]);
    await this.device.queue.onSubmittedWorkDone();
  }

  async timed(calls, apart) {
    const start = performance.now();
    for (let i = 0; i < calls; i++) this.call(apart);
    await this.device.queue.onSubmittedWorkDone();
    const wall = micros((performance.now() - start) / calls);
    this.gpu.check();
    return wall;
  }

  free() {
    for (const buffer of Object.values(this.own)) buffer.destroy();
  }
}

/**
 * What is counted, as measurements, and a cell for every variant and way to time it.
 * @param {string[]} notes
 */
export function fusionCells(computation, plan, notes) {
  const { names } = plan;
  const { name: workload, parameters } = computation.plan;
  const counts = [];
  const cells = [];
  for (const variant of computation.variants) {
    const about = { experiment: "fusion", workload, method: variant.name };
    const [dispatches, submits] = variant.counted();
    for (const [metric, count] of Object.entries({ submits, dispatches })) {
      const empty = { warmup: [], notes: [] };
      counts.push({
        ...about,
        target: 0,
        parameters,
        metric: names.metrics[metric],
        unit: "count",
        samples: [count],
        ...empty,
      });
    }
    for (const [calls, submitted] of [
      [1, names.submits.together],
      [1, names.submits.apart],
      [plan.fusion.many, names.submits.together],
    ]) {
      cells.push({
        ...about,
        parameters: { ...parameters, calls, submits: submitted },
        metrics: [names.metrics.wall],
        notes,
        run: async () => ({ [names.metrics.wall]: await variant.timed(calls, submitted === names.submits.apart) }),
      });
    }
  }
  return { counts, cells };
}
