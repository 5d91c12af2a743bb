// The table of metrics of the opened head.

import { controlMeaning, make, own } from "./dom.js";
import { GLOSSARY } from "./glossary.js";
import { draw, html, term } from "./html.js";
import { meaningOf, metricOf } from "./names.js";
import { metricText } from "./scales.js";
import { METRICS as TEXTS } from "./texts.js";

const TELLING = 3; // metrics that are always shown

/** The value of a metric of a head for uniform attention. */
const evenOf = ({ uniform }, metric, head) => own(uniform, metric)?.[head];

/** The metrics that say most about a head: that of its name, and those of other names with the largest
    excess over uniform attention, as a share of the largest possible one. */
function tellingMetrics(step, head, ends) {
  const { names, metrics } = step;
  const above = (value, metric) => value - evenOf(step, metric, head);
  const excess = (metric) => above(own(metrics, metric)?.[head], metric) / above(own(ends, metric)?.[1], metric);
  const others = [...new Set(Object.keys(GLOSSARY.names).map(metricOf))]
    .filter((metric) => excess(metric) >= 0).sort((a, b) => excess(b) - excess(a));
  const order = [metricOf(names[head]), ...others, ...Object.keys(metrics)];
  return [...new Set(order)].filter((metric) => own(metrics, metric)).slice(0, TELLING);
}

/** Shows the metrics of the opened head in a table. Of all but the telling ones, only if the list is unfolded. */
export function createMetrics(parent) {
  const section = make(parent, "section", { class: "card metrics-card", "aria-label": TEXTS.title });
  return { show: (model) => draw(section, html`<${Metrics} ...${model} />`) };
}

function Metrics({ history, step, opened, comparison, what }) {
  // The metrics of a model are the same when its heads are switched.
  const same = comparison?.kind === "run" && JSON.stringify(comparison.step.metrics) === JSON.stringify(step.metrics);
  const telling = tellingMetrics(step, opened, history.ends);
  const rows = Object.keys(step.metrics).map((metric) => {
    const [value, uniform] = [step.metrics[metric][opened], evenOf(step, metric, opened)];
    const [low, high] = own(history.ends, metric) ?? [];
    const place = (number) => (typeof number === "number" && high > low
      ? Math.max(0, Math.min(100, (100 * (number - low)) / (high - low))) : null);
    const places = { "--value": `${place(value) ?? 0}%`, "--uniform": `${place(uniform) ?? -1}%` };
    return html`<tr key=${metric} class=${telling.includes(metric) ? "telling" : ""}>
      <th scope="row"><span dir="auto" ...${term(meaningOf(history, metric) || undefined)}>${metric.replaceAll("_", " ")}</span></th>
      <td><span>${metricText(value)}</span><i class="meter" aria-hidden="true" hidden=${low === undefined} style=${places}></i></td>
      <td class="compared">${comparison && metricText(own(comparison.step.metrics, metric)?.[comparison.opened])}</td>
      <td class="quiet">${metricText(uniform)}</td></tr>`;
  });
  return html`<h3>${TEXTS.title}</h3>
    <table class=${comparison && !same ? "comparing" : ""}>
      <thead><tr><th scope="col">${TEXTS.metric}</th><th scope="col">${(same ? null : what) ?? TEXTS.value}</th>
        <th scope="col" class="compared">${comparison?.what}</th>
        <th scope="col" ...${term(GLOSSARY.words.uniform)}>${TEXTS.uniform}</th></tr></thead>
      <tbody>${rows}</tbody></table>
    <details><summary data-tip=${controlMeaning(TEXTS.all)} aria-description=${controlMeaning(TEXTS.all)}>${TEXTS.all}</summary></details>`;
}
