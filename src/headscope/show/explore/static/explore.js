// The page to play with: type a text, let the model write, switch heads, patch, compare, keep.

import { EMPTY, codec, samplingOf, switchesOf } from "./address.js";
import { api } from "./api.js";
import { createBars } from "./bars.js";
import { make } from "./viewer/dom.js";
import { createDeciders } from "./deciders.js";
import { createEditor } from "./editor.js";
import { createModels } from "./models.js";
import { createPatch } from "./patch.js";
import { createAddress, fromTexts, headNumber, toTexts } from "./viewer/state.js";
import { createStore, runOf, streamOf } from "./viewer/store.js";
import { createSwitches } from "./switches.js";
import { EXPLORE as TEXTS } from "./viewer/texts.js";
import { createViewer } from "./viewer/viewer.js";
import { createWriting } from "./writing.js";

const address = createAddress(window, "x.", codec);
let chosen = true; // whether the person has chosen the opened head
const viewAddress = createAddress(window, "v.", {
  fromTexts,
  toTexts: (state) => toTexts({ ...state, run: null, text: null, step: null, ...(chosen ? {} : { head: null }) }),
});
const abouts = new Map(); // promises of the descriptions of models
let state = address.read();
let view = viewAddress.read(); // the state of the viewer
let follow = view.token === null; // whether the selected token is the last one
chosen = view.head !== null;
let suggested = null; // the head that was opened because it decides
let main = null; // the reading that is shown
let reference = null; // a second reading to compare `main` with: all heads on, or another model
let reading = null; // ends the requests for the newest reading
let pending = null; // the promise of the newest reading
let unchecked = true; // whether the state may have values of the address that the model refuses
let retyped = false; // whether the text differs from that of `main`
let current = false; // whether `main` is a reading of the current state
let serial = 0; // counts the readings

// ---- The page ------------------------------------------------------------------------------------

const now = () => state;
const readings = () => [main, reference].filter(Boolean); // the viewer shows them as runs with one step
const writing = createWriting({
  now, change, settled, shown: () => ({ main, reference }),
  say: (error) => editor.say(error), showWriting: (on) => editor.showWriting(on),
});
const actions = { ...writing, now, change, suggest, open: (head) => viewer.change({ head }) };
const top = make(null, "div", { class: "explore" });
const models = createModels(top, actions);
const left = make(top, "div", { class: "left" });
const editor = createEditor(left, actions);
const right = make(top, "div", { class: "right" });
const bars = createBars(right, actions);
const deciders = createDeciders(right, actions);
const store = createStore({
  runs: async () => readings().map(({ name, answer }) => runOf(name, "text", answer.history)),
  history: async (run) => readings().find(({ name }) => name === run).answer.history,
  part,
});
const viewer = createViewer(document.body, {
  store, title: TEXTS.title, place: left, address: viewAddress, viewChanged,
});
const switches = createSwitches(left, actions);
const patch = createPatch(top, actions);
document.querySelector("header").after(top);
document.querySelector(".overview").after(top.querySelector(".patch-card"));
address.onChange((changed) => {
  unchecked = true;
  writing.stop();
  change(changed);
});

/** Changes entries of the state. `undoable` is true if Undo should return to the state before. All changes
    except those of writing itself end it. */
function change(changes, undoable = false) {
  if (!("written" in changes)) writing.stop();
  if (undoable) writing.remember();
  if ("text" in changes || "tokens" in changes) {
    state = { ...state, text: null, tokens: null, written: 0, target: null };
    follow = retyped = true;
  }
  if ("model" in changes) follow = true; // another tokenizer may give other tokens
  state = { ...state, ...changes };
  return update();
}

// ---- Reading -------------------------------------------------------------------------------------

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
  const request = { model, ...switched, ...text };
  const asked = { ...request, ...samplingOf(state), position: follow ? -1 : view.token ?? -1, target: state.target,
                  layers: [Math.min(layerOf(view.head) ?? Infinity, about.layers - 1)], ...more };
  const answer = await api.read(asked, reading.signal);
  serial += 1;
  const [step] = answer.history.steps;
  const has = (key) => key in answer.parts || key.startsWith("weights");
  step.parts = step.parts.map((key) => (has(key) ? `${serial} ${key}` : null));
  Object.assign(asked, { position: answer.position, target: answer.target.id });
  const heads = Object.entries(switched).flatMap(([way, names]) => names.map((name) => `${name} ${TEXTS.ways[way]}`));
  return { about, request, asked, answer, heads, written, serial };
}

/** A part of a reading, for the viewer. Weights of other layers than that of the opened head are asked
    for when they are needed. */
async function part(key) {
  const [, number, name] = /^(\d+) (.+)$/.exec(key);
  const { asked, answer: { parts } } = readings().find(({ serial: own }) => own === Number(number));
  if (!(name in parts)) {
    const layers = [Number(name.split(" ")[1])];
    parts[name] = (await api.read({ ...asked, layers }, reading.signal)).parts[name];
  }
  return streamOf(parts[name]);
}

