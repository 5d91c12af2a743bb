// All texts of the interface, in English, except the glossary. A function gets the words to insert into a
// sentence. It returns a text or, if it gets elements, a list of texts and elements.

export const LOCALE = "en";

const count = (number, what) => `${number.toLocaleString(LOCALE)} ${what}${number === 1 ? "" : "s"}`;
const percent = (share) => `${100 * share} %`;

export const COMMON = {
  title: "Attention",
  pageTitle: "Attention heads",
  step: (step) => (step === null ? "imported" : `step ${step.toLocaleString(LOCALE)}`), // null: it is unknown
  minus: "minus",
  working: "working …",
  why: "Why there?",
  since: "Since which step?",
};

export const HELP = {
  title: "Help",
  close: "Close",
  about: {
    explore: "Type under “Your text”: “Next token” shows what the model expects after it, and “Which part decides” the "
      + "heads without which it would say something else. Switch such a head off, or use “Copy from another text”, and "
      + "see the prediction change. ▶ Write continues the text, and ■ Stop ends this.",
    heads: "Each picture under “Heads” or “All heads” is the attention map of one head: brighter means more weight. Click a head "
      + "to open its large “Attention map”, with one row per query and one column per key. “Attention lines” shows the "
      + "same weights, “Metrics of this head” what was measured, and “What L0H1 does elsewhere” other texts.",
    tokens: "Click a token of the text: the colours show where it looks and who looks at it. “What the model predicts” "
      + "then shows the tokens that the model expects after it, and what each layer and each head adds.",
    point: "Point at a word with a dotted line or at a control to read what it means. Esc closes this panel.",
  },
  lists: { words: "Words and signs", explore: "Controls of this page", names: "Names of heads", metrics: "Metrics" },
};

export const VIEWER = {
  noRuns: "No run has attention data. Train one with headscope and its TensorBoard logger; "
    + "callbacks.attention.steps sets how many steps are logged.",
  shortened: (shown, all) => `Shows the first ${shown.toLocaleString(LOCALE)} of ${count(all, "token")}, `
    + "because the size of a snapshot is limited.",
  size: ({ layers, heads, tokens, steps, measured, measuredOn }) => [
    count(layers, "layer"), `${count(heads, "head")} each`, count(tokens, "token"), steps && count(steps, "step"),
    measured && `names and metrics from ${count(measured, "token")} of ${measuredOn}`,
  ].filter(Boolean).join(" · "),
};

export const DATA = {
  noAnswer: "TensorBoard does not answer. Is it still running?",
  refused: (status) => `TensorBoard answered with the error ${status}.`,
  notSelected: "None of the runs that TensorBoard selects has attention data.",
  damaged: (why) => `The data of this step is damaged: ${why}.`,
  notWeights: "weights are not from 0 to 1",
  unknownTokens: "it names unknown tokens",
  notJson: "it has a text that is not JSON",
  labelsNotTexts: "its labels are not texts",
  notCompressed: "it cannot be decompressed",
  wrongSize: "its size does not match its header",
};

export const BAR = {
  group: "What is shown",
  run: "run",
  text: "text",
  view: "view",
  views: { weights: "weights", shares: "without first token" },
  compare: "compare with",
  nothing: "nothing",
  anotherRun: "another run",
  anotherRole: "another run, by the roles of heads",
  byRole: (run) => `${run}, same roles`,
  anotherHead: "another head",
  anotherStep: "another step",
  otherShape: "a run with another text or model",
};

export const COMPARE = {
  runAtStep: (run, step) => `${run} at step ${step}`,
  headOf: (head, run) => `${head} of ${run}`,
  sameRole: (what, head, difference) =>
    `${what}, which has the same role as ${head} (difference of their metrics: ${difference})`,
  theirRoles: (run) => `the heads of ${run} that have the same roles`,
  noRole: (head) => `No head has the same role as ${head}: held heads have none.`,
  noHead: (head) => `There is no head ${head} to compare with.`,
  noRun: (run) => `There is no run ${run} to compare with.`,
  otherHeads: (run) => `Run ${run} cannot be compared: it has another number of heads.`,
  otherTokens: (run) => `Run ${run} cannot be compared: its text has other tokens.`,
};

