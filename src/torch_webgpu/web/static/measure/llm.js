/** Measures the language model under bundle/ as plan.json says, shows it as it goes, hands the result over. */

import { $, card, make, number, progress, status } from "./elements.js";
import { openGpu } from "./gpu.js";
import { resultOf } from "./result.js";
import { browser, circumstances, plan, tell } from "./server.js";
import { median } from "./stats.js";

const IDLE_WAITS = 5;
const LONG_WAIT = 1000; // µs
const { metrics } = plan.names;

async function failed(error) {
  status(`It went wrong: ${error.message}`, true);
  progress(null);
  await tell("events", { kind: "failed", text: error.message.slice(0, 1500) }).catch(() => {});
}

function step(text, done) {
  status(text);
  progress(done);
  return tell("events", { kind: "progress", text, done, total: 1 }).catch(() => {});
}

async function loadModel() {
  const { load } = await import("./bundle/runtime/index.js");
  return load(new URL("bundle/", location.href), {
    onProgress: ({ loaded, total, kernels, allKernels }) => {
      const share = 0.5 * (loaded / total) + 0.5 * (kernels / Math.max(allKernels, 1));
      status(`Loading the model: ${Math.round(100 * share)} %`);
      progress(share);
    },
  });
}

/** Throws where this browser computes other tokens than PyTorch did. */
async function mustBeRight(model) {
  const { check } = await import("./bundle/pages/check.js");
  const { verdict, at, of } = await check(model);
  if (verdict === "wrong") throw new Error(`token ${at} of ${of} is not the one that PyTorch computed: not timed`);
}

/** One generation; its tokens have to be those of the others. */
async function generate(model, ids, expected) {
  const tokens = [];
  const options = { maxNewTokens: plan.llm.new + 1, temperature: 0, ends: [] };
  for await (const { token } of model.generate(ids, options)) tokens.push(token);
  if (expected && tokens.join() !== expected.join()) throw new Error("the same prompt gave other tokens: not timed");
  return tokens;
}

/** All samples of one prompt, as measurements. */
async function measurePrompt(model, size, at) {
  const ids = plan.llm.ids.slice(0, size);
  const taken = { ttft: [], rate: [], token: [] };
  let expected = null;
  const rounds = plan.warmups + plan.samples;
  for (let i = 0; i < rounds; i++) {
    await step(`Prompt of ${size} tokens: ${i} of ${rounds} rounds`, at(i / rounds));
    expected = await generate(model, ids, expected);
    const { firstMs, totalMs } = model.statistics;
    const each = (totalMs - firstMs) / plan.llm.new;
    taken.ttft.push(firstMs);
    taken.rate.push(1000 / each);
    taken.token.push(each);
  }
  const parameters = { ...plan.llm.parameters, new: plan.llm.new, prompt: size };
  const about = { experiment: "llm", workload: plan.llm.workload, method: plan.llm.method, target: 0, parameters };
  const units = { ttft: "ms", rate: "tokens/s", token: "ms" };
  const found = Object.entries(taken).map(([key, samples]) => ({
    ...about,
    metric: metrics[key],
    unit: units[key],
    samples: samples.slice(plan.warmups),
    warmup: samples.slice(0, plan.warmups),
    work: {},
    notes: [],
  }));
  const memory = { samples: [model.info.memory], warmup: [], work: {}, notes: ["the bundle's buffers on the GPU"] };
  return [...found, { ...about, metric: metrics.memory, unit: "bytes", ...memory }];
}

function show(size, found) {
  const value = (metric) => number(median(found.find((m) => m.metric === metrics[metric]).samples));
  const cells = ["ttft", "rate", "token"].map((metric) => make("td", { className: "num", text: value(metric) }));
  const samples = make("td", { className: "num", text: String(plan.samples) });
  $("rows").append(make("tr", {}, make("th", { scope: "row", text: String(size) }), ...cells, samples));
  $("results").hidden = false;
}

/** A note where a wait alone takes long: it is in the time of each first token. */
async function floor(queue) {
  const waits = [];
  for (let i = 0; i < IDLE_WAITS; i++) {
    const start = performance.now();
    await queue.onSubmittedWorkDone();
    waits.push(1000 * (performance.now() - start));
  }
  const wait = median(waits);
  return wait < LONG_WAIT ? [] : [`an idle queue's wait takes ${number(wait)} µs here, and is in every first token's time`];
}

async function measure(gpu) {
  $("start").disabled = true;
  $("rows").replaceChildren();
  try {
    await tell("events", { kind: "started", text: `${browser.name} ${browser.version} on ${gpu.target.adapter}` });
    const start = performance.now();
    const model = await loadModel();
    const notes = [`loading from the local server and compiling took ${number((performance.now() - start) / 1000)} s`];
    await mustBeRight(model);
    const measurements = [];
    for (const [i, size] of plan.llm.prompts.entries()) {
      const found = await measurePrompt(model, size, (share) => (i + share) / plan.llm.prompts.length);
      measurements.push(...found);
      show(size, found);
    }
    notes.push(...(await floor(model.loaded.gpu.queue)), ...circumstances(gpu.facts));
    const { variant } = model.info;
    model.dispose();
    notes.push(`kernels of the variant ${variant}`);
    await tell("result", JSON.stringify(await resultOf(plan, browser, gpu.target, measurements, notes)));
    progress(null);
    status(plan.post ? "Done. The result was handed to torch-webgpu." : "Done.");
  } catch (error) {
    await failed(error);
  }
  $("start").disabled = false;
}

try {
  $("model").textContent = plan.llm.workload;
  const gpu = await openGpu();
  gpu.device.destroy(); // the model opens one of its own
  const { target } = gpu;
  const shown = `${browser.name} ${browser.version}`.trim();
  $("facts").replaceChildren(
    card("Adapter", target.adapter, gpu.facts.software ? "a software adapter: no GPU" : target.adapter_kind),
    card("Browser", shown, browser.system),
  );
  status("Ready.");
  $("start").disabled = false;
  $("start").addEventListener("click", () => measure(gpu));
  if (plan.start) await measure(gpu);
} catch (error) {
  await failed(error);
}
