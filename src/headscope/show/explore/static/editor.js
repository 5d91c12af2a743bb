// The text: typed, or written by the model.

import { NumberField, Switch, TextField, Unknown } from "./controls.js";
import { keptSteps } from "./models.js";
import { Button, Card, html } from "./viewer/html.js";
import { COMMON, EXPERIMENTS, EXPLORE as TEXTS } from "./viewer/texts.js";

const SAMPLING = {
  length: { min: 1, max: 10000, step: 1 },
  temperature: { min: 0, max: 100, step: "any" },
  top_k: { min: 1, max: 1e6, step: 1, optional: true },
  top_p: { min: 0.001, max: 1, step: "any", optional: true },
  seed: { min: 0, max: 2 ** 53 - 1, step: 1 },
};

/** The experiments that fit a model, and its other examples. */
function triesOf(about) {
  return about.texts.flatMap((text) => {
    const fitting = EXPERIMENTS.filter(({ text: own, layers = 1, vocabulary = 1, early }) => own === text
      && about.layers >= layers && about.vocab_size >= vocabulary && (!early || keptSteps(about).length > 1));
    return fitting.length ? fitting : [{ title: TEXTS.example(text), text }];
  });
}

export function Editor({ session, tell, actions }) {
  const { page, reading, task, writes, says, earlier } = session;
  const { main } = reading.value ?? {};
  const text = page.text ?? main?.answer.text ?? "";
  const { can, typed, texts = [] } = main?.about ?? { can: {}, typed: {} };
  const read = (name) => (on) => tell("changed", { [name]: on, text }, true);
  const problem = (reading.problem ?? says)?.message;
  return html`<${Card} name="editor-card" label=${TEXTS.text} title=${[TEXTS.text, html`<span class="working"> ${COMMON.working}</span>`]}>
    <${TextField} text=${text} rows="3" aria-label=${TEXTS.text} placeholder=${TEXTS.invitation}
      type=${(typing, begins) => tell("changed", { text: typing }, begins)} />
    <p class="notes ${problem ? "error" : ""}" role="status">${problem ?? (main && html`<${Notes} main=${main} />`)}</p>
    <div class="buttons">
      <${Button} look="action play" text=${writes > 1 ? TEXTS.stop : TEXTS.write}
        click=${() => (writes > 1 ? tell("writing", 0) : actions.write())} />
      <${Button} text=${TEXTS.one} hidden=${writes > 1} click=${() => actions.write(1)} />
      <${Button} text=${TEXTS.back} disabled=${!main || main.answer.ids.length < 2} click=${() => actions.back()} />
      <${Button} text=${TEXTS.undo} disabled=${earlier.length === 0} click=${() => tell("undone")} />
      <${Switch} label=${TEXTS.question} on=${page.question} possible=${can.question} change=${read("question")} />
    </div>
    <div class="buttons tries">${texts.length > 0 && TEXTS.tries}${main && triesOf(main.about).map((experiment) => html`
      <${Button} text=${experiment.title} click=${() => actions.start(experiment)} />`)}</div>
    <p class="quiet task" role="status">${task?.text === text && task.task}</p>
    <details class="sampling"><summary>${TEXTS.howToSample}</summary><div class="buttons">${
      Object.entries(SAMPLING).map(([name, options]) => html`<${NumberField} label=${TEXTS.sampling[name]} ...${options}
        value=${page[name]} change=${(value) => tell("changed", { [name]: value })} />`)}</div></details>
    <details class="sampling" hidden=${!can.begin && !can.special}><summary>${TEXTS.howToRead}</summary><div class="buttons">${
      ["begin", "special"].map((name) => html`<${Switch} label=${TEXTS.reads[name]} on=${page[name] ?? typed[name]}
        possible=${can[name]} change=${read(name)} />`)}</div></details>
  <//>`;
}

/** What one should know of how the text was read. */
function Notes({ main: { about, request, answer } }) {
  const { ids, split, unknown, history: { labels } } = answer;
  const cut = ids.length - labels.length;
  return html`${cut > 0 && TEXTS.cut(cut, about.block_size, answer.text.slice(0, 40))}${split && TEXTS.split}${
    labels.length > 1 && labels.at(-1) === "·" && about.vocab_size > 300 && TEXTS.endsWithSpace}
    <${Unknown} text=${request.text} unknown=${unknown} />`;
}
