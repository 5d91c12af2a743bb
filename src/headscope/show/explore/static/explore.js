// The page to play with: type a text, let the model write, switch heads, patch, compare, keep.

import { EMPTY, codec, readsOf, samplingOf, switchesOf } from "./address.js";
import { ask } from "./api.js";
import { createBars } from "./bars.js";
import { make } from "./viewer/dom.js";
import { createDeciders } from "./deciders.js";
import { createEditor } from "./editor.js";
import { createModels, keptSteps, runOf } from "./models.js";
import { createPatch } from "./patch.js";
import { createAddress, headNumber, viewCodec } from "./viewer/state.js";
import { createStore, runOf as shownRun, streamOf } from "./viewer/store.js";
import { createSwitches, switchedGroups } from "./switches.js";
import { BAR, EXPLORE as TEXTS } from "./viewer/texts.js";
import { createViewer } from "./viewer/viewer.js";
import { createWriting } from "./writing.js";

const address = createAddress(window, "x.", codec);
let chosen = true; // whether the person has chosen the opened head
let suggested = null; // the head that the page names as the one that decides, or null
const viewAddress = createAddress(window, "v.", {
  fromTexts: (texts) => {
    chosen = "head" in texts;
    return viewCodec.fromTexts(texts);
  },
  toTexts: (state) => viewCodec.toTexts({ ...state, run: null, text: null, step: null, ...(chosen ? {} : { head: null }) }),
});
let timer = null; // of the next question whether heads are measured
const answers = {}; // promises of what is asked for once
let state = address.read();
let view = viewAddress.read(); // the state of the viewer
let follow = view.token === null; // whether the selected token is the last one
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
  now, change, settled, shown: () => ({ main, reference }), view: () => ({ head: view.head, walk: view.walk }),
  say: (error) => editor.say(error), showWriting: (on) => editor.showWriting(on),
});
const actions = { ...writing, now, change, start, suggest, open };
const left = make(document.body, "div", { class: "left" });
const editor = createEditor(left, actions);
const patch = createPatch(left, actions);
const store = createStore({
  runs: async () => readings().map(({ name, answer }) => shownRun(name, "text", answer.history)),
  history: async (run) => readings().find(({ name }) => name === run).answer.history,
  part,
});
const viewer = createViewer(document.body, {
  store, title: TEXTS.title, place: left, address: viewAddress, viewChanged,
  others: { options, chosen: comparedWith, choose }, opens: () => { chosen = true; },
  elsewhere: ({ name: head }) => once("examples", { model: main.about.name, head }),
  explanationOf: ({ state: { run } }, edge) => ask("why", { ...readings().find(({ name }) => name === run).request, ...edge }),
  steps: { list: () => keptSteps(main.about), why: (model, edge) => ask("why", { ...main.request, model, ...edge }) },
});
const bars = createBars(left, actions);
const after = (place) => {
  const box = make(null, "div", { class: "placed" });
  document.querySelector(place).after(box);
  return box;
};
const models = createModels(after("h1"), actions);
const progress = make(after(".grid-card h3"), "p", { class: "quiet", role: "status" });
const deciders = createDeciders(after(".grid-card"), actions);
const switches = createSwitches(after(".headline"), actions);
document.querySelector("header").after(left);
address.onChange((changed) => {
  unchecked = true;
  writing.stop();
  change(changed);
});

/** Changes entries of the state. `undoable` is true if Undo should return to the state before. All changes
    except those of writing itself end it. */
function change(changes, undoable = false) {
  deciders.stop();
  if (!("written" in changes)) writing.stop();
  if (undoable) writing.remember();
  chosen ||= [changes.zero, changes.mean, changes.half].some((heads) => heads?.length > 0);
  if (runOf(changes.model ?? state.model) !== runOf(state.model)) follow = true; // another tokenizer may give other tokens
  else if (changes.model && current) state = { ...state, target: main.answer.target.id }; // another step: the same question
  // What continues a question is shown with the template of its chat.
  if (changes.tokens && state.question) changes = { special: true, question: false, ...changes };
  if ("text" in changes || "tokens" in changes) { // another text: another question
    state = { ...state, text: null, tokens: null, written: 0, target: null };
    follow = retyped = true;
  }
  state = { ...state, ...changes };
  return update();
}

