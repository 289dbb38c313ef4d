/**
 * Runs what `torch_webgpu.web.export` has written, in browsers and in Node.
 *
 *     import { load } from "./runtime/index.js";
 *     const model = await load("my-bundle/");
 *     const { output } = await model.run({ x: new Float32Array(4) });
 */

import { LanguageModel } from "./language.js";
import { Loaded, readBundle } from "./loaded.js";
import { Runtime } from "./runtime.js";
import { Source } from "./source.js";
import { Tokenizer } from "./tokenizer.js";

export * from "./errors.js";

/** @import { LoadOptions } from "./types.d.ts" */

export { LanguageModel, Runtime };

/** A bundle on this machine's GPU, checked, all of it loaded. A language model is a `LanguageModel`.
 * @param {string | URL} location of its folder: an address, or a path in Node
 * @param {LoadOptions} [options] @returns {Promise<Runtime>} */
export async function load(location, options = {}) {
  const source = new Source(location);
  const bundle = await readBundle(source, options.signal);
  if (!bundle.language) return new Runtime(source, bundle, await Loaded.open(source, bundle, options), options);
  const tokenizer = await Tokenizer.open(source, bundle, bundle.language, options.signal);
  return new LanguageModel(source, bundle, await Loaded.open(source, bundle, options), options, tokenizer);
}
