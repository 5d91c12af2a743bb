// The page to play with: type a text, let the model write, switch heads, patch, compare, keep.

import { EMPTY, codec, readsOf, samplingOf, switchesOf } from "./address.js";
import { createAnswers } from "./answers.js";
import { ask } from "./api.js";
import { Bars } from "./bars.js";
import { Deciders, changesOf, decidersOf, decidersQuestion, decidingHead, keptOf, keptQuestion } from "./deciders.js";
import { Editor } from "./editor.js";
import { Models, keptSteps } from "./models.js";
import { Patch, effectsOf, effectsQuestion, patchOf, patchQuestion } from "./patch.js";
import { EVENTS, begin, mainOf, questionOf, runOf } from "./session.js";
import { Switches, switchedGroups, writtenOf, writtenQuestion } from "./switches.js";
import { make } from "./viewer/dom.js";
import { draw, html } from "./viewer/html.js";
import { createAddress, viewCodec } from "./viewer/state.js";
import { createStore, runOf as shownRun, streamOf } from "./viewer/store.js";
import { BAR, EXPLORE as TEXTS } from "./viewer/texts.js";
import { createViewer } from "./viewer/viewer.js";
import { createWriting } from "./writing.js";

// ---- The session -----------------------------------------------------------------------------------

let session = null;
let waiting = false; // whether the page is drawn soon
let drawing = 0; // a timer: while a button is pressed, nothing moves below the pointer
let shown = null; // the reading that the viewer shows
let serial = 0; // counts the readings, so that their parts have different keys

const address = createAddress(window, "x.", codec);
const viewAddress = createAddress(window, "v.", {
  fromTexts(texts) {
    if (session) tell("opened", "head" in texts);
    return viewCodec.fromTexts(texts);
  },
  toTexts(state) {
    const { chosen } = session ?? { chosen: true };
    return viewCodec.toTexts({ ...state, run: null, text: null, step: null, ...(chosen ? {} : { head: null }) });
  },
});
session = begin(address.read(), viewAddress.read());

/** Changes the session by an event. All that follows from it is asked and shown soon. */
function tell(event, ...details) {
  session = { ...session, ...EVENTS[event](session, ...details) };
  if (!waiting) queueMicrotask(follow);
  waiting = true;
}

const answers = createAnswers(tell);

/** Asks and shows what follows from the session. */
function follow() {
  waiting = false;
  const { page, reading, writes, view, measured: named } = session;
  if (!writes) writing.stop();
  answers.ask("reading", readingQuestion(named), read);
  answers.ask("names", namesQuestion(), measured);
  answers.ask("deciders", decidersQuestion(session), (...how) => decidersOf(session, ...how));
  answers.ask("kept", keptQuestion(session), (...how) => keptOf(session, ...how));
  answers.ask("patch", patchQuestion(session), (...how) => patchOf(session, ...how));
  answers.ask("effects", effectsQuestion(session), (...how) => effectsOf(session, ...how));
  answers.ask("written", writtenQuestion(session), (...how) => writtenOf(session, ...how));
  const main = mainOf(session);
  address.write(main?.answer.same ? { ...page, tokens: null, text: main.answer.text } : page);
  const { dataset } = document.documentElement;
  const marks = { busy: session.reading.busy || writes, stale: session.reading.problem };
  for (const [name, on] of Object.entries(marks)) {
    if (on) dataset[name] = "1";
    else delete dataset[name];
  }
  if (reading.value && reading.value !== shown) show(reading.value);
  const head = decidingHead(session);
  viewer.decide(changesOf(session));
  const now = viewer.now();
  if (!session.chosen && head && head !== now.head && now.walk.length === 0) viewer.change({ head });
  drawAll();
}

// ---- The page --------------------------------------------------------------------------------------

