// The model: everything that the panels show, computed from the state and the data.

import { own } from "./dom.js";
import { metricOf, titleOf } from "./names.js";
import { predictionsOf } from "./predictions.js";
import { WEIGHTS, differenceText, differences, nearest, reachOf, stepText } from "./scales.js";
import { headName, headNumber } from "./state.js";
import { COMMON, COMPARE, HEADS } from "./texts.js";
import { triangle } from "./weights.js";

/** The model without weights. Chooses what `state` leaves open, and keeps it in `model.state`. */
export async function modelOf(store, runs, state) {
  const chosen = await choose(store, runs, state);
  const { history, index, opened } = chosen;
  const { comparison, problem } = await chooseComparison(store, runs, chosen);
  if (!problem) chosen.state.compare = comparison ? `${comparison.kind}:${comparison.choice}` : "";
  const step = stepOf(history, index);
  const name = headName(opened, history.heads);
  const at = COMMON.step(stepText(step.step));
  const loss = lossText(step.step, history.loss);
  const change = own(step.metrics, "loss_change")?.[opened];
  return {
    ...chosen, runs, comparison, problem, step, name,
    what: { step: at, head: name, run: runText(chosen.state.run, history, step) }[comparison?.kind],
    labels: history.labels,
    losses: [null, ...step.losses], // of each token
    tokens: history.labels.length,
    view: chosen.state.view,
    title: titleOf(step, opened, history.heads),
    at, loss, moment: loss ? `${at} · ${loss}` : at,
    without: typeof change === "number" ? HEADS.lossWithout(differenceText(change, 3)) : "",
  };
}

/** Adds the weights to a model: `values` are those to show, in the colour scale `scale`. */
export async function withWeights(store, model) {
  const { history, index, opened, kept, comparison, tokens, view } = model;
  const weights = async (from) => triangle(
    await store.layer(from.history, from.index, Math.floor(from.opened / history.heads)),
    from.opened % history.heads, tokens, view);
  const thumbnailsDiffer = comparison && comparison.kind !== "head";
  const [thumbnails, otherThumbnails, mine, other, predictions] = await Promise.all([
    store.thumbnails(history, index),
    thumbnailsDiffer ? store.thumbnails(comparison.history, comparison.index) : null,
    weights(model),
    comparison ? weights(comparison) : null,
    kept === null ? null : predictionsOf(store, history, index, opened, kept)
      .catch(({ message }) => ({ problem: message })), // the weights may be fine
  ]);
  const values = other ? mine.map((value, place) => value - other[place]) : mine;
  const reach = other ? reachOf(values) : 1;
  const scale = other ? differences(reach) : WEIGHTS;
  return { ...model, thumbnails, otherThumbnails, own: mine, other, values, reach, scale, predictions };
}

/** A step of a history, with the names and metrics that were measured when the run ended, if there are
    any: they rest on more tokens. */
function stepOf(history, index) {
  const { measured_tokens, measured_on, steps } = history;
  return { measured_tokens, measured_on, ...steps[index], ...steps[index].measured };
}

async function choose(store, runs, state) {
  const run = runs.find(({ name }) => name === state.run) ?? runs[0];
  const tag = run.texts.includes(state.text) ? state.text : run.texts[0];
  const history = await store.history(run.name, tag);
  const { steps, heads, labels } = history;
  const index = state.step === null ? steps.length - 1 : nearest(numbersOf(steps), state.step);
  const last = stepOf(history, steps.length - 1);
  const best = last.ratios.reduce((top, ratio, head) => (ratio > last.ratios[top] ? head : top), 0);
  const opened = headNumber(state.head, history) ?? best;
  const named = metricOf(last.names[opened]);
  const known = (metric) => metric !== null && Object.hasOwn(last.metrics, metric);
  const metric = [state.metric, named, "previous"].find(known) ?? Object.keys(last.metrics)[0];
  const kept = state.token !== null && state.token < labels.length ? state.token : null;
  const chosen = { run: run.name, text: tag, head: headName(opened, heads), metric, token: kept };
  return { state: { ...state, ...chosen }, history, index, opened, metric, kept };
}

/** What the model is compared with, {kind, choice, what, history, index, step, opened}, or null. `problem` is
    the reason if the comparison in the state is not possible. */
async function chooseComparison(store, runs, { state, history, index, opened }) {
  const [kind] = state.compare.split(":", 1);
  const value = state.compare.slice(kind.length + 1);
  if (kind === "") return { comparison: null };
  const found = { kind, choice: value, history, index, opened };
  if (kind === "step") {
    found.index = nearest(numbersOf(history.steps), Number(value) || 0);
    found.choice = String(history.steps[found.index].step);
    found.what = COMMON.step(stepText(history.steps[found.index].step));
  } else if (kind === "head") {
    found.opened = headNumber(value, history);
    if (found.opened === null) return refuse(COMPARE.noHead(value));
    if (found.opened === opened) return { comparison: null };
    found.what = headName(found.opened, history.heads);
  } else {
    const run = runs.find(({ name }) => name === value);
    if (!run) return refuse(COMPARE.noRun(value));
    const tag = run.texts.includes(state.text) ? state.text : run.texts[0];
    found.history = await store.history(run.name, tag);
    const { labels, layers, heads, steps } = found.history;
    if (layers !== history.layers || heads !== history.heads) return refuse(COMPARE.otherHeads(value));
    if (JSON.stringify(labels) !== JSON.stringify(history.labels)) return refuse(COMPARE.otherTokens(value));
    found.index = nearest(numbersOf(steps), history.steps[index].step);
    found.what = runText(value, found.history, steps[found.index]);
  }
  found.step = stepOf(found.history, found.index);
  return { comparison: found };
}

const numbersOf = (steps) => steps.map(({ step }) => step);
const runText = (run, history, { step }) => history.name ?? COMPARE.runAtStep(run, stepText(step));
const refuse = (problem) => ({ comparison: null, problem });

/** "train/loss 5.12": the last loss that was logged until this step, or "" if there is none. */
function lossText(step, { name, steps, values }) {
  const loss = values[steps.findLastIndex((each) => each <= step)];
  return typeof loss === "number" ? `${name} ${loss.toFixed(2)}` : "";
}
