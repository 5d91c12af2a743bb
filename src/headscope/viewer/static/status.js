// Says in words where a token looks and who looks at it.

import { differenceText, weightText } from "./scales.js";
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
  const parts = [];
  const add = (name, text) => {
    const part = document.createElement(name === "token-name" ? "bdi" : "span");
    part.className = name;
    part.textContent = text;
    parts.push(part);
  };
  const token = (number) => {
    parts.push("“");
    add("token-name", model.labels[number]);
    parts.push("”");
    add("token-number", `${number}`);
  };
  const list = (pairs, name) => {
    const best = strongest(pairs, top);
    if (best.length === 0) parts.push("nothing");
    best.forEach(([number, value], place) => {
      parts.push(place ? ", " : "");
      token(number);
      parts.push(" ");
      const signed = model.scale.diverging;
      add(signed ? (value > 0 ? "more" : "less") : name, signed ? differenceText(value) : weightText(value));
    });
  };
  const { values, scale, tokens } = model;
  if (pointed?.key > pointed?.query) {
    token(pointed.query);
    parts.push(" cannot see ");
    token(pointed.key);
    parts.push(", which comes later");
    says.replaceChildren(...parts);
  } else if (pointed?.key !== undefined) {
    token(pointed.query);
    parts.push(" looks at ");
    token(pointed.key);
    parts.push(": ");
    const place = at(pointed.query, pointed.key);
    if (scale.diverging) {
      add("looks", model.own[place].toFixed(3));
      parts.push(` here, ${model.other[place].toFixed(3)} in ${model.comparison.what}: `);
      add(values[place] > 0 ? "more" : "less", differenceText(values[place], 3));
    } else add("looks", values[place].toFixed(3));
    says.replaceChildren(...parts);
  } else if (pointed?.token !== undefined) {
    token(pointed.token);
    parts.push(scale.diverging ? ` compared with ${model.comparison.what}: looks at ` : " looks at ");
    list(row(values, pointed.token), "looks");
    parts.push("; looked at most by ");
    list(column(values, pointed.token, tokens), "looked");
    says.replaceChildren(...parts);
  } else {
    says.textContent = "Point at a token or at a cell of the map: where it looks, and who looks at it.";
  }
}
