// An edit by hand: a batch of operations, a dry run that the graph shows, then apply. It also answers an open cycle, and
// changes an edit that waits for approval.
import { go } from "./address.js";
import { get, post } from "./api.js";
import { EMPTY_AGENT, FIELDS, OPERATIONS, emptyOperation, isUnchanged, operations } from "./edit_draft.js";
import { Field, Violations, lines } from "./parts.js";
import { Head } from "./task_drawer.js";
import { html, useEffect, useRef, useState } from "./ui.js";
import { editText, plural } from "./words.js";

const CLAIM_EVERY = 20_000; // a claim of a cycle ends after a minute unless it is renewed
const SOME = 8; // names that a sentence has at most
const HIDDEN = "[secret]"; // what the server shows in place of a secret

export function EditComposer({ state, draft, show }) {
  const { edits, reason = "", cycle = null, approval = null, retry = null } = draft.value;
  const [verdict, setVerdict] = useState(null);
  const [busy, setBusy] = useState(false);
  const heading = useRef(null);
  useEffect(() => { heading.current?.focus({ preventScroll: true }); return () => show(null); }, []);
  useEffect(() => {
    if (!cycle) return undefined;
    const renew = setInterval(() => post(["plans", state.name, "cycles", cycle.id, "claim"]).catch(() => {}), CLAIM_EVERY);
    return () => clearInterval(renew);
  }, [cycle?.id]);
  const change = (next) => { draft.value = { ...draft.value, ...next }; setVerdict(null); show(null); };
  const changeEdit = (index, edit) => change({ edits: edits.map((one, place) => (place === index ? edit : one)) });
  // The outcome stays in the graph until the plan has it.
  const applied = async () => { await state.reload(); draft.value = null; };
  const again = async (batch, dryRun) => {
    const { tasks } = await post(["plans", state.name, "retry"], { from_tasks: retry, edits: batch, reason, dry_run: dryRun });
    if (!dryRun) return applied();
    return setVerdict({ ok: true, text: `The plan would accept the change and run ${plural(tasks.length, "task")} again: ${tasks.slice(0, SOME).join(", ")}${tasks.length > SOME ? ` and ${tasks.length - SOME} more` : ""}.` });
  };
  const send = async (dryRun) => {
    setBusy(true);
    try {
      const batch = operations(edits);
      const unchanged = approval && isUnchanged(draft.value);
      if (!unchanged && JSON.stringify(batch).includes(HIDDEN)) throw new Error(`The edit contains a secret, which is shown as ${HIDDEN}: write it in full, or refer to it by its name.`);
      const body = { edits: batch, reason, base_version: state.view.value.version };
      if (retry) await again(batch, dryRun);
      else if (dryRun) {
        const { waits = [] } = await post(["plans", state.name, "edits"], { ...body, dry_run: true });
        show(batch);
        const wait = waits.length && !approval ? ` It would wait for approval: ${waits.join("; ")}.` : "";
        setVerdict({ ok: true, text: `The plan would accept ${plural(batch.length, "operation")}. The graph shows the outcome.${wait}` });
      } else {
        if (approval) await post(["plans", state.name, "approvals", approval.id, "approve"], unchanged ? {} : { edits: batch, reason });
        else if (cycle) await post(["plans", state.name, "cycles", cycle.id, "answer"], { edits: batch, reason });
        else await post(["plans", state.name, "edits"], body);
        await applied();
      }
    } catch (problem) {
      show(null);
      if (problem.name === "edit-waits") {
        draft.value = null;
        go(["plans", state.name, "edits"]); // where it waits for approval
        return;
      }
      setVerdict({ ok: false, text: problem.message, violations: problem.violations });
    } finally {
      setBusy(false);
    }
  };
  const cancel = () => { draft.value = null; };
  return html`<aside class="drawer composer" aria-label="Edit the plan" onKeyDown=${(event) => { if (event.key === "Escape") { event.stopPropagation(); cancel(); } }}>
    <${Head} title=${approval ? `Change edit ${approval.id}` : cycle ? `Answer cycle ${cycle.id}` : retry ? `Change ${retry.join(", ")} and continue` : "Edit the plan"} close=${cancel} heading=${heading} />
    ${approval && html`<p class="note">The edit of ${approval.batch.author || "an editor"} waits for approval. What you write here is applied in its place.</p>`}
    ${retry && html`<p class="note">The plan is opened again with this change, and ${retry.join(", ")} and the tasks after it run again. Completed tasks before it keep their results.</p>`}
    ${edits.length === 0 && html`<p class="note">Choose an operation. Several form one batch, which is applied whole or not at all.</p>`}
    <ol class="operations">${edits.map((edit, index) => html`<li key=${index}><fieldset><legend>${index + 1}. ${OPERATIONS[edit.op]}</legend>
      <${OperationFields} state=${state} edit=${edit} planned=${edits.filter((one) => one !== edit && one.op === "add_task" && one.task.id).map((one) => one.task.id)} change=${(next) => changeEdit(index, next)} />
      <button class="plain" onClick=${() => change({ edits: edits.filter((_, place) => place !== index) })} aria-label=${`Remove from the batch: operation ${index + 1}`}>Remove from the batch</button></fieldset></li>`)}</ol>
    <${Field} label="Add an operation"><select value="" onChange=${(event) => { const op = event.target.value; if (op) change({ edits: [...edits, emptyOperation(op)] }); event.target.value = ""; }}>
      <option value="">Choose…</option>${Object.entries(OPERATIONS).map(([op, text]) => html`<option value=${op}>${text}</option>`)}</select><//>
    <${Field} label="Reason" hint="Recorded with the edit.">${lines(reason, (typed) => change({ reason: typed }), { people: true })}<//>
    ${edits.length > 0 && html`<details><summary>As text</summary><ul class="plain-list">${edits.map((edit) => html`<li>${editText(edit)}</li>`)}</ul></details>`}
    <${TaskNames} state=${state} />
    <footer><div class="verdict" role="status">${verdict && html`<p class=${verdict.ok ? "good" : "bad"}>${verdict.ok ? "✓" : "✗"} ${verdict.text}</p><${Violations} items=${verdict.violations} />`}</div>
    <p class="buttons"><button disabled=${busy || !edits.length} onClick=${() => send(true)}>Dry run</button>
      <button class="primary" disabled=${busy || (!edits.length && !cycle)} onClick=${() => send(false)}>${approval ? "Approve changes" : cycle ? (edits.length ? "Answer" : "Answer without edits") : retry ? "Change and continue" : "Apply"}</button><button onClick=${cancel}>Discard</button></p></footer>
  </aside>`;
}

