// The page to play with: type a text, let the model write, switch heads, patch, compare, keep.

import { EMPTY, codec } from "./address.js";
import { api } from "./api.js";
import { createBars } from "./bars.js";
import { make } from "./viewer/dom.js";
import { createEditor } from "./editor.js";
import { createModels } from "./models.js";
import { createPatch } from "./patch.js";
import { createAddress, fromTexts, headNumber, toTexts } from "./viewer/state.js";
import { createStore, runOf, streamOf } from "./viewer/store.js";
import { createSwitches } from "./switches.js";
import { texts } from "./viewer/texts.js";
import { createViewer } from "./viewer/viewer.js";

const TEXTS = texts.explore;
const SLOW = 150; // ms: when a reading takes longer, writing does not wait for it
const MAX_UNDO = 100;
const OWN = ["zero", "mean", "half"]; // the lists of switched heads

const address = createAddress(window, "x.", codec);
const viewAddress = createAddress(window, "v.", {
  fromTexts, toTexts: (state) => toTexts({ ...state, run: null, text: null, step: null }),
});
const abouts = new Map(); // promises of the descriptions of models
let state = { ...EMPTY, ...address.read() };
let view = viewAddress.read(); // the state of the viewer
let follow = view.token === null; // whether the selected token is the last one
let readings = []; // those that the viewer shows, each a run with one step
let main = null; // the reading that is shown
let reference = null; // a second reading to compare `main` with: all heads on, or another model
let reading = null; // ends the requests for the newest reading
let writing = null; // ends what the model writes
let unchecked = true; // whether the address may have given values that do not fit the model
let undone = []; // states before each action
let retyped = false; // whether the text is another one than that of `main`
let current = false; // whether `main` is a reading of the current state
let pending = null; // the promise of the newest reading
let queue = Promise.resolve(); // the actions on the text
let serial = 0; // counts the readings

// ---- The page ------------------------------------------------------------------------------------

const actions = { now: () => state, change, stop, undo, target, keep, rewrite, back: onText(back), pick: onText(pick),
                  write: onText((count) => write(count ?? state.length), false),
                  open: (head) => viewer.change({ head }) };
const top = document.createElement("div");
top.className = "explore";
const models = createModels(top, actions);
const left = make(top, "div", { class: "left" });
const editor = createEditor(left, actions);
const right = make(top, "div", { class: "right" });
const bars = createBars(right, actions);
const switches = createSwitches(left, actions);
const patch = createPatch(top, actions);
const store = createStore({
  runs: async () => readings.map(({ name, answer }) => runOf(name, "text", answer.history)),
  history: async (run) => readings.find(({ name }) => name === run).answer.history,
  part,
});
const viewer = createViewer(document.body, {
  store, title: TEXTS.title, place: left, address: viewAddress, viewChanged,
});
document.querySelector("header").after(top);
left.append(left.querySelector(".switches-card")); // below the text
document.querySelector(".overview").after(top.querySelector(".patch-card"));
address.onChange((changed) => {
  unchecked = true;
  stop();
  change(changed);
});

// ---- Actions -------------------------------------------------------------------------------------

/** Changes parts of the state. `step` is true for an action that can be undone. Everything except a
    longer text ends writing. */
function change(part, step = false) {
  if (!("written" in part)) stop();
  if (step) remember();
  if ("text" in part || "tokens" in part) {
    state = { ...state, text: null, tokens: null, written: 0, target: null };
    follow = retyped = true;
  }
  if ("model" in part) follow = true; // another tokenizer may give other tokens
  state = { ...state, ...part };
  return update();
}

function remember() {
  const { text, tokens, written, zero, mean, half, second, copies } = state;
  undone = [...undone.slice(1 - MAX_UNDO), { text, tokens, written, zero, mean, half, second, copies }];
}

/** An action on the text: it waits until the text is read, and until earlier actions have ended. It may
    end what the model writes. */
function onText(action, ends = true) {
  return (...words) => {
    if (ends) stop();
    queue = queue.then(async () => {
      for (let seen = null; seen !== pending; await seen) seen = pending;
      if (current) await action(...words);
    });
  };
}

function undo() {
  stop();
  if (undone.length > 0) change(undone.pop());
}

/** Continues the text with another token after the selected one of an answer, which may be older than
    what the model has written since. */
function pick(id, { ids, history: { labels }, position }) {
  const before = ids.length - labels.length + position + 1;
  const written = Math.max(0, main.written - main.answer.ids.length + before) + 1;
  return change({ tokens: [...ids.slice(0, before), id], written }, true);
}

/** Shows what the lens and the heads say about this token. */
function target(id) {
  change({ target: state.target === id ? null : id });
}

/** Removes the last token. */
function back() {
  if (main.answer.ids.length < 2) return null;
  return change({ tokens: main.answer.ids.slice(0, -1), written: Math.max(0, state.written - 1) }, true);
}

