// Collapsed groups and finished parts of the graph, as plain data: what each fold hides, and where it stands.
import { ENDED } from "./words.js";

// The task of a group stands for its elements, and is not one of them.
export function addToFold(boxes, { id, name, whole }, task, place) {
  if (!boxes.has(id)) boxes.set(id, { id, kind: "fold", fold: name, name, members: [], places: [], x: 0, y: 0, layer: 0 });
  if (!whole) boxes.get(id).members.push(task.id);
  boxes.get(id).places.push(place);
}

// A fold stands on the place of one of its members, which is free: left of every task that needs it, so that no
// dependency runs backwards, as far right as that allows, and nearest to the middle of its members.
export function settleFolds(view, layout, boxes, hiddenIn) {
  const limits = new Map();
  for (const edge of view.dependencies) {
    const fold = hiddenIn.get(edge.source);
    const target = layout.nodes[edge.target];
    if (fold && target && !hiddenIn.has(edge.target)) limits.set(fold, Math.min(limits.get(fold) ?? Infinity, target[0]));
  }
  for (const box of boxes.values()) {
    if (box.kind !== "fold") continue;
    const middle = box.places.reduce((sum, place) => sum + place[1], 0) / box.places.length;
    const free = box.places.filter((place) => place[0] < (limits.get(box.id) ?? Infinity));
    const right = Math.max(...free.map((place) => place[0]));
    const best = free.filter((place) => place[0] === right).reduce((near, place) => (Math.abs(place[1] - middle) < Math.abs(near[1] - middle) ? place : near));
    [box.x, box.y, box.layer] = best;
    delete box.places;
  }
}

export const FINISHED = "finished tasks";

export const FEW = 8; // elements of a group that is open at first

// The groups whose elements are collapsed: those that somebody has collapsed, and those with more than a few elements
// that nobody has opened.
export function collapsedGroups(tasks, folded, opened) {
  const sizes = new Map();
  for (const { group } of tasks) if (group) sizes.set(group, (sizes.get(group) ?? 0) + 1);
  return new Set([...sizes].filter(([group, size]) => folded.includes(group) || (size > FEW && !opened.includes(group))).map(([group]) => group));
}

// Task -> the fold that hides it, {id, name}: elements of a collapsed group with the task of the group. Where that is in the
// plan, elements that something else depends on are shown: it may come before the group. Finished is an ended task whose dependents have all ended.
export function foldedTasks(view, collapsed, finished) {
  const folds = new Map();
  const fold = (group) => ({ id: `fold:${group}`, name: group });
  for (const task of view.tasks) {
    if (task.group && collapsed.has(task.group)) folds.set(task.id, fold(task.group));
    else if (collapsed.has(task.id)) folds.set(task.id, { ...fold(task.id), whole: true });
  }
  for (const edge of view.dependencies) {
    const [source, target] = [folds.get(edge.source), folds.get(edge.target)];
    if (source && !source.whole && source.id !== target?.id && folds.get(source.name)?.whole) folds.delete(edge.source);
  }
  if (finished) {
    const open = new Set(view.tasks.filter((task) => !ENDED.has(task.status)).map((task) => task.id));
    const needed = new Set(view.dependencies.filter((edge) => open.has(edge.target)).map((edge) => edge.source));
    const hidden = new Set(view.tasks.filter((task) => !folds.has(task.id) && ENDED.has(task.status) && !needed.has(task.id)).map((task) => task.id));
    for (const [task, part] of finishedParts(view, hidden)) folds.set(task, { id: `fold:${FINISHED} ${part}`, name: FINISHED });
  }
  return folds;
}

// Finished tasks in connected parts. A part ends where a path leaves it through a visible task: the part behind that task
// is another one, so that the drawing has no cycle. The value is the first task of the part.
function finishedParts(view, hidden) {
  const above = new Map(view.tasks.map((task) => [task.id, []]));
  for (const edge of view.dependencies) above.get(edge.target)?.push(edge.source);
  const stage = new Map();
  for (const id of upstreamFirst(above)) {
    stage.set(id, Math.max(0, ...above.get(id).map((source) => (stage.get(source) ?? 0) + (hidden.has(id) && !hidden.has(source) ? 1 : 0))));
  }
  const part = new Map([...hidden].map((id) => [id, id]));
  const first = (id) => {
    while (part.get(id) !== id) {
      part.set(id, part.get(part.get(id)));
      id = part.get(id);
    }
    return id;
  };
  for (const edge of view.dependencies) {
    if (hidden.has(edge.source) && hidden.has(edge.target) && stage.get(edge.source) === stage.get(edge.target)) part.set(first(edge.target), first(edge.source));
  }
  return new Map([...hidden].map((id) => [id, first(id)]));
}

function upstreamFirst(above) {
  const order = [];
  const below = new Map([...above.keys()].map((id) => [id, []]));
  const open = new Map();
  for (const [id, sources] of above) {
    const known = sources.filter((source) => below.has(source));
    open.set(id, known.length);
    for (const source of known) below.get(source).push(id);
  }
  const ready = [...above.keys()].filter((id) => open.get(id) === 0);
  while (ready.length) {
    const id = ready.pop();
    order.push(id);
    for (const next of below.get(id)) {
      open.set(next, open.get(next) - 1);
      if (open.get(next) === 0) ready.push(next);
    }
  }
  return order;
}
