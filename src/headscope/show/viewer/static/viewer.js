// The viewer: its state, its panels, and the model that the panels show.

import { createBar } from "./bar.js";
import { createTooltip, explain, make, oncePerFrame } from "./dom.js";
import { createElsewhere } from "./elsewhere.js";
import { GLOSSARY } from "./glossary.js";
import { createHeads } from "./heads.js";
import { createHelp } from "./help.js";
import { createLines } from "./lines.js";
import { createMap } from "./map.js";
import { createMetrics } from "./metrics.js";
import { createNext } from "./next.js";
import { modelOf, withWeights } from "./model.js";
import { definitionOf, nameOf, restsText, scoreText } from "./names.js";
import { EMPTY, headName } from "./state.js";
import { describe } from "./status.js";
import { DataError } from "./store.js";
import { createText } from "./text.js";
import { COMMON, VIEWER as TEXTS } from "./texts.js";
import { readTheme, watchTheme } from "./theme.js";
import { createTimeline } from "./timeline.js";
import { createWhy } from "./why.js";

const REST = 100; // ms without an action until the neighbours of the cursor are loaded

/** Builds the viewer in `root`. `store` gets the data, and `address` keeps the state. The text is shown in
    `place` if it is given, and `others` can be compared too (see `createBar`). `explanationOf` and `steps` explain
    edges (see `createWhy`), and `elsewhere` finds what a head does in other texts (see `createElsewhere`). Calls
    `viewChanged` with each state that is shown, and `opens` before a person opens a head. Returns {now, refresh, change, decide}: `now`
    returns the state; `refresh` and `change` change entries of it, and `refresh` also fetches the runs and the histories
    again; `decide` shows which heads decide (see `createHeads`). */
