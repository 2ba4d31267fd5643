// Bars, lanes and ticks of the timeline, as plain data.

// One bar for each execution that is known: of each attempt where the view has them, else of the last one.
export function bars(tasks, now) {
  return tasks.flatMap((task) => {
    const known = Array.isArray(task.executions) && task.executions.length ? task.executions : task.started_at ? [task] : [];
    return known.map((one, index) => ({
      key: `${task.id} ${index}`, task, device: one.device || "no device", start: one.started_at, end: Math.max(one.started_at, one.ended_at ?? now),
    }));
  });
}

// Lanes by device, in alphabetical order, so that none changes its place. Bars that overlap get rows of their own.
export function lanes(found) {
  const byDevice = new Map();
  for (const bar of found) byDevice.set(bar.device, [...(byDevice.get(bar.device) ?? []), bar]);
  return [...byDevice].sort(([one], [other]) => one.localeCompare(other, undefined, { numeric: true })).map(([device, list]) => {
    const ends = [];
    const placed = list.sort((one, other) => one.start - other.start).map((bar) => {
      let row = ends.findIndex((end) => end <= bar.start);
      if (row < 0) row = ends.length;
      ends[row] = bar.end;
      return { ...bar, row };
    });
    return { device, bars: placed, rows: ends.length };
  });
}

// Edit cycles, and the holds of tasks, as spans of time.
export function holds(view, begin, end) {
  const cycles = (view.cycles ?? []).filter((one) => one.opened_at).map((one) => ({
    kind: "cycle", start: Math.max(begin, one.opened_at), end: one.closed_at ?? end, text: `cycle ${one.id}${one.editor || one.claimed_by ? ` of ${one.editor ?? one.claimed_by}` : ""}, ${one.closed_at ? "closed" : "open"}`,
  }));
  const held = (view.holds ?? []).map((one) => ({ kind: "hold", start: Math.max(begin, one.started_at), end: one.ended_at ?? end, text: `${one.task} is held by ${one.holder ?? "an edit cycle"}` }));
  return [...cycles, ...held];
}

const STEPS = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 43200, 86400];

export function ticks(begin, end, width) {
  const most = Math.max(2, width / 110);
  const step = STEPS.find((one) => (end - begin) / one <= most) ?? STEPS.at(-1) * Math.ceil((end - begin) / STEPS.at(-1) / most);
  const found = [];
  for (let at = begin; at <= end; at += step) found.push(at);
  return found;
}
