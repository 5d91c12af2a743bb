// The store of the attention viewer, filled with what models read just now. Each reading is a run with
// one step: {name, about, request, answer}. `about` describes the model, as the answer to "open".

import { api, bytes } from "./api.js";
import { headName } from "./viewer/state.js";

const TEXT = "text";

export function createSource() {
  let readings = [];
  let histories = new Map();
  let signal;
  const of = (history) => readings.find(({ name }) => name === history.name);

  function historyOf({ name, about, request, answer }) {
    const { layers, heads, measured_tokens, uniform, ends, step, names, scores, ratios, metrics } = about;
    const switched = [...request.zero, ...request.mean, ...request.half];
    const isSwitched = (_, head) => switched.includes(headName(head, heads));
    return {
      name, layers, heads, measured_tokens, uniform, ends,
      labels: answer.tokens.map(({ label }) => label),
      losses: answer.tokens.map(({ loss }) => loss),
      switched: [...Array(layers * heads).keys()].filter((head) => isSwitched(null, head)),
      text_tokens: answer.tokens.length,
      loss: { name: "loss", steps: answer.loss === null ? [] : [step], values: [answer.loss] },
      steps: [{ step, names, scores, ratios, metrics, predictions: { next: [] } }],
    };
  }

  return {
    /** Shows these readings from now on. `abort` ends requests for more of them. */
    set(shown, abort) {
      readings = shown;
      signal = abort;
      histories = new Map(shown.map((reading) => [reading.name, historyOf(reading)]));
    },

    // ---- What the viewer asks for, as in store.js --------------------------------------------------

    runs: async () => readings.map(({ name, about, answer }) => ({
      name, texts: [TEXT],
      shapes: [JSON.stringify([about.layers, about.heads, answer.tokens.map(({ label }) => label)])],
    })),
    history: async (run) => histories.get(run),
    reload() {},

    async thumbnails(history) {
      const { answer } = of(history);
      const values = bytes(answer.thumbnails);
      const side = Math.round(Math.sqrt(values.length / (2 * history.layers * history.heads)));
      return { side, bytes: values };
    },

    async layer(history, index, layer) {
      const { request, answer } = of(history);
      if (!(layer in answer.attention)) {
        const more = await api.read({ ...request, attention: [layer] }, signal);
        Object.assign(answer.attention, more.attention);
      }
      return { exact: new Float32Array(bytes(answer.attention[layer]).buffer) };
    },

    async predictions(history, index, opened, position) {
      const { request, answer } = of(history);
      const head = headName(opened, history.heads);
      const target = position === answer.position ? answer.target.id : null;
      const { target: next, lens, next: likely, pushes, raised } =
        await api.read({ ...request, thumbnails: false, attention: [], position, head, target }, signal);
      const shown = ({ id, label }, value) => ({ text: label, value, marked: id === next.id });
      return {
        next: next.label, pushes,
        likely: likely.map((each) => shown(each, each.probability)),
        lens: lens.map((each) => ({ ...shown(each, each.probability), next: each.target })),
        raised: raised.filter(({ push }) => push !== 0).map((each) => shown(each, each.push)),
      };
    },
  };
}
