/** The measuring page: opens the GPU, measures what plan.json says, shows it as it goes, hands the result over. */

import { settle } from "./clock.js";
import { Loop, dispatchCells, idleWait } from "./dispatch.js";
import { Computation, fusionCells } from "./fusion.js";
import { MissingGpuError, openGpu } from "./gpu.js";
import { resultOf } from "./result.js";
import { takeRounds } from "./rounds.js";
import { browser, circumstances, plan, tell } from "./server.js";
import { median } from "./stats.js";
import * as view from "./view.js";

const LIVE = 60; // resamples of intervals while measuring
const FINAL = 2000;

async function failed(error) {
  if (error instanceof MissingGpuError) {
    view.button.hidden = true;
    view.showMissing(error.help);
    view.status("");
  } else {
    view.status(`It went wrong: ${error.message}`, true);
  }
  view.progress(null);
  await tell("events", { kind: "failed", text: error.message.slice(0, 1500) }).catch(() => {});
}

/** The parts of a run, each with rounds of its own. */
class Run {
  constructor(gpu) {
    this.gpu = gpu;
    this.measurements = [];
    this.notes = [];
    if (gpu.facts.software) plan.fusion = plan.softwareFusion;
    this.parts = 1 + plan.fusion.cases.length;
    this.part = 0;
  }

  async #take(title, cells) {
    const told = (done, total, taken) => {
      const share = (this.part + done / total) / this.parts;
      const text = `${title}: ${done} of ${total} rounds`;
      view.progress(share);
      view.status(text);
      if (done > plan.warmups) view.showResults([...this.measurements, ...taken], plan, LIVE);
      tell("events", { kind: "progress", text, done: share, total: 1 }).catch(() => {});
    };
    this.measurements.push(...(await takeRounds(cells, plan, told)));
    this.part++;
  }

  async dispatch() {
    const loop = await Loop.make(this.gpu, plan.dispatch);
    await this.#take("Dispatch", dispatchCells(loop, plan, await idleWait(loop)));
    await loop.verify();
  }

  /** A note for figures that are mostly a wait's floor. */
  #floor() {
    const idle = this.measurements.find((m) => m.method === plan.names.methods.idle);
    const floor = median(idle.samples);
    return floor < 1000 ? [] : [`an idle queue's wait takes ${view.number(floor)} µs here, and is in every sample once`];
  }

  async fusion() {
    for (const described of plan.fusion.cases) {
      view.status(`${described.title}: compiling and checking…`);
      await settle();
      const computation = await Computation.make(this.gpu, described);
      await computation.verify();
      const { counts, cells } = fusionCells(computation, plan, this.#floor());
      this.measurements.push(...counts);
      await this.#take(described.title, cells);
      await computation.verify();
      computation.free();
    }
  }

  /** What a reader has to know of all figures. */
  conclude() {
    this.notes.push(...circumstances(this.gpu.facts));
    this.notes.push(...new Set(this.#floor()));
  }
}

async function measure(gpu) {
  view.button.disabled = true;
  const run = new Run(gpu);
  try {
    await tell("events", { kind: "started", text: `${browser.name} ${browser.version} on ${gpu.target.adapter}` });
    await run.dispatch();
    await run.fusion();
    run.conclude();
    const shown = view.showResults(run.measurements, plan, FINAL);
    view.showNotes(run.notes);
    const result = JSON.stringify(await resultOf(plan, browser, gpu.target, run.measurements, run.notes));
    view.offer(result, `browser-${browser.name}.json`);
    await tell("events", { kind: "shown", text: JSON.stringify(shown.rows.map(({ method, line }) => [method, line])) });
    await tell("result", result);
    view.progress(null);
    view.status(plan.post ? "Done. The result was handed to torch-webgpu." : "Done.");
  } catch (error) {
    await failed(error);
  }
  view.button.textContent = "Measure again";
  view.button.disabled = false;
}

try {
  const gpu = await openGpu();
  view.showFacts(gpu, browser);
  view.status(
    plan.quick
      ? "Ready: a quick run, which takes less than a minute."
      : "Ready. This takes a few minutes; keep the page in front.",
  );
  view.button.disabled = false;
  view.button.addEventListener("click", () => measure(gpu));
  if (plan.start) await measure(gpu);
} catch (error) {
  await failed(error);
}
