// The state of the page in its address.

/** The state of the page, besides that of the viewer. `tokens` are set when the text has other tokens
    than a typed text would have, for example one that the model wrote. `written` is the number of
    tokens at the end that were not typed. */
export const EMPTY = {
  text: null, tokens: null, model: "this", other: "", zero: [], mean: [], half: [],
  temperature: 0.8, top_k: null, top_p: 0.95, seed: 0, length: 40, written: 0, target: null, second: "", copies: [],
};

/** Parts of a state, as requests have them. `seed` and `skip` say which random numbers the next written
    token uses. */
export const switchesOf = ({ zero, mean, half }) => ({ zero, mean, half });
export const samplingOf = ({ temperature, top_k, top_p }) => ({ temperature, top_k, top_p });
export const writingOf = ({ seed, written, length, ...state }) =>
  ({ ...samplingOf(state), seed, skip: written, max_new_tokens: length });

const NUMBERS = ["temperature", "top_k", "top_p", "seed", "length", "written", "target"];

/** Makes texts of a state, and a state of texts. */
export const codec = {
  fromTexts(found) {
    const state = { ...EMPTY };
    for (const [name, text] of Object.entries(found)) {
      if (!Object.hasOwn(EMPTY, name)) continue;
      if (NUMBERS.includes(name) && !(Number(text) >= 0 && Number(text) < Infinity)) continue;
      if (NUMBERS.includes(name)) state[name] = text === "" ? null : Number(text);
      else if (name === "tokens") state.tokens = text.split(",").map(Number);
      else if (name === "copies") state.copies = text.split(",").map((each) => each.split("@"))
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
