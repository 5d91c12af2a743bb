// The entry of TensorBoard's tab: the data comes from the routes of the plugin.

import { make } from "./dom.js";
import { createAddress } from "./state.js";
import { answered, createStore } from "./store.js";
import { COMMON, DATA, LOCALE } from "./texts.js";
import { outerWindow } from "./theme.js";
import { createViewer } from "./viewer.js";

const POLL = 30_000; // ms

const url = (route, parameters) => new URL(`./${route}?${new URLSearchParams(parameters)}`, import.meta.url);

const get = (...address) => answered(fetch(url(...address)), DATA);
const json = async (route, parameters) => (await get(route, parameters)).json();

/** TensorBoard calls this in an empty page. */
export async function render() {
  document.documentElement.lang = LOCALE;
  document.title = COMMON.title;
  await new Promise((resolve) => {
    make(document.head, "link", { rel: "stylesheet", href: url("viewer.css"), load: resolve, error: resolve });
  });

  const store = createStore({
    runs: async () => (await json("runs")).runs,
    history: (run, text) => json("history", { run, text }),
    part: async (key) => (await get("part", { key })).body,
  });
  // TensorBoard keeps entries p.<plugin>.<name> in its URL after "#".
  const address = createAddress(outerWindow() ?? window, "p.headscope.");
  const viewer = createViewer(document.body, { store, address, title: COMMON.title });
  onReload(() => viewer.refresh());
  await viewer.refresh();
  window.focus(); // so that the arrow keys work without a click
  setInterval(() => {
    if (document.visibilityState === "visible") viewer.refresh();
  }, POLL);
}

/** Calls `reloaded` when TensorBoard has read new data, which its version 2.21 says in a message. */
function onReload(reloaded) {
  const { port1: port, port2: theirs } = new MessageChannel();
  port.onmessage = ({ data }) => {
    const { type, id } = JSON.parse(data);
    if (type === "experimental.DataReloaded") reloaded();
    port.postMessage(JSON.stringify({ type, id, payload: null, error: null, isReply: true }));
  };
  window.parent.postMessage("experimental.bootstrap", "*", [theirs]);
}
