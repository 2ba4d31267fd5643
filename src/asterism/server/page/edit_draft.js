// A batch of edits while a person writes it. An operation has the fields of the API, and these while it is written:
// `after`, `more` (other fields as JSON) and `agent` (work for an agent, as texts).
export const OPERATIONS = {
  add_task: "Add a task", remove_task: "Remove a task", update_task: "Change a task", cancel_task: "Cancel a task",
  add_dependency: "Add a dependency", update_dependency: "Change a dependency", remove_dependency: "Remove a dependency",
};
const EMPTY = {
  add_task: { task: { id: "" }, after: [] }, remove_task: { task_id: "" }, update_task: { task_id: "", changes: {} }, cancel_task: { task_id: "", reason: "" },
  add_dependency: { source: "", target: "" }, update_dependency: { source: "", target: "" }, remove_dependency: { source: "", target: "" },
};
export const EMPTY_AGENT = { description: "", tips: "", result: "" };

export const emptyOperation = (op) => ({ op, ...structuredClone(EMPTY[op]) });

// The fields of a task that have a control of their own: a label and how they are typed.
export const FIELDS = { shell: ["Command", "text"], description: ["Description", "prose"], timeout: ["Timeout in seconds", "number"], retries: ["Retries", "number"] };

// An edit that waits for approval, to be changed.
export function draftOf(approval) {
  return { edits: approval.batch.edits.map(kept), reason: approval.batch.reason ?? "", approval };
}

const originals = new WeakMap(); // an edit as the form has it -> as it was given

// What nobody changes is sent as it was given.
function kept(edit) {
  const form = written(edit);
  originals.set(form, edit);
  return form;
}

// Whether a draft is what it was made of.
export const isUnchanged = ({ edits, reason, approval }) => reason === (approval.batch.reason ?? "") && edits.length === approval.batch.edits.length && edits.every((edit, index) => originals.get(edit) === approval.batch.edits[index]);

// A task to add, as the form has it.
export function writtenTask({ id, shell, device, agent, ...others }) {
  const task = Object.fromEntries(Object.entries({ id, shell, device }).filter(([, value]) => value !== undefined));
  return { op: "add_task", task, after: [], more: asJson(others), ...(agent ? { agent: agentTexts(agent) } : {}) };
}

function written(edit) {
  if (edit.op === "add_task") return writtenTask(edit.task);
  if (edit.op === "update_task") {
    const [own, others] = [true, false].map((known) => Object.fromEntries(Object.entries(edit.changes).filter(([field]) => field in FIELDS === known)));
    return { ...edit, changes: own, more: asJson(others) };
  }
  return { ...edit };
}

const asJson = (fields) => (Object.keys(fields).length ? JSON.stringify(fields, null, 2) : "");
const agentTexts = (agent) => ({ given: agent, description: agent.description ?? "", tips: (agent.tips ?? []).join("\n"), result: agent.result ? JSON.stringify(agent.result, null, 2) : "" });

// The operations as the API takes them. Raises an error that names the field.
export function operations(edits) {
  return edits.flatMap((edit, index) => {
    const where = `Edit ${index + 1}: `;
    if (originals.has(edit)) return [originals.get(edit)];
    const { after, more, agent, ...rest } = edit;
    if (edit.op === "add_task") {
      if (!edit.task.id) throw new Error(`${where}the task needs an id.`);
      const task = { ...edit.task, ...(agent ? { agent: agentFields(agent, where) } : {}), ...parsed(more, where, "fields") };
      return [{ op: "add_task", task }, ...after.map((source) => ({ op: "add_dependency", source, target: task.id }))];
    }
    if (edit.op === "update_task") {
      const changes = { ...edit.changes, ...parsed(more, where, "fields") };
      if (!Object.keys(changes).length) throw new Error(`${where}nothing is changed yet.`);
      return [{ op: edit.op, task_id: edit.task_id, changes }];
    }
    return [Object.fromEntries(Object.entries(rest).filter(([name, value]) => value !== "" || name === "task_id"))];
  });
}

function agentFields({ given, description, tips, result }, where) {
  if (!description.trim()) throw new Error(`${where}say what the agent has to do.`);
  const before = agentTexts(given ?? {});
  const fields = { ...given, description };
  if (tips !== before.tips) fields.tips = tips.split("\n").map((one) => one.trim()).filter(Boolean);
  if (result !== before.result) fields.result = parsed(result, where, "expected result");
  return Object.fromEntries(Object.entries(fields).filter(([name, value]) => !["tips", "result"].includes(name) || Object.keys(value).length));
}

function parsed(text, where, what) {
  if (!text?.trim()) return {};
  let found;
  try {
    found = JSON.parse(text);
  } catch (error) {
    throw new Error(`${where}the ${what} ${what.endsWith("s") ? "are" : "is"} not valid JSON: ${error.message}`);
  }
  if (typeof found !== "object" || found === null || Array.isArray(found)) throw new Error(`${where}the ${what} ${what.endsWith("s") ? "have" : "has"} to be a JSON object, such as {"timeout": 60}.`);
  return found;
}
