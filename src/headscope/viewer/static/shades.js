// The colours of tokens, in the text and beside the lines.

import { at, received } from "./weights.js";

/** The shade of every token, as [list of tints, level], or null for none. `looks` has the tokens that
    are looked at, and `looked` those that look. Without a token, `looked` has the share of all
    attention that goes to each token. */
export function shadesOf(model, pointed) {
  const { tokens, values, scale, reach, tints } = model;
  const looks = new Array(tokens).fill(null);
  const looked = new Array(tokens).fill(null);
  const shade = (value, own) => {
    if (!scale.diverging) return [own, Math.round(Math.sqrt(value) * (own.length - 1))];
    const list = value > 0 ? tints.more : tints.less;
    return [list, Math.round(Math.min(1, Math.abs(value) / reach) * (list.length - 1))];
  };
  const token = pointed?.token ?? pointed?.query;
  if (token === undefined) {
    received(values, tokens).forEach((value, key) => { looked[key] = shade(value, tints.looked); });
    return { looks, looked };
  }
  for (let key = 0; key <= token; key++) looks[key] = shade(values[at(token, key)], tints.looks);
  for (let query = token; query < tokens; query++) {
    looked[query] = shade(values[at(query, token)], tints.looked);
  }
  return { looks, looked };
}
