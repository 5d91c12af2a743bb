// Which heads of two steps have the same role: they are matched by their metrics, as in roles.py.

const BID = 1e-4; // how much more a head bids than it must

/** For each head of a step, the `head` of another step with the same role, and their `difference` from 0 to 1: the root
    mean square difference of the metrics of attention, each scaled to 0 to 1 by the limits of its colours. Heads are
    assigned one-to-one with the smallest sum of differences, up to BID per head, in an auction (Bertsekas 1988): each
    head bids for the head that suits it best at the current prices, and a head that is outbid bids again. */
export function sameRoles(step, other) {
  const shared = Object.keys(step.uniform).filter((metric) => [step, other].every((each) =>
    [each.uniform, each.metrics, each.ends].every((entries) => Object.hasOwn(entries, metric))));
  const [mine, theirs] = [step, other].map(({ names, metrics, ends }) => names.map((_, head) => shared.map((metric) => {
    const [low, high] = ends[metric];
    return Math.max(0, Math.min(1, (metrics[metric][head] - low) / (high - low) || 0));
  })));
  const differences = mine.map((one) => theirs.map((another) =>
    Math.hypot(...one.map((value, i) => value - another[i])) / Math.sqrt(shared.length || 1)));
  const prices = theirs.map(() => 0);
  const holders = theirs.map(() => null);
  const waiting = [...mine.keys()];
  while (waiting.length > 0) {
    const head = waiting.pop();
    const costs = prices.map((price, place) => differences[head][place] + price);
    const [least, next = least] = costs.toSorted((a, b) => a - b);
    const best = costs.indexOf(least);
    prices[best] += next - least + BID;
    if (holders[best] !== null) waiting.push(holders[best]);
    holders[best] = head;
  }
  return differences.map((line, head) => ({ head: holders.indexOf(head), difference: line[holders.indexOf(head)] }));
}