export const HEADS = {
  title: "All heads",
  heads: "Heads",
  deciding: "Heads that decide",
  lookFrom: (token) => ["Where “", token, "” looks most, besides the first token"],
  lookAt: (token) => ["Heads in which a later token looks at “", token, "” most"],
  named: "Heads with a telling name",
  colour: "colour",
  byName: "names",
  byDecides: "which head decides",
  metrics: "metrics",
  layer: (layer) => `layer ${layer}`,
  openLayer: "Shows the maps of this layer",
  noName: "without a name",
  held: "held",
  rests: (percent) => `rests ${percent} %`,
  lossWithout: (change) => `loss ${change} without this head`,
  withoutIt: (title, change) => `${title}, loss without it ${change}`,
  difference: (what) => `Difference from ${what}: red is more weight, blue is less.`,
  click: "Click a head to open it; Shift and click another to compare them.",
  signed: "The signed number is the change of the loss without the head, in nats per token.",
};

export const TIMELINE = {
  title: "Timeline",
  play: "▶ Play",
  pause: "❚❚ Pause",
  step: "step",
  metric: "metric ",
  metricOf: "metric of the timeline",
  trainingStep: "training step",
  about: "Labels give the values at the cursor (keys ← →). Click a line or a strip to open its head.",
  held: "━━ held in training",
  undescribed: (metric) => `The metric ${metric} has no description.`,
};

export const TEXT = {
  title: "The text",
  tokens: "Tokens",
  more: (what) => ` more weight than ${what}  `,
  less: " less weight  ",
  looks: " where the token looks  ",
  looked: " who looks at it  ",
  share: " share of all attention that goes to the token  ",
  point: "Point at a token; click to keep it.",
  clear: "Esc clears the selection.",
};

export const STATUS = {
  point: "Point at a token or at a cell of the map: where it looks, and who looks at it.",
  nothing: "nothing",
  cannotSee: (query, key) => [query, " cannot see ", key, ", which comes later"],
  cell: (query, key, weight) => [query, " looks at ", key, ": ", weight],
  cellDifference: (query, key, here, other, what, difference) =>
    [query, " looks at ", key, ": ", here, ` here, ${other} in ${what}: `, difference],
  token: (token, looks, looked) => [token, " looks at ", looks, "; looked at most by ", looked],
  tokenDifference: (token, what, looks, looked) =>
    [token, ` compared with ${what}: looks at `, looks, "; looked at most by ", looked],
};

export const MAP = {
  title: "Attention map",
  about: "One row per query, one column per key. Click a cell to see why the head looks there.",
  weight: "attention weight",
  share: "share of the weight without the first token",
  scale: (what) => `${what}, square-root scale`,
  difference: (what, other) => `difference: ${what} minus ${other}`,
  mapOf: (what) => `attention map of ${what}`,
};

export const LINES = {
  title: "Attention lines",
  query: "query (left)",
  key: "key (right)",
  weights: "A stronger line is a larger weight. While no token is selected, lines below 0.05 are hidden.",
  differences: "A stronger line is a larger difference. While no token is selected, lines below 5 % of the "
    + "largest difference are hidden.",
};

