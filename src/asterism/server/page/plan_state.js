// The plan that is shown: its view, layout and events. One signal per task, so that an event redraws one task.
import { connection, follow, get, isAway } from "./api.js";
import { layoutOf } from "./layout.js";
import { knowsPlan, readPermissions } from "./permissions.js";
import { batch, signal } from "./ui.js";

const CALM = 400; // ms between two readings of the view while events arrive
const CALM_LARGE = 1_000; // the same for a plan of more than LARGE tasks
const LARGE = 800;
const total = (counts) => Object.values(counts ?? {}).reduce((sum, number) => sum + number, 0);
const MOST_LAYOUTS = 50;
const CLAIMS_AGE = 5_000;
const TAKEN_AGE = 1_000; // ms between two readings while tasks wait for a device: no event tells that one took them
export const FADE = 8_000; // ms that a change stays marked

export class PlanState {
  constructor(name, version = null, opened = "") {
    this.name = name;
    this.version = version; // null: live
    this.view = signal(null);
    this.layout = signal(null);
    this.problem = signal(null);
    this.marks = signal(emptyMarks());
    this.opened = opened; // large groups whose elements are shown, with "|" between their names
    this.tasks = new Map(); // id -> signal of the task
    this.hidden = new Map(); // the same for a task behind a folded group that somebody looks at
    this.changed = signal(0); // counts events, for views that show more than the plan
    this.edited = signal(0); // counts events about edits, cycles and approvals
    this.listeners = new Set(); // functions of (kind, data)
    this.#load();
  }

  #stop = null;
  #closed = false;
  #timer = null;
  #reading = false;
  #pending = new Map();
  #updated = new Set(); // tasks that edits have changed since the last reading of the view
  #layouts = new Map(); // by version, of the groups that are open
  #claimed = { key: "", at: 0, byId: new Map() };

  close() {
    this.#closed = true;
    clearTimeout(this.#timer);
    this.#stop?.();
  }

  // Show another version: null is the present.
  async travel(version) {
    if (version === this.version) return;
    this.version = version;
    this.#stop?.();
    this.#stop = null;
    await this.#load();
  }

  async open(groups) {
    if (groups === this.opened) return;
    this.opened = groups;
    await this.#load();
  }

  find(id) {
    return this.tasks.get(id) ?? this.hidden.get(id);
  }

  // Read a task behind a folded group. Events keep it up to date until another one is read.
  async readHidden(id) {
    this.hidden = new Map([[id, signal(await get(["plans", this.name, "tasks", id]))]]);
  }

  reload() {
    return this.#load();
  }

  async #load() {
    const [wanted, opened] = [this.version, this.opened];
    const outdated = () => this.#closed || wanted !== this.version || opened !== this.opened;
    this.#reading = true;
    try {
      const parts = wanted === null ? ["plans", this.name] : ["plans", this.name, "versions", wanted];
      const [read] = await Promise.all([get(parts, { folded: "true", opened }), knowsPlan(this.name) || readPermissions(this.name)]);
      const view = { ...read, opened };
      const before = this.view.peek();
      const known = this.layout.peek();
      const layout = known?.version === view.version && known.opened === opened && view.tasks.every((task) => known.nodes[task.id]) ? known : this.#laidOut(view, known);
      if (wanted === null && view.cycles?.length) view.cycles = await this.#claims(view.cycles);
      if (outdated()) return;
      this.#show(view, layout, before, known);
      if (wanted === null && !this.#stop) this.#follow();
      if (wanted === null && this.#timer === null && view.tasks.some((task) => task.phase === "queued" || task.phase === "starting")) this.#timer = setTimeout(() => this.#read(), TAKEN_AGE);
    } catch (problem) {
      if (outdated()) return;
      if (wanted !== null || !isAway(problem)) this.problem.value = problem;
      else if (!this.#stop) this.#followLater();
      else this.#timer ??= setTimeout(() => this.#read(), TAKEN_AGE);
    } finally {
      this.#reading = false;
    }
  }

  // The layout of a version that was seen is kept; that of another starts from the nearest one, so that an edit moves as
  // little as possible.
  #laidOut(view, known) {
    if (known?.opened !== view.opened) this.#layouts.clear();
    const { version, opened } = view;
    if (!view.tasks.every((task) => this.#layouts.get(version)?.nodes[task.id])) {
      const near = [...this.#layouts.keys()].sort((one, other) => Math.abs(one - version) - Math.abs(other - version))[0];
      this.#layouts.set(version, { ...layoutOf(view, this.#layouts.get(near) ?? known), version, opened });
      if (this.#layouts.size > MOST_LAYOUTS) this.#layouts.delete(this.#layouts.keys().next().value);
    }
    return this.#layouts.get(version);
  }

  // The journal knows which cycles are open; who has claimed one is known to the process that runs the plan. It is asked
  // when other cycles are open than before, and every few seconds.
  async #claims(cycles) {
    const key = cycles.map((one) => one.id).join();
    if (key !== this.#claimed.key || Date.now() > this.#claimed.at + CLAIMS_AGE) {
      const found = await get(["plans", this.name, "cycles"]).catch(() => ({ items: [] }));
      this.#claimed = { key, at: Date.now(), byId: new Map(found.items.map((one) => [one.id, one])) };
    }
    return cycles.map((one) => ({ ...one, ...this.#claimed.byId.get(one.id) }));
  }

  #show(view, layout, before, known) {
    // Within a version the structure stays the same object: the graph is then not drawn anew.
    const alike = before?.opened === view.opened;
    if (alike && before.version === view.version && before.name === view.name) view.dependencies = before.dependencies;
    const marks = alike && before.version !== view.version ? compare(before, view, known) : null;
    if (marks) {
      marks.changed = this.#updated;
      this.#updated = new Set();
    }
    batch(() => {
      this.problem.value = null;
      const ids = new Set();
      for (const task of view.tasks) {
        ids.add(task.id);
        task.held_by = holders(task, view);
        const kept = this.tasks.get(task.id);
        if (!kept) this.tasks.set(task.id, signal(task));
        else if (!same(kept.peek(), task)) kept.value = task;
      }
      for (const id of [...this.tasks.keys()]) if (!ids.has(id)) this.tasks.delete(id);
      this.layout.value = layout;
      this.view.value = view;
      if (marks) this.#mark(marks);
      this.changed.value += 1;
    });
  }

  // The view of a version may have come before its event.
  #noteUpdates({ version, diff }) {
    const ids = diff?.changed ?? [];
    if (!ids.length) return;
    const marks = this.marks.peek();
    if (this.view.peek()?.version >= version) this.#mark({ ...marks, changed: new Set([...marks.changed, ...ids]) });
    else for (const id of ids) this.#updated.add(id);
  }

  #mark(marks) {
    this.marks.value = marks;
    setTimeout(() => { if (this.marks.peek() === marks) this.marks.value = emptyMarks(); }, FADE);
  }

  // The server is away: the stream is tried until it is there again, and then the view is read.
  #followLater() {
    connection.value = "lost";
    this.#follow();
  }

  #follow() {
    this.#stop?.();
    this.#stop = follow(["plans", this.name, "events"], {
      since: this.view.peek()?.position,
      receive: (kind, data) => this.#receive(kind, data),
      reconnected: () => this.#load(),
    });
  }

