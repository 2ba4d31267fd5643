// The tasks behind large groups, which the view of a plan only counts: the server lists them, some at a time.
import { get } from "./api.js";
import { byUrgency, isFolded, shownStatus } from "./graph_boxes.js";
import { matches } from "./graph_model.js";
import { html, useEffect, useMemo, useState } from "./ui.js";
import { mark, words } from "./words.js";

export const MOST = 500;
const FIRST = 100;
const CALM = 200; // ms without a key until the server searches

function useTasks(state, query, when) {
  const [page, setPage] = useState(null);
  useEffect(() => {
    if (!query) return setPage(null);
    let current = true;
    const timer = setTimeout(() => get(["plans", state.name, "tasks"], query).then((read) => current && setPage(read), () => {}), page ? CALM : 0);
    return () => { current = false; clearTimeout(timer); };
  }, [state, JSON.stringify(query), when]);
  return page;
}

// What a search and a status find: {tasks, more, boxes}; null without a search. A task behind a folded group is found in
// its group. Of the past, only the tasks in the graph are searched.
export function useFound(state, view, { search = "", status = "" }) {
  const wanted = Boolean(search || status);
  const remote = wanted && state.version === null && view.tasks.some(isFolded);
  const page = useTasks(state, remote ? { search, status, limit: MOST } : null, view);
  return useMemo(() => {
    if (!wanted) return null;
    const fits = (task) => matches(task, search) && (!status || shownStatus(task) === status);
    const tasks = remote ? page?.items ?? [] : view.tasks.filter(fits);
    return { tasks, more: Boolean(remote && page?.next), boxes: new Set(tasks.map((task) => (state.tasks.has(task.id) ? task.id : task.group))) };
  }, [state, view, search, status, page]);
}

// The elements of a folded group with one status, failed ones first.
export function Elements({ state, group, jump, open }) {
  const counts = byUrgency(group.behind);
  const [chosen, choose] = useState(null);
  const status = counts.some(([name]) => name === chosen) ? chosen : counts[0][0];
  const page = useTasks(state, { group: group.id, status, limit: FIRST }, group.behind[status]);
  return html`<section><h3>Elements</h3>
    <p class="counts" role="group" aria-label="Elements by status">${counts.map(([name, number]) => html`<button key=${name} class=${`count is-${name}`} aria-pressed=${String(name === status)}
      onClick=${() => choose(name)}><span class="glyph" aria-hidden="true">${mark(name)}</span>${number.toLocaleString("en")} ${words(name)}</button>`)}</p>
    <ul class="links">${(page?.items ?? []).map((task) => html`<li key=${task.id}><button class="link" onClick=${() => jump(task.id)}>${task.id}</button>${task.reason && html` <small>${task.reason}</small>`}</li>`)}</ul>
    ${page?.next && html`<p class="note">These are the first ${FIRST}: search to see others.</p>`}
    <p class="buttons"><button onClick=${open}>Show all in the graph</button></p></section>`;
}