const writing = createWriting({ now: () => session, tell, settled });
const actions = {
  ...writing, open: (head) => { tell("opened"); viewer.change({ head }); }, start,
  /** Asks a question on request. */
  want(name, question) {
    answers.forget(name);
    tell("wants", name, question);
  },
};
const readings = () => [shown?.main, shown?.reference].filter(Boolean); // the viewer shows them as runs with one step
const left = make(document.body, "div", { class: "left" });
const cards = [Editor, Patch, Bars, Models, Deciders, Progress, Switches];
const boxes = cards.map(() => make(null, "div", { class: "placed" }));
const [editor, patch, bars, models, deciders, progress, switches] = boxes;
left.append(editor, patch);
const viewer = createViewer(document.body, {
  title: TEXTS.title, place: left, address: viewAddress, viewChanged: (view) => tell("viewed", view),
  store: createStore({
    runs: async () => readings().map(({ name, answer }) => shownRun(name, "text", answer.history)),
    history: async (run) => readings().find(({ name }) => name === run).answer.history,
    part,
  }),
  others: { options, chosen: comparedWith, choose }, opens: () => tell("opened"),
  elsewhere: ({ name: head }) => answers.once("examples", { model: shown.main.about.name, head }),
  explanationOf: ({ state: { run } }, edge) => ask("why", { ...readings().find(({ name }) => name === run).request, ...edge }),
  steps: { list: () => keptSteps(shown.main.about), why: (model, edge) => ask("why", { ...shown.main.request, model, ...edge }) },
});
left.append(bars);
document.querySelector("header").after(left);
document.querySelector("h1").after(models);
document.querySelector(".overview").prepend(deciders, progress);
document.querySelector(".headline").after(switches);
address.onChange((page) => tell("addressed", page));

function drawAll() {
  clearTimeout(drawing);
  if (boxes.some((box) => box.querySelector("button:active"))) drawing = setTimeout(drawAll, 50);
  else boxes.forEach((box, at) => draw(box, html`<${cards[at]} session=${session} tell=${tell} actions=${actions} />`));
  // Otherwise, screen readers would read a sentence for each token.
  document.querySelector(".says").setAttribute("aria-live", session.writes ? "off" : "polite");
}

/** How far heads are measured. */
function Progress({ session: { names: { value, of } } }) {
  return html`<p class="quiet" role="status">${TEXTS.measuring(of !== null && of === namesQuestion() ? value : null)}</p>`;
}

/** Begins an experiment. If it is `early`, shows at the first kept step how likely that is what the model says later. */
async function start(experiment) {
  tell("started", experiment);
  if (!experiment.early || !(await settled()) || session.page.text !== experiment.text) return;
  tell("changed", { model: keptSteps(mainOf(session).about)[0].name });
}

// ---- Reading ---------------------------------------------------------------------------------------

/** The question of the reading: it also has the layer of the opened head, unless its parts are there already. */
function readingQuestion(named) {
  const { view: { head }, reading: { value, of } } = session;
  const question = questionOf(session);
  const isKnown = value?.question === question && value.named === named && `raised ${layerOf(head)}` in value.main.answer.parts;
  return isKnown ? of : JSON.stringify([question, head && layerOf(head), named]);
}

const describe = (model) => answers.once("open", { model });

/** The layer of a head such as L0H2. */
const layerOf = (head) => Number(/\d+/.exec(head));

/** Waits until the text is read. Returns whether that was possible. */
async function settled() {
  await null; // until the question is asked
  await answers.settled("reading");
  return mainOf(session) !== null;
}

/** Reads the text: the reading `main`, and the one that it is compared with, or null: that of another model, or with
    all heads on. */
async function read(signal) {
  const { isNew } = session;
  try {
    const about = await describe(session.page.model);
    if (!signal.aborted) tell("described", about);
    await null; // until another question is asked
    return signal.aborted ? null : await readBy(about, signal);
  } catch (error) {
    if (isNew && !signal.aborted) tell("refused", error);
    throw error;
  }
}

async function readBy(about, signal) {
  const { page, view, position, measured: named } = session;
  const question = questionOf(session);
  const switched = switchesOf(page);
  const request = { model: about.name, ...switched, ...readsOf(page), text: page.tokens ? null : page.text, tokens: page.tokens };
  const compares = page.other || Object.values(switched).flat().length > 0;
  const against = compares ? { model: page.other || about.name, ...switchesOf(EMPTY) } : null;
  const layers = [Math.min(view.head ? layerOf(view.head) : Infinity, about.layers - 1)];
  const asked = { ...request, ...samplingOf(page), position: position ?? -1, target: page.target, layers, against };
  const { against: compared, ...answer } = await ask("read", asked, signal);
  const main = { ...readingOf(about, request, answer), written: page.written };
  const other = compared && { ...against, text: null, tokens: compared.ids };
  const reference = compared && readingOf(await describe(against.model), other, compared);
  nameReadings(main, reference);
  return { question, named, main, reference };
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
    parts[name] = (await ask("read", { ...request, layers })).parts[name];
  }
  return streamOf(parts[name]);
}

