// The view of a plan: its graph with search, filters and folds, the drawer of a task, and the composer of edits.
import { address, setQuery } from "./address.js";
import { Approval } from "./approval.js";
import { EditComposer } from "./edit_composer.js";
import { draftOf } from "./edit_draft.js";
import { fits, preview } from "./edit_preview.js";
import { EMPTY_REQUEST, EditRequest } from "./edit_request.js";
import { Graph } from "./graph.js";
import { FINISHED, collapsedGroups } from "./graph_folds.js";
import { shownStatus } from "./graph_boxes.js";
import { useFound } from "./group_elements.js";
import { Command, Empty } from "./parts.js";
import { may } from "./permissions.js";
import { Head, TaskDrawer } from "./task_drawer.js";
import { TaskList } from "./task_list.js";
import { effect, html, useEffect, useMemo, useRef, useState } from "./ui.js";
import { mark, plural, words } from "./words.js";

const LIST = "list";

export function PlanView({ state, draft }) {
  const { query } = address.value;
  const view = state.view.value;
  const layout = state.layout.value;
  const controls = useRef(null);
  const search = useRef(null);
  const [planned, setPlanned] = useState(null); // the edits whose outcome the graph shows
  const finished = query.finished === "1";
  const [folded, opened] = [query.folded, query.opened].map((names) => (names ?? "").split("|").filter(Boolean));
  const collapsed = useMemo(() => collapsedGroups(view.tasks, folded, opened), [query.folded, query.opened, view.dependencies]);
  const found = useFound(state, view, query);
  useEffect(() => { state.open(query.opened ?? ""); }, [state, query.opened]);
  const fitted = useRef(layout.opened);
  useEffect(() => {
    if (fitted.current !== layout.opened) controls.current?.fitAll();
    fitted.current = layout.opened;
  }, [layout.opened]);
  const shown = useMemo(() => (planned ? preview(view, layout, planned) : { view, layout, marks: null }), [view, layout, planned]);
  const select = (task) => { draft.value = draft.value?.edits.length || draft.value?.rounds?.length ? draft.value : null; setQuery({ task }, { entry: !query.task }); };
  // The graph shows what edits would make of the plan, and moves only if that would be out of sight.
  const show = (edits) => {
    setPlanned(edits);
    if (edits === null) return;
    const changed = edits.flatMap((edit) => [edit.task?.id, edit.task_id, edit.source, edit.target]).filter(Boolean);
    requestAnimationFrame(() => controls.current?.revealAll(changed));
  };
  const editable = state.version === null && may("edit_plan");
  const waiting = state.version === null ? (view.approvals ?? []).find((one) => String(one.id) === query.approval) : undefined;
  useEffect(() => {
    if (waiting && !waiting.task && fits(view, waiting.batch.edits)) show(waiting.batch.edits);
    return () => setPlanned(null);
  }, [waiting?.id, waiting && view.version]);
  useEffect(() => { if (query.task) requestAnimationFrame(() => controls.current?.reveal(query.task)); }, [query.task]);
  const closeDrawer = () => {
    const id = query.task;
    setQuery({ task: "" });
    if (id && query.as !== LIST) controls.current?.focusBox(id);
  };
  const compose = ({ edits, ...terms }) => { const before = draft.value?.rounds ? null : draft.value; draft.value = { reason: "", ...before, ...terms, edits: [...(before?.edits ?? []), ...edits] }; setQuery({ task: "" }); };

  const ask = () => { draft.value ??= EMPTY_REQUEST; setQuery({ task: "" }); };

  useEffect(() => {
    const keys = (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select, dialog")) {
        if (event.key === "Escape" && event.target === search.current) { setQuery({ search: "" }); search.current.blur(); }
        return;
      }
      const act = {
        "/": () => search.current.focus(), "+": () => controls.current?.zoomBy(1.25), "=": () => controls.current?.zoomBy(1.25),
        "-": () => controls.current?.zoomBy(0.8), "0": () => controls.current?.fitAll(), f: () => setQuery({ finished: finished ? "" : "1" }),
        l: () => setQuery({ as: query.as === LIST ? "" : LIST }), g: () => controls.current?.focusBox(controls.current.first()),
        e: () => editable && compose({ edits: [] }), a: () => editable && may("propose_edit") && ask(), Escape: () => (waiting ? setQuery({ approval: "" }) : query.task ? closeDrawer() : null),
      }[event.key];
      if (!act) return;
      event.preventDefault();
      act();
    };
    addEventListener("keydown", keys);
    return () => removeEventListener("keydown", keys);
  });

  const groups = [...new Set(view.tasks.map((task) => task.group).filter(Boolean))];
  // The server folds large groups, the page the others.
  const without = (names, gone) => names.filter((name) => !gone.includes(name)).join("|");
  const collapse = (names) => setQuery({ opened: without(opened, names), folded: [...new Set([...folded, ...names])].join("|"), task: "" });
  const open = (names) => setQuery({ folded: without(folded, names), opened: [...new Set([...opened, ...names])].join("|"), task: "" });
  const openFold = (fold) => (fold === FINISHED ? setQuery({ finished: "" }) : open([fold]));
  const composing = draft.value !== null && state.version === null;
  return html`<div class="plan-view">
    <${Toolbar} ...${{ state, query, search, controls, groups, collapsed, finished, found, collapse, open }} />
    <div class="plan-body">
      ${view.tasks.length === 0 && !planned ? html`<${Empty} title="This plan has no tasks yet.">${editable && html`<p>Add one with the button “Edit”, or in a terminal:</p><${Command} text=${`asterism plan edit ${view.name} --add '{"id": "mail", "shell": "echo done"}'`} />`}<//>`
      : query.as === LIST ? html`<${TaskList} ...${{ state, tasks: found?.tasks ?? view.tasks, more: found?.more, selected: query.task, select, compose: editable ? compose : null }} />`
      : html`<${Graph} ...${{ state, view: shown.view, layout: shown.layout, marks: shown.marks ?? state.marks.value, selected: query.task, select, found: found?.boxes ?? null, collapsed, finished, openFold, controls }} />`}
      ${composing && draft.value.rounds ? html`<${EditRequest} state=${state} draft=${draft} show=${show} />`
      : composing ? html`<${EditComposer} state=${state} draft=${draft} show=${show} />`
      : waiting ? html`<${WaitingEdit} state=${state} item=${waiting} close=${() => setQuery({ approval: "" })} change=${(item) => { draft.value = draftOf(item); setQuery({ approval: "" }); }} />`
      : query.task && html`<${TaskDrawer} state=${state} id=${query.task} close=${closeDrawer} compose=${editable ? compose : null} jump=${(id) => { setQuery({ task: id }); controls.current?.reveal(id); }}
        fold=${(group) => collapse([group])} open=${(group) => open([group])} />`}
    </div>
  </div>`;
}

function WaitingEdit({ state, item, close, change }) {
  const heading = useRef(null);
  useEffect(() => { heading.current?.focus({ preventScroll: true }); }, [item.id]);
  return html`<aside class="drawer" aria-label="Edit that waits for approval"><${Head} title="Waiting for approval" close=${close} heading=${heading} />
    ${!item.task && html`<p class="note">The graph shows the outcome of this edit.</p>`}<${Approval} item=${item} name=${state.name} change=${change} done=${async () => { await state.reload(); close(); }} /></aside>`;
}

function Toolbar({ state, query, search, controls, groups, collapsed, finished, found, collapse, open }) {
  const folded = groups.length > 0 && groups.every((group) => collapsed.has(group));
  return html`<div class="toolbar" role="toolbar" aria-label="Graph">
    <label class="search"><span class="visually-hidden">Search tasks</span><input ref=${search} type="search" placeholder="Search tasks  ( / )" value=${query.search ?? ""}
      onInput=${(event) => setQuery({ search: event.target.value })}
      onKeyDown=${(event) => event.key === "Enter" && controls.current?.focusBox(controls.current.first())} /></label>
    ${query.search && html`<span class="found" role="status">${found.more ? `more than ${found.tasks.length} matches` : plural(found.tasks.length, "match").replace("matchs", "matches")}</span>`}
    <${Counts} state=${state} query=${query} />
    <span class="tools">${groups.length > 0 && html`<button aria-pressed=${String(folded)} onClick=${() => (folded ? open(groups) : collapse(groups))}><span class="word">Collapse </span>groups</button>`}
    <button aria-pressed=${String(finished)} title="f" onClick=${() => setQuery({ finished: finished ? "" : "1" })}><span class="word">Collapse </span>finished</button>
    <button class="as-list" aria-pressed=${String(query.as === LIST)} title="l" onClick=${() => setQuery({ as: query.as === LIST ? "" : LIST })}>List</button>
    ${query.as !== LIST && html`<span class="zoom" role="group" aria-label="Zoom"><button aria-label="Zoom out" title="−" onClick=${() => controls.current?.zoomBy(0.8)}>−</button>
      <button aria-label="Fit the whole graph" title="0" onClick=${() => controls.current?.fitAll()}>Fit</button>
      <button aria-label="Zoom in" title="+" onClick=${() => controls.current?.zoomBy(1.25)}>+</button></span>`}</span>
  </div>`;
}

const STATUSES = ["pending", "waiting", "queued", "starting", "running", "completed", "failed", "cancelled"];

const CALM = 500;

// Draws again while the plan changes, but not with every frame: the layout of the toolbar would cost frames of the graph.
function useCalmRedraw(state) {
  const [, redraw] = useState(0);
  useEffect(() => {
    let timer = null;
    const stop = effect(() => {
      state.changed.value;
      timer ??= setTimeout(() => { timer = null; redraw((turn) => turn + 1); }, CALM);
    });
    return () => { stop(); clearTimeout(timer); };
  }, [state]);
}

// How many tasks have each status, in a fixed order; a press filters by it.
function Counts({ state, query }) {
  useCalmRedraw(state);
  const counts = new Map(STATUSES.map((status) => [status, 0]));
  const add = (status, number) => counts.set(status, (counts.get(status) ?? 0) + number);
  const groups = new Set([...state.tasks.values()].map((task) => task.peek().group));
  for (const task of state.tasks.values()) {
    const { id, behind } = task.peek();
    if (!groups.has(id) && !Object.keys(behind ?? {}).length) add(shownStatus(task.peek()), 1); // the elements of a group count, not the group
    for (const [status, number] of Object.entries(task.peek().behind ?? {})) add(status, number);
  }
  const shown = [...counts].filter(([status, number]) => number || query.status === status);
  return html`<span class="counts" role="group" aria-label="Filter by status">${shown.map(([status, number]) => html`<button key=${status}
    class=${`count is-${status}`} aria-pressed=${String(query.status === status)} onClick=${() => setQuery({ status: query.status === status ? "" : status })}><span class="glyph" aria-hidden="true">${mark(status)}</span><span>${number.toLocaleString("en")}<span class="word"> ${words(status)}</span></span></button>`)}</span>`;
}
