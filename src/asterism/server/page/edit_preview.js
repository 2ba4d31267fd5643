// The graph as a batch of edits would leave it. The server has checked the batch; this only draws it.
import { edgeKey, emptyMarks } from "./plan_state.js";

const COLUMN = 244;
const ROW = 64;

export function preview(view, layout, edits) {
  const tasks = new Map(view.tasks.map((task) => [task.id, task]));
  const edges = new Map(view.dependencies.map((edge) => [edgeKey(edge), edge]));
  const marks = { ...emptyMarks(), doomed: new Set(), cut: new Set(), planned: new Map() };
  for (const edit of edits) apply(edit, tasks, edges, marks);
  const nodes = { ...layout.nodes };
  for (const id of marks.added) if (!nodes[id] && tasks.has(id)) nodes[id] = freePlace(id, nodes, edges.values());
  // Removed tasks and dependencies stay in the drawing, marked as such, so that one sees what would go.
  return { view: { ...view, tasks: [...tasks.values()], dependencies: [...edges.values()] }, layout: { ...layout, nodes }, marks };
}

function apply(edit, tasks, edges, marks) {
  const key = edgeKey(edit);
  const cut = (one) => marks.cut.add(edgeKey(one));
  switch (edit.op) {
    case "add_task": {
      const task = { id: edit.task.id, name: edit.task.id, status: "pending", held_by: [] };
      tasks.set(task.id, task);
      marks.added.add(task.id);
      marks.planned.set(task.id, { value: task, peek: () => task });
      break;
    }
    case "remove_task": {
      marks.doomed.add(edit.task_id);
      const above = [...edges.values()].filter((edge) => edge.target === edit.task_id);
      const below = [...edges.values()].filter((edge) => edge.source === edit.task_id);
      [...above, ...below].forEach(cut);
      if (edit.dependents === "bridge") for (const one of above) for (const other of below) addEdge({ source: one.source, target: other.target }, edges, marks);
      if (edit.dependents === "remove") for (const edge of below) if (!marks.doomed.has(edge.target)) apply({ op: "remove_task", task_id: edge.target, dependents: "remove" }, tasks, edges, marks);
      break;
    }
    case "update_task": marks.changed.add(edit.task_id); break;
    case "cancel_task": marks.changed.add(edit.task_id); break;
    case "add_dependency": addEdge(edit, edges, marks); break;
    case "update_dependency": addEdge(edit, edges, marks); break;
    case "remove_dependency": marks.cut.add(key); break;
  }
}

function addEdge({ source, target, on = "success", when = null }, edges, marks) {
  edges.set(edgeKey({ source, target }), { source, target, on, when });
  marks.edges.add(edgeKey({ source, target }));
}

// To the right of its dependencies, in the nearest row that is free.
function freePlace(id, nodes, edges) {
  const list = [...edges];
  const above = list.filter((edge) => edge.target === id).map((edge) => nodes[edge.source]).filter(Boolean);
  const below = list.filter((edge) => edge.source === id).map((edge) => nodes[edge.target]).filter(Boolean);
  const near = above.length ? above : below;
  const x = above.length ? Math.max(...above.map((place) => place[0])) + COLUMN : below.length ? Math.min(...below.map((place) => place[0])) - COLUMN : 0;
  const y = near.length ? near.reduce((sum, place) => sum + place[1], 0) / near.length : 0;
  const taken = Object.values(nodes).filter((place) => Math.abs(place[0] - x) < COLUMN / 2).map((place) => place[1]);
  for (let step = 0; ; step += 1) {
    for (const side of [1, -1]) if (taken.every((row) => Math.abs(row - (y + side * step * ROW)) >= ROW - 1)) return [x, y + side * step * ROW, 0];
  }
}