/** Names readings by what they differ in: the model, or the switched heads. */
function nameReadings(first, second) {
  const heads = first.heads.length ? TEXTS.list(first.heads) : "";
  const same = second?.about.name === first.about.name;
  const modelOf = ({ about }) => TEXTS.model(about);
  first.name = same ? heads || TEXTS.thisModel : [modelOf(first), heads].filter(Boolean).join(", ");
  if (second) second.name = same ? TEXTS.allHeadsOn : modelOf(second);
  if (second?.name === first.name) second.name += ` (${TEXTS.compared})`;
  for (const { name, answer } of [first, second].filter(Boolean)) answer.history.name = name;
}

/** Shows a reading in the viewer. */
function show({ main, reference }) {
  const { view, page } = session;
  const last = Math.max(...view.walk.map(({ query }) => query)); // the text may go on after the explained tokens
  const [before, now] = [shown?.main, main].map((side) => side?.answer.history.labels.slice(0, last + 1).join("\n"));
  const changed = page.other && reference?.name !== shown?.reference?.name;
  shown = session.reading.value;
  const [shape, otherShape] = readings().map(({ answer }) => shownRun("", "", answer.history).shapes[0]);
  const comparable = shape === otherShape;
  let compare = comparable || !/^(run|role):/.test(view.compare) ? view.compare : "";
  if (changed && comparable) compare = `run:${reference.name}`;
  const walk = before === undefined || before === now ? view.walk : [];
  viewer.refresh({ run: main.name, token: main.answer.position, compare, walk });
}

/** The models whose heads have no names yet, as a question. */
function namesQuestion() {
  if (session.reading.busy) return null; // its answer may have names
  const unnamed = [session.reading.value?.main, session.reading.value?.reference]
    .filter((side) => side && !side.answer.history.steps[0].measured_tokens).map(({ about }) => about.name);
  return unnamed.length ? JSON.stringify([...new Set(unnamed), session.measured]) : null;
}

/** Waits until the heads of these models are measured: {share, complete}, or a {problem}. */
async function measured(signal, showProgress) {
  const models = JSON.parse(namesQuestion()).slice(0, -1);
  for (;;) {
    const found = await Promise.all(models.map((model) => ask("open", { model }, signal)));
    const left = found.map(({ measuring }) => measuring).filter(Boolean);
    if (left.length < found.length) return { complete: 1 };
    if (left.every(({ problem }) => problem)) return { ...left[0], complete: 0 };
    showProgress({ ...left[0], complete: 0 });
    await new Promise((resolve) => setTimeout(resolve, 1000));
  }
}

// ---- Comparing with another model ------------------------------------------------------------------

/** What can be compared: another model instead of the reading of it. */
function options({ [BAR.anotherRun]: runs, [BAR.anotherRole]: roles, [BAR.otherShape]: others, ...groups }) {
  const { about } = shown.main;
  const models = about.models.filter(({ name }) => name !== about.name).map((model) => [`model:${model.name}`, TEXTS.model(model)]);
  const same = session.page.other ? { [BAR.anotherRole]: roles } : { [BAR.anotherRun]: runs };
  return { ...groups, ...same, [TEXTS.otherModel]: models };
}

/** The chosen comparison. */
function comparedWith(compare) {
  const { other } = session.page;
  return other && !/^(head|step|role):/.test(compare) ? `model:${other}` : compare;
}

/** Compares with another model, or no longer. Returns whether this is all that has to be done. */
function choose(compare) {
  const [, model = null] = /^model:(.*)/.exec(compare) ?? [];
  if (model !== null || (compare === "" && session.page.other)) tell("changed", { other: model ?? "" });
  return model !== null;
}

follow();
