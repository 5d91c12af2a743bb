// Says in words where a token looks and who looks at it.

import { differenceText, weightText } from "./scales.js";
import { texts } from "./texts.js";
import { at, column, row, strongest } from "./weights.js";

const TEXTS = texts.status;
const TOP = 4; // tokens that are listed, or fewer where there is little room

/** Writes into `says` what is pointed at. All texts of tokens are isolated, so that right-to-left
    script does not move the words around it. */
export function describe(says, model, pointed) {
  for (let top = TOP; top > 0; top--) {
    write(says, model, pointed, top);
    if (says.scrollHeight <= says.clientHeight) break;
  }
}

function write(says, model, pointed, top) {
  const { values, scale, tokens, labels, comparison } = model;
  const marked = (name, text) => {
    const part = document.createElement(name === "token-name" ? "bdi" : "span");
    part.className = name;
    part.textContent = text;
    return part;
  };
  const token = (number) =>
    ["“", marked("token-name", labels[number]), "”", marked("token-number", `${number}`)];
  const list = (pairs, name) => {
    const best = strongest(pairs, top);
    if (best.length === 0) return TEXTS.nothing;
    return best.map(([number, value], place) => [
      place ? ", " : "", token(number), " ",
      scale.diverging ? marked(value > 0 ? "more" : "less", differenceText(value))
        : marked(name, weightText(value)),
    ]);
  };
  const say = (parts) => says.replaceChildren(...parts.flat(Infinity));
  const { query, key } = pointed ?? {};
  if (key > query) say(TEXTS.cannotSee(token(query), token(key)));
  else if (key !== undefined) {
    const place = at(query, key);
    const weight = marked("looks", (scale.diverging ? model.own : values)[place].toFixed(3));
    if (!scale.diverging) say(TEXTS.cell(token(query), token(key), weight));
    else {
      const change = marked(values[place] > 0 ? "more" : "less", differenceText(values[place], 3));
      const other = model.other[place].toFixed(3);
      say(TEXTS.cellDifference(token(query), token(key), weight, other, comparison.what, change));
    }
  } else if (pointed?.token !== undefined) {
    const looks = list(row(values, pointed.token), "looks");
    const looked = list(column(values, pointed.token, tokens), "looked");
    say(scale.diverging ? TEXTS.tokenDifference(token(pointed.token), comparison.what, looks, looked)
      : TEXTS.token(token(pointed.token), looks, looked));
  } else says.textContent = TEXTS.point;
}

/** What a global head does on this text, if one of its queries gives a key nearly all weight. */
export function onThisText({ step, opened, own, tokens, labels }) {
  if (step.names[opened] !== "global") return "";
  const largest = { weight: 0.9 };
  for (let query = 1; query < tokens; query++) {
    for (const [key, weight] of row(own, query)) if (weight > largest.weight) Object.assign(largest, { weight, query, key });
  }
  const { weight, query, key } = largest;
  return query ? TEXTS.onThisText(labels[query], labels[key], weight.toFixed(2)) : "";
}