/** Begins an experiment: its text, and its other text. The head that decides is opened. If it is `early`,
    shows at the first kept step how likely that is what the model says later. */
async function start({ text, second = "", early = false }) {
  chosen = false;
  await change({ ...switchesOf(EMPTY), ...readsOf(EMPTY), copies: [], model: runOf(state.model), text, second }, true);
  if (early && current && state.text === text) {
    await change({ model: keptSteps(main.about)[0].name });
  }
}

// ---- Reading -------------------------------------------------------------------------------------

/** The answer to a request, which is sent again only after an error. */
function once(...request) {
  const question = JSON.stringify(request);
  answers[question] ??= ask(...request);
  answers[question].catch(() => delete answers[question]);
  return answers[question];
}

const describe = (model) => once("open", { model });

/** The layer of a head such as L0H2, or null. */
const layerOf = (head) => (head ? Number(/\d+/.exec(head)) : null);

/** Reads the text of the state. Returns the reading, and the one that it is compared with, or null: that of
    another model, or with all heads on. */
async function read(about, signal) {
  const { written, tokens } = state;
  const switched = switchesOf(state);
  const request = { model: about.name, ...switched, ...readsOf(state), text: tokens ? null : state.text, tokens };
  const compares = state.other || Object.values(switched).flat().length > 0;
  const against = compares ? { model: state.other || about.name, ...switchesOf(EMPTY) } : null;
  const layers = [Math.min(layerOf(view.head) ?? Infinity, about.layers - 1)];
  const position = follow ? -1 : view.token ?? -1;
  const asked = { ...request, ...samplingOf(state), position, target: state.target, layers, against };
  const { against: compared, ...answer } = await ask("read", asked, signal);
  const newest = { ...readingOf(about, request, answer), written };
  if (!compared) return [newest, null];
  const other = { ...against, text: null, tokens: compared.ids };
  return [newest, readingOf(await describe(against.model), other, compared)];
}

/** A reading of the text of a request by the model `about`. Its parts get other keys than those of earlier ones. */
function readingOf(about, request, answer) {
  serial += 1;
  const [step] = answer.history.steps;
  const has = (key) => key in answer.parts || key.startsWith("weights");
  step.parts = step.parts.map((key) => (has(key) ? `${serial} ${key}` : null));
  const heads = switchedGroups(switchesOf(request), about).map((group) => group.text);
  return { about, request, answer, heads, serial };
}

