// Batches: how far each has come, and one of them with its pace and what failed.
import { address, addressOf } from "./address.js";
import { get, post } from "./api.js";
import { Action, Command, Empty, Failure, Status, table, useList } from "./parts.js";
import { Progress } from "./plans_view.js";
import { html } from "./ui.js";
import { ago, clock, duration, plural } from "./words.js";

const MOST_AT_ONCE = 500;

export function BatchesView({ fleet }) {
  const { batch } = address.value.query;
  if (batch) return html`<${BatchPage} key=${batch} name=${batch} fleet=${fleet} />`;
  return html`<${BatchList} fleet=${fleet} />`;
}

const countsOf = ({ completed, failed, cancelled, running, waiting }) => ({ completed, failed, cancelled, running, waiting });
const withCounts = (one) => ({ counts: countsOf(one), done: one.completed + one.failed + one.cancelled });
const took = (one) => duration((one.ended ? one.ended_at : Date.now() / 1000) - one.created_at);

function State({ batch }) {
  const [status, text] = !batch.ended ? ["running", "open"] : batch.failed ? ["failed", `${batch.failed.toLocaleString("en")} failed`] : batch.cancelled ? ["cancelled", "cancelled"] : ["completed", "completed"];
  return html`<${Status} status=${status} text=${text} />`;
}

function BatchList({ fleet }) {
  const { items, problem, read } = useList(async () => (await get(["batches"])).items, [fleet.changed.value]);
  if (problem) return html`<${Failure} problem=${problem} retry=${read} />`;
  if (!items) return html`<p class="loading">Loading…</p>`;
  if (!items.length) return html`<${Empty} title="No batch yet."><p>Runs with a common name are a batch:</p><${Command} text="asterism runs create resize --each images.jsonl --batch thumbnails" /><//>`;
  return table("Batches", ["Batch", "State", "Progress", "Failed", "Took", "Created"], items.map((one) => ({ key: one.name, cells: [
    html`<a href=${addressOf(["fleet", "batches"], { batch: one.name })}>${one.name}</a>`, html`<${State} batch=${one} />`, html`<${Progress} plan=${withCounts(one)} />`, one.failed || "", took(one), ago(one.created_at)] })));
}

const runsOf = (name, status, text) => html`<a class="button" href=${addressOf(["fleet", "runs"], { batch: name, status })}>${text}</a>`;

function BatchPage({ name, fleet }) {
  const { items: one, problem, read } = useList(() => get(["batches", name]), [fleet.changed.value]);
  const all = (action) => async () => {
    for (let after; ;) {
      const page = await post(["batches", name, action], { limit: MOST_AT_ONCE, ...(after ? { after } : {}) });
      after = page.next;
      if (!after) break;
    }
    await read();
  };
  if (problem && !one) return html`<${Failure} problem=${problem} retry=${read} />`;
  if (!one) return html`<p class="loading">Loading…</p>`;
  return html`<section class="batch-page" aria-label=${`Batch ${name}`}><div class="row-head"><a class="button" href=${addressOf(["fleet", "batches"])}>← Batches</a><h2>${name}</h2><${State} batch=${one} /><span class="spring"></span>
      <span class="buttons">${runsOf(name, "", "Its runs")}${one.failed > 0 && runsOf(name, "failed", "Runs that failed")}
      ${one.failed + one.cancelled > 0 && html`<${Action} operation="retry_batch" act=${all("retry")} confirm=${`Run ${plural(one.failed + one.cancelled, "run")} again?`}>Retry<//>`}
      ${!one.ended && html`<${Action} operation="cancel_batch" kind="danger" act=${all("cancel")} confirm="Cancel all its runs?">Cancel<//>`}</span></div>
    ${problem && html`<${Failure} problem=${problem} retry=${read} />`}
    <${Progress} plan=${withCounts(one)} />
    <dl class="facts">${Object.entries(countsOf(one)).map(([state, number]) => fact(state, number.toLocaleString("en")))}${fact("runs", one.runs.toLocaleString("en"))}
      ${fact("created", clock(one.created_at))}${fact(one.ended ? "took" : "since", took(one))}${one.rate && fact("pace", `${Number((60 * one.rate).toPrecision(3)).toLocaleString("en")} runs/min`)}${one.time_left != null && fact("time left", duration(one.time_left))}</dl>
    ${one.failures.length > 0 && html`<h3>Failed last</h3>${table(`Runs of ${name} that failed`, ["Run", "Device", "Ended", "Error"], one.failures.map((run) => ({ key: run.id, cells: [
      html`<a href=${addressOf(["fleet", "runs"], { batch: name, run: run.id })}>${run.label || run.id}</a>`, run.device ?? "", clock(run.ended_at), html`${run.error ?? ""}${run.tail && html`<pre class="output">${run.tail}</pre>`}`] })))}`}</section>`;
}

const fact = (label, text) => html`<div><dt>${label}</dt><dd>${text}</dd></div>`;
