// An edit by hand: a batch of operations, a dry run that the graph shows, then apply. It also answers an open cycle.
import { go } from "./address.js";
import { get, post } from "./api.js";
import { Field, Violations } from "./parts.js";
import { Head } from "./task_drawer.js";
import { html, useEffect, useRef, useState } from "./ui.js";
import { editText, plural } from "./words.js";

const CLAIM_EVERY = 20_000; // a claim of a cycle ends after a minute unless it is renewed
const OPERATIONS = {
  add_task: "Add a task", remove_task: "Remove a task", update_task: "Change a task", cancel_task: "Cancel a task",
  add_dependency: "Add a dependency", update_dependency: "Change a dependency", remove_dependency: "Remove a dependency",
};
const EMPTY = {
  add_task: { task: { id: "" }, after: "" }, remove_task: { task_id: "" }, update_task: { task_id: "", changes: {} }, cancel_task: { task_id: "", reason: "" },
  add_dependency: { source: "", target: "" }, update_dependency: { source: "", target: "" }, remove_dependency: { source: "", target: "" },
};

// The operations as the API takes them. Raises an error that names the field.
export function operations(edits) {
  return edits.flatMap((edit, index) => {
    const where = `Edit ${index + 1}: `;
    const { after, more, ...rest } = edit;
    if (edit.op === "add_task") {
      if (!edit.task.id) throw new Error(`${where}the task needs an id.`);
      const task = { ...edit.task, ...parsed(more, where) };
      const sources = (after ?? "").split(",").map((one) => one.trim()).filter(Boolean);
      return [{ op: "add_task", task }, ...sources.map((source) => ({ op: "add_dependency", source, target: task.id }))];
    }
    if (edit.op === "update_task") {
      const changes = { ...edit.changes, ...parsed(more, where) };
      if (!Object.keys(changes).length) throw new Error(`${where}nothing is changed yet.`);
      return [{ op: edit.op, task_id: edit.task_id, changes }];
    }
    return [Object.fromEntries(Object.entries(rest).filter(([name, value]) => value !== "" || name === "task_id"))];
  });
}

function parsed(text, where) {
  if (!text?.trim()) return {};
  let found;
  try {
    found = JSON.parse(text);
  } catch (error) {
    throw new Error(`${where}the fields are not valid JSON: ${error.message}`);
  }
  if (typeof found !== "object" || found === null || Array.isArray(found)) throw new Error(`${where}the fields have to be a JSON object, such as {"timeout": 60}.`);
  return found;
}

