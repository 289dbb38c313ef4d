/** Reads tensors back: copies them into a staging buffer with the word for errors, and waits for it. */

import { ITEM_SIZES, extent } from "./bundle.js";
import { KernelError } from "./errors.js";
import { decode } from "./tensors.js";

/** @import { Loaded, TensorFacts } from "./types.d.ts" */

const ERROR_BYTES = 16; // id, value (two words), size

export class Reading {
  /** @param {Loaded} loaded @param {TensorFacts[]} tensors @param {number | null} error buffer that kernels report in */
  constructor(loaded, tensors, error) {
    this.loaded = loaded;
    this.error = error;
    let at = ERROR_BYTES;
    this.parts = tensors.map((tensor) => {
      const item = ITEM_SIZES[tensor.dtype];
      const first = item * tensor.offset;
      const start = Math.floor(first / 4) * 4;
      const size = Math.ceil((first + item * extent(tensor.shape, tensor.strides)) / 4) * 4 - start;
      const part = { tensor, start, size, at, shift: first - start };
      at = Math.ceil((at + size) / 8) * 8;
      return part;
    });
    this.size = at;
    this.staging = loaded.takeStaging(at);
  }

  /** @param {GPUCommandEncoder} encoder */
  encode(encoder) {
    const { buffers } = this.loaded;
    if (this.error !== null) encoder.copyBufferToBuffer(buffers[this.error], 0, this.staging, 0, ERROR_BYTES);
    for (const { tensor, start, size, at } of this.parts) {
      if (size) encoder.copyBufferToBuffer(buffers[tensor.buffer], start, this.staging, at, size);
    }
  }

  /** The values, once they are there; throws what kernels have reported. */
  async finish() {
    const { gpu } = this.loaded;
    const bytes = await gpu.contents(this.staging, this.size);
    this.loaded.giveStaging(this.staging);
    gpu.check();
    if (this.error !== null) this.#checkReport(new DataView(bytes), this.error);
    return this.parts.map(({ tensor, at, shift }) => decode(bytes, at + shift, tensor));
  }

  /** @param {DataView} view @param {number} error */
  #checkReport(view, error) {
    const id = view.getUint32(0, true);
    if (!id) return;
    const { bundle, gpu, buffers } = this.loaded;
    gpu.queue.writeBuffer(buffers[error], 0, new Uint8Array(ERROR_BYTES));
    const { kind, message } = bundle.messages[id] ?? { kind: "RuntimeError", message: `a kernel reports ${id}` };
    const value = String(view.getBigInt64(4, true));
    const size = String(view.getUint32(12, true));
    throw new KernelError(kind, message.replaceAll("{value}", value).replaceAll("{size}", size));
  }
}
