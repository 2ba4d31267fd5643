// The audit log, for admins: who changed what, and who was refused it. The address remembers the filters.
import { address, addressOf, setQuery } from "./address.js";
import { get } from "./api.js";
import { Action, Empty, Failure, Field, Status, table, useList } from "./parts.js";
import { html, useState } from "./ui.js";
import { clock, words } from "./words.js";

const FILTERS = { by: "Who", operation: "Operation", target: "What", outcome: "Outcome" };
const OUTCOMES = ["done", "refused", "failed"];
const LOOKS = { done: "completed", refused: "failed", failed: "partially_failed" };
const AGES = { "": "any time", 3600: "the last hour", 86400: "the last day", 604800: "the last week" };
const PAGE = 100;

export function AuditView() {
  const { query } = address.value;
  const wanted = Object.fromEntries(Object.keys(FILTERS).filter((name) => query[name]).map((name) => [name, query[name]]));
  if (query.age) wanted.since = Math.floor(Date.now() / 1000 - Number(query.age));
  const [limit, setLimit] = useState(PAGE);
  const { items: page, problem, read } = useList(() => get(["audit"], { ...wanted, limit }), [JSON.stringify({ ...wanted, since: query.age }), limit]);
  return html`<div><form class="filters" role="search" aria-label="Filter the audit log" onSubmit=${(event) => event.preventDefault()}>
      ${Object.entries(FILTERS).map(([name, label]) => html`<${Field} key=${name} label=${label}>${name === "outcome" ? select(name, ["", ...OUTCOMES].map((one) => [one, one || "any"])) : html`<input value=${query[name] ?? ""} onChange=${(event) => setQuery({ [name]: event.target.value.trim() })} />`}<//>`)}
      <${Field} label="When">${select("age", Object.entries(AGES).sort(([one], [other]) => one - other))}<//>
    </form>
    <div class="row-head"><button onClick=${read}>Refresh</button><span class="spring"></span><${Action} act=${() => save(wanted)}>Download as JSON lines<//></div>
    ${problem && html`<${Failure} problem=${problem} retry=${read} />`}
    ${page && !page.items.length && html`<${Empty} title="No entry matches." />`}
    ${page?.items.length > 0 && table("Audit log", ["Operation", "When", "Outcome", "Who", "What", "From", "Why"], page.items.map((one) => ({ key: one.id, cells: [
      words(one.operation), html`<time>${clock(one.at)}</time>`, html`<${Status} status=${LOOKS[one.outcome]} text=${one.outcome} />`, html`<span title=${`${one.kind} ${one.credential}`}>${one.by}</span>`, html`<span class="long">${target(one)}</span>`, one.address || one.kind,
      (one.reason || one.detail) && html`<span>${one.reason}${one.reason && one.detail && html`<br />`}${one.detail && html`<small>${one.detail}</small>`}</span>`] })))}
    ${page?.next && html`<p><button onClick=${() => setLimit(Math.min(1000, limit + 200))} disabled=${limit >= 1000}>Show more</button></p>`}</div>`;
}

const select = (name, options) => html`<select value=${address.value.query[name] ?? ""} onChange=${(event) => setQuery({ [name]: event.target.value })}>${options.map(([value, text]) => html`<option value=${value}>${text}</option>`)}</select>`;

// A plan that was changed, as a link to it.
function target(one) {
  const [plan] = one.target.split("/");
  return /_(plan|edit|cycle)$|_budget$/.test(one.operation) && plan ? html`<a href=${addressOf(["plans", plan, "graph"])}>${one.target}</a>` : one.target;
}

// All entries that match, however many there are, as a file.
async function save(wanted) {
  const lines = [];
  for (let after; ;) {
    const page = await get(["audit"], { ...wanted, limit: 1000, after });
    lines.push(...page.items.map((one) => `${JSON.stringify(one)}\n`));
    after = page.next;
    if (!after) break;
  }
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob(lines, { type: "application/jsonl" }));
  link.download = "audit.jsonl";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}
