// The entry of attention.html: the data is in script elements of the page.

import { createAddress } from "./state.js";
import { createStore, runOf, streamOf } from "./store.js";
import { COMMON } from "./texts.js";
import { createViewer } from "./viewer.js";

const data = JSON.parse(document.getElementById("data").textContent);

const store = createStore({
  runs: async () => data.runs.map(({ name, text, history }) => runOf(name, text, history)),
  history: async (run) => data.runs.find(({ name }) => name === run).history,
  part: async (key) => streamOf(document.getElementById(`part-${key}`).textContent),
});

createViewer(document.body, {
  store,
  address: createAddress(window),
  title: data.title || COMMON.pageTitle,
}).refresh();
