/** Does with bundles what cases.json says, in Node and in browsers alike, and tells what came of each step. */

const ARRAYS = {
  float32: Float32Array,
  float16: Uint16Array,
  bfloat16: Uint16Array,
  int64: BigInt64Array,
  int32: Int32Array,
  int16: Int16Array,
  int8: Int8Array,
  uint8: Uint8Array,
  bool: Uint8Array,
};

function bytesOf(text) {
  return Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
}

function textOf(array) {
  let text = "";
  for (const byte of new Uint8Array(array.buffer, array.byteOffset, array.byteLength)) text += String.fromCharCode(byte);
  return btoa(text);
}

/** An input as it is written in cases.json: bytes of a dtype, with or without their shape, or plain values. */
function input({ dtype, shape, data, raw }) {
  if (raw !== undefined) return raw;
  const values = new ARRAYS[dtype](bytesOf(data).buffer);
  return shape ? { data: values, shape } : values;
}

const inputs = (given) => Object.fromEntries(Object.entries(given).map(([name, value]) => [name, input(value)]));

const outputs = (found) =>
  Object.fromEntries(
    Object.entries(found).map(([name, { data, shape, dtype }]) => [name, { data: textOf(data), shape, dtype }]),
  );

async function generated(model, { prompt, stopAfter, destroyAfter, abortAfter, ...options }) {
  const tokens = [];
  let text = "";
  const controller = new AbortController();
  for await (const each of model.generate(prompt, { ...options, signal: controller.signal })) {
    tokens.push(each.token);
    text += each.text;
    if (tokens.length === stopAfter) break;
    if (tokens.length === destroyAfter) model.loaded.gpu.device.destroy();
    if (tokens.length === abortAfter) controller.abort();
  }
  return { tokens, text, statistics: model.statistics };
}

/** The steps; each takes the model and what the step says. */
const STEPS = {
  run: async (model, given, { plan }) => outputs(await model.run(inputs(given), plan ? { plan } : {})),
  together: async (model, all) => Promise.all(all.map(async (given) => outputs(await model.run(inputs(given))))),
  seed: async (model, value) => model.seed(value),
  destroy: async (model) => model.loaded.gpu.device.destroy(),
  reload: (model) => model.reload(),
  dispose: async (model) => model.dispose(),
  info: async (model) => model.info,
  generate: generated,
  encode: async (model, text) => model.tokenizer.encode(text),
  chat: async (model, messages) => model.tokenizer.prompt(messages),
  decode: async (model, ids) => {
    const stream = model.tokenizer.stream();
    return [...ids.map(stream), stream(null)].join("");
  },
};

async function attempt(action) {
  try {
    return { value: (await action()) ?? null };
  } catch (error) {
    return { error: error.name, kind: error.kind ?? null, message: error.message };
  }
}

async function single({ bundle, options = {}, steps }, { load, base, gpu, check }) {
  const progress = [];
  let model;
  const loaded = await attempt(async () => {
    model = await load(base + bundle, { ...options, gpu, onProgress: (p) => progress.push(p) });
    return progress.at(-1);
  });
  const results = [loaded];
  for (const step of model ? steps : []) {
    const [kind] = Object.keys(step);
    const action = kind === "check" ? () => check(model, step.check) : () => STEPS[kind](model, step[kind], step);
    results.push(await attempt(action));
  }
  model?.dispose();
  return results;
}

/**
 * All cases one after the other.
 * @param {(name: string, results: object[], ms: number) => unknown} tell
 */
export async function runCases(cases, surroundings, tell) {
  for (const [name, each] of Object.entries(cases)) {
    const start = performance.now();
    await tell(name, await single(each, surroundings), performance.now() - start);
  }
}