function stop() {
  writing?.abort();
  writing = null;
}

/** Lets the model write `count` tokens. */
async function write(count) {
  const mine = new AbortController();
  writing = mine;
  const prompt = main.answer.ids;
  const request = { ...main.request, ...sampling(), text: null, tokens: prompt };
  const ids = [...prompt];
  const before = state.written;
  const grown = () => ({ tokens: [...ids], written: before + ids.length - prompt.length });
  if (count > 1) editor.showWriting(true);
  let busy = null;
  try {
    for await (const { id } of api.write({ ...request, ...drawn(), max_new_tokens: count }, mine.signal)) {
      if (mine.signal.aborted) break;
      if (ids.length === prompt.length) remember();
      ids.push(id);
      if (busy) continue;
      const shown = change(grown());
      busy = shown.finally(() => { busy = null; });
      await Promise.race([shown, new Promise((resolve) => setTimeout(resolve, SLOW))]);
    }
  } catch (error) {
    say(error);
  }
  if (ids.length > prompt.length && !mine.signal.aborted) await change(grown());
  if (writing === mine) writing = null;
  editor.showWriting(false);
  delete document.documentElement.dataset.busy;
}

/** Lets both sides of a comparison write from the same text and seed. Calls `shown` with the tokens of
    both sides, after each token. */
async function rewrite(signal, shown) {
  const sides = [[], []];
  const { ids, text } = main.answer;
  await Promise.all([main, reference].map(async ({ about, request }, side) => {
    const same = about.vocabulary === main.about.vocabulary;
    const prompt = same ? { text: null, tokens: ids } : { text, tokens: null, skip: 0 };
    const asked = { ...request, ...sampling(), ...drawn(), ...prompt, max_new_tokens: state.length };
    for await (const each of api.write(asked, signal)) {
      sides[side].push(each);
      shown(sides);
    }
  }));
}

/** Saves what is shown as a file. */
async function keep(format) {
  if (!main) return;
  try {
    const { model, zero, mean, half } = reference?.request ?? {};
    const response = await api.export({
      ...main.request, format, ...drawn(), skip: main.written, max_new_tokens: state.length,
      position: main.answer.position - main.answer.history.labels.length, target: main.answer.target.id,
      against: reference && { model, zero, mean, half },
    });
    const link = document.createElement("a");
    link.href = URL.createObjectURL(await response.blob());
    link.download = /filename="([\w.]+)"/.exec(response.headers.get("Content-Disposition"))[1];
    link.click();
    URL.revokeObjectURL(link.href);
  } catch (error) {
    say(error);
  }
}

// ---- Reading -------------------------------------------------------------------------------------

function say(error) {
  editor.say(error, undone.length > 0);
}

/** Which random numbers the next written token uses. */
const drawn = () => ({ seed: state.seed, skip: state.written });
const sampling = () => ({ temperature: state.temperature, top_k: state.top_k, top_p: state.top_p });

function describe(model) {
  if (!abouts.has(model)) {
    const asked = api.open(model);
    asked.catch(() => abouts.delete(model));
    abouts.set(model, asked);
  }
  return abouts.get(model);
}

/** The layer of a head such as L0H2, or null. */
const layerOf = (head) => (head ? Number(/\d+/.exec(head)) : null);

/** Reads the text with a model and switched heads. */
async function read(model, switched, text, more) {
  const { written } = state;
  const about = await describe(model);
  const request = { model, ...switched, ...text, ...sampling() };
  const asked = { ...request, position: follow ? -1 : view.token ?? -1, target: state.target,
                  layers: [Math.min(layerOf(view.head) ?? Infinity, about.layers - 1)], ...more };
  const answer = await api.read(asked, reading.signal);
  serial += 1;
  const [step] = answer.history.steps;
  const has = (key) => key in answer.parts || key.startsWith("weights");
  step.parts = step.parts.map((key) => (has(key) ? `${serial} ${key}` : null));
  Object.assign(asked, { position: answer.position, target: answer.target.id });
  const heads = OWN.flatMap((name) => switched[name].map((head) => `${head} ${TEXTS.ways[name]}`));
  return { about, request, asked, answer, heads, written, serial };
}

/** A part of a reading, for the viewer. Weights of other layers than that of the opened head are asked
    for when they are needed. */
async function part(key) {
  const [, number, name] = /^(\d+) (.+)$/.exec(key);
  const { asked, answer: { parts } } = readings.find(({ serial: own }) => own === Number(number));
  if (!(name in parts)) {
    const layers = [Number(name.split(" ")[1])];
    parts[name] = (await api.read({ ...asked, layers }, reading.signal)).parts[name];
  }
  return streamOf(parts[name]);
}

