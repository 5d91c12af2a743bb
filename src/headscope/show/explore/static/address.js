// The state of the page in its address.

/** The state of the page, besides that of the viewer. Either `text` or `tokens` is set: tokens, if typing
    the same text would give other ones, as for a text that the model wrote. `written` is the number of
    tokens at the end that were not typed. */
export const EMPTY = {
  text: null, tokens: null, model: "this", other: "", zero: [], mean: [], half: [],
  temperature: 0.8, top_k: null, top_p: 0.95, seed: 0, length: 40, written: 0, target: null, by: "mean", second: "",
  copies: [],
};

/** Entries of a state for requests. `seed` and `skip` select the random numbers of the next written token. */
export const switchesOf = ({ zero, mean, half }) => ({ zero, mean, half });
export const samplingOf = ({ temperature, top_k, top_p }) => ({ temperature, top_k, top_p });
export const writingOf = ({ seed, written, length, ...state }) =>
  ({ ...samplingOf(state), seed, skip: written, max_new_tokens: length });

const NUMBERS = ["temperature", "top_k", "top_p", "seed", "length", "written", "target"];

/** Converts a state to texts, and back. */
export const codec = {
  fromTexts(texts) {
    const state = { ...EMPTY };
    for (const [name, text] of Object.entries(texts)) {
      if (!Object.hasOwn(EMPTY, name)) continue;
      if (NUMBERS.includes(name) && !(Number(text) >= 0 && Number(text) < Infinity)) continue;
      if (NUMBERS.includes(name)) state[name] = text === "" ? null : Number(text);
      else if (name === "tokens") state.tokens = text.split(",").map(Number);
      else if (name === "copies") state.copies = text.split(",").map((copy) => copy.split("@"))
        .map(([head, at]) => ({ head, position: at === "" ? null : Number(at) }));
      else if (Array.isArray(EMPTY[name])) state[name] = text.split(",").filter(Boolean);
      else state[name] = text;
    }
    return state;
  },
  toTexts(state) {
    const written = (value, name) => (name === "copies"
      ? value.map(({ head, position }) => `${head}@${position ?? ""}`).join(",") : String(value ?? ""));
    return Object.fromEntries(Object.entries(state)
      .filter(([name, value]) => JSON.stringify(value) !== JSON.stringify(EMPTY[name]))
      .map(([name, value]) => [name, written(value, name)]));
  },
};
