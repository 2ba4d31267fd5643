// The operations of a batch, one a line, with the fields that they set.
import { html } from "./ui.js";
import { editSign, editText, value } from "./words.js";

const MOST = 100;

// `changes` are the lines of the server about the edits: they have the old values, and what else happens.
export function Diff({ edits, changes }) {
  const items = changes?.length ? changedItems(changes) : (edits ?? []).map((edit) => ({ edit, text: editText(edit), fields: fieldsOf(edit) }));
  if (!items.length) return html`<p class="note">No change.</p>`;
  const more = items.slice(MOST);
  return html`<ul class="diff">${items.slice(0, MOST).map(Item)}</ul>
    ${more.length > 0 && html`<details><summary>${more.length.toLocaleString("en")} more ${more.length === 1 ? "edit" : "edits"}</summary><ul class="diff">${more.map(Item)}</ul></details>`}`;
}

function Item({ edit, text, fields }) {
  const sign = editSign(edit ?? text);
  return html`<li class=${{ "+": "plus", "−": "minus", "~": "tilde" }[sign]}><span class="sign" aria-hidden="true">${sign}</span><span>${text}${fields.length > 0 && html`<small>${fields}</small>`}</span></li>`;
}

// A line that is indented is about the edit above it.
function changedItems(lines) {
  const items = [];
  for (const line of lines) {
    if (line.startsWith("    ") && items.length) items.at(-1).fields.push(html`<span>${line.trim()}</span>`);
    else items.push({ text: line, fields: [] });
  }
  return items;
}

function fieldsOf(edit) {
  const fields = edit.op === "add_task" ? { ...edit.task, id: undefined } : edit.op === "update_task" ? edit.changes : null;
  return Object.entries(fields ?? {}).filter(([, one]) => one !== undefined).map(([field, one]) => html`<span><b>${field}</b> ${value(one)}</span>`);
}
