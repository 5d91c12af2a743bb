// The model: everything that the panels show, computed from the state and the data, and what the GPT predicts.

import { own } from "./dom.js";
import { metricOf, titleOf } from "./names.js";
import { sameRoles } from "./roles.js";
import { WEIGHTS, differenceText, differences, nearest, reachOf, stepText } from "./scales.js";
import { headName, headNumber } from "./state.js";
import { damaged, shaped } from "./store.js";
import { COMMON, COMPARE, DATA, HEADS } from "./texts.js";
import { triangle } from "./weights.js";

const MAX_LABEL = 200;

/** The model without weights. Chooses what `state` leaves open, and keeps it in `model.state`. */
export async function modelOf(store, runs, state) {
  const chosen = await choose(store, runs, state);
  const { history, index, opened } = chosen;
  const { comparison, problem } = await chooseComparison(store, runs, chosen);
  if (!problem) chosen.state.compare = comparison ? `${comparison.kind}:${comparison.value}` : "";
  const step = history.steps[index];
  const name = headName(opened, history.heads);
  const run = runText(chosen.state.run, history, step);
  const at = COMMON.step(history.imported ? null : step.step);
  const loss = lossText(step.step, history.loss);
  const change = own(step.metrics, "loss_change")?.[opened];
  return {
    ...chosen, runs, comparison, problem, step, name,
    what: { step: at, head: name, run, role: COMPARE.headOf(name, run) }[comparison?.kind],
    labels: history.labels,
    losses: [null, ...step.losses], // one per token
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
  const [thumbnails, otherThumbnails, mine, other, edges, predictions] = await Promise.all([
    store.thumbnails(history, index),
    thumbnailsDiffer ? store.thumbnails(comparison.history, comparison.index) : null,
    weights(model),
    comparison ? weights(comparison) : null,
    kept === null ? null : edgesOf(store, history, index, kept).catch(() => null),
    kept === null ? null : predictionsOf(store, history, index, opened, kept)
      .catch(({ message }) => ({ problem: message })), // the weights may be fine
  ]);
  const values = other ? mine.map((value, place) => value - other[place]) : mine;
  const reach = other ? reachOf(values) : 1;
  const scale = other ? differences(reach) : WEIGHTS;
  return { ...model, thumbnails, otherThumbnails, own: mine, other, values, reach, scale, edges, predictions };
}

async function choose(store, runs, state) {
  const run = runs.find(({ name }) => name === state.run) ?? runs[0];
  const tag = run.texts.includes(state.text) ? state.text : run.texts[0];
  const history = await store.history(run.name, tag);
  const { steps, heads, labels } = history;
  const index = state.step === null ? steps.length - 1 : nearest(numbersOf(steps), state.step);
  const last = steps.at(-1);
  const ratios = last.ratios.map((ratio, head) => (last.held[head] ? -1 : ratio ?? 0));
  const best = ratios.indexOf(Math.max(...ratios));
  const isEdge = ({ head, query, key }) => headNumber(head, history) !== null && query < labels.length && key <= query;
  const walk = state.walk.every(isEdge) ? state.walk : [];
  const opened = headNumber(walk.at(-1)?.head ?? state.head, history) ?? best;
  const named = metricOf(last.names[opened]);
  const known = (metric) => metric !== null && Object.hasOwn(last.metrics, metric);
  const metric = [state.metric, named, "previous"].find(known) ?? Object.keys(last.metrics)[0];
  const kept = state.token !== null && state.token < labels.length ? state.token : null;
  const chosen = { run: run.name, text: tag, head: headName(opened, heads), metric, token: kept, walk };
  return { state: { ...state, ...chosen }, history, index, opened, metric, kept, edge: walk.at(-1) ?? null };
}

/** What the model is compared with, {kind, value, what, history, index, step, opened}, or null. For heads with the
    same role, `roles` are those of all heads, and `note` and `all` describe them. `problem` is the reason if the
    comparison in the state is not possible. */
async function chooseComparison(store, runs, { state, history, index, opened }) {
  const [kind] = state.compare.split(":", 1);
  const value = state.compare.slice(kind.length + 1);
  if (kind === "") return { comparison: null };
  const comparison = { kind, value, history, index, opened };
  if (kind === "step") {
    comparison.index = nearest(numbersOf(history.steps), Number(value) || 0);
    const { step } = history.steps[comparison.index];
    comparison.value = String(step);
    comparison.what = COMMON.step(step);
  } else if (kind === "head") {
    comparison.opened = headNumber(value, history);
    if (comparison.opened === null) return refuse(COMPARE.noHead(value));
    if (comparison.opened === opened) return { comparison: null };
    comparison.what = headName(comparison.opened, history.heads);
  } else {
    const run = runs.find(({ name }) => name === value);
    if (!run) return refuse(COMPARE.noRun(value));
    const tag = run.texts.includes(state.text) ? state.text : run.texts[0];
    comparison.history = await store.history(run.name, tag);
    const { labels, layers, heads, steps } = comparison.history;
    if (layers !== history.layers || heads !== history.heads) return refuse(COMPARE.otherHeads(value));
    if (JSON.stringify(labels) !== JSON.stringify(history.labels)) return refuse(COMPARE.otherTokens(value));
    comparison.index = nearest(numbersOf(steps), history.steps[index].step);
    comparison.what = runText(value, comparison.history, steps[comparison.index]);
  }
  comparison.step = comparison.history.steps[comparison.index];
  if (kind === "role") {
    comparison.all = COMPARE.theirRoles(comparison.what);
    comparison.roles = sameRoles({ history, index }, comparison);
    const { head, difference } = comparison.roles[opened];
    if (difference === null) return refuse(COMPARE.noRole(headName(opened, history.heads)));
    comparison.opened = head;
    comparison.what = COMPARE.headOf(headName(head, history.heads), comparison.what);
    comparison.note = COMPARE.sameRole(comparison.what, headName(opened, history.heads), difference.toFixed(2));
  }
  return { comparison };
}

const numbersOf = (steps) => steps.map(({ step }) => step);
const runText = (run, history, { step }) => history.name ?? COMPARE.runAtStep(run, stepText(step));
const refuse = (problem) => ({ comparison: null, problem });

/** "train/loss 5.12": the last loss that was logged until this step, or "" if there is none. */
function lossText(step, { name, steps, values }) {
  const loss = values[steps.findLastIndex((logged) => logged <= step)];
  return typeof loss === "number" ? `${name} ${loss.toFixed(2)}` : "";
}

// ---- Predictions -------------------------------------------------------------------------------

/** What the GPT predicts after a token at a step, or null if the data does not have it:
    - `next`: the token whose probability is shown, and `follows`: whether it follows in the text.
    - `likely`, `raised`: tokens {text, value, marked}. `value` is a probability, or for `raised` what
      the head `opened` adds to the logit of the token. `marked` is true for `next`.
    - `lens`: for each layer the most likely token, as above, with the probability of `next`.
    - `pushes`: what each head adds to the logit of `next`. */
async function predictionsOf(store, history, index, opened, token) {
  const { layers, heads } = history;
  const [labels, lens, most] = await Promise.all([
    store.part(history, index, "labels"),
    store.part(history, index, "lens"),
    store.part(history, index, "raised", Math.floor(opened / heads)),
  ]);
  if (!lens) return null;
  const places = lens.positions?.shape[0];
  const place = shaped(lens, "positions", places).indexOf(token);
  if (place < 0) return null;
  const top = lens.tokens?.shape[2];
  const texts = jsonOf(labels); // of tokens
  if (!areLabels(texts)) throw damaged(DATA.labelsNotTexts);
  const target = shaped(lens, "targets", places)[place];
  const listed = (arrays, values, rows, row, count = top) => {
    const tokens = shaped(arrays, "tokens", rows, places, top);
    const numbers = shaped(arrays, values, rows, places, top);
    return Array.from({ length: count }, (_, i) => {
      const at = (row * places + place) * top + i;
      return { text: textOf(texts, tokens[at]), value: numbers[at], marked: tokens[at] === target };
    });
  };
  const next = textOf(texts, target);
  const ofTarget = shaped(lens, "target_probabilities", layers + 1, places);
  const pushes = shaped(lens, "target_pushes", layers, heads, places);
  const likely = listed(lens, "probabilities", layers + 1, layers);
  if (!likely.some(({ marked }) => marked)) {
    likely.push({ text: next, value: ofTarget[layers * places + place], marked: true });
  }
  return {
    next, likely,
    follows: shaped(lens, "follows", places)[place] === 1,
    lens: Array.from({ length: layers + 1 }, (_, row) => ({
      ...listed(lens, "probabilities", layers + 1, row, 1)[0], next: ofTarget[row * places + place],
    })),
    pushes: Array.from({ length: layers * heads }, (_, head) => pushes[head * places + place]),
    raised: most && listed(most, "pushes", heads, opened % heads).filter(({ value }) => value !== 0),
  };
}

/** For each head the token where a token looks most, and the later one that looks at it most: {keys, queries}, each
    with `tokens` and their `weights`. Null if the data does not have them. */
async function edgesOf(store, history, index, token) {
  const { layers, heads } = history;
  const [edges, lens] = await Promise.all(["edges", "lens"].map((kind) => store.part(history, index, kind)));
  const places = lens?.positions?.shape[0];
  const place = edges ? shaped(lens, "positions", places).indexOf(token) : -1;
  if (place < 0) return null;
  const of = (name) => shaped(edges, name, layers, heads, places).filter((_, at) => at % places === place);
  return Object.fromEntries(["keys", "queries"].map((name) =>
    [name, { tokens: of(name), weights: Array.from(of(`${name}_weights`)) }]));
}

/** The value of a part that has a JSON text. */
export function jsonOf(part) {
  try {
    return JSON.parse(new TextDecoder().decode(part?.text?.data));
  } catch {
    throw damaged(DATA.notJson);
  }
}

export const areLabels = (texts) => Array.isArray(texts)
  && texts.every((text) => typeof text === "string" && text.length <= MAX_LABEL);

function textOf(texts, token) {
  if (token >= texts.length) throw damaged(DATA.unknownTokens);
  return texts[token];
}