  // Statuses appear with the next frame; what else follows from an event, such as the device of a running task, comes
  // with the next reading of the view.
  #receive(kind, data) {
    for (const listener of this.listeners) listener(kind, data);
    if (kind !== "task") this.edited.value += 1;
    if (kind === "edit") this.#noteUpdates(data);
    if (kind === "gone") {
      this.#stop?.();
      this.#stop = null;
      this.problem.value = { message: "The store has no such plan any more.", violations: [] };
      return;
    }
    if (kind === "task" && data.task && data.status) {
      if (!this.#pending.size) requestAnimationFrame(() => this.#flush());
      this.#pending.set(data.task, data);
    }
    if (this.#timer === null) {
      const calm = total(this.view.peek()?.counts) > LARGE && kind === "task" ? CALM_LARGE : CALM;
      this.#timer = setTimeout(() => this.#read(), calm);
    }
  }

  #read() {
    this.#timer = null;
    if (this.#closed) return;
    if (this.#reading) this.#timer = setTimeout(() => this.#read(), CALM);
    else this.#load();
  }

  #flush() {
    batch(() => {
      for (const [id, data] of this.#pending) {
        const task = this.find(id);
        if (!task) continue;
        const next = { ...task.peek() };
        for (const field of PROGRESS) if (data[field] !== undefined && !(field === "device" && data.status === "running")) next[field] = data[field];
        if (next.status !== "running") next.phase = null;
        else next.phase ??= "queued"; // it was offered to the fleet; the next reading of the view tells more
        if (next.status === "pending" && (task.peek().status === "waiting" || next.awaited_since)) next.status = "waiting";
        task.value = next;
      }
      this.#pending.clear();
      this.changed.value += 1;
    });
  }
}

const PROGRESS = ["status", "device", "reason", "provisional", "attempts", "awaited_since", "started_at", "ended_at", "attempt", "needless"];

// Who holds a task: the person or program that reviews the end of one of its dependencies.
function holders(task, { cycles = [], approvals = [] }) {
  const names = (task.held_by ?? []).map((source) => {
    const cycle = cycles.find((one) => one.tasks?.includes(source));
    return cycle?.claimed_by ?? `the review of ${source}`;
  });
  if (task.status === "pending" && approvals.some((one) => one.tasks.includes(task.id))) names.push("an approval");
  return [...new Set(names)];
}

const same = (one, other) => JSON.stringify(one) === JSON.stringify(other);
export const edgeKey = (edge) => `${edge.source}\u0000${edge.target}`;
export const emptyMarks = () => ({ added: new Set(), changed: new Set(), removed: [], edges: new Set(), gone: [] });

// What differs between two versions. Removed tasks keep their place from the layout before.
export function compare(before, after, layout) {
  const old = new Map(before.tasks.map((task) => [task.id, task]));
  const now = new Set(after.tasks.map((task) => task.id));
  const oldEdges = new Map(before.dependencies.map((edge) => [edgeKey(edge), edge]));
  const newEdges = new Set(after.dependencies.map(edgeKey));
  const marks = emptyMarks();
  for (const task of after.tasks) if (!old.has(task.id)) marks.added.add(task.id);
  for (const task of before.tasks) {
    const place = layout?.nodes?.[task.id];
    if (!now.has(task.id) && place) marks.removed.push({ task, place });
  }
  for (const edge of after.dependencies) {
    const was = oldEdges.get(edgeKey(edge));
    if (!was || was.on !== edge.on || was.when !== edge.when) marks.edges.add(edgeKey(edge));
  }
  for (const [key, edge] of oldEdges) if (!newEdges.has(key)) marks.gone.push(edge);
  return marks;
}