export const WHY = {
  walk: "A step of the walk from head to head",
  close: "×",
  closes: "Close (Esc)",
  edge: (head, query, key) => `${head}: ${query} → ${key}`,
  why: (head, query, key, hardly) => [`Why ${head} ${hardly ? "hardly " : ""}looks from “`, query, "” to “", key, "”"],
  switched: (head) => `${head} is switched or held: this is how it looks, and not what it now adds.`,
  oneKey: "This token sees only itself, so its weight is 1.",
  needsModel: "This page has the weights, but not the model, which is needed to explain them: open the run with explore.",
  score: "Query times key is the score",
  adds: (head, query, value, next) => [`What ${head} writes at “`, query, `” adds ${value} to the logit of “${next}” directly.`],
  multiplied: (query, key, size) => ["The query of “", query, "” and the key of “", key, `” have ${size} numbers each:`],
  bars: "query, key and their products",
  vectors: ["query", "key", "products"],
  summed: (sum, scale, bias, score) => [`The products add up to ${sum}. Times the scale ${scale}`,
    bias ? `, plus ${bias} for the position,` : ",", ` this is the score: ${score}.`],
  weight: "Softmax turns scores into weights",
  softmax: (query, seen, hidden) => ["“", query, `” sees ${count(seen, "key")}`,
    hidden ? `; the mask hides ${count(hidden, "later token")}. ` : ". ",
    "Softmax turns their scores into weights, which add up to 1 (score → weight):"],
  others: (number) => count(number, "other key"),
  keyTip: (key) => `why it looks at “${key}”`,
  value: "The weighted value is added",
  moved: (key, weight, query) => ["The value of “", key, `”, times ${weight}, is added at “`, query,
    "”. Later layers may read it. Directly, it raises most:"],
  parts: "Where the score comes from",
  mostly: (ofQuery, ofKey, value, query, key) => (ofKey === "position bias" ? [`Mostly, it is the ${ofKey}`] : [
    `Mostly, ${WHY.written(ofQuery)} at “`, query,
    `” ${WHY.fits(["n-grams", "positions"].includes(ofQuery), value)} ${WHY.written(ofKey)} at “`, key, "”"]),
  fits: (plural, value) => (value < 0 ? `${plural ? "do" : "does"} not fit` : plural ? "fit" : "fits"),
  written: (part) => (/^L\d/.test(part) ? `what ${part} wrote` : `the ${part}`),
  back: (distance) => (distance ? `${distance} back` : "at the query"),
  at: (token) => ["at “", token, "”"],
  relative: (score, difference, mean, query, key) => [`The pairs add up to ${difference}: the score ${score} minus the mean of `
    + `all keys, ${mean}, which softmax ignores. A pair is a part of “`, query, "” times a part of “", key, "”. Click a head: why did it look there?"],
  byPlace: (key, back) => ["Mostly because “", key, `” is ${back}, whatever token it is.`],
  noMost: "No pair adds more than half of the sum: it is spread over many parts.",
  partsOf: (token) => ["By what “", token, "” reads, parts of 10 % of the sum or more"],
  otherParts: (number) => count(number, "other part"),
  pairs: "Pairs",
  key: "another key",
  andPlace: (back) => `, and because it is ${back}.`,
  places: (key, back, byToken, byPlace) => ["Token or place? That it is “", key, `” adds ${byToken} `
    + `(compared with all keys, if they were ${back}), and that it is ${back} adds ${byPlace} (compared with other places):`],
  rest: "all other pairs",
  byStep: "The pair that adds most to the same score at each kept step:",
  follow: (head, token) => `why ${head} looks where it looks at “${token}”`,
};

export const METRICS = {
  title: "Metrics of this head",
  metric: "metric",
  value: "value",
  uniform: "uniform",
  all: "All metrics",
};

export const ELSEWHERE = {
  title: (head) => `What ${head} does elsewhere`,
  measured: (texts) => `Found in ${texts}. The framed token looks at the coloured one; a stronger colour is a larger weight.`,
  kinds: {
    weight: ["Strongest by weight", "The largest attention weights of this head, besides those on the first token, in different windows."],
    moved: ["Strongest by what it moves", "The number is the size (norm) of what moves along this edge: the weight "
      + "times the head's value of the key, after the output projection. A large weight on a small value moves little."],
    decile: ["One of each tenth of the queries", "All queries, sorted by the weight on their strongest key, are cut into "
      + "ten equal parts. The middle one of each part, the strongest part first, shows what the head does ordinarily."],
  },
  notExamples: "its examples have another form",
};

export const NEXT = {
  title: "What the model predicts",
  steps: "Over the steps",
  likely: "Most likely next tokens",
  lens: "Layer by layer",
  about: {
    steps: "The probability of the token that follows, after the last layer, over the steps.",
    likely: "The tokens with the largest probabilities after the selected token. ✓ marks the one that "
      + "follows in the text.",
    raised: "The tokens whose logits the opened head raises most at this token, by the same measure.",
  },
  click: "Click a token in the text: what the model expects after it, layer by layer, which head "
    + "adds what, and since when.",
  follows: (token, next) => ["After “", token, "”, the text continues with “", next, "”."],
  ends: (token) => ["After “", token, "”. The text ends here, so the token that follows is unknown."],
  predicts: (token, next) => ["After “", token, "”, the values are those of “", next, "”."],
  notDifference: (at) => ` The values are those of ${at}, not a difference.`,
  topTokenAnd: (next) => ` top token, probability of “${next}”`,
  adds: (next) => `What heads add directly to “${next}”`,
  raises: (head) => `What ${head} raises most`,
  before: (layer) => `before L${layer}`,
  atEnd: "at the end",
  notANumber: "not a number",
  below: (share) => ` below ${percent(share)} at all steps`,
  first: (share, step) => ` first at least ${percent(share)} at step ${step}`,
  chart: (what) => `Probability over the steps:${what}`,
};

