// The tasks as a list: the same as the graph, for screen readers, small screens and very large plans.
import { remarkBesideStatus, shownStatus, waitSeconds, workSpan } from "./graph_boxes.js";
import { MOST } from "./group_elements.js";
import { Action, Empty, Status } from "./parts.js";
import { changeOf, isChangeable, operationOf } from "./task_changes.js";
import { html } from "./ui.js";
import { clock, duration, plural } from "./words.js";

function times(task) {
  const work = workSpan(task);
  if (work) return `${clock(work.begin)}, ${duration((work.end ?? Date.now() / 1000) - work.begin)}`;
  return task.phase ? `waiting for ${duration(waitSeconds(task))}` : "";
}

export function TaskList({ state, tasks, more, selected, select, compose }) {
  state.changed.value;
  const found = tasks.map((task) => state.tasks.get(task.id)?.value ?? task);
  if (!found.length) return html`<${Empty} title="No task matches."><p>Clear the search or the status above.</p><//>`;
  return html`<div class="task-list">
    ${(more || found.length > MOST) && html`<p class="note">The first ${MOST}${more ? "" : ` of ${plural(found.length, "task")}`}: search to see others.</p>`}
    <ul>${found.slice(0, MOST).map((task) => html`<li key=${task.id} class=${`is-${shownStatus(task)}`}>
      <button aria-pressed=${task.id === selected ? "true" : "false"} onClick=${() => select(task.id)}>
        <span class="task-name">${task.name || task.id}</span><${Status} status=${shownStatus(task)} />
        <span class="task-remark">${remarkBesideStatus(task)}</span>
        <span class="task-time">${times(task)}</span>
      </button>${compose && isChangeable(state, task) && html`<${Action} kind="task-edit" operation=${operationOf(state, task)} label=${`Edit ${task.id}`} act=${async () => compose(await changeOf(state, task))}>Edit<//>`}</li>`)}</ul></div>`;
}
