// The state of the page in its address.

import { codecOf } from "./viewer/state.js";

/** The state of the page, besides that of the viewer. Either `text` or `tokens` is set: tokens, if typing
    the same text would give other ones, as for a text that the model wrote. `written` is the number of
    tokens at the end that were not typed. */
export const EMPTY = {
  text: null, tokens: null, model: "this", other: "", zero: [], mean: [], half: [],
  temperature: 0.8, top_k: null, top_p: 0.95, seed: 0, length: 40, written: 0, target: null, by: "mean", second: "",
  copies: [], begin: null, special: null, question: false,
};

/** Entries of a state for requests. `seed` and `skip` select the random numbers of the next written token. */
export const switchesOf = ({ zero, mean, half }) => ({ zero, mean, half });
/** How the text of a state is read: whether it begins with the begin-of-text token, has special tokens, and is a
    question. null: as the model's tokenizer does. */
export const readsOf = ({ begin, special, question }) => ({ begin, special, question });
export const samplingOf = ({ temperature, top_k, top_p }) => ({ temperature, top_k, top_p });
export const writingOf = ({ seed, written, length, ...state }) =>
  ({ ...samplingOf(state), seed, skip: written, max_new_tokens: length });

const number = (text) => (text === "" ? null : Number(text) >= 0 && Number(text) < Infinity ? Number(text) : undefined);
const yes = (text) => text === "true";
const list = (text) => text.split(",").filter(Boolean);

/** How the state of the page is written. */
export const codec = codecOf(EMPTY, {
  temperature: number, top_k: number, top_p: number, seed: number, length: number, written: number, target: number,
  zero: list, mean: list, half: list, begin: yes, special: yes, question: yes,
  tokens: (text) => text.split(",").map(Number),
  copies: (text) => text.split(",").map((copy) => copy.split("@"))
    .map(([head, at]) => ({ head, position: at === "" ? null : Number(at) })),
}, { copies: (copies) => copies.map(({ head, position }) => `${head}@${position ?? ""}`).join(",") });