export function EditComposer({ state, draft, show }) {
  const { edits, reason = "", cycle = null } = draft.value;
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
  const send = async (dryRun) => {
    setBusy(true);
    try {
      const batch = operations(edits);
      const body = { edits: batch, reason, base_version: state.view.value.version };
      if (dryRun) {
        await post(["plans", state.name, "edits"], { ...body, dry_run: true });
        await show(batch);
        setVerdict({ ok: true, text: `The plan would accept ${plural(batch.length, "operation")}. The graph shows the outcome.` });
      } else {
        await (cycle ? post(["plans", state.name, "cycles", cycle.id, "answer"], { edits: batch, reason }) : post(["plans", state.name, "edits"], body));
        await state.reload(); // the outcome stays in the graph until the plan has it
        draft.value = null;
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
    <${Head} title=${cycle ? `Answer cycle ${cycle.id}` : "Edit the plan"} close=${cancel} heading=${heading} />
    ${edits.length === 0 && html`<p class="note">Choose an operation. Several form one batch, which is applied whole or not at all.</p>`}
    <ol class="operations">${edits.map((edit, index) => html`<li key=${index}><fieldset><legend>${index + 1}. ${OPERATIONS[edit.op]}</legend>
      <${OperationFields} state=${state} edit=${edit} change=${(next) => changeEdit(index, next)} />
      <button class="plain" onClick=${() => change({ edits: edits.filter((_, place) => place !== index) })} aria-label=${`Remove operation ${index + 1}`}>Remove from the batch</button></fieldset></li>`)}</ol>
    <${Field} label="Add an operation"><select value="" onChange=${(event) => { const op = event.target.value; if (op) change({ edits: [...edits, { op, ...structuredClone(EMPTY[op]) }] }); event.target.value = ""; }}>
      <option value="">Choose…</option>${Object.entries(OPERATIONS).map(([op, text]) => html`<option value=${op}>${text}</option>`)}</select><//>
    <${Field} label="Reason" hint="Recorded with the edit."><input value=${reason} onInput=${(event) => change({ reason: event.target.value })} /><//>
    ${edits.length > 0 && html`<details><summary>As text</summary><ul class="plain-list">${edits.map((edit) => html`<li>${editText(edit)}</li>`)}</ul></details>`}
    <${TaskNames} state=${state} />
    <footer><div class="verdict" role="status">${verdict && html`<p class=${verdict.ok ? "good" : "bad"}>${verdict.ok ? "✓" : "✗"} ${verdict.text}</p><${Violations} items=${verdict.violations} />`}</div>
    <p class="buttons"><button disabled=${busy || !edits.length} onClick=${() => send(true)}>Dry run</button>
      <button class="primary" disabled=${busy || (!edits.length && !cycle)} onClick=${() => send(false)}>${cycle ? (edits.length ? "Answer" : "Answer without edits") : "Apply"}</button><button onClick=${cancel}>Discard</button></p></footer>
  </aside>`;
}

const TaskNames = ({ state }) => html`<datalist id="task-names">${state.view.value.tasks.slice(0, 2000).map((task) => html`<option value=${task.id} />`)}</datalist>`;

function OperationFields({ state, edit, change }) {
  const name = (label, field, hint) => html`<${Field} label=${label} hint=${hint}><input list="task-names" autocomplete="off" value=${edit[field] ?? ""} onInput=${(event) => change({ ...edit, [field]: event.target.value })} /><//>`;
  const text = (label, name, hint) => html`<${Field} label=${label} hint=${hint}><input spellcheck="false" value=${edit[name] ?? ""} onInput=${(event) => change({ ...edit, [name]: event.target.value })} /><//>`;
  const choice = (label, name, options) => html`<${Field} label=${label}><select value=${edit[name] ?? ""} onChange=${(event) => change({ ...edit, [name]: event.target.value })}>${options.map(([value, words]) => html`<option value=${value}>${words}</option>`)}</select><//>`;
  const json = (label, hint) => html`<${Field} label=${label} hint=${hint}><textarea rows="3" spellcheck="false" value=${edit.more ?? ""} onInput=${(event) => change({ ...edit, more: event.target.value })} /><//>`;
  const task = (name, value) => { const { [name]: _, ...rest } = edit.task; change({ ...edit, task: value ? { ...rest, [name]: value } : { id: "", ...rest } }); };
  if (edit.op === "add_task") {
    return html`<${Field} label="Id"><input value=${edit.task.id} onInput=${(event) => task("id", event.target.value)} /><//>
      <${Field} label="Command" hint="A shell command."><input spellcheck="false" value=${edit.task.shell ?? ""} onInput=${(event) => task("shell", event.target.value)} /><//>
      ${name("After", "after", "The tasks it depends on, separated by commas.")}${json("More fields (JSON)", 'Such as {"timeout": 60, "retries": 2}.')}`;
  }
  if (edit.op === "remove_task") return html`${name("Task", "task_id")}${choice("Its dependents", "dependents", [["", "must not exist"], ["bridge", "depend on its dependencies instead"], ["remove", "are removed too"]])}`;
  if (edit.op === "update_task") return html`${name("Task", "task_id")}<${ChangedFields} state=${state} edit=${edit} change=${change} />${json("Other fields (JSON)", 'Such as {"priority": 5, "env": {"CI": "1"}}.')}`;
  if (edit.op === "cancel_task") return html`${name("Task", "task_id")}${text("Reason", "reason")}`;
  const outcome = edit.op === "remove_dependency" ? "" : html`${choice("When it ends with", "on", [["", "success"], ["failure", "failure"], ["completion", "any outcome"]])}${text("Condition", "when", "Optional, such as result.ok.")}`;
  return html`${name("From", "source")}${name("To", "target")}${outcome}`;
}

const FIELDS = { shell: ["Command", "text"], description: ["Description", "text"], timeout: ["Timeout in seconds", "number"], retries: ["Retries", "number"] };

// The common fields of a task as they are now. Only those that differ become part of the edit.
function ChangedFields({ state, edit, change }) {
  const [definition, setDefinition] = useState({});
  const known = state.tasks.has(edit.task_id);
  useEffect(() => {
    let current = true;
    setDefinition({});
    if (known) get(["plans", state.name, "tasks", edit.task_id]).then((found) => current && setDefinition(found.definition ?? {}), () => {});
    return () => { current = false; };
  }, [edit.task_id, known]);
  const set = (field, kind) => (event) => {
    const typed = event.target.value;
    const value = kind === "number" && typed !== "" && !Number.isNaN(Number(typed)) ? Number(typed) : typed === "" ? null : typed;
    const { [field]: _, ...rest } = edit.changes;
    change({ ...edit, changes: value === (definition[field] ?? null) ? rest : { ...rest, [field]: value } });
  };
  const shown = Object.entries(FIELDS).filter(([field]) => field !== "shell" || definition.shell !== undefined || !known);
  return shown.map(([field, [label, kind]]) => html`<${Field} key=${field} label=${label} hint=${field in edit.changes ? `changed; now ${definition[field] ?? "not set"}` : ""}>
    <input spellcheck="false" inputmode=${kind === "number" ? "decimal" : undefined} value=${(field in edit.changes ? edit.changes[field] : definition[field]) ?? ""} onInput=${set(field, kind)} /><//>`);
}