/** A part of a reading, for the viewer. Weights of other layers than the opened one are asked for when needed. */
async function part(key) {
  const [, number, name] = /^(\d+) (.+)$/.exec(key);
  const { request, answer: { parts } } = readings().find(({ serial: own }) => own === Number(number));
  if (!(name in parts)) {
    const layers = [Number(name.split(" ")[1])];
    parts[name] = (await ask("read", { ...request, layers }, reading.signal)).parts[name];
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
    const [newest, other] = await read(about, signal);
    if (signal.aborted) return;
    await show(newest, other);
    awaitNames();
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

/** Shows how far heads are measured, and at the end their names and metrics. */
async function awaitNames() {
  clearTimeout(timer);
  const mine = serial;
  const unnamed = readings().filter(({ answer }) => !answer.history.steps[0].measured_tokens);
  const found = await Promise.all(unnamed.map(({ about }) => ask("open", { model: about.name }))).catch(() => []);
  if (mine !== serial) return; // another reading asks again
  const waiting = found.map(({ measuring }) => measuring).filter(Boolean);
  progress.textContent = TEXTS.measuring(waiting[0]);
  if (found.length > waiting.length) await update();
  else if (waiting.some(({ problem }) => !problem)) timer = setTimeout(awaitNames, 1000);
}

/** Replaces what a model cannot read: tokens of another vocabulary, no text, and heads that it does not have. */
function adaptTo(about) {
  if (main && main.about.vocabulary !== about.vocabulary) {
    if (state.tokens) state = { ...state, tokens: null, text: main.answer.text, written: 0 };
    state = { ...state, ...readsOf(EMPTY), target: null };
  }
  if (state.text === null && state.tokens === null) state = { ...state, text: about.texts[0] ?? "" };
  const isHead = (head) => headNumber(head, about) !== null;
  const [zero, mean, half] = [state.zero, state.mean, state.half].map((heads) => heads.filter(isHead));
  state = { ...state, zero, mean, half, copies: state.copies.filter(({ head }) => isHead(head)) };
}

function show(newest, other) {
  nameReadings(newest, other);
  const changed = state.other && other?.name !== reference?.name;
  const last = Math.max(...view.walk.map(({ query }) => query)); // the text may go on after the explained tokens
  const [before, after] = [main, newest].map((side) => side?.answer.history.labels.slice(0, last + 1).join("\n"));
  const walk = before === undefined || before === after ? view.walk : [];
  [main, reference] = [newest, other];
  current = true;
  unchecked = retyped = false;
  delete document.documentElement.dataset.stale;
  if (state.written >= main.answer.ids.length) state = { ...state, written: 0 }; // of a URL
  if (state.tokens && main.answer.same) state = { ...state, tokens: null, text: main.answer.text };
  address.write(state);
  for (const { name, answer } of readings()) answer.history.name = name;
  editor.show(state, main);
  models.show(main);
  bars.show(main, reference);
  switches.show(state, main, reference, view.head);
  deciders.show(state, main);
  patch.show(state, main, view);
  const [shape, otherShape] = readings().map(({ answer }) => shownRun("", "", answer.history).shapes[0]);
  const comparable = shape === otherShape;
  let compare = comparable || !/^(run|role):/.test(view.compare) ? view.compare : "";
  if (changed && comparable) compare = `run:${reference.name}`;
  return viewer.refresh({ run: main.name, token: main.answer.position, compare, walk });
}

// ---- Comparing with another model ----------------------------------------------------------------

/** What can be compared: another model instead of the reading of it. */
function options({ [BAR.anotherRun]: runs, [BAR.anotherRole]: roles, [BAR.otherShape]: others, ...groups }) {
  const models = main.about.models.filter(({ name }) => name !== main.about.name)
    .map((model) => [`model:${model.name}`, TEXTS.model(model)]);
  const same = state.other ? { [BAR.anotherRole]: roles } : { [BAR.anotherRun]: runs };
  return { ...groups, ...same, [TEXTS.otherModel]: models };
}

/** The chosen comparison. */
function comparedWith(compare) {
  return state.other && !/^(head|step|role):/.test(compare) ? `model:${state.other}` : compare;
}

/** Compares with another model, or no longer. Returns whether this is all that has to be done. */
function choose(compare) {
  const [, model = null] = /^model:(.*)/.exec(compare) ?? [];
  if (model !== null || (compare === "" && state.other)) change({ other: model ?? "" });
  return model !== null;
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

/** Opens a head. */
function open(head) {
  chosen = true;
  viewer.change({ head });
}

/** Opens the head that the page names as the one that decides, unless the person has chosen one or follows a walk. */
function suggest(head) {
  suggested = head;
  if (!chosen && head && head !== view.head && view.walk.length === 0) viewer.change({ head });
}

/** The viewer has another state: the user may have selected another token or head. */
function viewChanged(changed) {
  const before = view;
  view = changed;
  suggest(suggested); // a walk may have ended
  if (changed.head !== before.head) {
    switches.show(state, main, reference, changed.head);
    patch.show(state, main, view);
    if (!(`raised ${layerOf(changed.head)}` in main.answer.parts)) update(); // what heads of its layer raise
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
