// Gets and decodes the data: histories, and the parts of snapshots (see snapshot.py).
// The data may come from a stranger, so every size is checked before and after decompression.

import { DATA as TEXTS } from "./texts.js";

export class DataError extends Error {}

const CACHE_BYTES = 256 * 2 ** 20;
const TYPES = { u1: Uint8Array, u2: Uint16Array, u4: Uint32Array, f2: Float16Array, f4: Float32Array };

/** The answer of a server. An error becomes the line that the server says, or one of `texts`. */
export async function answered(request, { noAnswer, refused }) {
  const response = await request.catch((error) => {
    throw error.name === "AbortError" ? error : new DataError(noAnswer);
  });
  if (response.ok) return response;
  const said = await response.json().catch(() => ({}));
  throw new DataError(said.error ?? refused(response.status));
}

/** A run with one text, for `runs()` of a source. Runs of the same shape can be compared. */
export const runOf = (name, text, { layers, heads, labels }) =>
  ({ name, texts: [text], shapes: [JSON.stringify([layers, heads, labels])] });

/** The bytes of a text in base64, as the stream that `part()` of a source returns. */
export function streamOf(base64) {
  const text = atob(base64);
  return new Blob([Uint8Array.from({ length: text.length }, (_, i) => text.charCodeAt(i))]).stream();
}

/** `source` gets the data itself: runs(), history(run, text) and part(key), all asynchronous. A part is a
    stream, so that it is decompressed while it arrives. */
export function createStore(source) {
  let histories = new Map(); // promises
  let earlier = histories; // those before all were fetched again
  const parts = new Map(); // key -> {promise, bytes}, the least recently used first

  function history(run, text) {
    const name = JSON.stringify([run, text]);
    if (!histories.has(name)) {
      const old = earlier.get(name)?.catch(() => null);
      const promise = source.history(run, text).then(async (fresh) => unlessEqual(await old, fresh));
      histories.set(name, promise);
      promise.catch(() => histories.delete(name)); // it is asked for again
    }
    return histories.get(name);
  }

  /** The arrays of a part at a step: {name: {shape, data}}. `number` is the layer, for a kind with a part
      per layer. Null if there is no such part, or if it was left out, which has no key. */
  async function part(history, index, kind, number = 0) {
    const { layout, parts: keys } = history.steps[index];
    let first = 0;
    for (const { name, count, arrays } of layout) {
      const key = name === kind && number < count ? keys[first + number] : null;
      if (key !== null) return fetched(key, arrays);
      first += count;
    }
    return null;
  }

  function fetched(key, arrays) {
    const entry = parts.get(key) ?? requested(key, arrays);
    parts.delete(key);
    parts.set(key, entry);
    let held = [...parts.values()].reduce((sum, { bytes }) => sum + bytes, 0);
    for (const [oldest, { bytes }] of parts) {
      if (held <= CACHE_BYTES) break; // as soon as one part is left
      parts.delete(oldest);
      held -= bytes;
    }
    return entry.promise;
  }

  function requested(key, arrays) {
    const size = arrays.reduce((sum, [, dtype, shape]) => sum + product(shape) * TYPES[dtype].BYTES_PER_ELEMENT, 0);
    const promise = source.part(key).then((data) => inflate(data, size)).then((bytes) => decode(bytes, arrays));
    promise.catch(() => parts.delete(key)); // it is asked for again
    return { bytes: size, promise };
  }

  return {
    runs: () => source.runs(),
    history,
    part,
    /** Fetches all histories again when they are asked for. */
    reload() {
      [earlier, histories] = [histories, new Map()];
    },

    /** The thumbnails of all heads at a step: {side, bytes}, uint8 (2, heads, side, side). */
    async thumbnails(history, index) {
      const { layers, heads } = history;
      const arrays = await part(history, index, "thumbnails");
      const side = arrays?.maps?.shape[3];
      return { side, bytes: shaped(arrays, "maps", 2, layers, heads, side, side) };
    },

    /** The weights of one layer at a step: {rest, peak, codes}, or {exact}. */
    async layer(history, index, layer) {
      const { heads, labels: { length: tokens } } = history;
      const arrays = await part(history, index, "weights", layer);
      if (arrays?.exact) return { exact: shaped(arrays, "exact", heads, (tokens * (tokens + 1)) / 2) };
      const [rest, peak] = ["rest", "peak"].map((name) => shaped(arrays, name, heads, tokens));
      const valid = (value) => value >= 0 && value <= 1.001;
      if (!rest.every(valid) || !peak.every(valid)) throw damaged(TEXTS.notWeights);
      return { rest, peak, codes: shaped(arrays, "codes", heads, (tokens * (tokens - 1)) / 2) };
    },
  };
}

const product = (shape) => shape.reduce((size, side) => size * side, 1);

/** The arrays of the bytes of a part. */
export function decode(bytes, arrays) {
  let at = 0;
  return Object.fromEntries(arrays.map(([name, dtype, shape]) => {
    const from = at;
    at += product(shape) * TYPES[dtype].BYTES_PER_ELEMENT;
    const data = new TYPES[dtype](bytes.slice(from, at).buffer);
    return [name, { shape, data }];
  }));
}

/** The data of an array of a part, which must have this shape. */
export function shaped(arrays, name, ...shape) {
  const array = arrays?.[name];
  if (!array || JSON.stringify(array.shape) !== JSON.stringify(shape)) throw damaged(TEXTS.wrongSize);
  return array.data;
}

export const damaged = (why) => new DataError(TEXTS.damaged(why));

/** A history that was fetched again, or the old object, if it did not change: the viewer then draws nothing again. */
const unlessEqual = (old, fresh) => (JSON.stringify(old) === JSON.stringify(fresh) ? old : fresh);

/** Decompresses a stream of zlib data, which must have `size` bytes. */
async function inflate(data, size) {
  const bytes = new Uint8Array(size);
  let length = 0;
  const collect = new WritableStream({
    write(chunk) {
      if (length + chunk.length > size) throw damaged(TEXTS.wrongSize);
      bytes.set(chunk, length);
      length += chunk.length;
    },
  });
  await data.pipeThrough(new DecompressionStream("deflate")).pipeTo(collect).catch((error) => {
    throw error instanceof DataError ? error : damaged(TEXTS.notCompressed);
  });
  if (length !== size) throw damaged(TEXTS.wrongSize);
  return bytes;
}
