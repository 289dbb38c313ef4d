/** Text to tokens and back, through the library in `vendor/`. */

import { parseJson } from "./bundle.js";
import { InputError, TokenizerError, messageOf } from "./errors.js";

/** @import { Bundle, Language, Message, Prompt, Source } from "./types.d.ts" */

const VENDOR = "../vendor/tokenizer.js";

/** @typedef {{encode: (text: string, options: {add_special_tokens: boolean}) => {ids: number[]},
 *   decode: (ids: number[], options: {skip_special_tokens: boolean}) => string}} Library */

export class Tokenizer {
  /** @param {Source} source @param {Bundle} bundle @param {Language} language @param {AbortSignal} [signal] */
  static async open(source, bundle, language, signal) {
    if (!language.files.length) return new Tokenizer(null, null, {});
    let vendor;
    try {
      vendor = await import(VENDOR);
    } catch (error) {
      throw new TokenizerError(
        "vendor/tokenizer.js is missing beside the runtime: run `npm ci && npm run vendor` where torch_webgpu's sources lie, " +
          "then export the model again",
        { cause: error },
      );
    }
    const files = language.files.map((name) => source.file(name, bundle.files[name], () => {}, signal));
    const contents = (await Promise.all(files)).map((bytes, i) => parseJson(language.files[i], bytes));
    const named = (/** @type {string} */ name) => contents[language.files.indexOf(name)];
    const config = /** @type {Record<string, any>} */ (named("tokenizer_config.json") ?? {});
    try {
      const template = language.template ? new vendor.Template(language.template) : null;
      return new Tokenizer(new vendor.Tokenizer(named("tokenizer.json"), config), template, config);
    } catch (error) {
      throw new TokenizerError(
        `the tokenizer of ${bundle.name} is of a kind that the library cannot read: ${messageOf(error)}`,
      );
    }
  }

  /** @param {Library | null} library none where the bundle takes and gives tokens alone @param {{render: (values: object) => string} | null} template
   * @param {Record<string, any>} config */
  constructor(library, template, config) {
    this.library = library;
    this.template = template;
    this.config = config;
  }

  /** Whether messages of a chat can be made into a prompt. */
  get chats() {
    return this.template !== null;
  }

  /** @param {string} text
   * @param {boolean} [special] whether the tokens that begin and end a text are added, as the tokenizer has them */
  encode(text, special = true) {
    if (!this.library) throw new TokenizerError("this bundle has no tokenizer: give it tokens, or export it with one");
    return this.library.encode(text, { add_special_tokens: special }).ids;
  }

  /** @param {number[]} ids */
  decode(ids) {
    return (ids.length && this.library?.decode(ids, { skip_special_tokens: true })) || "";
  }

  /** A chat as the model knows it, up to where its answer begins. @param {Message[]} messages */
  chat(messages) {
    if (!this.template) throw new InputError("this model has no chat template; give it a text");
    const text = (/** @type {string} */ name) => this.config[name]?.content ?? this.config[name] ?? "";
    const special = { bos_token: text("bos_token"), eos_token: text("eos_token") };
    return this.template.render({ ...special, messages, add_generation_prompt: true });
  }

  /** The tokens of a prompt: a text, a chat, or tokens. @param {Prompt} prompt */
  prompt(prompt) {
    if (typeof prompt === "string") return this.encode(prompt);
    const list = Array.from(/** @type {ArrayLike<unknown>} */ (prompt ?? []));
    if (list.length && list.every((each) => typeof each === "object" && each !== null && "role" in each)) {
      return this.encode(this.chat(/** @type {Message[]} */ (list)), false);
    }
    return /** @type {number[]} */ (list);
  }

  /** Texts of tokens that come one by one. */
  stream() {
    /** @type {number[]} */
    const ids = [];
    let start = 0; // of what is decoded together: a token's text depends on the one before
    let shown = 0;
    return (/** @type {number | null} */ id) => {
      if (id !== null) ids.push(id);
      const before = this.decode(ids.slice(start, shown));
      const text = this.decode(ids.slice(start));
      // A character of several tokens is incomplete until its last one; at the end it is shown as it is.
      if (text.length <= before.length || (text.endsWith("\ufffd") && id !== null)) return "";
      start = shown;
      shown = ids.length;
      return text.slice(before.length);
    };
  }
}
