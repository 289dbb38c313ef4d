/** What goes wrong, a class each; every message says what to do. All are `RuntimeFault`. */

/** The class that all errors of the runtime have in common. */
export class RuntimeFault extends Error {
  /** @param {string} message @param {ErrorOptions} [options] */
  constructor(message, options) {
    super(message, options);
    this.name = new.target.name;
  }
}

/** There is no WebGPU, or no adapter, or it gave no device. */
export class NoWebGpuError extends RuntimeFault {}
/** What is at the address is no bundle, or contradicts itself. */
export class BundleError extends RuntimeFault {}
/** A bundle of another version than this runtime's. */
export class VersionError extends BundleError {}
/** A file could not be fetched. */
export class DownloadError extends RuntimeFault {}
/** A file's size or SHA-256 is not what `bundle.json` says. */
export class CorruptFileError extends RuntimeFault {}
/** The adapter lacks a feature, or grants less of a limit than every variant of the bundle needs. */
export class MissingFeatureError extends RuntimeFault {}
/** The bundle needs more memory, or larger buffers, than there are. */
export class TooLargeError extends RuntimeFault {}
/** A shader or a command that the device refuses: a fault of the bundle or the driver. */
export class GpuError extends RuntimeFault {}
/** The device is gone, and with it what only it knew. */
export class DeviceLostError extends RuntimeFault {}
/** An input that no plan takes; the message names the input, its shape and dtype, and what is taken. */
export class InputError extends RuntimeFault {}
/** What a kernel reports, an index out of range say; `kind` is the class that PyTorch raises. */
export class KernelError extends RuntimeFault {
  /** @param {string} kind @param {string} message */
  constructor(kind, message) {
    super(message);
    this.kind = kind;
  }
}

/** The runtime was disposed of. */
export class DisposedError extends RuntimeFault {}
/** The tokenizer is missing or cannot read its files. */
export class TokenizerError extends RuntimeFault {}
/** @param {unknown} error */
export const messageOf = (error) => (error instanceof Error ? error.message : String(error));

/** @param {number} bytes */
export function mebibytes(bytes) {
  const value = bytes / 2 ** 20;
  return `${value >= 100 ? Math.round(value) : Number(value.toPrecision(3))} MiB`;
}
