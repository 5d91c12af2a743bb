// The table of figures of the opened head.

import { card, make, own, write } from "./dom.js";
import { FIGURES } from "./glossary.js";
import { figureText } from "./scales.js";
import { explain } from "./tooltip.js";

export function createFigures(parent) {
  const section = card(parent, "figures-card", "Figures of this head");
  const table = make(section, "table");
  let built = []; // the history and the names of the figures that the rows were built for
  let rows = [];

  function build(history, figures) {
    table.replaceChildren();
    const head = make(make(table, "thead"), "tr");
    for (const [name, text] of [["", "figure"], ["", "value"], ["compared", "compared"], ["", "uniform"]]) {
      make(head, "th", { scope: "col", class: name }, text);
    }
    explain(head.lastElementChild, "The value of the figure for attention that gives every visible "
      + "token the same weight, as in an untrained model.");
    const body = make(table, "tbody");
    rows = figures.map((figure) => {
      const row = make(body, "tr");
      const name = make(make(row, "th", { scope: "row" }), "span", { dir: "auto" });
      name.textContent = figure.replaceAll("_", " ");
      explain(name, own(FIGURES, figure));
      const value = make(row, "td");
      const text = make(value, "span");
      const bar = make(value, "i", { class: "meter", "aria-hidden": "true" });
      const compared = make(row, "td", { class: "compared" });
      const uniform = own(history.uniform, figure);
      make(row, "td", { class: "quiet" }, figureText(uniform));
      const [low, high] = own(history.ends, figure) ?? [null, null];
      const place = (number) => (typeof number === "number" && high > low
        ? Math.max(0, Math.min(100, (100 * (number - low)) / (high - low))) : null);
      bar.style.setProperty("--uniform", `${place(uniform) ?? -1}%`);
      return { figure, text, bar, compared, place };
    });
  }

  return {
    show({ history, step, opened, comparison }) {
      const figures = Object.keys(step.figures);
      if (built[0] !== history || built[1] !== figures.join("\n")) {
        built = [history, figures.join("\n")];
        build(history, figures);
      }
      table.classList.toggle("comparing", comparison !== null);
      for (const { figure, text, bar, compared, place } of rows) {
        const value = step.figures[figure][opened];
        write(text, figureText(value));
        bar.style.setProperty("--value", `${place(value) ?? 0}%`);
        write(compared, comparison
          ? figureText(own(comparison.step.figures, figure)?.[comparison.opened]) : "");
      }
    },
  };
}
