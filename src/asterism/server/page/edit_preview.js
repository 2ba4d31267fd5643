// The graph as a batch of edits would leave it. The server has checked the batch; this only draws it.
import { layoutOf } from "./layout.js";
import { edgeKey, emptyMarks } from "./plan_state.js";

// Whether a plan has the tasks that edits are about: an edit that has waited may not fit the plan any more.
export function fits(view, edits) {
  const known = new Set([...view.tasks, ...edits.map((edit) => edit.task)].map((task) => task?.id));
  return edits.every((edit) => [edit.task_id, edit.source, edit.target].every((id) => id === undefined || known.has(id)));
}

export function preview(view, layout, edits) {
  const tasks = new Map(view.tasks.map((task) => [task.id, task]));
  const edges = new Map(view.dependencies.map((edge) => [edgeKey(edge), edge]));
  const marks = { ...emptyMarks(), doomed: new Set(), stopped: new Set(), cut: new Set(), planned: new Map() };
  for (const edit of edits) apply(edit, tasks, edges, marks);
  const after = layoutOf({ tasks: [...tasks.values()].filter((task) => !marks.doomed.has(task.id)), dependencies: [...edges.values()].filter((edge) => !marks.cut.has(edgeKey(edge))) }, layout);
  // Removed tasks and dependencies stay in the drawing, marked as such, so that one sees what would go.
  const nodes = { ...layout.nodes, ...after.nodes };
  const bends = [...after.edges, ...layout.edges.filter((edge) => marks.cut.has(edgeKey(edge)))];
  return { view: { ...view, tasks: [...tasks.values()], dependencies: [...edges.values()] }, layout: { ...after, nodes, edges: bends }, marks };
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
    case "cancel_task": marks.stopped.add(edit.task_id); break;
    case "add_dependency":
    case "update_dependency": addEdge(edit, edges, marks); break;
    case "remove_dependency": marks.cut.add(key); break;
  }
}

function addEdge({ source, target, on = "success", when = null }, edges, marks) {
  edges.set(edgeKey({ source, target }), { source, target, on, when });
  marks.edges.add(edgeKey({ source, target }));
}
