// The protocol: requests to the server, and its answers. See docs/explore.md.

import { DataError, answered } from "./viewer/store.js";
import { EXPLORE } from "./viewer/texts.js";

const STREAMS = ["write", "deciders"]; // answered by events, one after another

const token = new URLSearchParams(location.search).get("token");

function post(name, request, signal) {
  const headers = { "Content-Type": "application/json" };
  // Without it, jupyter-server-proxy forwards a stream only at its end.
  if (STREAMS.includes(name)) headers.Accept = "text/event-stream";
  if (token) headers.Authorization = `Bearer ${token}`;
  const sent = { method: "POST", headers, body: JSON.stringify(request), signal };
  return answered(fetch(`v1/${name}`, sent), EXPLORE);
}

const json = async (...request) => (await post(...request)).json();

export const api = {
  open: (model) => json("open", { model }),
  examples: (request) => json("examples", request),
  read: (request, signal) => json("read", request, signal),
  patch: (request, signal) => json("patch", request, signal),
  why: (request) => json("why", request),
  export: (request) => post("export", request),

  /** Yields one entry for each token that the model writes. */
  write: (request, signal) => events("write", request, signal),
  /** Yields one entry for each layer: a token's probability without its parts. */
  deciders: (request, signal) => events("deciders", request, signal),
};

async function* events(name, request, signal) {
  const response = await post(name, request, signal);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (let next = await reader.read(); !next.done; next = await reader.read()) {
    const complete = (text + next.value).split("\n\n");
    text = complete.pop();
    for (const event of complete) {
      const [, kind, data] = /^(?:event: (\w+)\n)?data: (.*)$/.exec(event);
      if (kind === "end") return;
      if (kind === "error") throw new DataError(JSON.parse(data).error);
      yield JSON.parse(data);
    }
  }
  throw new DataError(EXPLORE.noAnswer);
}