/** Reads the text, and shows the result unless a newer reading has begun. */
function update() {
  pending = readAndShow();
  return pending;
}

async function readAndShow() {
  reading?.abort();
  current = false;
  const mine = new AbortController();
  reading = mine;
  document.documentElement.dataset.busy = "1";
  delete document.documentElement.dataset.ready;
  address.write(state);
  try {
    const about = await describe(state.model);
    if (mine !== reading) return;
    if (state.tokens && main && main.about.vocabulary !== about.vocabulary) {
      state = { ...state, tokens: null, text: main.answer.text, written: 0 };
    }
    if (state.text === null && state.tokens === null) state = { ...state, text: about.example };
    for (const name of OWN) {
      state = { ...state, [name]: state[name].filter((head) => headNumber(head, about) !== null) };
    }
    state = { ...state, copies: state.copies.filter(({ head }) => headNumber(head, about) !== null) };
    const text = { text: state.tokens ? null : state.text, tokens: state.tokens };
    const switched = Object.fromEntries(OWN.map((name) => [name, state[name]]));
    const on = { zero: [], mean: [], half: [] };
    const isSwitched = OWN.some((name) => state[name].length > 0);
    let newest = await read(state.model, switched, text);
    let other = null;
    if (mine.signal.aborted) return;
    if (state.other || isSwitched) {
      const model = state.other || state.model;
      const same = (await describe(model)).vocabulary === about.vocabulary;
      const ids = ({ answer }) => (same ? answer.next.map(({ id }) => id) : []);
      const asked = same ? text : { text: newest.answer.text, tokens: null };
      const target = same ? newest.answer.target.id : null;
      const more = { also: ids(newest), target, ...(same ? {} : { position: -1 }) };
      other = await read(model, on, asked, more);
      newest = await read(state.model, switched, text, { also: ids(other), target: newest.answer.target.id });
    }
    if (mine.signal.aborted) return;
    await show(newest, other);
  } catch (error) {
    if (mine !== reading) return;
    if (unchecked) { // show the text at least
      unchecked = false;
      state = { ...EMPTY, text: state.text };
      follow = true;
      await update();
    } else {
      document.documentElement.dataset.stale = "1"; // what is shown is not that of the current state
    }
    say(error);
  }
  if (mine === reading && !writing) delete document.documentElement.dataset.busy;
}

function show(newest, other) {
  nameReadings(newest, other);
  const changed = other?.name !== reference?.name;
  [main, reference] = [newest, other];
  current = true;
  unchecked = retyped = false;
  delete document.documentElement.dataset.stale;
  if (state.written >= main.answer.ids.length) state = { ...state, written: 0 }; // of a URL
  if (state.tokens && main.answer.same) state = { ...state, tokens: null, text: main.answer.text };
  address.write(state);
  readings = [main, reference].filter(Boolean);
  for (const { name, answer } of readings) answer.history.name = name;
  editor.show(state, main, undone.length > 0);
  models.show(state, main);
  bars.show(state, main, reference);
  switches.show(state, main, reference, view.head);
  patch.show(state, main, view);
  const [shape, otherShape] = readings.map(({ answer }) => runOf("", "", answer.history).shapes[0]);
  const comparable = shape === otherShape;
  const compared = view.compare.startsWith("run:");
  let compare = compared && !comparable ? "" : view.compare;
  if (changed && comparable) compare = `run:${reference.name}`;
  return viewer.refresh({ run: main.name, token: main.answer.position, compare });
}

/** Names readings by what they differ in: the model, or the switched heads. */
function nameReadings(first, second) {
  const heads = first.heads.length ? TEXTS.list(first.heads) : "";
  const same = second?.about.name === first.about.name;
  const modelOf = ({ about: { title, step } }) => TEXTS.model(title, step);
  first.name = same ? heads || TEXTS.thisModel : [modelOf(first), heads].filter(Boolean).join(", ");
  if (!second) return;
  second.name = same ? TEXTS.allHeadsOn : modelOf(second);
  if (second.name === first.name) second.name += ` (${TEXTS.compared})`;
}

/** The viewer has another state: the user may have selected another token or head. */
function viewChanged(changed) {
  const before = view;
  view = changed;
  const last = main.answer.history.labels.length - 1;
  if (changed.head !== before.head) {
    switches.show(state, main, reference, changed.head);
    patch.show(state, main, view);
    if (!main.asked.layers.includes(layerOf(changed.head))) update(); // what heads of its layer raise
  }
  if (changed.token === null || changed.token === main.answer.position) return;
  if (writing && state.tokens) { // it has written more than what is shown
    state = { ...state, tokens: main.answer.ids, written: main.written };
  } else if (retyped) return;
  stop();
  follow = changed.token === last;
  state = { ...state, target: null };
  update();
}

update();
