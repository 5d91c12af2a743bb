// Says in words where a token looks and who looks at it.

import { make } from "./dom.js";
import { differenceText, weightText } from "./scales.js";
import { STATUS as TEXTS } from "./texts.js";
import { at, column, row, strongest } from "./weights.js";

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
  const { values, scale, tokens, labels, comparison, own, other } = model;
  const marked = (name, text) => make(null, "span", { class: name }, text);
  const token = (number) =>
    ["“", make(null, "bdi", { class: "token-name" }, labels[number]), "”", marked("token-number", number)];
  const change = (value, digits) => marked(value > 0 ? "more" : "less", differenceText(value, digits));
  const list = (pairs, name) => {
    const best = strongest(pairs, top).map(([number, value], place) =>
      [place ? ", " : "", token(number), " ", scale.diverging ? change(value) : marked(name, weightText(value))]);
    return best.length > 0 ? best : TEXTS.nothing;
  };
  const say = (words) => says.replaceChildren(...words.flat(Infinity));
  const { query, key } = pointed;
  if (query === undefined) say([TEXTS.point]);
  else if (pointed.token !== undefined) {
    const looks = list(row(values, query), "looks");
    const looked = list(column(values, query, tokens), "looked");
    say(scale.diverging ? TEXTS.tokenDifference(token(query), comparison.what, looks, looked)
      : TEXTS.token(token(query), looks, looked));
  } else if (key > query) say(TEXTS.cannotSee(token(query), token(key)));
  else {
    const place = at(query, key);
    const weight = marked("looks", own[place].toFixed(3));
    say(scale.diverging ? TEXTS.cellDifference(token(query), token(key), weight, other[place].toFixed(3),
      comparison.what, change(values[place], 3)) : TEXTS.cell(token(query), token(key), weight));
  }
}
