// The operations of a batch, one a line, with the fields that they set.
import { html } from "./ui.js";
import { editSign, editText, value } from "./words.js";

const MOST = 100;

export function Diff({ edits }) {
  if (!edits?.length) return html`<p class="note">No change.</p>`;
  return html`<ul class="diff">${edits.slice(0, MOST).map((edit) => html`<li class=${{ "+": "plus", "−": "minus", "~": "tilde" }[editSign(edit)]}><span class="sign" aria-hidden="true">${editSign(edit)}</span><span>${editText(edit)}<${EditFields} edit=${edit} /></span></li>`)}</ul>
    ${edits.length > MOST && html`<p class="note">and ${(edits.length - MOST).toLocaleString("en")} more edits</p>`}`;
}

function EditFields({ edit }) {
  const fields = edit.op === "add_task" ? { ...edit.task, id: undefined } : edit.op === "update_task" ? edit.changes : null;
  const entries = Object.entries(fields ?? {}).filter(([, one]) => one !== undefined);
  return entries.length > 0 && html`<small>${entries.map(([field, one]) => html`<span><b>${field}</b> ${value(one)}</span>`)}</small>`;
}