export function createViewer(root, options) {
  const { store, address, title, place, others, explanationOf, steps, elsewhere } = options;
  const { viewChanged = () => {}, opens = () => {} } = options;
  let state = { ...EMPTY, ...address.read() };
  let runs = [];
  let theme = null;
  let hovered = null; // what is at the pointer: a {token}, or a cell {query, key}
  // A rendering has a number. It shows its model, loads the weights, and paints them. Several can be on
  // their way, and an older one never replaces what a newer one has put on the screen.
  let newest = 0; // the rendering that started last
  let shown = { rendering: 0, model: null }; // whose model the panels show; it is null after an error
  let painted = { rendering: 0, model: null }; // whose weights they show; null if these could not be loaded

  // ---- Elements ----------------------------------------------------------------------------------

  const header = make(root, "header");
  if (title) make(header, "h1", { dir: "auto" }, title);
  createHelp(header, Boolean(place));
  const size = make(header, "p", { class: "quiet" });
  const actions = { change, changeRun, move, open, point, keep, why, follow };
  const bar = createBar(header, actions, others);
  const notice = make(root, "p", { class: "notice", role: "status", hidden: "" });
  const main = make(root, "main", { hidden: "" });
  const overview = make(main, "div", { class: "overview" });
  const timeline = createTimeline(overview, actions);
  const heads = createHeads(overview, actions);
  const reasons = createWhy(overview, actions, explanationOf, steps);
  const opened = make(main, "section", { class: "opened", "aria-labelledby": "opened-head" });
  const headline = make(opened, "div", { class: "headline" });
  const heading = make(headline, "h2", { id: "opened-head" });
  const [openedHead, otherHead] = ["", `${COMMON.minus} `].map((word) => createHead(heading, word));
  const moment = make(headline, "p", { class: "quiet moment" });
  const says = make(headline, "p", { class: "says", role: "status" });
  const panels = make(opened, "div", { class: "panels" });
  const text = createText(place ?? panels, actions);
  const predicted = createNext(panels, actions);
  const map = createMap(panels, actions);
  const lines = createLines(panels, actions);
  const metrics = createMetrics(panels);
  const examples = createElsewhere(panels, store, elsewhere);
  createTooltip(root);

  // ---- Actions -----------------------------------------------------------------------------------

  function change(changes) {
    if ("head" in changes && changes.head !== state.head) changes = { walk: [], ...changes };
    state = { ...state, ...changes };
    render();
  }

  function changeRun(run) {
    change({ run, text: null, compare: /^(run|role):/.test(state.compare) ? "" : state.compare });
  }

  /** Moves the cursor, and opens a head if it is given. */
  function move(index, head = shown.model.opened) {
    const { steps, heads } = shown.model.history;
    const last = steps.length - 1;
    if (index < 0 || index > last) return;
    // At the last step, the cursor follows a run that is still training.
    change({ step: index === last ? null : steps[index].step, head: headName(head, heads) });
  }

  function open(head) {
    opens();
    change({ head: headName(head, shown.model.history.heads) });
    // In a narrow window, the opened head is below the heads.
    if (!place && opened.getBoundingClientRect().top > 0.5 * innerHeight) opened.scrollIntoView();
  }

  /** Explains why the opened head looks from a query (default: the selected token) to a key (default: the strongest). */
  function why(query = shown.model.kept ?? shown.model.tokens - 1, key = null) {
    follow([{ head: shown.model.name, query, key }]);
  }

  /** Shows the last edge of a walk from one head to another, or no longer explains any. */
  function follow(walk) {
    if (walk.length > 0 && walk.at(-1).head !== shown.model.name) opens();
    change({ walk, ...(walk.length > 0 && { head: walk.at(-1).head }) });
  }

  function keep(token) {
    change({ token: state.token === token ? null : token });
  }

  const showPointed = oncePerFrame(() => {
    const { model } = painted;
    if (!model || model.labels !== shown.model?.labels) return; // the weights are on their way
    const { token, query = token, key = token } = hovered ?? shown.model.edge ?? { token: shown.model.kept ?? undefined };
    const pointed = { token, query, key };
    for (const panel of [text, map, lines]) panel.point(pointed, model);
    describe(says, model, pointed);
  });

  function point(what) {
    hovered = what;
    showPointed();
  }

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.shiftKey || !shown.model) return;
    if (event.target.closest?.("select, input, textarea") || header.querySelector("dialog[open]")) return;
    const { index, history: { steps } } = shown.model;
    const ends = event.target.closest?.(".chart") ? { Home: 0, End: steps.length - 1 } : {};
    const to = { ArrowLeft: index - 1, ArrowRight: index + 1, ...ends }[event.key];
    if (to !== undefined && steps.length > 1) {
      event.preventDefault();
      move(to);
    } else if (event.key === "Escape") {
      hovered = null;
      change(shown.model.edge ? { walk: [] } : { token: null });
    }
  });

  // ---- Rendering ---------------------------------------------------------------------------------

  function say(line) {
    notice.textContent = line;
    notice.hidden = !line;
  }

  async function render() {
    newest += 1;
    const rendering = newest;
    const isNewest = () => rendering === newest;
    delete document.documentElement.dataset.ready;
    try {
      if (runs.length === 0) throw new DataError(TEXTS.noRuns);
      bar.showRuns(runs, state);
      const model = { ...(await modelOf(store, runs, state)), theme };
      if (rendering > shown.rendering) {
        if (isNewest()) state = model.state;
        show(rendering, model);
        await loadAndPaint(rendering, model, isNewest);
      }
    } catch (error) {
      if (isNewest()) {
        main.hidden = true;
        shown = painted = { rendering, model: null };
        say(error.message);
      }
    }
    if (isNewest()) document.documentElement.dataset.ready = "1";
  }

  /** Shows everything that needs no weights. */
  function show(rendering, model) {
    const { history, step, tokens, comparison, problem } = model;
    main.hidden = false;
    root.classList.toggle("explaining", model.edge !== null);
    main.classList.toggle("one-step", history.steps.length < 2);
    root.style.setProperty("--heads", history.heads);
    say(problem ?? (tokens < history.text_tokens ? TEXTS.shortened(tokens, history.text_tokens) : ""));
    size.textContent = TEXTS.size({ ...history, tokens, measured: step.measured_tokens, measuredOn: step.measured_on,
                                    steps: history.name ? 0 : history.steps.length });
    const two = comparison?.kind === "head";
    openedHead(model.name, step, model.opened);
    otherHead(comparison?.what, two ? step : null, comparison?.opened);
    moment.replaceChildren(model.at);
    const losses = [model.loss, model.without].filter(Boolean).map((loss) => ` · ${loss}`);
    make(moment, "span", { class: "loss" }, losses.join(""));
    if (comparison && !two) moment.append(` ${COMMON.minus} ${comparison.note ?? comparison.what}`);
    for (const panel of [timeline, heads, text, predicted, metrics, examples]) panel.show(model);
    bar.show(model);
    if (model.edge?.key !== null) address.write(state);
    shown = { rendering, model };
    viewChanged(state);
  }

  /** Loads the weights of a model, and shows everything that needs them. */
  async function loadAndPaint(rendering, model, isNewest) {
    const complete = await withWeights(store, model).catch((error) => {
      if (isNewest()) say(error.message); // other steps may be fine
      return null;
    });
    if (rendering < painted.rendering) return;
    painted = { rendering, model: complete };
    main.classList.toggle("without-weights", !complete);
    if (!complete) return;
    for (const panel of [heads, predicted, map, lines, reasons]) panel.paint(complete);
    showPointed();
    setTimeout(() => { if (isNewest()) prefetch(complete); }, REST);
  }

  /** Loads the data of the neighbours of the cursor. */
  function prefetch({ history, index, opened }) {
    const layer = Math.floor(opened / history.heads);
    const steps = [index + 1, index - 1].filter((next) => history.steps[next]);
    // An error is shown when the step is opened.
    Promise.allSettled(steps.flatMap((next) => [store.thumbnails(history, next), store.layer(history, next, layer)]));
  }

  async function refresh(changes = {}) {
    delete document.documentElement.dataset.ready;
    state = { ...state, ...changes };
    try {
      runs = await store.runs();
      store.reload();
    } catch (error) {
      say(error.message);
      document.documentElement.dataset.ready = "1";
      return;
    }
    await render();
  }

  watchTheme(() => {
    theme = readTheme();
    if (shown.model) render();
  });
  address.onChange((changed) => change({ ...changed, head: changed.head ?? state.head }));
  const resized = new ResizeObserver(oncePerFrame(() => {
    for (const panel of [timeline, heads, map, lines]) panel.resize();
  }));
  for (const element of [root, overview]) resized.observe(element); // the panel Why hides what is in it
  return { refresh, change, now: () => state, decide: heads.decide };
}

/** A place in the headline for a head, its name and its score. Returns a function that shows them. */
function createHead(heading, word) {
  const box = make(heading, "span", {}, word);
  const [head, name, score, rests] = ["", "", "score", "score"].map((look) => {
    const element = make(box, "span", { class: look, dir: "auto" });
    box.append(" ");
    return element;
  });
  return (text, step, number) => {
    box.hidden = step === null;
    if (box.hidden) return;
    head.textContent = text;
    name.textContent = nameOf(step, number);
    explain(name, definitionOf(step.names[number]) + (step.uncertain[number] ? ` ${GLOSSARY.words["name?"]}` : ""));
    score.textContent = scoreText(step, number);
    explain(score, score.textContent ? GLOSSARY.words.score : undefined);
    rests.textContent = restsText(step, number);
    explain(rests, rests.textContent ? GLOSSARY.words.rests : undefined);
  };
}
