// Messages between a plugin and TensorBoard, as TensorBoard 2.21 implements them.

/** Connects to TensorBoard. `listeners` are functions by message type. Returns `ask(type)`, which
    sends a message and resolves to the answer. Without TensorBoard, no answer ever comes. */
export function connect(listeners) {
  const { port1: port, port2: theirs } = new MessageChannel();
  const waiting = new Map();
  let sent = 0;
  port.onmessage = ({ data }) => {
    const { type, id, payload, isReply } = JSON.parse(data);
    if (isReply) {
      waiting.get(id)?.(payload);
      waiting.delete(id);
    } else {
      listeners[type]?.(payload);
      port.postMessage(JSON.stringify({ type, id, payload: null, error: null, isReply: true }));
    }
  };
  window.parent.postMessage("experimental.bootstrap", "*", [theirs]);
  return (type) => new Promise((resolve) => {
    waiting.set(sent, resolve);
    port.postMessage(JSON.stringify({ type, id: sent, payload: null, error: null, isReply: false }));
    sent += 1;
  });
}
