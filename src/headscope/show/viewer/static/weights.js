// The weights of one head as a triangle, and the colours that they give to tokens. A triangle is a
// Float32Array in which the weight of query q on key k, with k <= q, has the index q (q + 1) / 2 + k.

import { tint } from "./theme.js";

const VISIBLE = 1 / 64; // the smallest strength of a tint

export const at = (query, key) => (query * (query + 1)) / 2 + key;

/** Decodes one head of a layer from the store. `view` is "weights", or "shares": the weight on each
    key divided by the sum of the weights on all keys but the first. A layer has codes, or `exact` triangles. */
export function triangle({ rest, peak, codes, exact }, head, tokens, view) {
  const size = at(tokens, 0);
  const values = exact ? exact.slice(head * size, (head + 1) * size) : new Float32Array(size);
  let code = (head * tokens * (tokens - 1)) / 2;
  for (let query = 0; query < tokens; query++) {
    const first = at(query, 0);
    const others = values.subarray(first + 1, at(query + 1, 0));
    const total = exact ? others.reduce((sum, weight) => sum + weight, 0) : rest[head * tokens + query];
    const unit = exact ? 0 : peak[head * tokens + query] / 255;
    if (!exact) {
      values[first] = Math.max(0, 1 - total);
      others.forEach((_, i) => { others[i] = codes[code++] * unit; });
    }
    const scale = view === "weights" ? 1 : total > 0 ? 1 / total : 0;
    if (view === "shares") values[first] = 0;
    others.forEach((weight, i) => { others[i] = Math.min(1, weight * scale); });
  }
  return values;
}

/** [token, value] for every key of a query: where it looks. */
export function row(values, query) {
  return Array.from({ length: query + 1 }, (_, key) => [key, values[at(query, key)]]);
}

/** [token, value] for every query that sees a key: who looks at it. */
export function column(values, key, tokens) {
  return Array.from({ length: tokens - key }, (_, i) => [key + i, values[at(key + i, key)]]);
}

/** The `most` pairs with the largest absolute values, largest first, without zeros. */
export function strongest(pairs, most) {
  return pairs.filter(([, value]) => value !== 0)
    .sort((a, b) => Math.abs(b[1]) - Math.abs(a[1]))
    .slice(0, most);
}

/** The mean of each column over all queries: how much of all attention goes to each key. */
export function received(values, tokens) {
  const sums = new Float32Array(tokens);
  let place = 0;
  for (let query = 0; query < tokens; query++) {
    for (let key = 0; key <= query; key++) sums[key] += values[place++];
  }
  return sums.map((sum) => sum / tokens);
}

/** The tints of all tokens, {back, text} or null, in the text and beside the lines. `looks` shows where the
    token at the pointer looks, and `looked` who looks at it. While the pointer is at no token, `looked`
    shows the share of all attention that goes to each token. */
export function shadesOf({ tokens, values, scale, reach, theme }, { query: token }) {
  const looks = new Array(tokens).fill(null);
  const looked = new Array(tokens).fill(null);
  const shade = (value, own) => {
    const colour = theme[!scale.diverging ? own : value > 0 ? "more" : "less"];
    const strength = scale.diverging ? Math.min(1, Math.abs(value) / reach) : Math.sqrt(value);
    return strength > VISIBLE ? tint(theme.card, colour, strength) : null;
  };
  if (token === undefined) {
    received(values, tokens).forEach((value, key) => { looked[key] = shade(value, "looked"); });
    return { looks, looked };
  }
  for (const [key, value] of row(values, token)) looks[key] = shade(value, "looks");
  for (const [query, value] of column(values, token, tokens)) looked[query] = shade(value, "looked");
  return { looks, looked };
}