/** Reads the text, and shows the result unless a newer reading has begun. */
function update() {
  reading?.abort();
  reading = new AbortController();
  pending = readAndShow(reading.signal);
  return pending;
}

/** Waits until the text is read. Returns whether that was possible. */
async function settled() {
  for (let seen = null; seen !== pending; await seen) seen = pending;
  return current;
}

async function readAndShow(signal) {
  current = false;
  document.documentElement.dataset.busy = "1";
  delete document.documentElement.dataset.ready;
  address.write(state);
  try {
    const about = await describe(state.model);
    if (signal.aborted) return;
    adaptTo(about);
    const text = { text: state.tokens ? null : state.text, tokens: state.tokens };
    const switched = switchesOf(state);
    const isSwitched = Object.values(switched).flat().length > 0;
    let newest = await read(state.model, switched, text);
    let other = null;
    if (signal.aborted) return;
    if (state.other || isSwitched) {
      const model = state.other || state.model;
      const same = (await describe(model)).vocabulary === about.vocabulary;
      const ids = ({ answer }) => (same ? answer.next.map(({ id }) => id) : []);
      const asked = same ? text : { text: newest.answer.text, tokens: null };
      const target = same ? newest.answer.target.id : null;
      const more = { also: ids(newest), target, ...(same ? {} : { position: -1 }) };
      other = await read(model, switchesOf(EMPTY), asked, more);
      newest = await read(state.model, switched, text, { also: ids(other), target: newest.answer.target.id });
    }
    if (signal.aborted) return;
    await show(newest, other);
  } catch (error) {
    if (signal.aborted) return;
    if (unchecked) { // show the text at least
      unchecked = false;
      state = { ...EMPTY, text: state.text };
      follow = true;
      await update();
    } else {
      document.documentElement.dataset.stale = "1"; // what is shown is not that of the current state
    }
    editor.say(error);
  }
  if (!signal.aborted && !writing.isWriting()) delete document.documentElement.dataset.busy;
}

/** Replaces what a model cannot read: tokens of another vocabulary, no text, and heads that it does not have. */
function adaptTo(about) {
  if (state.tokens && main && main.about.vocabulary !== about.vocabulary) {
    state = { ...state, tokens: null, text: main.answer.text, written: 0 };
  }
  if (state.text === null && state.tokens === null) state = { ...state, text: about.examples[0] ?? "" };
  const isHead = (head) => headNumber(head, about) !== null;
  const [zero, mean, half] = [state.zero, state.mean, state.half].map((heads) => heads.filter(isHead));
  state = { ...state, zero, mean, half, copies: state.copies.filter(({ head }) => isHead(head)) };
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
  for (const { name, answer } of readings()) answer.history.name = name;
  editor.show(state, main);
  models.show(state, main);
  bars.show(state, main, reference);
  switches.show(state, main, reference, view.head);
  deciders.show(main);
  patch.show(state, main, view);
  const [shape, otherShape] = readings().map(({ answer }) => runOf("", "", answer.history).shapes[0]);
  const comparable = shape === otherShape;
  let compare = comparable || !view.compare.startsWith("run:") ? view.compare : "";
  if (changed && comparable) compare = `run:${reference.name}`;
  return viewer.refresh({ run: main.name, token: main.answer.position, compare });
}

/** Names readings by what they differ in: the model, or the switched heads. */
function nameReadings(first, second) {
  const heads = first.heads.length ? TEXTS.list(first.heads) : "";
  const same = second?.about.name === first.about.name;
  const modelOf = ({ about }) => TEXTS.model(about);
  first.name = same ? heads || TEXTS.thisModel : [modelOf(first), heads].filter(Boolean).join(", ");
  if (!second) return;
  second.name = same ? TEXTS.allHeadsOn : modelOf(second);
  if (second.name === first.name) second.name += ` (${TEXTS.compared})`;
}

/** Opens the head that decides, unless the person has chosen one. */
function suggest(head) {
  if (chosen || !head) return;
  suggested = head;
  viewer.change({ head });
}

/** The viewer has another state: the user may have selected another token or head. */
function viewChanged(changed) {
  const before = view;
  view = changed;
  if (changed.head !== before.head) {
    chosen ||= before.head !== null && changed.head !== suggested;
    switches.show(state, main, reference, changed.head);
    patch.show(state, main, view);
    if (!main.asked.layers.includes(layerOf(changed.head))) update(); // what heads of its layer raise
  }
  if (changed.token === null || changed.token === main.answer.position) return;
  if (writing.isWriting() && state.tokens) { // it has written more than what is shown
    state = { ...state, tokens: main.answer.ids, written: main.written };
  } else if (retyped) return;
  writing.stop();
  follow = changed.token === main.answer.history.labels.length - 1;
  state = { ...state, target: null };
  update();
}

update();
