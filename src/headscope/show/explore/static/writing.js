// The actions on the text: the model writes, tokens are added or removed, undone, or saved as a file.

import { writingOf } from "./address.js";
import { send, stream } from "./api.js";
import { make } from "./viewer/dom.js";

const SLOW = 150; // ms: when a reading takes longer, writing does not wait for it

/** now() returns the session, tell() changes it, and settled() waits until the text is read, and returns whether it
    could be read. */
export function createWriting({ now, tell, settled }) {
  let writing = null; // ends what the model writes
  let queue = Promise.resolve();

  /** An action that waits until the text is read and earlier actions have ended. It may end writing. */
  function onText(action, ends = true) {
    return (...words) => {
      if (ends) tell("writing", 0);
      queue = queue.then(async () => {
        if (await settled()) await action(...words);
      });
    };
  }

  /** Continues the text with another token after the selected one of an answer, which may be an older one. */
  async function pick(id, { ids, history: { labels }, position }) {
    const { main } = now().reading.value;
    const before = ids.length - labels.length + position + 1;
    const written = Math.max(0, main.written - main.answer.ids.length + before) + 1;
    tell("changed", { tokens: [...ids.slice(0, before), id], written }, true);
    await settled();
  }

  /** Removes the last token. */
  async function back() {
    const { ids } = now().reading.value.main.answer;
    if (ids.length < 2) return;
    tell("changed", { tokens: ids.slice(0, -1), written: Math.max(0, now().page.written - 1) }, true);
    await settled();
  }

  /** Lets the model write `count` tokens. */
  async function write(count = now().page.length) {
    const mine = writing = new AbortController();
    const { request, answer: { ids: prompt } } = now().reading.value.main;
    const { page } = now();
    const ids = [...prompt];
    const asked = { ...request, ...writingOf(page), text: null, tokens: prompt, max_new_tokens: count };
    tell("writing", count);
    let busy = null;
    try {
      for await (const { id } of stream("write", asked, mine.signal)) {
        if (mine.signal.aborted) break;
        if (ids.length === prompt.length) tell("kept");
        ids.push(id);
        if (busy) continue;
        tell("wrote", [...ids], page.written + ids.length - prompt.length);
        busy = settled().finally(() => { busy = null; });
        await Promise.race([busy, new Promise((resolve) => setTimeout(resolve, SLOW))]);
      }
    } catch (error) {
      if (!mine.signal.aborted) tell("failed", error);
    }
    if (mine.signal.aborted) return;
    if (ids.length > prompt.length) tell("wrote", ids, page.written + ids.length - prompt.length);
    await settled();
    tell("writing", 0);
  }

  /** Saves what is shown as a file. */
  async function keep(format) {
    const { reading: { value }, page, view: { head, walk } } = now();
    if (!value) return;
    tell("failed", null);
    const { request, written, answer: { position, target } } = value.main;
    try {
      const response = await send("export", {
        ...request, ...writingOf(page), format, skip: written, head, walk,
        position, target: target.id, against: value.reference && value.reference.request,
      });
      const [, download] = /filename="([\w.]+)"/.exec(response.headers.get("Content-Disposition"));
      const href = URL.createObjectURL(await response.blob());
      make(null, "a", { href, download }).click();
      URL.revokeObjectURL(href);
    } catch (error) {
      tell("failed", error);
    }
  }

  return { keep, stop: () => writing?.abort(), back: onText(back), pick: onText(pick), write: onText(write, false) };
}
