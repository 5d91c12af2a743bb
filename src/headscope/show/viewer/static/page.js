// The entry of attention.html: the data is in script elements of the page.

import { make } from "./dom.js";
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

const address = createAddress(window);
const read = () => ({ ...address.read(), ...(location.hash ? {} : data.start) });
const explanationOf = ({ state, step }, { head, query, key }) => data.runs.find(({ name }) => name === state.run).why
  .find((each) => each.step === step.step && each.head === head && each.query === query && (key ?? each.key) === each.key) ?? null;
const viewer = createViewer(document.body, {
  store, address: { ...address, read }, title: data.title || COMMON.pageTitle, explanationOf,
});
const captions = data.captions.map(({ text, href }) => make(null, href ? "a" : "p", { class: "caption", href }, text));
document.querySelector("header").after(...captions);
viewer.refresh();
