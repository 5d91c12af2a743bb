// The viewer: its state, its panels, and the model that the panels show.

import { createBar } from "./bar.js";
import { createTooltip, explain, make, oncePerFrame, write } from "./dom.js";
import { createMetrics } from "./metrics.js";
import { createGrid } from "./grid.js";
import { createLines } from "./lines.js";
import { createMap } from "./map.js";
import { createNext } from "./next.js";
import { modelOf, withWeights } from "./model.js";
import { definitionOf, nameOf, scoreText } from "./names.js";
import { EMPTY, headName } from "./state.js";
import { describe, onThisText } from "./status.js";
import { DataError } from "./store.js";
import { createText } from "./text.js";
import { COMMON, VIEWER as TEXTS } from "./texts.js";
import { readTheme, watchTheme } from "./theme.js";
import { createTimeline } from "./timeline.js";

const REST = 100; // ms without an action until the neighbours of the cursor are loaded

/** Builds the viewer in `root`. `store` gets the data, and `address` keeps the state. The text is shown
    in `place` if it is given. Calls `viewChanged` with each state that is shown. Returns {refresh, change}:
    both change parts of the state, and `refresh` also fetches the runs and the histories again. */
export function createViewer(root, { store, address, title, place, viewChanged = () => {} }) {
  let state = { ...EMPTY, ...address.read() };
  let runs = [];
  let model = null; // what the panels show, perhaps still without its weights
  let complete = null; // the model whose weights the panels show
  let theme = null;
  let hovered = null; // what is at the pointer: a {token}, or a cell {query, key}
  let turn = 0; // counts the renderings that were started
  let shown = 0; // the newest of them that was shown without its weights
  let painted = 0; // the newest of them that was finished

  // ---- Elements ----------------------------------------------------------------------------------

  const header = make(root, "header");
  if (title) make(header, "h1", { dir: "auto" }, title);
  const size = make(header, "p", { class: "quiet" });
  const actions = { change, changeRun, move, open, point, keep };
  const bar = createBar(header, actions);
  const notice = make(root, "p", { class: "notice", role: "status", hidden: "" });
  const main = make(root, "main", { hidden: "" });
  const overview = make(main, "div", { class: "overview" });
  const timeline = createTimeline(overview, actions);
  const grid = createGrid(overview, actions);
  const opened = make(main, "section", { class: "opened", "aria-labelledby": "opened-head" });
  const headline = make(opened, "div", { class: "headline" });
  const heading = make(headline, "h2", { id: "opened-head" });
  const [openedHead, otherHead] = ["", `${COMMON.minus} `].map((word) => createHead(heading, word));
  const moment = make(headline, "p", { class: "quiet moment" });
  const here = make(headline, "p", { class: "quiet here" });
  const says = make(headline, "p", { class: "says", role: "status" });
  const panels = make(opened, "div", { class: "panels" });
  const text = createText(place ?? panels, actions);
  const predicted = createNext(panels, actions);
  const map = createMap(panels, actions);
  const lines = createLines(panels, actions);
  const metrics = createMetrics(panels);
  createTooltip(root);

  // ---- Actions -----------------------------------------------------------------------------------

  function change(part) {
    state = { ...state, ...part };
    render();
  }

  function changeRun(run) {
    change({ run, text: null, compare: state.compare.startsWith("run:") ? "" : state.compare });
  }

  /** Moves the cursor, and opens a head if it is given. */
  function move(index, head = model.opened) {
    const last = model.history.steps.length - 1;
    if (index < 0 || index > last) return;
    // At the last step, the cursor follows a run that is still training.
    change({
      step: index === last ? null : model.history.steps[index].step,
      head: headName(head, model.history.heads),
    });
  }

  function open(head) {
    change({ head: headName(head, model.history.heads) });
    // In a narrow window, the opened head is below the heads.
    if (!place && opened.getBoundingClientRect().top > 0.5 * innerHeight) opened.scrollIntoView();
  }

  function keep(token) {
    change({ token: state.token === token ? null : token });
  }

  const showPointed = oncePerFrame(() => {
    if (!complete || complete.labels !== model?.labels) return; // the weights are on their way
    const { token, query = token, key = token } = hovered ?? { token: model.kept ?? undefined };
    const pointed = { token, query, key };
    for (const panel of [text, map, lines]) panel.point(pointed, complete);
    describe(says, complete, pointed);
  });

  function point(what) {
    hovered = what;
    showPointed();
  }

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.shiftKey || !model) return;
    if (event.target.closest?.("select, input, textarea")) return;
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (by && model.history.steps.length > 1) {
      event.preventDefault();
      move(model.index + by);
    } else if (event.key === "Escape") {
      hovered = null;
      change({ token: null });
    }
  });

  // ---- Rendering ---------------------------------------------------------------------------------

  function say(line) {
    notice.textContent = line;
    notice.hidden = !line;
  }

  async function render() {
    turn += 1;
    const mine = turn;
    delete document.documentElement.dataset.ready;
    try {
      if (runs.length === 0) throw new DataError(TEXTS.noRuns);
      bar.showRuns(runs, state);
      await renderModel(mine);
    } catch (error) {
      if (mine === turn) {
        main.hidden = true;
        model = complete = null;
        say(error.message);
      }
    }
    if (mine === turn) document.documentElement.dataset.ready = "1";
  }

  async function renderModel(mine) {
    const next = { ...(await modelOf(store, runs, state)), theme };
    if (mine < shown) return; // a newer rendering was faster
    shown = mine;
    if (mine === turn) state = next.state;
    show(next);
    let weights = null;
    try {
      weights = await withWeights(store, next);
    } catch (error) {
      if (mine === turn) say(error.message); // other steps may be fine
    }
    if (mine < painted || !model) return;
    [painted, complete] = [mine, weights];
    main.classList.toggle("without-weights", !weights);
    if (!weights) return;
    for (const panel of [grid, predicted, map, lines]) panel.paint(complete);
    write(here, onThisText(complete));
    showPointed();
    setTimeout(() => { if (mine === turn) prefetch(weights); }, REST);
  }

  /** Shows everything that needs no weights. */
  function show(next) {
    const { history, step, tokens, comparison, problem } = next;
    main.hidden = false;
    main.classList.toggle("one-step", history.steps.length < 2);
    main.style.setProperty("--heads", history.heads);
    say(problem ?? (tokens < history.text_tokens ? TEXTS.shortened(tokens, history.text_tokens) : ""));
    size.textContent = TEXTS.size({ ...history, tokens, measured: step.measured_tokens, measuredOn: step.measured_on,
                                    steps: history.name ? 0 : history.steps.length });
    const two = comparison?.kind === "head";
    openedHead(next.name, step, next.opened);
    otherHead(comparison?.what, two ? step : null, comparison?.opened);
    moment.replaceChildren(next.at);
    make(moment, "span", { class: "loss" }, [next.loss, next.without].map((each) => each && ` · ${each}`).join(""));
    if (comparison && !two) moment.append(` ${COMMON.minus} ${comparison.what}`);
    for (const panel of [timeline, grid, text, predicted, metrics]) panel.show(next);
    bar.show(next);
    address.write(state);
    model = next;
    viewChanged(state);
  }

  /** Loads the data of the neighbours of the cursor. */
  function prefetch({ history, index, opened }) {
    const layer = Math.floor(opened / history.heads);
    const steps = [index + 1, index - 1].filter((next) => history.steps[next]);
    // An error is shown when the step is opened.
    Promise.allSettled(steps.flatMap((next) => [store.thumbnails(history, next), store.layer(history, next, layer)]));
  }

  async function refresh(part = {}) {
    state = { ...state, ...part };
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
    if (model) render();
  });
  address.onChange((changed) => change(changed));
  new ResizeObserver(oncePerFrame(() => {
    for (const panel of [timeline, grid, predicted, map, lines]) panel.resize();
  })).observe(root);
  return { refresh, change };
}

/** A place in the headline for a head, its name and its score. Returns a function that shows them. */
function createHead(heading, word) {
  const part = make(heading, "span", {}, word);
  const [head, name, score] = ["", "", "score"].map((look) => {
    const element = make(part, "span", { class: look, dir: "auto" });
    part.append(" ");
    return element;
  });
  return (text, step, number) => {
    part.hidden = step === null;
    if (part.hidden) return;
    head.textContent = text;
    name.textContent = nameOf(step, number);
    explain(name, definitionOf(step.names[number]) + (step.uncertain[number] ? ` ${TEXTS.uncertain}` : ""));
    score.textContent = scoreText(step, number);
    explain(score, score.textContent ? TEXTS.score : undefined);
  };
}
