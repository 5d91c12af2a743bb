// The colours of tokens, in the text and beside the lines.

import { at, received } from "./weights.js";

/** The tint of every token, {back, text}, or null for none. `looks` has the tokens that are looked at by
    the query that is pointed at, and `looked` those that look at it. While nothing is pointed at, `looked` has the share
    of all attention that goes to each token. */
export function shadesOf({ tokens, values, scale, reach, theme: { tints } }, { query: token }) {
  const looks = new Array(tokens).fill(null);
  const looked = new Array(tokens).fill(null);
  const shade = (value, own) => {
    const list = !scale.diverging ? own : value > 0 ? tints.more : tints.less;
    const strength = scale.diverging ? Math.min(1, Math.abs(value) / reach) : Math.sqrt(value);
    const level = Math.round(strength * (list.length - 1));
    return level > 0 ? list[level] : null;
  };
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
