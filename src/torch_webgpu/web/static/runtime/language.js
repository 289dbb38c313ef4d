/** Language models: prompts in pieces, tokens one after the other, queued ahead of what is read. */

import { DeviceLostError, InputError, KernelError, RuntimeFault } from "./errors.js";
import { Random } from "./plan.js";
import { Runtime } from "./runtime.js";
import { encode } from "./tensors.js";

/** @import { Bundle, Choice, GenerateOptions, Generated, Language, LoadOptions, Loaded, Output } from "./types.d.ts" */
/** @import { Plan, Prompt, Source, Statistics, TensorFacts, Tokenizer } from "./types.d.ts" */

const GREEDY = 1e-6; // temperatures below are 0
const LARGEST_BLOCK = 16; // tokens that are read together at most,
const BLOCK_MS = 50; // as long as that takes no longer
const NOTHING = { reused: 0, tokens: 0, firstMs: 0, totalMs: 0, tokensPerSecond: 0 };
const MOST_LOSSES = 2; // of the device, in one generation

export class LanguageModel extends Runtime {
  /** @param {Source} source @param {Bundle} bundle @param {Loaded} loaded @param {LoadOptions} options
   * @param {Tokenizer} tokenizer */
  constructor(source, bundle, loaded, options, tokenizer) {
    super(source, bundle, loaded, options);
    this.tokenizer = tokenizer;
    this.language = /** @type {Language} */ (bundle.language);
  }

  /** Of the last generation. @type {Statistics | null} */
  statistics = null;

  /** Tokens in the cache, from its start. @type {number[]} */
  #held = [];
  #generation = 0;
  #spoilt = false; // the cache may hold NaN
  /** @type {Promise<unknown>[]} */
  #unread = [];

  /** Everything as at first, the cache too. */
  async reload() {
    await super.reload();
    this.#held = [];
    this.#spoilt = false;
  }

  /** Continues a text, a chat or tokens. After the loss of the device it loads the model again and goes on.
   * @param {Prompt} prompt @param {GenerateOptions} [options] @returns {AsyncGenerator<Generated, void, void>} */
  async *generate(prompt, options = {}) {
    this.check();
    const ids = this.tokenizer.prompt(prompt);
    const { maxNewTokens = 256, seed, signal, ends = this.language.ends } = options;
    this.#checkPrompt(ids, maxNewTokens);
    const choose = this.#choice(options);
    const random = seed === undefined ? this.random : new Random(seed);
    const text = this.tokenizer.stream();
    const start = performance.now();
    const room = this.language.length - ids.length + 1; // the last token is never looked at
    const most = Math.min(maxNewTokens, room);
    /** @type {Statistics} */
    const statistics = { ...NOTHING, promptTokens: ids.length, end: "stopped" };
    this.statistics = statistics;
    const drawn = random.counter;
    /** @type {number[]} */
    const done = [];
    for (let losses = 0; done.length < most;) {
      try {
        const tokens = this.#tokens([...ids, ...done], most - done.length, choose, random, options, statistics);
        for await (const token of tokens) {
          done.push(token);
          const now = performance.now() - start;
          if (done.length === 1) statistics.firstMs = now;
          statistics.tokens = done.length;
          statistics.totalMs = now;
          statistics.tokensPerSecond = done.length > 1 ? (1000 * (done.length - 1)) / (now - statistics.firstMs) : 0;
          if (ends.includes(token)) statistics.end = "token";
          else if (done.length === most) statistics.end = most === maxNewTokens ? "length" : "full";
          const isLast = statistics.end !== "stopped";
          yield { token, text: text(token) + (isLast ? text(null) : "") };
          if (isLast) return;
        }
      } catch (error) {
        if (!(error instanceof DeviceLostError) || ++losses > MOST_LOSSES || signal?.aborted) throw error;
        await this.reload(); // throws where it was disposed of
        random.counter = drawn + BigInt(done.length * this.loaded.plan(choose.plan).uses); // what was queued is drawn anew
      }
    }
  }

