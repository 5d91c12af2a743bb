// What a model predicts after a token, from the parts of a snapshot.

import { damaged, shaped } from "./store.js";
import { DATA as TEXTS } from "./texts.js";

const MAX_LABEL = 200;

/** What the model predicts after a token at a step: {next, follows, likely, lens, pushes, raised}.
    `next` is the token that is asked about, and `follows` whether it follows in the text. Lists of
    tokens have entries {text, value, marked}: `value` is a probability, or for `raised` what the
    head `opened` adds to a logit. `marked` is true for `next`. `lens` also has `next`, its
    probability. `pushes` has what each head adds to its logit. Null if the data has no predictions
    after this token. */
export async function predictionsOf(store, history, index, opened, token) {
  const { layers, heads } = history;
  const [labels, lens, most] = await Promise.all([
    store.part(history, index, "labels"),
    store.part(history, index, "lens"),
    store.part(history, index, "raised", Math.floor(opened / heads)),
  ]);
  if (!lens) return null;
  const places = lens.positions?.shape[0];
  const place = shaped(lens, "positions", places).indexOf(token);
  if (place < 0) return null;
  const top = lens.tokens?.shape[2];
  const names = namesOf(labels);
  const target = shaped(lens, "targets", places)[place];
  const listed = (found, values, rows, row, count = top) => {
    const tokens = shaped(found, "tokens", rows, places, top);
    const numbers = shaped(found, values, rows, places, top);
    return Array.from({ length: count }, (_, i) => {
      const at = (row * places + place) * top + i;
      return { text: nameOf(names, tokens[at]), value: numbers[at], marked: tokens[at] === target };
    });
  };
  const next = nameOf(names, target);
  const ofTarget = shaped(lens, "target_probabilities", layers + 1, places);
  const pushes = shaped(lens, "target_pushes", layers, heads, places);
  const likely = listed(lens, "probabilities", layers + 1, layers);
  if (!likely.some(({ marked }) => marked)) {
    likely.push({ text: next, value: ofTarget[layers * places + place], marked: true });
  }
  return {
    next, likely,
    follows: shaped(lens, "follows", places)[place] === 1,
    lens: Array.from({ length: layers + 1 }, (_, row) => ({
      ...listed(lens, "probabilities", layers + 1, row, 1)[0], next: ofTarget[row * places + place],
    })),
    pushes: Array.from({ length: layers * heads }, (_, head) => pushes[head * places + place]),
    raised: most && listed(most, "pushes", heads, opened % heads).filter(({ value }) => value !== 0),
  };
}

/** The labels of tokens, from their JSON list. */
function namesOf(part) {
  let names;
  try {
    names = JSON.parse(new TextDecoder().decode(part?.text?.data));
  } catch {
    throw damaged(TEXTS.labelsNotJson);
  }
  const valid = (name) => typeof name === "string" && name.length <= MAX_LABEL;
  if (!Array.isArray(names) || !names.every(valid)) throw damaged(TEXTS.labelsNotTexts);
  return names;
}

function nameOf(names, token) {
  if (token >= names.length) throw damaged(TEXTS.unknownTokens);
  return names[token];
}
