// Gets and decodes the data: histories, thumbnails, and the weights of one layer at one step.
// The data may come from a stranger, so every size is checked before and after decompression.

import { LOCALE, texts } from "./texts.js";

export class DataError extends Error {}

const TEXTS = texts.data;
const CACHE_BYTES = 256 * 2 ** 20;
const MAX_PART_BYTES = 256 * 2 ** 20;
const MAX_LABEL = 200;
const THUMBNAIL = 24; // maximum side of a thumbnail, as in snapshot.py

/** `source` gets the data itself: runs(), history(run, text) and part(key), all asynchronous. A part is a
    stream, so that it is decompressed while it arrives. */
export function createStore(source) {
  const histories = new Map(); // promises
  const parts = new Map(); // key -> {promise, bytes}, the least recently used first
  let held = 0;

  function history(run, text) {
    const name = JSON.stringify([run, text]);
    const entry = histories.get(name);
    if (entry && !entry.stale) return entry.promise;
    const old = entry?.promise.catch(() => null);
    const promise = source.history(run, text).then(async (fresh) => merged(await old, fresh));
    const fetched = { promise, stale: false };
    histories.set(name, fetched);
    promise.catch(() => { fetched.stale = true; });
    return promise;
  }

  /** The decompressed bytes of a part, which must have exactly `size` bytes. */
  function part(key, size, decode) {
    let entry = parts.get(key);
    parts.delete(key);
    if (!entry) {
      if (size > MAX_PART_BYTES) {
        const megabytes = Math.round(size / 2 ** 20).toLocaleString(LOCALE);
        throw new DataError(TEXTS.tooLarge(megabytes));
      }
      entry = { bytes: size, promise: source.part(key).then((data) => inflate(data, size)).then(decode) };
      held += size;
      entry.promise.catch(() => forget(key, entry));
    }
    parts.set(key, entry);
    for (const [oldest, other] of parts) {
      if (held <= CACHE_BYTES || other === entry) break;
      forget(oldest, other);
    }
    return entry.promise;
  }

  function forget(key, entry) {
    if (parts.get(key) === entry) parts.delete(key);
    held -= entry.bytes;
    entry.bytes = 0;
  }

  return {
    runs: () => source.runs(),
    history,
    /** Fetches all histories again when they are asked for. */
    reload() {
      for (const entry of histories.values()) entry.stale = true;
    },

    /** The thumbnails of all heads at a step: {side, bytes}, uint8 (2, heads, side, side). */
    async thumbnails({ layers, heads, labels, steps }, index) {
      const side = Math.min(labels.length, THUMBNAIL);
      const size = 2 * layers * heads * side * side;
      return part(steps[index].parts[0], size, (bytes) => ({ side, bytes }));
    },

    /** The weights of one layer at a step: {rest, peak, codes}. See `layer_part` in snapshot.py. */
    async layer({ heads, labels, steps }, index, layer) {
      const tokens = labels.length;
      const rows = heads * tokens;
      const size = 8 * rows + (heads * tokens * (tokens - 1)) / 2;
      return part(steps[index].parts[1 + layer], size, (bytes) => {
        const rest = new Float32Array(bytes.buffer, 0, rows);
        const peak = new Float32Array(bytes.buffer, 4 * rows, rows);
        const valid = (value) => value >= 0 && value <= 1.001;
        if (!rest.every(valid) || !peak.every(valid)) {
          throw damaged(TEXTS.notWeights);
        }
        return { rest, peak, codes: bytes.subarray(8 * rows) };
      });
    },

    /** What the model predicts after a token at a step: {next, likely, lens, pushes, raised}. Lists of
        tokens have entries {text, value, marked}: `value` is a probability, or for `raised` what the
        head `opened` adds to a logit. `marked` is true for `next`, the token that follows. `lens` also
        has `next`, its probability. `pushes` has what each head adds to its logit. Null if the data
        has no predictions. See predictions.py. */
    async predictions({ layers, heads, labels, steps }, index, opened, token) {
      const layer = Math.floor(opened / heads);
      const { predictions: entry, parts: keys } = steps[index];
      if (!entry) return null;
      const tokens = labels.length;
      const { top } = entry;
      const Index = entry.labels <= 65536 ? Uint16Array : Uint32Array;
      const numbers = (bytes, listed, following) => {
        const indices = new Index(bytes.buffer, 0, listed + following);
        if (!indices.every((each) => each < entry.labels)) throw damaged(TEXTS.unknownTokens);
        const halves = Float32Array.from(new Uint16Array(bytes.buffer, indices.byteLength), half);
        return { indices, values: halves.subarray(0, listed), more: halves.subarray(listed) };
      };
      const sizeOf = (listed) => listed * (Index.BYTES_PER_ELEMENT + 2);
      const rows = (layers + 1) * tokens * top;
      const more = (layers + 1 + layers * heads) * (tokens - 1);
      const listed = heads * tokens * top;
      const [names, lens, pushes] = await Promise.all([
        part(keys[1 + layers], entry.label_bytes, (bytes) => namesOf(bytes, entry.labels)),
        part(keys[2 + layers], sizeOf(rows) + (tokens - 1) * Index.BYTES_PER_ELEMENT + 2 * more,
          (bytes) => numbers(bytes, rows, tokens - 1)),
        entry.pushes ? part(keys[3 + layers + layer], sizeOf(listed), (bytes) => numbers(bytes, listed, 0)) : null,
      ]);
      const next = lens.indices[rows + token]; // undefined after the last token
      const known = token + 1 < tokens;
      const list = (found, row, count = top) => Array.from({ length: count }, (_, i) => {
        const each = found.indices[row * top + i];
        return { text: names[each], value: found.values[row * top + i], marked: each === next };
      });
      const nextAt = (row) => (known ? lens.more[row * (tokens - 1) + token] : null);
      const likely = list(lens, layers * tokens + token);
      if (known && !likely.some(({ marked }) => marked)) {
        likely.push({ text: names[next], value: nextAt(layers), marked: true });
      }
      return {
        next: known ? labels[token + 1] : undefined,
        likely,
        lens: Array.from({ length: layers + 1 }, (_, row) =>
          ({ ...list(lens, row * tokens + token, 1)[0], next: nextAt(row) })),
        pushes: known ? Array.from({ length: layers * heads }, (_, head) => nextAt(layers + 1 + head)) : null,
        raised: pushes && list(pushes, (opened % heads) * tokens + token),
      };
    },
  };
}

