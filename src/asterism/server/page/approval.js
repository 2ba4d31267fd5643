// An edit that waits for a person, who approves or refuses it.
import { post } from "./api.js";
import { Diff } from "./batch_diff.js";
import { Action } from "./parts.js";
import { html, useState } from "./ui.js";
import { clock } from "./words.js";

// `show` leads to the graph with the outcome; without it, the graph shows that already.
export function Approval({ item, name, done, show }) {
  const [reason, setReason] = useState("");
  const decide = (decision) => async () => { await post(["plans", name, "approvals", item.id, decision], { reason }); await done(); };
  return html`<article class="waiting"><p class="head"><b>${item.batch.author || "an editor"}</b> wants to change the plan<span class="spring"></span><time>${clock(item.at)}</time></p>
    ${item.batch.reason && html`<p class="reason">${item.batch.reason}</p>`}
    <${Diff} edits=${item.batch.edits} />
    <p class="note">It matches: ${item.reasons.join("; ")}. ${item.tasks.length ? `Held until then: ${item.tasks.slice(0, 8).join(", ")}. ` : ""}Refused at ${clock(item.expires_at)} if nobody decides.</p>
    <label class="field"><span>Reason for the decision</span><input value=${reason} onInput=${(event) => setReason(event.target.value)} /></label>
    <p class="buttons"><${Action} kind="primary" act=${decide("approve")}>Approve<//><${Action} kind="danger" act=${decide("refuse")}>Refuse<//>${show && html`<a class="button" href=${show}>Show in the graph</a>`}</p></article>`;
}
