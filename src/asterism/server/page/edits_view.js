// Edits: approvals and open cycles that wait for a person, and every batch with its diff and violations.
import { addressOf, address, go, setQuery } from "./address.js";
import { get, isReport, post } from "./api.js";
import { Approval } from "./approval.js";
import { Diff } from "./batch_diff.js";
import { draftOf } from "./edit_draft.js";
import { Action, Command, Empty, Failure, Status, Violations, useCalmRows, useList } from "./parts.js";
import { may } from "./permissions.js";
import { html, useState } from "./ui.js";
import { clock, costText, duration, plural, words } from "./words.js";

export function EditsView({ state, draft }) {
  const view = state.view.value;
  const { query } = address.value;
  const name = state.name;
  const changed = `${view.version} ${state.edited.value}`;
  const history = useList(() => readHistory(name), [changed]);
  const [mine, setMine] = useState(0); // what a person does here is shown at once
  const reread = async () => { await Promise.all([history.read(), state.reload()]); setMine((old) => old + 1); };
  const compose = (cycle) => { draft.value = { edits: [], reason: "", cycle }; go(["plans", name, "graph"]); };
  const change = (approval) => { draft.value = draftOf(approval); go(["plans", name, "graph"]); };
  const { cycles = [], cost = null } = history.items ?? {};
  const batches = history.items && entries(history.items);
  const waiting = view.approvals ?? [];
  const open = view.cycles ?? [];
  const wanted = batches?.filter((one) => !query.outcome || outcomeOf(one) === query.outcome);
  const { shown = [], fresh, showAll } = useCalmRows(wanted, `${query.outcome} ${mine}`, batchKey);
  const last = (batches ?? []).find((one) => one.version && outcomeOf(one) === "accepted");
  return html`<div class="column">
    <div class="row-head"><h2>Edits</h2><span class="spring"></span><span class="buttons">
      <${Action} operation="undo_edit" disabled=${!last} act=${async () => { await post(["plans", name, "undo"]); await reread(); }} confirm="Undo the last edit?">Undo the last edit<//>
      ${may("edit_plan") && html`<button class="primary" data-operation="edit_plan" onClick=${() => compose(null)}>Make an edit</button>`}</span></div>
    ${cost && html`<p class="cost-total"><b>Models in this plan</b> ${costText(cost)}</p>`}
    ${view.budget?.without_editor && html`<p class="note">The plan goes on without its editor${view.budget.decided_by ? `, decided by ${view.budget.decided_by}` : ""}.</p>`}
    ${waiting.length > 0 && html`<section><h3>Waiting for approval</h3>${waiting.map((one) => html`<${Approval} key=${one.id} item=${one} name=${name} done=${reread} change=${change} cycle=${cycles.find((cycle) => cycle.id === one.cycle)} show=${addressOf(["plans", name, "graph"], { approval: one.id })} />`)}</section>`}
    ${open.length > 0 && html`<section><h3>Open cycles</h3>${open.map((one) => html`<${Cycle} key=${one.id} item=${one} name=${name} held=${heldBy(view, one)} done=${reread} compose=${compose} />`)}</section>`}
    <section><div class="row-head"><h3>Batches</h3><span class="spring"></span>
      <label>Show <select value=${query.outcome ?? ""} onChange=${(event) => setQuery({ outcome: event.target.value })}><option value="">all</option><option value="accepted">accepted</option><option value="rejected">rejected</option></select></label></div>
    ${history.problem && html`<${Failure} problem=${history.problem} retry=${history.read} />`}
    ${batches && !shown.length && html`<${Empty} title=${query.outcome ? "No such edit." : "No edit yet."}>${may("edit_plan") && html`<p>Press “Make an edit”, or in a terminal:</p><${Command} text=${`asterism plan edit ${name} --add '{"id": "mail", "shell": "echo done"}'`} />`}<//>`}
    ${fresh > 0 && html`<p><button class="fresh" onClick=${showAll}>Show ${plural(fresh, "new edit")}</button></p>`}
    <ol class="batches">${shown.map((one) => html`<${one.decision?.task ? TaskDecision : one.outcome ? ClosedCycle : Batch} key=${batchKey(one)} item=${one} name=${name} cycle=${cycles.find((cycle) => cycle.version === one.version)} decision=${one.decision} />`)}</ol></section>
  </div>`;
}

// The versions of a plan, and the edits that waited for a person who has decided.
async function readHistory(name) {
  const [versions, approvals] = await Promise.all([get(["plans", name, "versions"]), get(["plans", name, "approvals"], { all: "true" })]);
  return { ...versions, decided: approvals.items.filter((one) => ["approved", "refused", "expired"].includes(one.state)) };
}

// Accepted and rejected batches, those that nobody approved, decisions on the start of a task, and cycles whose model made no edit, the newest first.
function entries({ items, rejected = [], cycles = [], decided }) {
  const accepted = items.filter((one) => one.edits.length || one.changes?.length).map((one) => ({ ...one, decision: decided.find((item) => item.state === "approved" && item.version === one.version) }));
  const dropped = decided.filter((one) => one.task || one.state !== "approved").map((one) => ({ ...one.batch, at: one.decided_at ?? one.expires_at, number: `approval ${one.id}`, decision: one }));
  const others = cycles.filter((one) => one.cost && one.version === null && one.outcome !== "waiting").map((one) => ({ ...one, version: undefined, at: one.closed_at }));
  return [...accepted, ...rejected, ...dropped, ...others].sort((one, other) => other.at - one.at);
}

const batchKey = (batch) => `${batch.at} ${batch.position ?? batch.number ?? `cycle ${batch.id}`}`;
const outcomeOf = (batch) => batch.outcome ?? (batch.violations || ["refused", "expired"].includes(batch.decision?.state) ? "rejected" : "accepted");

const heldBy = (view, cycle) => [...new Set(view.dependencies.filter((edge) => cycle.tasks.includes(edge.source)).map((edge) => edge.target))]
  .filter((id) => view.tasks.find((task) => task.id === id)?.held_by?.length);

const OUTCOMES = { empty: "no edit", editor_failed: "the editor failed", abandoned: "rejected too often", timeout: "no answer in time", unclaimed: "nobody answered" };

// A cycle that cost something and led to no edit, or to one that nobody has approved.
function ClosedCycle({ item }) {
  return html`<li class="batch is-cancelled"><p class="head"><${Status} status="cancelled" text=${OUTCOMES[item.outcome] ?? words(item.outcome)} />
      <b>cycle ${item.id}</b><span class="spring"></span><time>${clock(item.closed_at)}</time></p>
    ${item.tasks.length > 0 && html`<p class="note">after the end of ${item.tasks.join(", ")}</p>`}<${Cost} cycle=${item} /></li>`;
}

// What the model has cost in a cycle.
const Cost = ({ cycle }) => cycle?.cost && html`<p class="cost">${costText(cycle.cost)}<span class="note"> in cycle ${cycle.id}, open for ${duration(cycle.closed_at - cycle.opened_at)}</span></p>`;

const DECISIONS = { approved: "approved", refused: "refused", expired: "not decided in time" };

// Who approved or refused an edit that waited.
const Decision = ({ item }) => item && html`<p class="note">${DECISIONS[item.state] ?? words(item.state)}${item.decided_by && html` by <b>${item.decided_by}</b>`} at ${clock(item.decided_at ?? item.expires_at)}${item.why && `: ${item.why}`}</p>`;

const TaskDecision = ({ item, decision, name }) => html`<li class=${`batch is-${outcomeOf(item)}`}>
    <p class="head"><span>The start of <a href=${addressOf(["plans", name, "graph"], { task: decision.task })}>${decision.task}</a></span><span class="spring"></span><time>${clock(item.at)}</time></p>
    <${Decision} item=${decision} /></li>`;

function Batch({ item, name, cycle, decision }) {
  const outcome = outcomeOf(item);
  return html`<li class=${`batch is-${outcome}`}>
    <p class="head"><${Status} status=${outcome} text=${outcome === "accepted" ? `version ${item.version}` : outcome} />
      <b>${item.author || "unknown author"}</b>${item.undoes != null && html` <span class="tag">undoes version ${item.undoes}</span>`}
      <span class="spring"></span>${outcome === "accepted" && !isReport() && html`<a href=${addressOf(["plans", name, "graph"], { version: item.version })}>show this version</a>`}<time>${clock(item.at)}</time></p>
    ${item.reason && html`<p class="reason">${item.reason}</p>`}
    ${item.triggers?.length > 0 && html`<p class="note">after the end of ${item.triggers.join(", ")}</p>`}
    <${Decision} item=${decision} />
    ${(item.edits?.length > 0 || item.changes?.length > 0 || !item.violations) && html`<${Diff} edits=${item.edits} changes=${item.changes} />`}
    <${Violations} items=${item.violations} />
    ${outcome === "accepted" && html`<${Cost} cycle=${cycle} />`}
  </li>`;
}

function Cycle({ item, name, held, done, compose }) {
  const path = ["plans", name, "cycles", item.id];
  return html`<article class="waiting"><p class="head"><b>Cycle ${item.id}</b> reviews the end of ${item.tasks.join(", ") || "no task"}${item.stuck ? " (no task can make progress)" : ""}
      <span class="spring"></span><time>${clock(item.opened_at)}</time></p>
    <p class="note">${item.claimed_by ? `Claimed by ${item.claimed_by}. ` : ""}${item.expires_at ? `It closes at ${clock(item.expires_at)} if nobody answers. ` : ""}${held.length ? `${plural(held.length, "task")} held: ${held.slice(0, 5).join(", ")}` : ""}</p>
    <p class="buttons"><${Action} operation="claim_cycle" kind="primary" act=${async () => { await post([...path, "claim"]); compose({ id: item.id }); }}>Answer with edits…<//>
      <${Action} operation="answer_cycle" act=${async () => { await post([...path, "answer"], { edits: [], reason: "" }); await done(); }}>Accept without edits<//></p></article>`;
}
