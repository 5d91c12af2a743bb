// The actions on the text: the model writes, tokens are added or removed, undone, or saved as a file.

import { readsOf, switchesOf, writingOf } from "./address.js";
import { send, stream } from "./api.js";
import { make } from "./viewer/dom.js";

const SLOW = 150; // ms: when a reading takes longer, writing does not wait for it
const MAX_UNDO = 100;

/** The page gives these functions: now() returns the state, shown() the readings {main, reference} that are shown,
    and view() the opened head and the walk. change(changes, undoable) changes the state and reads the text. settled() waits until
    the text is read, and returns whether it could be read. say(error) and showWriting(on) show what happens. */
export function createWriting({ now, shown, view, change, settled, say, showWriting }) {
  let writing = null; // ends what the model writes
  let earlier = []; // the states to which Undo returns
  let queue = Promise.resolve();

  /** An action that waits until the text is read and earlier actions have ended. It may end writing. */
  function onText(action, ends = true) {
    return (...words) => {
      if (ends) stop();
      queue = queue.then(async () => {
        if (await settled()) await action(...words);
      });
    };
  }

  function stop() {
    writing?.abort();
    writing = null;
  }

  function remember() {
    const { text, tokens, written, second, copies } = now();
    const more = { ...switchesOf(now()), ...readsOf(now()) };
    earlier = [...earlier.slice(1 - MAX_UNDO), { text, tokens, written, second, copies, ...more }];
  }

  function undo() {
    stop();
    if (earlier.length > 0) change(earlier.pop());
  }

  /** Continues the text with another token after the selected one of an answer, which may be an older one. */
  function pick(id, { ids, history: { labels }, position }) {
    const { main } = shown();
    const before = ids.length - labels.length + position + 1;
    const written = Math.max(0, main.written - main.answer.ids.length + before) + 1;
    return change({ tokens: [...ids.slice(0, before), id], written }, true);
  }

  /** Removes the last token. */
  async function back() {
    const { ids } = shown().main.answer;
    if (ids.length > 1) await change({ tokens: ids.slice(0, -1), written: Math.max(0, now().written - 1) }, true);
  }

  /** Lets the model write `count` tokens. */
  async function write(count = now().length) {
    const mine = new AbortController();
    writing = mine;
    const { request, answer: { ids: prompt } } = shown().main;
    const { written: before } = now();
    const ids = [...prompt];
    const grown = () => ({ tokens: [...ids], written: before + ids.length - prompt.length });
    const asked = { ...request, ...writingOf(now()), text: null, tokens: prompt, max_new_tokens: count };
    if (count > 1) showWriting(true);
    let busy = null;
    try {
      for await (const { id } of stream("write", asked, mine.signal)) {
        if (mine.signal.aborted) break;
        if (ids.length === prompt.length) remember();
        ids.push(id);
        if (busy) continue;
        const reading = change(grown());
        busy = reading.finally(() => { busy = null; });
        await Promise.race([reading, new Promise((resolve) => setTimeout(resolve, SLOW))]);
      }
    } catch (error) {
      say(error);
    }
    if (ids.length > prompt.length && !mine.signal.aborted) await change(grown());
    if (writing === mine) writing = null;
    showWriting(false);
    delete document.documentElement.dataset.busy;
  }

  /** Lets both sides of a comparison write from the same text and seed. `draw` gets their tokens after each one. */
  async function rewrite(signal, draw) {
    const { main, reference } = shown();
    const sides = [[], []];
    const { ids } = main.answer;
    await Promise.all([main, reference].map(async ({ about, request }, side) => {
      const same = about.vocabulary === main.about.vocabulary;
      const prompt = same ? { text: null, tokens: ids } : { skip: 0 };
      for await (const token of stream("write", { ...request, ...writingOf(now()), ...prompt }, signal)) {
        sides[side].push(token);
        draw(sides);
      }
    }));
  }

  /** Saves what is shown as a file. */
  async function keep(format) {
    const { main, reference } = shown();
    if (!main) return;
    const { request, written, answer: { position, target } } = main;
    try {
      const response = await send("export", {
        ...request, ...writingOf(now()), format, skip: written, ...view(),
        position, target: target.id, against: reference && reference.request,
      });
      const [, download] = /filename="([\w.]+)"/.exec(response.headers.get("Content-Disposition"));
      const href = URL.createObjectURL(await response.blob());
      make(null, "a", { href, download }).click();
      URL.revokeObjectURL(href);
    } catch (error) {
      say(error);
    }
  }

  return {
    stop, remember, undo, rewrite, keep, back: onText(back), pick: onText(pick), write: onText(write, false),
    canUndo: () => earlier.length > 0,
    isWriting: () => writing !== null,
  };
}