export const EXPLORE = {
  measuring: (measuring) => (measuring ? measuring.problem ?? `Measuring the heads: ${Math.round(100 * measuring.share)} %` : ""),
  title: "headscope",
  noAnswer: "The server of this page does not answer. Is it still running?",
  refused: (status) => `The server answered with the error ${status}.`,
  model: ({ title, step, last }) =>
    `${title}, ${last > step ? `best (${COMMON.step(step)} of ${last.toLocaleString(LOCALE)})` : COMMON.step(step)}`,
  thisModel: "this model",
  allHeadsOn: "all heads on",
  compared: "compared",
  list: (names) => names.slice(0, 4).join(", ") + (names.length > 4 ? ` and ${names.length - 4} more` : ""),

  text: "Your text",
  invitation: "Type a text: you see what the model expects next, and where its heads look.",
  write: "▶ Write",
  stop: "■ Stop",
  one: "+ 1 token",
  back: "− 1 token",
  undo: "Undo",
  off: "off",
  cut: (tokens, block, start) => `The model reads ${count(block, "token")} at most. It does not read the first `
    + `${count(tokens, "token")}: “${start}…”. `,
  split: "The model hardly knows these characters: it splits many of them into several tokens. For such texts, train "
    + "one with tokenizer=char. ",
  endsWithSpace: "The text ends with a space, which the model expects before the next word: remove it. ",
  unknown: "The model does not know the marked characters and leaves them out: ",

  next: "Next token",
  nextAfter: (token) => ["Next token after “", token, "”"],
  howToSample: "How to sample",
  howToRead: "How the text is read",
  question: "as a question",
  reads: { begin: "begin of text", special: "special tokens" },
  sampling: { length: "tokens", temperature: "temperature", top_k: "top-k", top_p: "top-p", seed: "seed" },
  pick: (token) => `continue with ${token}`,
  ask: (token) => `explain ${token}`,
  aboutAsk: "Asks about this token: which part decides it, and what each layer and each head says about it.",
  cutAway: "cut",
  sampled: (share) => `→ ${share}`,
  before: (share) => `was ${share}`,
  elsewhere: (share) => `other ${share}`,
  otherTokens: (name, most) => `After the whole text, ${name} expects its own tokens: ${most}.`,
  removed: (share) => `Temperature, top-k and top-p cut away ${share} of the probability.`,
  grey: (what) => `Grey bars: ${what}.`,
  aboutBars: "Click a token to continue with it. The light bar and the first number are what the model says. The dark "
    + "bar and the second number are what is left of it after temperature, top-k and top-p.",

  shown: "model",
  slider: "step",
  otherModel: "another model",
  about: ({ parameters, layers, heads, block_size, vocab_size, path }) => [
    count(parameters, "parameter"), count(layers, "layer"), `${count(heads, "head")} each`,
    `reads ${count(block_size, "token")}`, `knows ${count(vocab_size, "token")}`, path].join(" · "),

  deciders: "Which part decides",
  decidersOf: (token) => ["Which part decides “", token, "”"],
  aboutDeciders: (by) => `The probability of this token, and its probability with one part ${EXPLORE.switchedBy[by]}.`,
  by: "What replaces the output of a part",
  bys: { mean: "mean", zero: "off" },
  switchedBy: { half: "at half", mean: "at its mean", zero: "off" },
  withHeads: (heads) => `Measured with ${EXPLORE.list(heads)}.`,
  noMean: "A text of one token has no mean that could replace a part: type more.",
  findDeciders: "Find out",
  headList: "Heads",
  networkList: "Feed-forward",
  noChange: "No change of 1 % or more.",
  change: (after, by) => `→ ${after} ${EXPLORE.bys[by]}`,
  opens: (head) => `open ${head}`,
  soFar: "So far: ",
  measuredSoFar: (share) => `Measured so far: ${share} of the parts, those that add most directly first.`,
  effectOf: (part, by, token, falls, before, after) =>
    `with ${part} ${EXPLORE.switchedBy[by]}, “${token}” ${falls ? "falls" : "rises"} from ${before} to ${after}`,
  decides: (head, by, before, after) =>
    ["Of the heads, ", head, ` matters most: ${before} → ${after} with it ${EXPLORE.switchedBy[by]}.`],
  holdsBack: (head, by, before, after) =>
    ["Of the heads, ", head, ` holds it back most: ${before} → ${after} with it ${EXPLORE.switchedBy[by]}.`],
  noneDecides: (head, by, before, after) => ["No single head decides",
    ...(before === after ? ["."] : [`: ${before} → ${after} with `, head, ` ${EXPLORE.switchedBy[by]}.`])],
  ofPart: "part",
  firstPart: "the first one at each step",
  atStep: (step, token, part, by, before, after) =>
    `${step}: “${token}” has ${before}${part ? `, and ${after} with ${part} ${EXPLORE.switchedBy[by]}` : ""}`,

  switches: "Switch heads",
  aboutSwitches: "Click a head to choose it. Off replaces its output by zero, mean by its mean over this text.",
  wayOf: (head) => `Head ${head}`,
  ways: { on: "on", half: "half", mean: "mean", zero: "off" },
  alone: (head) => `${head} alone`,
  layer: (layer) => `layer ${layer}`,
  allOn: "all on",
  switchOn: (head) => `switch ${head} on`,
  more: (number) => ` and ${number} more`,
  effect: (heads, token, before, after, change) => [`With ${heads}, “`, token, "” ",
    before === after ? `stays at ${before}.` : `${change < 0 ? "falls" : "rises"} from ${before} to ${after}.`],
  first: (token, share) => [" Now “", token, `” is the most likely token, with ${share}.`],
  loss: (before, after, change) => `The loss of the text itself, without the next token, changes from ${before} to ${after} (${change}).`,
  otherLoss: (other, here, change, name) =>
    `The loss of the text is ${here} here and ${other} with ${name} (${change}).`,
  writeBoth: "Write both from the same seed",

  patch: "Copy from another text",
  aboutPatch: "Copy what a head writes on another text with as many tokens, and see the answer change.",
  second: "Another text, such as yours with one name changed",
  positions: "Positions",
  copy: "Copy",
  removeCopy: "remove this copy",
  copyHere: (head, token, at) => `Copy ${head} at “${token}” (${at})`,
  copyAll: (head) => `Copy ${head} at all positions`,
  everyHead: "Try every head",
  effects: "The same difference with one head copied at all positions, minus that without a copy:",
  allPositions: "at all positions",
  at: (position) => `at position ${position}`,
  answers: { right: "other text's answer", wrong: "yours" },
  answer: (right, wrong, first, second, patched) => `Logit of “${right}” minus “${wrong}”: ${first} after this text, `
    + `${second} after the other one${patched === null ? "" : `, ${patched} with the copy`}.`,
  columns: ["next token", "this text", "other text", "with the copy"],

  tries: "Try",
  example: (text) => `“${text.length > 24 ? `${text.slice(0, 24)}…` : text}”`,

  keep: "Keep as",
  formats: { html: "page", csv: "table", python: "Python" },
};

