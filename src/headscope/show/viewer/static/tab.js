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
  const ask = connect({ "experimental.DataReloaded": () => viewer.refresh(), "experimental.RunsChanged": select });
  ask("experimental.GetRuns").then(select);
  await viewer.refresh();
  window.focus(); // so that the arrow keys work without a click
  setInterval(() => {
    if (document.visibilityState === "visible") viewer.refresh();
  }, POLL);
}

/** Connects to TensorBoard, with the messages of its version 2.21. `listeners` are functions by message type.
    Returns `ask(type)`, which sends a message and resolves to the answer. Without TensorBoard, there is none. */
export function connect(listeners) {
  const { port1: port, port2: theirs } = new MessageChannel();
  const waiting = new Map();
  let sent = 0;
  port.onmessage = ({ data }) => {
    const { type, id, payload, isReply } = JSON.parse(data);
    if (isReply) {
      waiting.get(id)?.(payload);
      waiting.delete(id);
    } else {
      listeners[type]?.(payload);
      port.postMessage(JSON.stringify({ type, id, payload: null, error: null, isReply: true }));
    }
  };
  window.parent.postMessage("experimental.bootstrap", "*", [theirs]);
  return (type) => new Promise((resolve) => {
    waiting.set(sent, resolve);
    port.postMessage(JSON.stringify({ type, id: sent, payload: null, error: null, isReply: false }));
    sent += 1;
  });
}
