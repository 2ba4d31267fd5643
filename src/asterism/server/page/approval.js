// An edit that waits for a person, who approves, changes or refuses it, or a task whose start does.
import { addressOf } from "./address.js";
import { post } from "./api.js";
import { Diff } from "./batch_diff.js";
import { Action, Field, lines } from "./parts.js";
import { may } from "./permissions.js";
import { html, useState } from "./ui.js";
import { clock, costText, words } from "./words.js";

// `show` leads to the graph with the outcome; without it, the graph shows that already. `change` opens the composer with
// the edit, `cycle` is the cycle that the edit answers, if that is known.
export function Approval({ item, name, done, show, change, cycle }) {
  const [reason, setReason] = useState("");
  const decide = (decision) => async () => { await post(["plans", name, "approvals", item.id, decision], { reason }); await done(); };
  return html`<article class="waiting"><p class="head">${item.task ? html`<span>The start of <b>${item.task}</b> needs approval</span>` : html`<b>${item.batch.author || "an editor"}</b> wants to change the plan`}<span class="spring"></span><time>${clock(item.at)}</time></p>
    ${item.batch.reason && html`<p class="reason">${item.batch.reason}</p>`}
    ${(!item.task || item.changes?.length > 0) && html`<${Diff} edits=${item.batch.edits} changes=${item.changes} />`}
    <${Facts} item=${item} cost=${cycle?.cost} />
    ${may("approve_edit") && html`<${Field} label="Reason for the decision">${lines(reason, setReason, { people: true })}<//>`}
    <p class="buttons"><${Action} operation="approve_edit" kind="primary" act=${decide("approve")}>Approve<//>${!item.task && may("approve_edit") && html`<button data-operation="approve_edit" onClick=${() => change(item)}>Change…</button>`}<${Action} operation="refuse_edit" kind="danger" act=${decide("refuse")}>Refuse<//>${show && html`<a class="button" href=${item.task ? addressOf(["plans", name, "graph"], { task: item.task }) : show}>Show in the graph</a>`}</p></article>`;
}

// Why it waits, what its tasks cost and do, and what happens if nobody decides.
function Facts({ item, cost }) {
  const effects = Object.entries(item.effects ?? {});
  return html`<dl class="facts">
    ${item.task ? item.by?.length > 0 && html`<div><dt>Decided by</dt><dd>${item.by.join(", ")}</dd></div>`
    : html`<div><dt>It waits because</dt><dd>${item.reasons.map((one) => html`<span class="line-of">${one}</span>`)}</dd></div>`}
    ${item.cost > 0 && html`<div><dt>Cost of its tasks</dt><dd>${item.cost.toLocaleString("en")}</dd></div>`}
    ${effects.length > 0 && html`<div><dt>What they do</dt><dd>${effects.map(([task, found]) => html`<span class="line-of">${task} ${found.map(words).join(" and ")}</span>`)}</dd></div>`}
    ${!item.task && item.tasks.length > 0 && html`<div><dt>Held until then</dt><dd>${item.tasks.slice(0, 8).join(", ")}${item.tasks.length > 8 ? ` and ${item.tasks.length - 8} more` : ""}</dd></div>`}
    ${cost && html`<div><dt>Its model</dt><dd>${costText(cost)}</dd></div>`}
    <div><dt>If nobody decides</dt><dd>${escalation(item)}${item.task ? "as if refused," : "refused"} at ${clock(item.expires_at)}</dd></div></dl>`;
}

const RECEIVERS = { command: "the notify command", url: "the notify address" };

function escalation(item) {
  if (item.escalated_at) return `announced again at ${clock(item.escalated_at)}; `;
  if (!item.escalates_at || item.escalates_at > item.expires_at) return "";
  const receivers = (item.escalates_to ?? []).map((one) => RECEIVERS[one] ?? one);
  return `announced again at ${clock(item.escalates_at)}, ${receivers.length ? `by a notice and ${receivers.join(" and ")}` : "by a notice"}; `;
}
