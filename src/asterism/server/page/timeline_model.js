// Executions, lanes, edit cycles and holds of the timeline, as plain data, from the events of a plan.

export class PlanHistory {
  executions = new Map(); // by task and start
  cycles = new Map();
  holds = new Map(); // by the task whose end is reviewed
  position = null;

  add(kind, data) {
    if (data.position != null) this.position = data.position;
    if (kind === "task") this.#task(data);
    else if (kind === "cycle") this.#cycle(data);
  }

  #task(data) {
    if (data.started_at != null) {
      const key = `${data.task} ${data.started_at}`;
      const old = this.executions.get(key);
      const { task, status, provisional, started_at, ended_at, attempt } = data;
      this.executions.set(key, { key, task, status, provisional, started_at, ended_at, attempt, device: data.device || old?.device || "no device" });
      this.#end(data.task, data.started_at);
    } else {
      this.#end(data.task, data.at); // released, or to be run again
      for (const one of this.executions.values()) if (one.task === data.task && one.ended_at == null) one.ended_at = data.at;
    }
    if (data.review && !this.holds.has(data.task)) this.holds.set(data.task, { task: data.task, started_at: data.ended_at ?? data.at, ended_at: null });
  }

  // An earlier execution of a task ends at the latest when the next one starts.
  #end(task, at) {
    for (const one of this.executions.values()) {
      if (one.task === task && one.started_at < at && one.ended_at == null) Object.assign(one, { ended_at: at, status: "cancelled" });
    }
  }

  #cycle(data) {
    const cycle = this.cycles.get(data.cycle) ?? { id: data.cycle, tasks: data.tasks ?? [], opened_at: data.at, closed_at: null };
    if (data.what === "closed") {
      cycle.closed_at = data.at;
      for (const task of cycle.tasks) {
        const hold = this.holds.get(task);
        if (hold && hold.ended_at == null) hold.ended_at = data.at;
      }
    }
    this.cycles.set(data.cycle, cycle);
  }

  // What had happened until a time.
  until(at) {
    if (at == null) return this;
    const past = new PlanHistory();
    const cut = (map) => new Map([...map].filter(([, one]) => (one.started_at ?? one.opened_at) <= at).map(([key, one]) => {
      const copy = { ...one };
      if (copy.ended_at > at) { copy.ended_at = null; copy.status = "running"; }
      if (copy.attempt) copy.attempt = Object.fromEntries(Object.entries(copy.attempt).map(([name, time]) => [name, time > at ? null : time]));
      if (copy.closed_at > at) copy.closed_at = null;
      return [key, copy];
    }));
    past.executions = cut(this.executions);
    past.cycles = cut(this.cycles);
    past.holds = cut(this.holds);
    return past;
  }

  bounds() {
    const spans = [...this.executions.values(), ...[...this.cycles.values()].map((one) => ({ started_at: one.opened_at, ended_at: one.closed_at }))];
    return { start: Math.min(...spans.map((one) => one.started_at)), end: Math.max(...spans.map((one) => one.ended_at ?? one.started_at)) };
  }
}

// When the work of an execution began and ended; null if it has not begun. A plan counts a task as started when it offers
// it to the fleet; `task` is the task as it is now, which says more while it runs, or undefined for the past.
export function workOf(one, task) {
  const current = one.ended_at == null ? task : undefined;
  const attempt = one.attempt ?? current?.attempt;
  if (attempt) return attempt.begun_at == null ? null : { start: attempt.begun_at, end: attempt.ended_at ?? one.ended_at };
  if (current && (current.started_at !== one.started_at || (current.phase ?? "running") !== "running")) return null;
  return { start: one.started_at, end: one.ended_at };
}

// Lanes by device, in alphabetical order, so that none changes its place. Bars that overlap get rows of their own.
// `taskOf` returns the task of an execution as it is now, for those that run.
export function lanes(executions, now, taskOf = () => undefined) {
  const byDevice = new Map();
  for (const one of executions) {
    const work = workOf(one, taskOf(one.task));
    if (!work) continue;
    if (!byDevice.has(one.device)) byDevice.set(one.device, []);
    byDevice.get(one.device).push({ ...one, start: work.start, end: Math.max(work.start, work.end ?? now) });
  }
  return [...byDevice].sort(([one], [other]) => one.localeCompare(other, undefined, { numeric: true })).map(([device, list]) => {
    return { device, ...inRows(list) };
  });
}

// Bars by their start: those that overlap are in different rows. `next` is when the bar after one begins in its row.
export function inRows(list) {
  const last = [];
  const bars = list.toSorted((one, other) => one.start - other.start).map((one) => {
    let row = last.findIndex((bar) => bar.end <= one.start);
    if (row < 0) row = last.length;
    else last[row].next = one.start;
    return (last[row] = { ...one, row, next: Infinity });
  });
  return { bars, rows: last.length };
}

// The bar that an arrow key leads to: sideways in its lane by start, up and down to the bar of the next lane at that time.
export function nextBar(found, from, key) {
  const index = found.findIndex((lane) => lane.bars.some((bar) => bar.key === from.key));
  const { bars } = found[index];
  const place = bars.findIndex((bar) => bar.key === from.key);
  if (key === "ArrowLeft") return bars[place - 1];
  if (key === "ArrowRight") return bars[place + 1];
  const lane = found[index + (key === "ArrowDown" ? 1 : -1)];
  if (!lane || !["ArrowUp", "ArrowDown"].includes(key)) return undefined;
  return lane.bars.reduce((near, bar) => (Math.abs(bar.start - from.start) < Math.abs(near.start - from.start) ? bar : near));
}

// Edit cycles, and the holds below tasks under review, as spans of time with a sentence each.
export function spans(history, end) {
  const cycles = [...history.cycles.values()].map((one) => ({ kind: "cycle", name: `cycle ${one.id}`, start: one.opened_at, end: one.closed_at ?? end, text: `cycle ${one.id} reviews ${one.tasks.join(", ") || "the plan"}${one.closed_at ? "" : " (open)"}` }));
  const holds = [...history.holds.values()].map((one) => ({ kind: "hold", name: `after ${one.task}`, start: one.started_at, end: one.ended_at ?? end, text: `tasks after ${one.task} are held${one.ended_at ? "" : " now"}` }));
  return [...holds, ...cycles];
}

const STEPS = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 43200, 86400];

export function ticks(begin, end, width) {
  const most = Math.max(2, width / 110);
  const step = STEPS.find((one) => (end - begin) / one <= most) ?? STEPS.at(-1) * Math.ceil((end - begin) / STEPS.at(-1) / most);
  const found = [];
  for (let at = begin; at <= end; at += step) found.push(at);
  return found;
}
