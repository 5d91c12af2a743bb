// The state of the viewer, which the URL contains. The viewer chooses the values of missing entries.

/** The state without entries. `step` null is the last step, `head` null the head that is furthest above the
    threshold of its name. `compare` is "", or a kind (step, run, role, head) and its value: "step:400". `walk` are
    the edges {head, query, key} that are explained, one after the other; the last one is shown. `cells` is what the
    cells of a large model show, and `layer` the layer whose maps are shown below them. */
export const EMPTY = Object.freeze({
  run: null, text: null, step: null, head: null, token: null, metric: null,
  view: "weights", compare: "", walk: Object.freeze([]), cells: "names", layer: null,
});

/** The numbers of all heads, layer by layer. */
export const headsOf = ({ layers, heads }) => [...Array(layers * heads).keys()];

export const headName = (head, heads) => `L${Math.floor(head / heads)}H${head % heads}`;

/** The number of a head such as L0H2, counted over all layers. Null if there is no such head. */
export function headNumber(name, { layers, heads }) {
  const match = /^L(\d{1,5})H(\d{1,5})$/.exec(name ?? "");
  const [layer, head] = match ? [Number(match[1]), Number(match[2])] : [layers, heads];
  return layer < layers && head < heads ? layer * heads + head : null;
}

// ---- Texts: how a state is written -------------------------------------------------------------

const MAX_WALK = 50; // edges

/** Converts a state to texts and back. The values of `empty` are not written. `readers` and `writers` convert the
    entries that are no texts, by name. A reader returns undefined for a text without sense. */
export function codecOf(empty, readers, writers) {
  return {
    fromTexts(texts) {
      const state = { ...empty };
      for (const name of Object.keys(empty).filter((each) => each in texts)) {
        const value = (readers[name] ?? String)(texts[name]);
        if (value !== undefined) state[name] = value;
      }
      return state;
    },
    toTexts(state) {
      const isSet = ([name, value]) => JSON.stringify(value) !== JSON.stringify(empty[name]);
      return Object.fromEntries(Object.entries(state).filter(isSet).map(([name, value]) => [name, (writers[name] ?? String)(value ?? "")]));
    },
  };
}

const wholeNumber = (text) => (/^\d{1,15}$/.test(text) ? Number(text) : undefined);
const oneOf = (pattern) => (text) => (pattern.test(text) ? text : undefined);

/** How the state of the viewer is written. */
export const viewCodec = codecOf(EMPTY, {
  step: wholeNumber,
  token: wholeNumber,
  layer: wholeNumber,
  cells: oneOf(/^(decides$|metric:)/),
  view: oneOf(/^shares$/),
  compare: oneOf(/^(step|run|role|head):/),
  walk: (text) => [...text.matchAll(/(L(?:0|[1-9]\d*)H(?:0|[1-9]\d*))\.(\d+)\.(\d+)/g)].slice(0, MAX_WALK)
    .map(([, head, query, key]) => ({ head, query: Number(query), key: Number(key) })),
}, { walk: (walk) => walk.map(({ head, query, key }) => `${head}.${query}.${key}`).join(",") });

// ---- Addresses: where a state is written -------------------------------------------------------

const DELAY = 300; // ms; browsers limit how often a page may change its URL
/** Keeps states in a window's URL after "#", as name=value&name=value. Each name starts with `prefix`,
    and all entries without it are left unchanged. `codec` converts a state to texts and back. */
export function createAddress(owner, prefix = "", codec = viewCodec) {
  let timer = 0;
  let written = null;

  const entries = () => owner.location.hash.slice(1).split("&").filter(Boolean);
  const isOwn = (entry) => entry.includes("=") && entry.startsWith(prefix);

  function read() {
    const own = entries().filter(isOwn).map((entry) => entry.slice(prefix.length).replaceAll("+", "%2B"));
    const state = codec.fromTexts(Object.fromEntries(new URLSearchParams(own.join("&"))));
    written = JSON.stringify(codec.toTexts(state));
    return state;
  }

  function writeNow(texts, how = "replaceState") {
    const own = Object.entries(texts).map(([name, text]) => `${prefix}${name}=${encodeURIComponent(text)}`);
    const hash = [...entries().filter((entry) => !isOwn(entry)), ...own].join("&");
    written = JSON.stringify(texts);
    try {
      owner.history[how](owner.history.state, "", `#${hash}`);
    } catch {
      // The page is in a frame of a notebook, whose URL cannot be changed.
    }
  }

  return {
    read,
    write(state) {
      const texts = codec.toTexts(state);
      clearTimeout(timer);
      if (JSON.stringify(texts) === written) return;
      const isStep = (texts.walk ?? "") !== (JSON.parse(written).walk ?? ""); // the Back button takes it back
      if (isStep) writeNow(texts, "pushState");
      else timer = setTimeout(() => writeNow(texts), DELAY);
    },
    /** Calls `changed` with the new state after somebody else changed it in the URL. */
    onChange(changed) {
      owner.addEventListener("hashchange", () => {
        const before = written;
        const state = read();
        if (written !== before) changed(state);
      });
    },
  };
}
