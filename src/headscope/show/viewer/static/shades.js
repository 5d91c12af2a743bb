// The colours of tokens, in the text and beside the lines.

import { column, received, row } from "./weights.js";

/** The tint of every token, {back, text}, or null for none. `looks` has the tokens that the token that is
    pointed at looks at, and `looked` those that look at it. While nothing is pointed at, `looked` has the
    share of all attention that goes to each token. */
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
  for (const [key, value] of row(values, token)) looks[key] = shade(value, tints.looks);
  for (const [query, value] of column(values, token, tokens)) looked[query] = shade(value, tints.looked);
  return { looks, looked };
}
