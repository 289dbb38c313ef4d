import { micros } from "./clock.js";
import { GpuError, contents, pipelineOf, staging, storage } from "./gpu.js";
import { median } from "./stats.js";

/** The increment kernel, dispatched n times in several ways. It counts in a buffer, so what has run can be checked. */
export class Loop {
  /** Compiles. */
  static async make(gpu, plan) {
    const pipeline = await pipelineOf(gpu.device, plan.workload, plan.wgsl);
    return new Loop(gpu, plan, pipeline);
  }

  constructor(gpu, plan, pipeline) {
    this.gpu = gpu;
    this.device = gpu.device;
    this.pipeline = pipeline;
    this.workgroups = plan.workgroups;
    this.buffer = storage(this.device, "count", 4 * plan.words);
    this.word = staging(this.device, 4);
    const entries = [{ binding: 0, resource: { buffer: this.buffer } }];
    this.group = this.device.createBindGroup({ layout: pipeline.getBindGroupLayout(0), entries });
    this.dispatched = 0;
  }

  #pass(encoder, dispatches) {
    const pass = encoder.beginComputePass();
    pass.setPipeline(this.pipeline);
    for (let i = 0; i < dispatches; i++) {
      pass.setBindGroup(0, this.group);
      pass.dispatchWorkgroups(this.workgroups);
    }
    pass.end();
    this.dispatched += dispatches;
  }

  /** One encoder, so many passes of so many dispatches, one submit. */
  #submit(passes, dispatches) {
    const encoder = this.device.createCommandEncoder();
    for (let i = 0; i < passes; i++) this.#pass(encoder, dispatches);
    this.device.queue.submit([encoder.finish()]);
  }

  wait() {
    return this.device.queue.onSubmittedWorkDone();
  }

  /** A wait while there is nothing to wait for. */
  async idle() {
    await this.wait();
    const start = performance.now();
    await this.wait();
    return { wall: performance.now() - start };
  }

  async waited(n) {
    let host = 0;
    const start = performance.now();
    for (let i = 0; i < n; i++) {
      const before = performance.now();
      this.#submit(1, 1);
      host += performance.now() - before;
      await this.wait();
    }
    return { wall: performance.now() - start, host };
  }

  async readBack(n) {
    let host = 0;
    let last = 0;
    const start = performance.now();
    for (let i = 0; i < n; i++) {
      const before = performance.now();
      const encoder = this.device.createCommandEncoder();
      this.#pass(encoder, 1);
      encoder.copyBufferToBuffer(this.buffer, 0, this.word, 0, 4);
      this.device.queue.submit([encoder.finish()]);
      const mapped = this.word.mapAsync(GPUMapMode.READ);
      host += performance.now() - before;
      await mapped;
      last = new Uint32Array(this.word.getMappedRange())[0];
      this.word.unmap();
    }
    const wall = performance.now() - start;
    this.#compare(last);
    return { wall, host };
  }

  async unwaited(n) {
    let host = 0;
    for (let i = 0; i < n; i++) {
      const before = performance.now();
      this.#submit(1, 1);
      host += performance.now() - before;
    }
    await this.wait();
    return { host };
  }

  async #once(submit) {
    const start = performance.now();
    submit();
    const returned = performance.now();
    await this.wait();
    return { wall: performance.now() - start, host: returned - start };
  }

  sequential(n) {
    return this.#once(() => {
      for (let i = 0; i < n; i++) this.#submit(1, 1);
    });
  }

  passes(n) {
    return this.#once(() => this.#submit(n, 1));
  }

  onePass(n) {
    return this.#once(() => this.#submit(1, n));
  }

  #compare(found) {
    const wanted = this.dispatched % 2 ** 32;
    if (found !== wanted) throw new GpuError(`${wanted} dispatches were made, but the kernel counted ${found}`);
  }

  /** Throws unless every dispatch has run once. */
  async verify() {
    for (const found of new Uint32Array(await contents(this.device, this.buffer))) this.#compare(found);
    this.gpu.check();
  }
}

/**
 * The median wait of an idle queue in µs, out of a few.
 * @param {Loop} loop
 */
export async function idleWait(loop) {
  const times = [];
  for (let i = 0; i < 5; i++) times.push(micros((await loop.idle()).wall));
  return median(times);
}

/**
 * A cell for every way and n.
 * @param {number} floor µs of an idle queue's wait
 * @returns {import("./rounds.js").Cell[]}
 */
export function dispatchCells(loop, plan, floor) {
  const { counts, waitedCounts, workload, tick } = plan.dispatch;
  const once = floor > tick.floor ? [...counts, ...tick.counts] : counts;
  const { methods, metrics } = plan.names;
  return Object.entries(methods).flatMap(([way, method]) => {
    const idle = way === "idle";
    const measured = idle ? ["wall"] : way === "unwaited" ? ["host"] : ["wall", "host"];
    const swept = idle ? [0] : ["waited", "readBack"].includes(way) ? waitedCounts : way === "unwaited" ? counts : once;
    return swept.map((n) => ({
      experiment: "dispatch",
      workload,
      method,
      parameters: idle ? {} : { n },
      metrics: measured.map((metric) => metrics[metric]),
      async run() {
        const times = await loop[way](n);
        loop.gpu.check();
        return Object.fromEntries(measured.map((metric) => [metrics[metric], micros(times[metric])]));
      },
    }));
  });
}
