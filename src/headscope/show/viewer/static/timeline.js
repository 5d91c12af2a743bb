// The timeline: metrics, loss and names over the steps, and the cursor that everything else follows.

import { heightIn, sizedInCss } from "./canvas.js";
import { drawLabelledLines, drawLoss, drawOtherLines, drawSteps, labelledHeads, rangeOf } from "./chart.js";
import { explain, make, own, set } from "./dom.js";
import { GLOSSARY } from "./glossary.js";
import { Button, Field, Select, draw, html, term } from "./html.js";
import { NO_NAME, background, definitionOf, meaningOf, titleOf, toneOf } from "./names.js";
import { metricText, nearest, placesOf, stepText, timeAxis } from "./scales.js";
import { headName, headsOf } from "./state.js";
import { COMMON, HEADS, TIMELINE as TEXTS } from "./texts.js";

const [LINES, LOSS, AXIS, GAP] = [126, 28, 22, 16]; // heights in pixels
const [LEFT, ROOM] = [46, 104]; // pixels for labels at both ends of the lines, as in the style sheet
// Heights of strips: of all of them, unless they are very many, of one, and of the lowest with stripes.
const [MOST, HIGH, STRIPED] = [300, 12, 8];
const PLAY = 250; // ms per step

export function createTimeline(parent, actions) {
  const section = make(parent, "section", { class: "card timeline-card", "aria-label": TEXTS.title });
  const fold = make(section, "details", { open: "", toggle: folded });
  make(fold, "summary", {}, TEXTS.title);
  const controls = make(fold, "div", { class: "controls" });
  const chart = make(fold, "div", { class: "chart", role: "slider", tabindex: 0, "aria-valuemin": 0,
                                       "aria-label": TEXTS.trainingStep });
  const canvas = make(chart, "canvas", { "aria-hidden": "true" });
  const strips = make(chart, "div", { class: "strips", "aria-hidden": "true" });
  const openedLabel = make(null, "span"); // of the opened head, above that of its strip
  const other = make(chart, "div", { class: "cursor other", hidden: "" });
  const cursor = make(chart, "div", { class: "cursor" });
  const tip = make(chart, "div", { class: "hovered", "aria-hidden": "true", hidden: "" });
  const legend = make(fold, "p", { class: "legend names" });
  make(fold, "p", { class: "quiet" }, TEXTS.about);

  let current = null;
  let listed = null; // the history whose names and metrics are listed
  let metrics = []; // those that all its steps have
  let playing = 0;

  const steps = () => current.history.steps;

  function drawControls() {
    const { history, metric, step } = current;
    const show = (field) => { // not while one types
      if (field && document.activeElement !== field) field.value = stepText(step.step);
    };
    draw(controls, html`<${Button} look="play" about=${TEXTS.play} text=${playing ? TEXTS.pause : TEXTS.play} click=${() => setPlaying(!playing)} />
      <${Field} label=${TEXTS.step} tag="input" inputmode="numeric" field=${show} onChange=${moveToTyped}
        onFocus=${({ target }) => target.select()} />
      <div class="chooser"><${Select} label=${TEXTS.metricOf} text=${TEXTS.metric} value=${metric}
        groups=${{ "": metrics.map((each) => [each, each.replaceAll("_", " ")]) }} choose=${(chosen) => actions.change({ metric: chosen })} />
        <span class="info" role="note" ...${term(meaningOf(history, metric) || TEXTS.undescribed(metric))}>?</span></div>`);
  }

  function areas() {
    const [left, right] = [LEFT, chart.clientWidth - ROOM];
    const x = timeAxis(steps(), left, right);
    const xs = steps().map(({ step }) => x(step));
    const area = (top, height) => ({ left, right, top, height, x, xs });
    const lines = area(12, LINES);
    const loss = area(lines.top + lines.height + GAP, current.history.loss.steps.length ? LOSS : -GAP);
    const axis = area(loss.top + loss.height + 4, AXIS);
    return { lines, loss, axis, height: axis.top + axis.height };
  }

  function drawChart() {
    if (chart.clientWidth === 0) return; // it is not shown
    const { lines, loss, axis, height } = areas();
    const context = sizedInCss(canvas, chart.clientWidth, height);
    drawOtherLines(context, current, lines);
    drawLabelledLines(context, current, lines);
    drawLoss(context, current, loss);
    drawSteps(context, current, axis);
    const { step, comparison } = current;
    other.hidden = comparison?.kind !== "step";
    cursor.style.transform = `translateX(${lines.x(step.step)}px)`;
    if (!other.hidden) other.style.transform = `translateX(${lines.x(comparison.step.step)}px)`;
  }

  // ---- Input: drag and click, keys, play ---------------------------------------------------------

  function stepAt(event) {
    return nearest(areas().lines.xs, event.clientX - chart.getBoundingClientRect().left);
  }

  /** The head whose strip or line is at the pointer, or null. */
  function headAt(event) {
    const strip = document.elementFromPoint(event.clientX, event.clientY)?.closest("[data-head]");
    if (strip) return Number(strip.dataset.head);
    const { lines } = areas();
    const y = event.clientY - chart.getBoundingClientRect().top;
    const { history, metric } = current;
    if (y > lines.top + lines.height + 4) return null;
    const values = own(steps()[stepAt(event)].metrics, metric) ?? [];
    const heightOf = heightIn(lines, rangeOf(current));
    const distance = (head) => (typeof values[head] !== "number" ? Infinity : Math.abs(heightOf(values[head]) - y));
    const heads = [...labelledHeads(current), ...headsOf(history)]; // those with a label are first
    const near = heads.sort((a, b) => distance(a) - distance(b))[0];
    return distance(near) <= 8 ? near : null;
  }

  const isDragged = ({ pointerId }) => chart.hasPointerCapture(pointerId);

  /** Says which head, name, value and step are at the pointer. */
  function showTip(event) {
    const head = headAt(event);
    chart.classList.toggle("on-head", !isDragged(event) && head !== null);
    tip.hidden = head === null;
    if (tip.hidden) return;
    const { history, metric } = current;
    const step = steps()[stepAt(event)];
    const value = metricText(own(step.metrics, metric)?.[head]);
    tip.textContent = [titleOf(step, head, history.heads), `${metric.replaceAll("_", " ")} ${value}`,
      COMMON.step(step.step)].join(" · ");
    const { left, top } = chart.getBoundingClientRect();
    tip.style.left = `${Math.max(0, Math.min(event.clientX - left + 12, chart.clientWidth - tip.offsetWidth))}px`;
    tip.style.top = `${event.clientY - top - tip.offsetHeight - 10}px`;
  }

  chart.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    chart.setPointerCapture(event.pointerId);
    setPlaying(false);
    actions.move(stepAt(event), headAt(event) ?? undefined);
  });
  chart.addEventListener("pointermove", (event) => {
    if (!current) return;
    if (isDragged(event) && stepAt(event) !== current.index) actions.move(stepAt(event));
    showTip(event);
  });
  chart.addEventListener("pointerleave", () => { tip.hidden = true; });

  function moveToTyped({ target: field }) {
    const wanted = field.value.replace(/\D/g, "");
    const index = wanted ? nearest(steps().map(({ step }) => step), Number(wanted)) : current.index;
    field.value = stepText(steps()[index].step);
    actions.move(index);
  }

  const isLast = () => current.index + 1 === steps().length;

  function playOn() {
    if (document.documentElement.dataset.ready !== "1") return; // the data is still on its way
    if (isLast()) setPlaying(false);
    else actions.move(current.index + 1);
  }

  function folded() {
    if (!fold.open) setPlaying(false);
    drawChart();
  }

  function setPlaying(on) {
    clearInterval(playing);
    playing = on ? setInterval(playOn, PLAY) : 0;
    drawControls();
    if (on && isLast()) actions.move(0);
  }

  // ---- What the model says -----------------------------------------------------------------------

  function list(history) {
    listed = history;
    const isKnown = (metric) => history.steps.every(({ metrics }) => own(metrics, metric));
    metrics = Object.keys(history.steps.at(-1).metrics).filter(isKnown);
    const names = new Set(history.steps.flatMap(({ names }) => names));
    names.delete(NO_NAME);
    const known = Object.keys(GLOSSARY.names).filter((name) => names.has(name));
    const unknown = [...names].filter((name) => !known.includes(name)).slice(0, 20);
    drawStrips(strips, history);
    legend.replaceChildren();
    for (const name of [...known, ...unknown]) {
      const item = make(legend, "span", { dir: "auto" });
      make(item, "i", { class: "swatch" }).style.background = background(name);
      item.append(name);
      explain(item, definitionOf(name));
    }
    if (history.steps.some(({ held }) => held.some(Boolean))) make(legend, "span", {}, TEXTS.held);
  }

  return {
    show(model) {
      current = model;
      const { history, opened, moment, step, title, index } = model;
      section.hidden = history.steps.length < 2;
      if (section.hidden) return;
      if (listed !== history) list(history);
      drawControls();
      set(chart, { "aria-valuenow": index, "aria-valuemax": steps().length - 1,
                   "aria-valuetext": `${moment}, ${title}` });
      strips.querySelector(".opened")?.classList.remove("opened");
      strips.children[opened].classList.add("opened");
      strips.children[opened].append(openedLabel);
      openedLabel.textContent = headName(opened, history.heads);
      drawChart();
    },
    resize: drawChart,
  };
}

