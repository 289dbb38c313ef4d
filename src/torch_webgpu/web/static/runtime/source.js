/** Where a bundle's files come from: an address, or a folder in Node. Every file is checked as it arrives. */

import { MANIFEST } from "./bundle.js";
import { CorruptFileError, DownloadError, NoWebGpuError, messageOf } from "./errors.js";

/** @import { FileFacts } from "./types.d.ts" */

/** @typedef {(bytes: number) => void} Arrived told how many bytes more there are */

const inNode = typeof process === "object" && Boolean(process.versions?.node) && typeof window === "undefined";

export class Source {
  /** @param {string | URL} location of the bundle's folder: an address, or a path in Node */
  constructor(location) {
    const text = String(location);
    const folder = text.endsWith("/") ? text : `${text}/`;
    const isAddress = /^[a-z][a-z\d+.-]+:/i.test(text);
    /** @type {URL | string} a path is a string */
    this.base = isAddress ? new URL(folder) : inNode ? folder : new URL(folder, globalThis.location.href);
  }

  /** The manifest, of which neither size nor hash are known. @param {AbortSignal} [signal] */
  async manifest(signal) {
    const parts = [];
    for await (const part of this.#parts(MANIFEST, signal)) parts.push(part);
    return new Uint8Array(await new Blob(parts).arrayBuffer());
  }

  /** A whole file, its size and hash checked.
   * @param {string} name @param {FileFacts} facts @param {Arrived} arrived @param {AbortSignal} [signal] */
  async file(name, facts, arrived, signal) {
    const bytes = new Uint8Array(facts.size);
    let at = 0;
    for await (const part of this.#parts(name, signal)) {
      if (at + part.length > facts.size) throw damaged(name, `it has more than ${facts.size} bytes`);
      bytes.set(part, at);
      at += part.length;
      arrived(part.length);
    }
    if (at !== facts.size) throw damaged(name, `${at} of ${facts.size} bytes have come`);
    if (!globalThis.crypto?.subtle) {
      throw new NoWebGpuError("files cannot be checked here: the page needs https, or an address on this very machine");
    }
    const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
    const found = Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join("");
    if (found !== facts.sha256) throw damaged(name, "its SHA-256 is another");
    return bytes;
  }

  /** @param {string} name @param {AbortSignal} [signal] @returns {AsyncGenerator<Uint8Array<ArrayBuffer>>} */
  async *#parts(name, signal) {
    if (typeof this.base === "string" || this.base.protocol === "file:") {
      yield* this.#fromDisk(name, signal);
      return;
    }
    const address = new URL(name, this.base);
    try {
      const response = await fetch(address, signal ? { signal } : {});
      if (!response.ok) throw new DownloadError(`${address.href}: the server answered ${response.status}`);
      const reader = /** @type {ReadableStream<Uint8Array<ArrayBuffer>>} */ (response.body).getReader();
      for (;;) {
        const { done, value } = await reader.read();
        if (done) return;
        yield value;
      }
    } catch (error) {
      signal?.throwIfAborted();
      if (error instanceof DownloadError) throw error;
      throw new DownloadError(
        `${address.href} could not be fetched (${messageOf(error)}); look at the connection and try again`,
      );
    }
  }

  /** @param {string} name @param {AbortSignal} [signal] @returns {AsyncGenerator<Uint8Array<ArrayBuffer>>} */
  async *#fromDisk(name, signal) {
    const { createReadStream } = await import("node:fs");
    const path = typeof this.base === "string" ? this.base + name : new URL(name, this.base);
    try {
      for await (const part of createReadStream(path, { highWaterMark: 1 << 20 })) {
        signal?.throwIfAborted();
        yield part;
      }
    } catch (error) {
      signal?.throwIfAborted();
      throw new DownloadError(`${path} could not be read: ${messageOf(error)}`);
    }
  }
}

/** @param {string} name @param {string} why */
function damaged(name, why) {
  return new CorruptFileError(`${name} is damaged (${why}): load it again, without the cache, or copy the bundle anew`);
}
