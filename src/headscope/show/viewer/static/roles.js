// Which heads of two steps have the same role: they are matched by their metrics, as in roles.py.

/** For each head of a step, the `head` of another step with the same role, and their `difference` from 0 to 1: the
    root mean square difference of the metrics of attention, each scaled to 0 to 1 by the limits of its colours. Heads
    are assigned one-to-one, with the smallest sum of differences. The difference is null if one of the two is held.
    Each side is a step of a history: {history, index}. */
export function sameRoles(...sides) {
  const [step, other] = sides.map(({ history, index }) => ({ ends: history.ends, ...history.steps[index] }));
  const shared = Object.keys(step.uniform).filter((metric) => [step, other].every((each) =>
    [each.uniform, each.metrics, each.ends].every((entries) => Object.hasOwn(entries, metric))));
  const [mine, theirs] = [step, other].map(({ names, metrics, ends }) => names.map((_, head) => shared.map((metric) => {
    const [low, high] = ends[metric];
    return Math.max(0, Math.min(1, (metrics[metric][head] - low) / (high - low) || 0));
  })));
  const differences = mine.map((one, i) => theirs.map((another, j) => (step.held[i] || other.held[j] ? null
    : Math.hypot(...one.map((value, k) => value - another[k])) / Math.sqrt(shared.length || 1))));
  const most = 2 * mine.length; // more than all differences together: held heads get what is left over
  const rows = assign(differences.map((line) => line.map((difference) => difference ?? most)));
  return differences.map((line, head) => ({ head: rows.indexOf(head), difference: line[rows.indexOf(head)] }));
}

/** Assigns rows to columns, with the smallest sum of costs, and returns the row of each column. Rows are added one by
    one: a shortest path decides which earlier rows change their columns (Dijkstra's algorithm; Tomizawa 1971). */
function assign(costs) {
  const columns = [...costs.keys()];
  const rows = columns.map(() => null);
  const prices = columns.map(() => 0);
  for (const first of columns) {
    const paths = columns.map(() => ({ cost: Infinity, from: null }));
    const left = new Set(columns);
    let [row, column, paid] = [first, null, 0];
    while (row !== null) {
      const gain = column === null ? 0 : costs[row][column] - prices[column];
      for (const next of left) {
        const cost = paid + costs[row][next] - prices[next] - gain;
        if (cost < paths[next].cost) paths[next] = { cost, from: column };
      }
      column = [...left].reduce((best, next) => (paths[next].cost < paths[best].cost ? next : best));
      left.delete(column);
      [row, paid] = [rows[column], paths[column].cost];
    }
    for (const each of columns) if (!left.has(each)) prices[each] += paths[each].cost - paid;
    for (let from; column !== null; column = from) {
      ({ from } = paths[column]);
      rows[column] = from === null ? first : rows[from];
    }
  }
  return rows;
}
