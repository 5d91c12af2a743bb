// The entry of attention.html: the data is in script elements of the page.

import { createAddress } from "./state.js";
import { createStore } from "./store.js";
import { texts } from "./texts.js";
import { createViewer } from "./viewer.js";

const data = JSON.parse(document.getElementById("data").textContent);

/** Base64 text to bytes. */
function bytes(base64) {
  const text = atob(base64);
  return Uint8Array.from({ length: text.length }, (_, i) => text.charCodeAt(i));
}

const store = createStore({
  runs: async () => data.runs.map(({ name, text, history: { layers, heads, labels } }) =>
    ({ name, texts: [text], shapes: [JSON.stringify([layers, heads, labels])] })),
  history: async (run) => data.runs.find(({ name }) => name === run).history,
  part: async (key) => new Blob([bytes(document.getElementById(`part-${key}`).textContent)]).stream(),
});

createViewer(document.body, {
  store,
  address: createAddress(window),
  title: data.title || texts.pageTitle,
}).refresh();
