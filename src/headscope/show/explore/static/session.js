// What the page knows, in one object, and the events that change it. Everything that is shown follows from it.

import { EMPTY, readsOf, switchesOf } from "./address.js";
import { headNumber } from "./viewer/state.js";

const MAX_UNDO = 100;
const NONE = Object.freeze({ value: null, of: null, problem: null, busy: false });

/** The session at the beginning:
    - `page`: the state in the address (see address.js), and `view`: that of the viewer.
    - `position`: the selected token, or null for the last one.
    - `chosen`: whether the person has chosen the opened head. Otherwise, the one that decides is opened.
    - `isNew`: whether `page` comes from the address, and may have values that the model refuses.
    - `wanted`: the questions that a click has asked, by name. `earlier`: to what Undo returns.
    - `writes`: how many tokens the model is writing. `task`: the text of an experiment, and what to do with it.
    - `part`: the part of the model that is followed over the steps.
    - `patchAt`, `patchTokens`: what is selected in the card that copies from another text.
    - `says`: an error of an action. `measured` counts how often heads got their names.
    - `reading`, `deciders`, `kept`, `patch`, `effects`, `written`, `names`: what the server was asked (see answers.js). */
export const begin = (page, view) => ({
  page, view, position: view.token, chosen: view.head !== null, isNew: true, wanted: {}, earlier: [], writes: 0,
  task: null, part: "", patchAt: null, patchTokens: {}, says: null, measured: 0,
  reading: NONE, deciders: NONE, kept: NONE, patch: NONE, effects: NONE, written: NONE, names: NONE,
});

/** What the shown reading must answer, as JSON. */
export const questionOf = ({ page: { written, by, second, copies, seed, length, ...asked }, position }) =>
  JSON.stringify({ ...asked, position });

/** The shown reading, if it answers what is asked now, or null. */
export const mainOf = (session) => (session.reading.value?.question === questionOf(session) && !session.reading.problem
  ? session.reading.value.main : null);

const textOf = ({ text, tokens }) => JSON.stringify(tokens ?? text);

/** Each event returns the entries of the session that it changes. */
export const EVENTS = {
  /** Another address, for example after the Back button. */
  addressed(session, page) {
    const changed = EVENTS.changed(session, page);
    return { ...changed, isNew: questionOf({ ...session, ...changed }) !== questionOf(session) };
  },

  /** The model refuses what the address asks: the text at least is shown. */
  refused: (session, says) => ({ ...EVENTS.changed(session, { ...EMPTY, text: session.page.text }), says, isNew: false }),

  /** Entries of the page have changed. If `undoable`, Undo returns to the state before. */
  changed(session, changes, undoable = false) {
    let { page, position, chosen } = session;
    chosen ||= [changes.zero, changes.mean, changes.half].some((heads) => heads?.length > 0);
    if (runOf(changes.model ?? page.model) !== runOf(page.model)) position = null; // the tokens may be others
    else if (changes.model && mainOf(session)) page = { ...page, target: mainOf(session).answer.target.id }; // another step
    // What continues a question is shown with the template of its chat.
    if (changes.tokens && page.question) changes = { special: true, question: false, ...changes };
    if ("text" in changes || "tokens" in changes) { // another text: another question
      page = { ...page, text: null, tokens: null, written: 0, target: null };
      position = null;
    }
    const patchTokens = "second" in changes ? {} : session.patchTokens;
    return { page: { ...page, ...changes }, position, chosen, patchTokens, says: null, writes: 0,
      ...(undoable && EVENTS.kept(session)) };
  },

  /** Undo can return to the state as it is now. */
  kept: ({ page, earlier }) => {
    const { text, tokens, written, second, copies } = page;
    const state = { text, tokens, written, second, copies, ...switchesOf(page), ...readsOf(page) };
    return { earlier: [...earlier.slice(1 - MAX_UNDO), state] };
  },

  undone: (session) => (session.earlier.length === 0 ? {}
    : { ...EVENTS.changed(session, session.earlier.at(-1)), earlier: session.earlier.slice(0, -1) }),

  /** The model begins to write `count` tokens, has written some after the text, or ends. */
  writing: (session, count) => ({ writes: count }),
  wrote: (session, tokens, written) => ({ ...EVENTS.changed(session, { tokens, written }), writes: session.writes }),

  /** An experiment begins: its text, and its other text. The head that decides is opened. */
  started(session, { text, second = "", task = null }) {
    const changes = { ...switchesOf(EMPTY), ...readsOf(EMPTY), copies: [], model: runOf(session.page.model), text, second };
    return { ...EVENTS.changed(session, changes, true), chosen: false, task: { text, task } };
  },

  /** The person has opened a head, or an address has or lacks one. */
  opened: (session, chosen = true) => ({ chosen }),

  /** The viewer has another state: the person may have selected another token. */
  viewed(session, view) {
    const main = session.reading.value?.main;
    const changed = { view };
    if (!main || view.token === main.answer.position || (view.token === null && session.position === null)) return changed;
    if (session.writes && session.page.tokens) { // it has written more than what is shown
      changed.page = { ...session.page, tokens: main.answer.ids, written: main.written, target: null };
    } else if (textOf(session.page) !== textOf(main.request)) return changed; // of a text that is still shown
    else changed.page = { ...session.page, target: null };
    const last = main.answer.history.labels.length - 1;
    return { ...changed, writes: 0, says: null, position: view.token === last ? null : view.token };
  },

  /** A model is described: what it cannot read is replaced. */
  described({ page, reading }, about) {
    const main = reading.value?.main;
    if (main && main.about.vocabulary !== about.vocabulary) {
      if (page.tokens) page = { ...page, tokens: null, text: main.answer.text, written: 0 };
      page = { ...page, ...readsOf(EMPTY), target: null };
    }
    if (page.text === null && page.tokens === null) page = { ...page, text: about.texts[0] ?? "" };
    const isHead = (head) => headNumber(head, about) !== null;
    const [zero, mean, half] = [page.zero, page.mean, page.half].map((heads) => heads.filter(isHead));
    return { page: { ...page, zero, mean, half, copies: page.copies.filter(({ head }) => isHead(head)) } };
  },

  /** The server is asked, or has answered: `changes` are entries of what was asked (see answers.js). */
  answered: (session, name, changes) => ({ [name]: { ...session[name], ...changes }, ...(changes.value && ARRIVED[name]?.(session, changes)) }),

  wants: ({ wanted }, name, question) => ({ wanted: { ...wanted, [name]: question } }),
  failed: (session, says) => ({ says }),
  selected: (session, changes) => changes, // in a card
};

const ARRIVED = {
  reading({ page, patchTokens, wanted, reading: { value: before } }, { value: { main, reference } }) {
    if (page.written >= main.answer.ids.length) page = { ...page, written: 0 }; // of an address
    const same = before?.main.about.vocabulary === main.about.vocabulary;
    return { page, isNew: false, patchTokens: same ? patchTokens : {}, wanted: { ...wanted, written: reference && wanted.written } };
  },
  names: ({ measured }, { value: { complete } }) => ({ measured: measured + complete }),
};

/** The run of a model, or of a kept step such as this@100. */
export const runOf = (name) => name.split("@")[0];