/** Draws the strips in a box, one per head: its name from each step to the next one, and a line where it is held. */
function drawStrips(box, { layers, heads, steps }) {
  box.replaceChildren();
  const height = Math.max(1, Math.min(HIGH, Math.floor(MOST / (layers * heads))));
  box.style.setProperty("--height", `${height}px`);
  box.classList.toggle("low", height < HIGH);
  const places = placesOf(steps);
  const edges = [0, ...places.slice(1).map((place, index) => (places[index] + place) / 2), 100];
  for (const head of headsOf({ layers, heads })) {
    const strip = make(box, "div", { class: head % heads === 0 ? "first" : "", "data-head": head });
    make(strip, "span", {}, height < HIGH ? `L${head / heads}` : headName(head, heads)); // shown of each first head
    for (let from = 0, to; from < steps.length; from = to) {
      const name = steps[from].names[head];
      const held = steps[from].held[head];
      const isSame = (step) => step.names[head] === name && step.held[head] === held;
      for (to = from + 1; to < steps.length && isSame(steps[to]);) to += 1;
      const part = make(strip, "i", { class: held ? "held" : "" });
      const label = held && name === NO_NAME ? HEADS.held : name;
      if (label !== NO_NAME) make(part, "bdi", {}, label);
      part.style.flexGrow = edges[to] - edges[from];
      part.style.setProperty("--look", background(name, height < STRIPED));
      part.style.setProperty("--tone", toneOf(name));
    }
  }
}