  /** @param {number[]} ids @param {number} maxNewTokens */
  #checkPrompt(ids, maxNewTokens) {
    const { vocabulary, length } = this.language;
    if (!ids.length) throw new InputError("the prompt is empty; it needs at least one token");
    const wrong = ids.find((id) => !(Number.isInteger(id) && id >= 0 && id < vocabulary));
    if (wrong !== undefined) throw new InputError(`the prompt holds ${wrong}, which is no token of ${vocabulary}`);
    if (ids.length > length) {
      throw new InputError(`the prompt has ${ids.length} tokens, the cache holds ${length}: shorten it or export with more`);
    }
    if (!(Number.isInteger(maxNewTokens) && maxNewTokens > 0)) {
      throw new InputError(`maxNewTokens is a whole number of at least 1, not ${maxNewTokens}`);
    }
  }

  /** The plan that chooses tokens, its settings written. @param {GenerateOptions} options */
  #choice(options) {
    const { sampling, top_k: mostK, vocabulary, defaults, state } = this.language;
    const recommended = options.temperature === undefined ? defaults : {};
    const {
      temperature = defaults.temperature ?? 0,
      topK = recommended.top_k && Math.min(recommended.top_k, mostK),
      topP = recommended.top_p,
    } = options;
    if (!(temperature >= 0 && temperature < Infinity)) throw new InputError(`temperature is at least 0, not ${temperature}`);
    if (topP !== undefined && !(topP > 0 && topP <= 1)) throw new InputError(`topP is above 0 and at most 1, not ${topP}`);
    const some = topK !== undefined && topK < vocabulary;
    if (some && !(Number.isInteger(topK) && topK >= 1 && topK <= mostK)) {
      throw new InputError(`topK is a whole number from 1 to ${mostK} in this bundle, not ${topK}`);
    }
    if (temperature < GREEDY || topK === 1) return { plan: sampling.greedy, write: () => {} };
    /** @type {Choice} */
    const kind = some ? "top-k" : topP !== undefined && topP < 1 ? "top-p" : "temperature";
    if (!sampling[kind]) throw new InputError(`${this.bundle.name} was exported without ${kind} sampling`);
    return {
      plan: sampling[kind],
      write: () => {
        this.#set(state.temperature, temperature);
        if (kind !== "temperature") this.#set(state.top_p, topP ?? 1);
        if (kind === "top-k") this.#set(state.top_k, topK ?? 1);
      },
    };
  }

  /** @param {TensorFacts} tensor of one element @param {number} value */
  #set(tensor, value) {
    this.write(tensor, encode({ flat: [value], shape: null }, tensor));
  }

  /** @param {number[]} ids @param {number} most @param {{plan: string, write: () => void}} choose @param {Random} random
   * @param {GenerateOptions} options @param {Statistics} statistics @returns {AsyncGenerator<number, void, void>} */
  async *#tokens(ids, most, choose, random, { signal, reuse }, statistics) {
    const generation = ++this.#generation;
    await Promise.allSettled(this.#unread.splice(0));
    const goOn = () => {
      signal?.throwIfAborted();
      this.check();
      if (this.#generation !== generation) {
        throw new RuntimeFault("another generation was begun on this model: its cache holds one text; load it twice");
      }
      this.loaded.gpu.check();
    };
    goOn();
    const kept = this.#begin(ids, reuse === true);
    statistics.reused ||= kept;
    choose.write();
    const chooser = this.loaded.plan(choose.plan);
    const step = [this.loaded.plan("decode"), chooser];
    const reads = [this.#reading(this.#prefill(ids, kept, chooser, random))];
    /** @type {number[]} */
    const read = [];
    let queued = 1;
    let block = 1;
    let before = performance.now();
    try {
      while (reads.length) {
        while (queued < most && reads.length < 2) {
          const more = Math.min(block, most - queued);
          for (let i = 1; i < more; i++) this.loaded.submit(step, random);
          reads.push(this.#reading(this.#submit(step, random, queued, more)));
          queued += more;
        }
        const tokens = await /** @type {Promise<number[]>} */ (reads.shift());
        const now = performance.now();
        const fitting = Math.floor((BLOCK_MS * tokens.length) / Math.max(now - before, 0.01));
        block = Math.max(1, Math.min(2 * block, LARGEST_BLOCK, fitting));
        before = now;
        for (const token of tokens) {
          goOn();
          read.push(token);
          yield token;
        }
      }
    } finally {
      for (const rest of reads) this.#unread.push(rest.catch(() => {}));
      if (this.#generation === generation) this.#held = [...ids, ...read].slice(0, ids.length + queued - 1);
    }
  }

  /** Readies the state for a prompt; returns how many of its tokens the cache holds already.
   * @param {number[]} ids @param {boolean} reuse */
  #begin(ids, reuse) {
    const { state, cache } = this.language;
    const { gpu, buffers } = this.loaded;
    if (this.#spoilt) {
      const encoder = gpu.device.createCommandEncoder();
      for (const number of cache) encoder.clearBuffer(buffers[number]);
      gpu.queue.submit([encoder.finish()]);
      this.#held = [];
      this.#spoilt = false;
    }
    let kept = 0;
    while (reuse && kept < ids.length - 1 && this.#held[kept] === ids[kept]) kept++;
    this.#held = [];
    this.#set(state.position, kept);
    this.#set(state.count, 0);
    return kept;
  }

  /** Submits a prompt in pieces, and the choice of the first token.
   * @param {number[]} ids @param {number} start where in them to begin @param {Plan} chooser @param {Random} random */
  #prefill(ids, start, chooser, random) {
    const { prompts, length, state } = this.language;
    for (let at = start; ;) {
      const rest = ids.length - at;
      const fitting = prompts.filter((n) => at + n <= length);
      const size = fitting.find((n) => n >= rest) ?? fitting.at(-1);
      const plan = this.loaded.plan(size === undefined ? "decode" : `prompt-${size}`);
      const used = Math.min(rest, size ?? 1);
      if (size === undefined) this.#set(state.token, ids[at]);
      for (const tensor of plan.inputs) {
        const piece = [...ids.slice(at, at + used), ...Array(Math.max(0, (size ?? 1) - used)).fill(0)];
        const flat = tensor.name === "ids" ? piece : [used];
        this.write(tensor, encode({ flat, shape: null }, tensor));
      }
      at += used;
      if (at === ids.length) return this.#submit([plan, chooser], random, 0, 1);
      this.loaded.submit([plan], random);
    }
  }

  /** A step, and a read of the tokens that it is the last of.
   * @param {Plan[]} plans @param {Random} random @param {number} first @param {number} count */
  #submit(plans, random, first, count) {
    const { tokens } = this.language.state;
    const wanted = { ...tokens, offset: tokens.offset + first, shape: [count], strides: [1] };
    return this.loaded.submit(plans, random, [wanted]);
  }

  /** @param {() => Promise<Output[]>} read @returns {Promise<number[]>} */
  #reading(read) {
    const tokens = read().then(([{ data }]) => Array.from(/** @type {BigInt64Array} */ (data), Number));
    tokens.catch((error) => {
      this.#spoilt ||= error instanceof KernelError; // told where it is awaited
    });
    return tokens;
  }
}