const TaskNames = ({ state }) => html`<datalist id="task-names">${state.view.value.tasks.slice(0, 2000).map((task) => html`<option value=${task.id} />`)}</datalist>`;

function OperationFields({ state, edit, planned, change }) {
  const name = (label, field, hint) => html`<${Field} label=${label} hint=${hint}><input list="task-names" autocomplete="off" value=${edit[field] ?? ""} onInput=${(event) => change({ ...edit, [field]: event.target.value })} /><//>`;
  const text = (label, name, hint) => html`<${Field} label=${label} hint=${hint}>${lines(edit[name], (typed) => change({ ...edit, [name]: typed }))}<//>`;
  const choice = (label, name, options) => html`<${Field} label=${label}><select value=${edit[name] ?? ""} onChange=${(event) => change({ ...edit, [name]: event.target.value })}>${options.map(([value, words]) => html`<option value=${value}>${words}</option>`)}</select><//>`;
  const json = (label, hint) => html`<${Field} label=${label} hint=${hint}>${lines(edit.more, (typed) => change({ ...edit, more: typed }), { least: 3 })}<//>`;
  const task = (name, value) => { const { [name]: _, ...rest } = edit.task; change({ ...edit, task: value ? { ...rest, [name]: value } : { id: "", ...rest } }); };
  if (edit.op === "add_task") {
    return html`<${Field} label="Id"><input value=${edit.task.id} onInput=${(event) => task("id", event.target.value)} /><//>
      <${Field} label="Work"><select value=${edit.agent ? "agent" : "shell"} onChange=${(event) => change(workOf(edit, event.target.value))}><option value="shell">a shell line</option><option value="agent">a description for an agent</option></select><//>
      ${edit.agent ? html`<${AgentFields} agent=${edit.agent} change=${(agent) => change({ ...edit, agent })} />`
      : html`<${Field} label="Command" hint="A shell script, of one line or several.">${lines(edit.task.shell, (typed) => task("shell", typed), { least: 2 })}<//>`}
      <${Field} label="Device" hint=${edit.agent ? "Optional: the name of a device with an agent." : "Optional: the name of a device."}><input spellcheck=${false} autocomplete="off" value=${edit.task.device ?? ""} onInput=${(event) => task("device", event.target.value)} /><//>
      <${After} tasks=${[...planned, ...state.view.value.tasks.map((task) => task.id)]} after=${edit.after} change=${(after) => change({ ...edit, after })} />${json("More fields (JSON)", 'Such as {"timeout": 60, "retries": 2}.')}`;
  }
  if (edit.op === "remove_task") return html`${name("Task", "task_id")}${choice("Its dependents", "dependents", [["", "must not exist"], ["bridge", "depend on its dependencies instead"], ["remove", "are removed too"]])}`;
  if (edit.op === "update_task") return html`${name("Task", "task_id")}<${ChangedFields} state=${state} edit=${edit} change=${change} />${json("Other fields (JSON)", 'Such as {"priority": 5, "env": {"CI": "1"}}.')}`;
  if (edit.op === "cancel_task") return html`${name("Task", "task_id")}${text("Reason", "reason")}`;
  const outcome = edit.op === "remove_dependency" ? "" : html`${choice("When it ends with", "on", [["", "success"], ["failure", "failure"], ["completion", "success or failure"], ["always", "any end, also if it never ran"], ["teardown", "everything below it: this tears it down"]])}${text("Condition", "when", "Optional, such as result.ok.")}`;
  return html`${name("From", "source")}${name("To", "target")}${outcome}`;
}

// The tasks that a new one comes after, each chosen from the tasks of the plan and of this batch.
function After({ tasks, after, change }) {
  const others = tasks.filter((id) => !after.includes(id));
  return html`<${Field} label="After" hint="The tasks that have to succeed before it."><select value="" onChange=${(event) => { change([...after, event.target.value]); event.target.value = ""; }}>
      <option value="">${after.length ? "Choose another task…" : "Choose a task…"}</option>${others.map((id) => html`<option key=${id} value=${id}>${id}</option>`)}</select><//>
    ${after.length > 0 && html`<ul class="chosen" aria-label="Chosen tasks">${after.map((id) => html`<li key=${id}>${id} <button class="plain small" aria-label=${`Leave out ${id}`} onClick=${() => change(after.filter((one) => one !== id))}>✕</button></li>`)}</ul>`}`;
}

// A task to add, with another kind of work.
function workOf(edit, kind) {
  const { agent, ...rest } = edit;
  if (kind === "shell") return rest;
  const { shell, ...task } = edit.task;
  return { ...rest, task, agent: agent ?? EMPTY_AGENT };
}

function AgentFields({ agent, change }) {
  const text = (label, field, hint, least) => html`<${Field} label=${label} hint=${hint}>${lines(agent[field], (typed) => change({ ...agent, [field]: typed }), { people: field !== "result", least })}<//>`;
  return html`${text("What to do", "description", "The agent reads this.", 3)}${text("Tips", "tips", "Optional: one a line.", 2)}${text("Expected result (JSON Schema)", "result", 'Optional, such as {"type": "object", "required": ["error"]}.', 2)}`;
}

const control = (kind, value, change) => (kind === "number" ? html`<input inputmode="decimal" value=${value} onInput=${(event) => change(event.target.value)} />` : lines(value, change, { people: kind === "prose" }));

const nowText = (value) => (value == null ? "not set" : String(value).includes("\n") ? plural(String(value).trimEnd().split("\n").length, "line") : value);

// The common fields of a task as they are now. Only those that differ become part of the edit.
function ChangedFields({ state, edit, change }) {
  const known = state.tasks.has(edit.task_id);
  const [definition, setDefinition] = useState(null); // null until it is read: an empty field would be taken for the present value
  useEffect(() => {
    let current = true;
    const show = (found) => current && setDefinition(found.definition ?? {});
    setDefinition(known ? null : {});
    if (known) get(["plans", state.name, "tasks", edit.task_id]).then(show, () => show({}));
    return () => { current = false; };
  }, [edit.task_id, known]);
  if (definition === null) return html`<p class="note">Loading…</p>`;
  const set = (field, kind) => (typed) => {
    const value = kind === "number" && typed !== "" && !Number.isNaN(Number(typed)) ? Number(typed) : typed === "" ? null : typed;
    const { [field]: _, ...rest } = edit.changes;
    change({ ...edit, changes: typed === String(definition[field] ?? "") ? rest : { ...rest, [field]: value } });
  };
  const shown = Object.entries(FIELDS).filter(([field]) => field !== "shell" || definition.shell !== undefined || field in edit.changes || !known);
  return shown.map(([field, [label, kind]]) => html`<${Field} key=${field} label=${label} hint=${field in edit.changes ? `changed; now ${nowText(definition[field])}` : ""}>
    ${control(kind, (field in edit.changes ? edit.changes[field] : definition[field]) ?? "", set(field, kind))}<//>`);
}