const damaged = (why) => new DataError(TEXTS.damaged(why));

/** The labels of tokens, from their JSON list. */
function namesOf(bytes, count) {
  let names;
  try {
    names = JSON.parse(new TextDecoder().decode(bytes));
  } catch {
    throw damaged(TEXTS.labelsNotJson);
  }
  const valid = (name) => typeof name === "string" && name.length <= MAX_LABEL;
  if (!Array.isArray(names) || names.length !== count || !names.every(valid)) {
    throw damaged(TEXTS.labelsNotTexts);
  }
  return names;
}

/** A number of 16 bits (IEEE 754): not every browser has Float16Array. */
function half(bits) {
  const [exponent, fraction] = [(bits >> 10) & 31, bits & 1023];
  const size = exponent === 31 ? (fraction ? NaN : Infinity)
    : exponent ? (1 + fraction / 1024) * 2 ** (exponent - 15) : fraction * 2 ** -24;
  return bits >> 15 ? -size : size;
}

/** A history that was fetched again. What did not change stays the same object, so that the viewer
    need not build it again. */
function merged(old, fresh) {
  if (!old) return fresh;
  if (JSON.stringify(old) === JSON.stringify(fresh)) return old;
  const sameText = JSON.stringify(old.labels) === JSON.stringify(fresh.labels);
  return sameText ? { ...fresh, labels: old.labels } : fresh;
}

/** Decompresses a stream of zlib data, and stops when more than `size` bytes come out. */
async function inflate(data, size) {
  const reader = data.pipeThrough(new DecompressionStream("deflate")).getReader();
  const chunks = [];
  let length = 0;
  try {
    for (let next = await reader.read(); !next.done; next = await reader.read()) {
      length += next.value.length;
      if (length > size) {
        reader.cancel().catch(() => {});
        break;
      }
      chunks.push(next.value);
    }
  } catch {
    throw damaged(TEXTS.notCompressed);
  }
  if (length !== size) throw damaged(TEXTS.wrongSize);
  const bytes = new Uint8Array(size);
  let at = 0;
  for (const chunk of chunks) {
    bytes.set(chunk, at);
    at += chunk.length;
  }
  return bytes;
}
