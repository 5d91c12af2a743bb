// The entry of TensorBoard's tab: the data comes from the routes of the plugin.

import { make } from "./dom.js";
import { createAddress } from "./state.js";
import { DataError, answered, createStore } from "./store.js";
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

  let selected = null; // the runs that TensorBoard selects; null if it does not say so
  let known = []; // all runs with data
  const isShown = ({ name }) => selected === null || selected.has(name);
  const select = (names) => {
    const shown = () => JSON.stringify(known.filter(isShown).map(({ name }) => name));
    const before = shown();
    selected = Array.isArray(names) && names.length > 0 ? new Set(names) : null;
    if (shown() !== before) viewer.refresh();
  };
  const store = createStore({
    async runs() {
      known = (await json("runs")).runs;
      const shown = known.filter(isShown);
      if (known.length > 0 && shown.length === 0) throw new DataError(DATA.notSelected);
      return shown;
    },
    history: (run, text) => json("history", { run, text }),
    part: async (key) => (await get("part", { key })).body,
  });
  // TensorBoard keeps entries p.<plugin>.<name> in its URL after "#".
  const address = createAddress(outerWindow() ?? window, "p.headscope.");
  const viewer = createViewer(document.body, { store, address, title: COMMON.title });
  connect({ DataReloaded: () => viewer.refresh(), RunsChanged: select, GetRuns: select });
  await viewer.refresh();
  window.focus(); // so that the arrow keys work without a click
  setInterval(() => {
    if (document.visibilityState === "visible") viewer.refresh();
  }, POLL);
}

/** Connects to TensorBoard, with the messages of its version 2.21, and asks for the selected runs. `listeners` are
    functions of the payload by message type, for messages and for the reply. */
function connect(listeners) {
  const { port1: port, port2: theirs } = new MessageChannel();
  const send = (message) => port.postMessage(JSON.stringify({ payload: null, error: null, ...message }));
  port.onmessage = ({ data }) => {
    const { type, id, payload, isReply } = JSON.parse(data);
    listeners[type.replace("experimental.", "")]?.(payload);
    if (!isReply) send({ type, id, isReply: true });
  };
  window.parent.postMessage("experimental.bootstrap", "*", [theirs]);
  send({ type: "experimental.GetRuns", id: 0, isReply: false });
}