/** What one can do with a model whose corpus names `text` as an example: docs/explore.md, "Five experiments".
    `vocabulary` and `layers` are the smallest, `second` is the other text, `early` begins at the first kept step. */
export const EXPERIMENTS = [
  {
    text: "Gentlemen of the Senate and of the House of",
    title: "1 One head finishes a phrase",
    vocabulary: 300,
    task: "The model expects “Representatives”. The list below the heads says which head decides this, and the map "
      + "shows where it looks. Press “mean” or “off” beside its name on the right: what is left?",
  },
  {
    text: "My fellow citizens",
    title: "2 The same seed without a layer",
    vocabulary: 300, layers: 2,
    task: "Click a head of layer L1, press “layer L1”, and then “Write both from the same seed”. Are both texts "
      + "English? How much does layer 1 matter?",
  },
  {
    text: "QxBnEaPfLQxBnEaPfL",
    title: "3 Two heads copy",
    task: "Nine random letters, twice. The losses below the letters fall in the second copy: the model copies. Which "
      + "head of layer 0 does it need for this? Open each, and press “off” beside its name.",
  },
  {
    text: "ETT=", second: "ETE=",
    title: "4 Which head knows the answer?",
    task: "The model answers E, the name that occurs once. In the other text, this is T. Click a head, and copy it at "
      + "“=” from the other text: which head brings the other answer?",
  },
  {
    text: "ETT=", early: true,
    title: "5 Before it knew",
    task: "You begin at step 0, before training. Move the slider “step”: when does the model know that E is right?",
  },
];
