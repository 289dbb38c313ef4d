import { identify } from "./browser.js";
import { help } from "./help.js";

/** WebGPU cannot be used here; `reason` is one of help.js. */
export class MissingGpuError extends Error {
  constructor(reason, detail = "") {
    const told = help(reason, identify().name, detail);
    super([told.title, told.text].join(" "));
    this.help = told;
  }
}

/** What the GPU complained of. */
export class GpuError extends Error {}

const SOFTWARE = ["swiftshader", "llvmpipe", "lavapipe", "basic render", "warp", "software"];
const INTEGRATED = ["apple", "arm", "qualcomm", "img-tec", "imagination", "samsung", "broadcom"];

/**
 * An open device, with what it complains of.
 * @returns {Promise<{adapter: GPUAdapter, device: GPUDevice, target: object, facts: object, check: () => void}>}
 */
export async function openGpu() {
  if (!isSecureContext) throw new MissingGpuError("insecure");
  if (!navigator.gpu) throw new MissingGpuError("disabled");
  const adapter = await navigator.gpu.requestAdapter({ powerPreference: "high-performance" });
  if (!adapter) throw new MissingGpuError("no adapter");
  let device;
  try {
    device = await adapter.requestDevice();
  } catch (error) {
    throw new MissingGpuError("no device", error.message);
  }
  const complaints = [];
  device.addEventListener("uncapturederror", ({ error }) => complaints.push(error.message));
  device.lost.then(({ reason, message }) => complaints.push(`the device was lost (${reason}): ${message}`));
  const check = () => {
    if (complaints.length) throw new GpuError(complaints[0]);
  };
  return { adapter, device, ...describe(adapter), check };
}

/** The adapter as a target of the result file, and for the page. */
function describe(adapter) {
  const info = adapter.info ?? {};
  const told = [info.description, info.vendor, info.architecture, info.device].filter(Boolean);
  const software = Boolean(info.isFallbackAdapter) || SOFTWARE.some((word) => told.join(" ").toLowerCase().includes(word));
  const parts = [info.vendor, info.architecture, info.device].filter(Boolean);
  const unnamed = software ? "software adapter" : "adapter without a name";
  const name = info.description || parts.join(" ") || unnamed;
  const { name: implementation, version } = identify();
  const features = [...adapter.features].sort();
  const target = {
    kind: "browser",
    implementation,
    version,
    adapter: name,
    adapter_kind: kindOf(software, info),
    backend: info.backend ? info.backend[0].toUpperCase() + info.backend.slice(1) : "",
    driver: info.driver ?? "",
    features,
    limits: limitsOf(adapter.limits),
    clocks: {},
  };
  const subgroups = adapter.features.has("subgroups") || adapter.features.has("subgroup");
  const facts = {
    software,
    vendor: info.vendor || "not told",
    architecture: info.architecture || "not told",
    description: name,
    f16: adapter.features.has("shader-f16"),
    subgroups,
    subgroupSizes: info.subgroupMinSize ? [info.subgroupMinSize, info.subgroupMaxSize] : null,
  };
  return { target, facts };
}

function kindOf(software, info) {
  if (software) return "cpu";
  if (info.type === "integrated GPU" || INTEGRATED.includes(info.vendor)) return "integrated";
  if (info.type === "discrete GPU" || info.vendor === "nvidia") return "discrete";
  return "unknown";
}

function limitsOf(limits) {
  const found = {};
  for (const name in limits) if (Number.isSafeInteger(limits[name])) found[name] = limits[name];
  return found;
}

/** A compute pipeline, compiled beside the page's own work. */
export async function pipelineOf(device, label, code) {
  const module = device.createShaderModule({ label, code });
  try {
    return await device.createComputePipelineAsync({ label, layout: "auto", compute: { module, entryPoint: "main" } });
  } catch (error) {
    throw new GpuError(`${label}: ${error.message}`);
  }
}

/** A buffer that shaders work on. */
export function storage(device, label, bytes) {
  const usage = GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_SRC | GPUBufferUsage.COPY_DST;
  return device.createBuffer({ label, size: bytes, usage });
}

/** A buffer that its contents are read through. */
export function staging(device, bytes) {
  return device.createBuffer({ label: "staging", size: bytes, usage: GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST });
}

/** A copy of a buffer's contents. */
export async function contents(device, buffer) {
  const copy = staging(device, buffer.size);
  const encoder = device.createCommandEncoder();
  encoder.copyBufferToBuffer(buffer, 0, copy, 0, buffer.size);
  device.queue.submit([encoder.finish()]);
  await copy.mapAsync(GPUMapMode.READ);
  const bytes = copy.getMappedRange().slice(0);
  copy.destroy();
  return bytes;
}
