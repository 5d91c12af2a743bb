// The table of metrics of the opened head.

import { card, explain, explainControl, make, own, write } from "./dom.js";
import { GLOSSARY } from "./glossary.js";
import { meaningOf, metricOf } from "./names.js";
import { metricText } from "./scales.js";
import { METRICS as TEXTS } from "./texts.js";

const TELLING = 3; // metrics that are always shown

/** The value of a metric for uniform attention, in the layer of a head. */
const evenOf = ({ uniform, names }, metric, head) => {
  const layers = own(uniform, metric);
  return layers?.[Math.floor((head * layers.length) / names.length)];
};

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

export function createMetrics(parent) {
  const section = card(parent, "metrics-card", TEXTS.title);
  const table = make(section, "table");
  const columns = make(make(table, "thead"), "tr");
  const heads = ["", "", "compared", ""].map((name) => make(columns, "th", { scope: "col", class: name }));
  heads[3].textContent = TEXTS.uniform;
  explain(heads[3], GLOSSARY.words.uniform);
  const body = make(table, "tbody");
  // When it is open, the style sheet shows all rows of the table.
  explainControl(make(make(section, "details"), "summary", {}, TEXTS.all), TEXTS.all);
  let built = []; // the history and the names of the metrics that the rows were built for
  let rows = [];

  function build(history, metrics) {
    body.replaceChildren();
    rows = metrics.map((metric) => {
      const row = make(body, "tr");
      const name = make(make(row, "th", { scope: "row" }), "span", { dir: "auto" }, metric.replaceAll("_", " "));
      explain(name, meaningOf(history, metric) || undefined);
      const value = make(row, "td");
      const text = make(value, "span");
      const bar = make(value, "i", { class: "meter", "aria-hidden": "true" });
      const compared = make(row, "td", { class: "compared" });
      const even = make(row, "td", { class: "quiet" });
      const [low, high] = own(history.ends, metric) ?? [null, null];
      bar.hidden = low === null;
      const place = (number) => (typeof number === "number" && high > low
        ? Math.max(0, Math.min(100, (100 * (number - low)) / (high - low))) : null);
      return { row, metric, text, bar, compared, even, place };
    });
  }

  return {
    show({ history, step, opened, comparison, what }) {
      const metrics = Object.keys(step.metrics);
      if (built[0] !== history || built[1] !== metrics.join("\n")) {
        built = [history, metrics.join("\n")];
        build(history, metrics);
      }
      // The metrics of a model are the same when its heads are switched.
      const same = comparison?.kind === "run"
        && JSON.stringify(comparison.step.metrics) === JSON.stringify(step.metrics);
      table.classList.toggle("comparing", comparison !== null && !same);
      const titles = [TEXTS.metric, (same ? null : what) ?? TEXTS.value, comparison?.what ?? ""];
      titles.forEach((text, column) => write(heads[column], text));
      const telling = tellingMetrics(step, opened, history.ends);
      for (const { row, metric, text, bar, compared, even, place } of rows) {
        row.classList.toggle("telling", telling.includes(metric));
        const [value, uniform] = [step.metrics[metric][opened], evenOf(step, metric, opened)];
        write(text, metricText(value));
        write(even, metricText(uniform));
        bar.style.setProperty("--value", `${place(value) ?? 0}%`);
        bar.style.setProperty("--uniform", `${place(uniform) ?? -1}%`);
        write(compared, comparison ? metricText(own(comparison.step.metrics, metric)?.[comparison.opened]) : "");
      }
    },
  };
}
