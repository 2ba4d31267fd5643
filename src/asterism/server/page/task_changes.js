// How a person may change a task: as it is while it has not started; with a retry from it once the plan has ended; and by
// another task in the place of one that failed while the plan goes on.
import { get } from "./api.js";
import { writtenTask } from "./edit_draft.js";
import { ENDED, ENDED_STATES } from "./words.js";

// A task that has not started: it and its dependencies may change.
export const isOpen = (task) => task?.status === "pending" || task?.status === "waiting";

export function isChangeable(state, task) {
  if (state.version !== null) return false;
  if (isOpen(task)) return true;
  if (ENDED_STATES.has(state.view.value.state)) return ENDED.has(task.status);
  return task.status === "failed" && !task.group;
}

// What the change asks of the server.
export const operationOf = (state, task) => (!isOpen(task) && ENDED_STATES.has(state.view.value.state) ? "retry_plan" : "edit_plan");

// The draft of a change: {edits} and, where tasks run again, {retry}.
export async function changeOf(state, task) {
  const update = { op: "update_task", task_id: task.id, changes: {} };
  if (isOpen(task)) return { edits: [update] };
  if (ENDED_STATES.has(state.view.value.state)) return { edits: [update], retry: [task.id] };
  const { definition } = await get(["plans", state.name, "tasks", task.id]);
  return { edits: replacement(state.view.value, definition, task.id), reason: `${task.id} failed` };
}

// A task like another one, with its dependencies; what waited for the success of that one waits for the new one.
export function replacement(view, definition, id) {
  const known = new Set(view.tasks.map((task) => task.id));
  let number = 2;
  while (known.has(`${id}-${number}`)) number += 1;
  const name = `${id}-${number}`;
  const isPlain = (edge) => !edge.when && (edge.on ?? "success") === "success";
  const [above, below] = [view.dependencies.filter((edge) => edge.target === id), view.dependencies.filter((edge) => edge.source === id && (edge.on ?? "success") === "success")];
  const moved = ({ source, target, on, when }) => ({ op: "add_dependency", source, target, ...(on ? { on } : {}), ...(when ? { when } : {}) });
  const waits = new Map(view.tasks.map((task) => [task.id, isOpen(task)]));
  return [
    { ...writtenTask({ ...definition, id: name }), after: above.filter(isPlain).map((edge) => edge.source) },
    ...above.filter((edge) => !isPlain(edge)).map((edge) => moved({ ...edge, target: name })),
    ...below.filter((edge) => waits.get(edge.target)).flatMap((edge) => [{ op: "remove_dependency", source: id, target: edge.target }, moved({ ...edge, source: name })]),
  ];
}
