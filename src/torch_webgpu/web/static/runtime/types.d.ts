/** What a bundle holds (the schema is torch_webgpu/web/bundle.py), and what the runtime takes and gives. */

export type { Gpu } from "./gpu.js";
export type { Loaded } from "./loaded.js";
export type { Plan } from "./plan.js";
export type { Random } from "./plan.js";
export type { Source } from "./source.js";
export type { Tokenizer } from "./tokenizer.js";

export type DType = "float32" | "float16" | "bfloat16" | "int64" | "int32" | "int16" | "int8" | "uint8" | "bool";

export interface FileFacts {
  size: number;
  sha256: string;
}

export interface Segment {
  file: string;
  offset: number;
  size: number;
  at: number;
}

export interface BufferFacts {
  name: string;
  size: number;
  role: "weight" | "state" | "input";
  data: Segment[];
}

export interface TensorFacts {
  name: string;
  buffer: number;
  dtype: DType;
  shape: number[];
  strides: number[];
  offset: number;
}

export interface Variant {
  name: string;
  features: string[];
  limits: Record<string, number>;
  subgroups: number;
  memory: number;
  plans: string;
}

export type Choice = "greedy" | "temperature" | "top-p" | "top-k";
export type State = "token" | "tokens" | "count" | "position" | "logits" | "temperature" | "top_k" | "top_p";

export interface Language {
  length: number;
  vocabulary: number;
  prompts: number[];
  sampling: Record<Choice, string>;
  top_k: number;
  state: Record<State, TensorFacts>;
  cache: number[];
  ends: number[];
  files: string[];
  template: string | null;
  defaults: Record<string, number>;
  check: { prompt: number[]; tokens: number[] } | null;
}

export interface Image {
  input: string;
  output: string;
  resize: number;
  size: number;
  mean: number[];
  deviation: number[];
  labels: string;
}

export interface Bundle {
  format: string;
  version: number;
  name: string;
  producer: Record<string, string>;
  files: Record<string, FileFacts>;
  buffers: BufferFacts[];
  variants: Variant[];
  messages: Record<string, { kind: string; message: string }>;
  language: Language | null;
  image: Image | null;
  about: Record<string, string>;
}

export interface PipelineFacts {
  name: string;
  wgsl: string;
  written: boolean[];
  uniform: number;
}

export interface Dispatch {
  name: string;
  pipeline: number;
  groups: [number, number, number];
  bindings: [number, number, number][];
  words: number[];
  random: { word: number; count: number }[];
}

export interface PlanFacts {
  inputs: TensorFacts[];
  outputs: TensorFacts[];
  dispatches: Dispatch[];
}

export interface Plans {
  pipelines: PipelineFacts[];
  scratch: number[];
  error: number | null;
  plans: Record<string, PlanFacts>;
}

export interface Kernel {
  pipeline: GPUComputePipeline;
  layout: GPUBindGroupLayout;
}

/** Bytes and kernels that are there. */
export interface Progress {
  loaded: number;
  total: number;
  kernels: number;
  allKernels: number;
}

export interface LoadOptions {
  /** Where there is no `navigator.gpu`: that of Node's package webgpu. */
  gpu?: GPU | undefined;
  /** Ends loading. */
  signal?: AbortSignal | undefined;
  onProgress?: ((progress: Progress) => void) | undefined;
  /** Bytes that the bundle may take; more is refused before anything is downloaded. */
  memory?: number | undefined;
  /** Of random numbers; by chance where it is not given. */
  seed?: number | bigint | undefined;
}

export type TypedArray =
  | Float32Array
  | Float64Array
  | Int8Array
  | Uint8Array
  | Uint8ClampedArray
  | Int16Array
  | Uint16Array
  | Int32Array
  | Uint32Array
  | BigInt64Array
  | BigUint64Array;
export type Scalar = number | bigint | boolean;
/** Numbers in arrays in arrays. */
export type Nested = Scalar | Nested[];

/** A typed array, whose shape is the plan's where only one fits; or one with a shape; or nested arrays of numbers. */
export type Input = TypedArray | { data: TypedArray | Scalar[]; shape: number[] } | Nested;

/** Values of an input in order, and their shape where it was given. */
export interface Given {
  flat: TypedArray | Scalar[];
  shape: number[] | null;
}

/** float16 and bfloat16 arrive as float32, bool as 0 and 1. */
export interface Output {
  data: Float32Array | BigInt64Array | Int32Array | Int16Array | Int8Array | Uint8Array;
  shape: number[];
  dtype: DType;
}

export interface Message {
  role: string;
  content: string;
}

/** A text, a chat, or tokens. */
export type Prompt = string | Message[] | ArrayLike<number>;

export interface GenerateOptions {
  /** Tokens at most, 256 unless given; the cache may be full before. */
  maxNewTokens?: number;
  /** 0 takes the likeliest token; what the model's makers recommend unless given, else 0. */
  temperature?: number | undefined;
  /** Only so many of the likeliest tokens are drawn from. */
  topK?: number | undefined;
  /** Only the likeliest tokens are drawn from, as many as it takes to reach this probability. */
  topP?: number | undefined;
  /** Of the draws. */
  seed?: number | bigint | undefined;
  /** Tokens that end the text; the model's own unless given. */
  ends?: number[];
  /** Ends the generation with its reason. */
  signal?: AbortSignal | undefined;
  /** Keep what the cache holds of an earlier prompt that begins alike: quicker, and up to rounding the same. */
  reuse?: boolean;
}

/** `text` is what this token adds; at times it comes with a later one. */
export interface Generated {
  token: number;
  text: string;
}

/** Times from the call on; the rate is of the tokens after the first. */
export interface Statistics {
  promptTokens: number;
  reused: number;
  tokens: number;
  firstMs: number;
  totalMs: number;
  tokensPerSecond: number;
  end: "token" | "length" | "full" | "stopped";
}
