// The protocol: requests to the server, and its answers. See docs/explore.md.

import { DataError, answered } from "./viewer/store.js";
import { EXPLORE } from "./viewer/texts.js";

const token = new URLSearchParams(location.search).get("token");

/** The response to the request `name`. */
export function send(name, request, signal, accept = "*/*") {
  const headers = { "Content-Type": "application/json", Accept: accept };
  if (token) headers.Authorization = `Bearer ${token}`;
  const sent = { method: "POST", headers, body: JSON.stringify(request), signal };
  return answered(fetch(`v1/${name}`, sent), EXPLORE);
}

/** The answer to a request whose response is JSON. */
export const ask = async (...request) => (await send(...request)).json();

/** Yields the entries of a response that is a stream of events. */
export async function* stream(name, request, signal) {
  // With another type, jupyter-server-proxy forwards a stream only at its end.
  const response = await send(name, request, signal, "text/event-stream");
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
