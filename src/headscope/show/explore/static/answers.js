// What the server is asked. A question that is asked again is not sent again, and another one ends the one before.

import { ask } from "./api.js";

/** Asks questions by name, and tells the session the event `answered`: {busy, value, of, problem}. `value` is the last
    answer, and `of` its question. An error is the `problem`. */
export function createAnswers(tell) {
  const asked = {}; // by name: {of, controller, promise}
  const known = {}; // by name: the question that `value` answers completely
  const once = {}; // promises of what is asked for once

  return {
    /** Asks the question `of` (a text; null: none any more). `work(signal, show)` resolves to the answer, and may `show`
        a part of it before. */
    ask(name, of, work) {
      if ((asked[name]?.of ?? null) === of) return;
      asked[name]?.controller.abort();
      const mine = asked[name] = { of, controller: new AbortController(), promise: null };
      if (of === null || of === known[name]) {
        tell("answered", name, { busy: false, problem: null });
        return;
      }
      const { signal } = mine.controller;
      const show = (changes) => { if (!signal.aborted) tell("answered", name, { problem: null, ...changes }); };
      const arrive = (value, complete) => {
        if (!signal.aborted) known[name] = complete ? of : null;
        show({ value, of, busy: !complete });
      };
      show({ busy: true });
      mine.promise = work(signal, (value) => arrive(value, false))
        .then((value) => arrive(value, true), (problem) => show({ busy: false, problem }));
    },

    /** Lets a question be asked again, although it is the last one. */
    forget(name) {
      asked[name]?.controller.abort();
      delete asked[name];
    },

    /** Waits until a question is answered, also one that is asked meanwhile. */
    async settled(name) {
      for (let seen = null; seen !== asked[name]?.promise; await seen) seen = asked[name]?.promise;
    },

    /** The answer to a request, which is sent again only after an error. */
    once(...request) {
      const question = JSON.stringify(request);
      once[question] ??= ask(...request);
      once[question].catch(() => delete once[question]);
      return once[question];
    },
  };
}
