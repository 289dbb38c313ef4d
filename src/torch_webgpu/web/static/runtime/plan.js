/** A plan ready to be replayed: bind groups and uniforms, made once. */

import { USAGE } from "./gpu.js";

/** @import { Gpu, Kernel, PipelineFacts, PlanFacts } from "./types.d.ts" */

/** Seed and counter of random numbers: the stream that torch_webgpu draws after `manual_seed`. */
export class Random {
  /** @param {bigint | number} [seed] by chance where it is not given */
  constructor(seed = Math.floor(Math.random() * Number.MAX_SAFE_INTEGER)) {
    this.seed = BigInt.asUintN(64, BigInt(seed));
    this.counter = 0n;
  }

  /** The four words of a dispatch that uses up so many counters. @param {number} uses */
  draw(uses) {
    const words = new BigUint64Array([this.seed, this.counter]);
    this.counter += BigInt(uses);
    return words;
  }
}

export class Plan {
  /** @param {string} name @param {PlanFacts} facts @param {Gpu} gpu
   * @param {GPUBuffer[]} buffers all of the bundle and the variant @param {Kernel[]} pipelines
   * @param {PipelineFacts[]} pipelineFacts */
  constructor(name, facts, gpu, buffers, pipelines, pipelineFacts) {
    this.name = name;
    this.inputs = facts.inputs;
    this.outputs = facts.outputs;
    /** @type {{at: number, uses: number}[]} */
    this.draws = [];
    const sizes = facts.dispatches.map((d) => pipelineFacts[d.pipeline].uniform);
    const size = sizes.reduce((sum, n) => sum + n, 256); // a buffer of no bytes cannot be bound
    const usage = USAGE.UNIFORM | USAGE.COPY_DST;
    this.uniform = gpu.device.createBuffer({ label: `uniforms of ${name}`, size, usage, mappedAtCreation: true });
    const words = new Uint32Array(this.uniform.getMappedRange());
    let at = 0;
    this.launches = facts.dispatches.map((dispatch, i) => {
      const { pipeline, layout } = pipelines[dispatch.pipeline];
      words.set(dispatch.words, at / 4);
      for (const { word, count } of dispatch.random) this.draws.push({ at: at + 4 * word, uses: count });
      const bound = dispatch.bindings.map(([number, offset, length]) => ({ buffer: buffers[number], offset, size: length }));
      bound.push({ buffer: this.uniform, offset: at, size: sizes[i] });
      const entries = bound.map((resource, binding) => ({ binding, resource }));
      at += sizes[i];
      const group = gpu.device.createBindGroup({ label: dispatch.name, layout, entries });
      return { pipeline, group, groups: dispatch.groups };
    });
    this.uniform.unmap();
    this.uses = this.draws.reduce((sum, draw) => sum + draw.uses, 0);
  }

  /** Appends the plan's dispatches to a pass; what they draw is fresh each time.
   * @param {GPUComputePassEncoder} pass @param {GPUQueue} queue what was submitted to it keeps its own draws
   * @param {Random} random */
  encode(pass, queue, random) {
    for (const { at, uses } of this.draws) queue.writeBuffer(this.uniform, at, random.draw(uses));
    for (const { pipeline, group, groups } of this.launches) {
      pass.setPipeline(pipeline);
      pass.setBindGroup(0, group);
      pass.dispatchWorkgroups(...groups);
    }
  }
}
