/** The beginning of every page: what the model takes, its loading, and what is in the way. */

import { identify } from "../measure/browser.js";
import { $, make } from "../measure/elements.js";
import { help } from "../measure/help.js";
import { NoWebGpuError, load } from "../runtime/index.js";

export { $, make };

/** Bytes as megabytes, as browsers show downloads. */
export function megabytes(bytes) {
  const value = bytes / 1e6;
  if (value >= 1000) return `${(value / 1000).toFixed(1)} GB`;
  return `${value < 10 ? value.toFixed(1) : Math.round(value)} MB`;
}

/** Milliseconds as a person reads them: seconds from one on. */
export function duration(ms) {
  if (Math.round(ms) < 1000) return `${Math.round(ms)} ms`;
  return `${(ms / 1000).toFixed(ms < 10_000 ? 2 : 1)} s`;
}

const isHere = ["127.0.0.1", "localhost", "[::1]"].includes(location.hostname);

/** A fault as a card: what is wrong, and what to do about it. */
export function fault(error) {
  const missing = error instanceof NoWebGpuError;
  const reason = !isSecureContext ? "insecure" : navigator.gpu ? "no adapter" : "disabled";
  const told = missing ? help(reason, identify().name) : null;
  const title = told?.title ?? "The model cannot run here.";
  const steps = told?.steps.length ? [make("ol", {}, ...told.steps.map((text) => make("li", { text })))] : [];
  return [make("h2", { text: title }), make("p", { text: told?.text ?? error.message }), ...steps];
}

/** Bytes that have to be fetched for a bundle. */
function downloadOf(bundle) {
  const parts = new Set([
    ...bundle.buffers.flatMap((b) => b.data.map((part) => part.file)),
    ...(bundle.language?.files ?? []),
  ]);
  return [...parts].reduce((sum, name) => sum + bundle.files[name].size, 0);
}

/** Names and what they are. */
function listOf(facts) {
  const rows = facts.flatMap(([name, value]) => [make("dt", { text: name }), make("dd", { text: value })]);
  return make("dl", { className: "facts" }, ...rows);
}

/** What the model runs on: the adapter, and on request the rest. */
function surroundings({ adapter, backend, software, variant, subgroups, features, largestBuffer }) {
  const facts = [
    ["Backend", backend || "not told by the browser"],
    ["Kernels", variant],
    ["Subgroup size", subgroups ? [...new Set(subgroups)].join(" to ") : "not told by the browser"],
    ["Float16 arithmetic", features.includes("shader-f16") ? "yes" : "no"],
    ["Largest buffer", megabytes(largestBuffer)],
  ];
  const text = software ? `${adapter}: no GPU, it computes on the processor` : adapter;
  return make("details", {}, make("summary", { text }), listOf(facts));
}

/** The model of the page's own folder, once the person wants it and it is loaded. */
export async function openModel() {
  const gate = $("gate");
  let bundle;
  try {
    const answer = await fetch("bundle.json");
    if (!answer.ok) throw new Error(`bundle.json: the server answered ${answer.status}`);
    bundle = await answer.json();
  } catch (error) {
    gate.replaceChildren(...fault(error));
    gate.classList.add("warn");
    throw error;
  }
  document.title = bundle.name;
  $("name").textContent = bundle.name;
  const memory = Math.max(...bundle.variants.map((v) => v.memory));
  const facts = [
    ["Download", megabytes(downloadOf(bundle))],
    ["GPU memory", megabytes(memory)],
  ];
  gate.replaceChildren(make("h2", { text: bundle.name }), listOf(facts));
  if (!isHere) {
    const button = make("button", { type: "button", text: "Load the model" });
    gate.append(button);
    await new Promise((go) => button.addEventListener("click", go, { once: true }));
    button.remove();
  }
  return loading(gate);
}

async function loading(gate) {
  const bar = make("progress", { max: "1", value: "0", "aria-label": "Progress" });
  const status = make("p", { className: "quiet-text number", text: "Looking for a GPU…" });
  gate.append(bar, status);
  try {
    const model = await load(new URL(".", location.href), {
      onProgress({ loaded, total, kernels, allKernels }) {
        // Compiling takes about as long as a quick download.
        bar.value = 0.8 * (loaded / total) + 0.2 * (allKernels ? kernels / allKernels : 0);
        const compiled = allKernels ? ` · kernels ${kernels} of ${allKernels}` : "";
        status.textContent = `${megabytes(loaded)} of ${megabytes(total)}${compiled}`;
      },
    });
    gate.hidden = true;
    $("adapter").replaceChildren(surroundings(model.info));
    $("memory").textContent = `${megabytes(model.info.memory)} of GPU memory`;
    $("foot").hidden = false;
    return model;
  } catch (error) {
    gate.replaceChildren(...fault(error));
    gate.classList.add("warn");
    throw error;
  }
}
