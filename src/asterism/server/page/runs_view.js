// Runs: filters that the address remembers, actions on all runs of a filter, and the details of one.
import { address, addressOf, setQuery } from "./address.js";
import { get, post } from "./api.js";
import { Action, Command, Empty, Failure, Field, Status, table, useCalmRows, useList } from "./parts.js";
import { may } from "./permissions.js";
import { Head } from "./task_drawer.js";
import { html, useEffect, useRef, useState } from "./ui.js";
import { ago, clock, duration, plural, value, words } from "./words.js";

const FILTERS = { status: "Status", workflow: "Workflow", device: "Device", series: "Series", batch: "Batch", search: "Label, key or input", waiting: "Waiting for" };
const WAITING = { device: "a device", claim: "its device to begin", turn: "its turn in a series", retry: "the next attempt", person: "a person (paused)", peer: "a peer" };
const STATUSES = ["open", "ended", "created", "assigned", "claimed", "processing", "completed", "failed", "cancelled", "paused", "pausing", "cancelling", "reassigning"];
const LOOKS = { created: "pending", assigned: "assigned", claimed: "claimed", processing: "running", reassigning: "waiting", pausing: "waiting", cancelling: "cancelling" };

export function RunsView({ fleet }) {
  const { query } = address.value;
  const filter = Object.fromEntries(Object.keys(FILTERS).filter((name) => query[name]).map((name) => [name, query[name]]));
  const key = JSON.stringify(filter);
  const [limit, setLimit] = useState(100);
  const { items: page, problem, read } = useList(() => readRuns(filter, limit), [key, limit, fleet.changed.value]);
  const { shown, fresh, showAll } = useCalmRows(page?.items, `${key} ${limit}`, (run) => run.id);
  return html`<div class="with-drawer"><div class="runs">
    <${Filters} query=${query} />
    ${may("act_on_runs") && Object.keys(filter).length > 0 && html`<${Bulk} filter=${filter} count=${page?.items?.length} more=${page?.next} done=${read} />`}
    ${problem && html`<${Failure} problem=${problem} retry=${read} />`}
    ${fresh > 0 && html`<p><button class="fresh" onClick=${showAll}>Show ${plural(fresh, "new run")}</button></p>`}
    ${shown && !shown.length && (key === "{}"
      ? html`<${Empty} title="No run yet."><p>To create one from a workflow file:</p><${Command} text="asterism runs create --file workflow.yaml" /><//>`
      : html`<${Empty} title="No run matches these filters."><p><button onClick=${() => setQuery(Object.fromEntries(Object.keys(FILTERS).map((name) => [name, ""])))}>Clear the filters</button></p><//>`)}
    ${shown?.length > 0 && table("Runs", ["Run", "Status", "Device", "Series", "Batch", "Created", "Took"], shown.map((run) => ({ key: run.id, selected: query.run === run.id, cells: [
      html`<button class="link" onClick=${() => setQuery({ run: run.id })}>${run.shown_label || run.label || run.workflow}</button>${(run.shown_label || run.label) && html` <small>${run.workflow}</small>`}`,
      html`<${Status} status=${LOOKS[run.status] ?? run.status} text=${words(run.status)} />${run.waiting && run.status !== "paused" && html` <small class="waits">waits for ${WAITING[run.waiting] ?? run.waiting}</small>`}`,
      run.device ?? "", run.series ?? "", run.batch ? html`<a href=${addressOf(["fleet", "batches"], { batch: run.batch })}>${run.batch}</a>` : "", ago(run.created_at), run.started_at ? duration((run.ended_at ?? Date.now() / 1000) - run.started_at) : ""] })))}
    ${page?.next && html`<p><button onClick=${() => setLimit(limit + 200)}>Show more</button></p>`}
  </div>${query.run && html`<${RunDrawer} id=${query.run} changed=${fleet.changed.value} />`}</div>`;
}

// A part of the list may have fewer runs than asked for, even none, and be followed by more.
async function readRuns(filter, limit) {
  for (let items = [], after = null; ;) {
    const page = await get(["runs"], { ...filter, ...(after ? { after } : {}), limit: Math.min(limit - items.length, MOST_AT_ONCE) });
    items = [...items, ...page.items];
    after = page.next;
    if (!after || items.length >= limit) return { items, next: after };
  }
}

const choices = { status: [["", "any"], ...STATUSES.map((one) => [one, one])], waiting: [["", "any"], ...Object.entries(WAITING)] };

function Filters({ query }) {
  return html`<form class="filters" role="search" aria-label="Filter runs" onSubmit=${(event) => event.preventDefault()}>${Object.entries(FILTERS).map(([name, label]) => html`<${Field} key=${name} label=${label}>
    ${choices[name] ? html`<select value=${query[name] ?? ""} onChange=${(event) => setQuery({ [name]: event.target.value })}>${choices[name].map(([value, text]) => html`<option value=${value}>${text}</option>`)}</select>`
    : html`<input value=${query[name] ?? ""} onChange=${(event) => setQuery({ [name]: event.target.value.trim() })} />`}<//>`)}</form>`;
}

const MOST_AT_ONCE = 500;
const BULK_PAGE = 200;

function Bulk({ filter, count, more, done }) {
  const [told, setTold] = useState("");
  const act = (action) => async () => {
    let [changed, refused] = [0, []];
    for (let after = null; ;) {
      const answer = await post(["runs", "actions"], { ...filter, action, ...(after ? { after } : {}), limit: BULK_PAGE });
      changed += answer.changed.length;
      refused = [...refused, ...Object.values(answer.refused)];
      after = answer.next;
      if (!after) break;
    }
    setTold(`${words(action)}: ${plural(changed, "run")}${refused.length ? `, ${refused.length} refused (${refused[0]})` : ""}.`);
    await done();
  };
  const all = `${count === 1 && !more ? "the one run" : `all ${more ? `${count} or more` : count ?? 0} runs`} of this filter`;
  return html`<p class="bulk" role="group" aria-label="Actions on all runs of the filter">${all[0].toUpperCase()}${all.slice(1)}:
    ${["pause", "resume", "cancel", "retry"].map((action) => html`<${Action} operation="act_on_runs" kind=${action === "cancel" ? "danger" : ""} confirm=${`${action[0].toUpperCase()}${action.slice(1)} ${all}?`} act=${act(action)}>${action[0].toUpperCase() + action.slice(1)}<//>`)}
    <span role="status">${told}</span></p>`;
}

function RunDrawer({ id, changed }) {
  const { items, problem, read } = useList(async () => [await get(["runs", id]), await get(["runs", id, "why"]).catch(() => null), await get(["runs", id, "logs"]).catch(() => null)], [id, changed]);
  const close = () => setQuery({ run: "" });
  const heading = useRef(null);
  useEffect(() => { heading.current?.focus({ preventScroll: true }); }, [id]);
  const run = items?.[0];
  const act = (action) => async () => { await post(["runs", id, action]); await read(); };
  const ended = run && (run.ended_at || ["completed", "failed", "cancelled"].includes(run.status));
  const scores = Object.entries(run?.scores ?? {}).sort(([, one], [, other]) => other - one);
  const lines = items?.[2]?.items ?? [];
  return html`<aside class="drawer" aria-label=${`Run ${id}`} onKeyDown=${(event) => event.key === "Escape" && close()}>
    <${Head} title=${run?.label || run?.workflow || id} close=${close} heading=${heading} />
    ${problem && html`<${Failure} problem=${problem} retry=${read} />`}
    ${run && html`<p class="drawer-status"><${Status} status=${LOOKS[run.status] ?? run.status} text=${words(run.status)} /></p>
      <p class="buttons">${ended ? html`<${Action} operation="retry_run" act=${act("retry")}>Retry<//>` : html`${run.paused != null ? html`<${Action} operation="resume_run" act=${act("resume")}>Resume<//>` : html`<${Action} operation="pause_run" act=${act("pause")}>Pause<//>`}<${Action} operation="cancel_run" kind="danger" confirm="Cancel this run?" act=${act("cancel")}>Cancel<//>`}</p>
      <dl class="facts">${fact("Run", id)}${fact("Device", run.device)}${fact("Series", run.series)}${fact("Created", `${clock(run.created_at)} by ${run.created_by ?? "unknown"}`)}${fact("Started", clock(run.started_at))}${fact("Ended", clock(run.ended_at))}${fact("Failures", run.failures)}</dl>
      ${items[1]?.reasons?.length > 0 && !ended && html`<section><h3>Why it waits</h3><ul class="plain-list">${items[1].reasons.map((one) => html`<li>${one.text ?? value(one)}</li>`)}</ul></section>`}
      ${run.error && html`<section><h3>Error</h3><pre class="data">${value(run.error)}</pre></section>`}
      ${scores.length > 0 && html`<section><h3>Scores of the placement</h3><table class="scores"><tbody>${scores.map(([device, score]) => html`<tr><th scope="row">${device}${device === run.device ? " ✓" : ""}</th><td>${typeof score === "number" ? score.toFixed(1) : value(score)}</td></tr>`)}</tbody></table></section>`}
      <${Assignments} run=${run} />
      ${lines.length > 0 && html`<section><h3>Output</h3><pre class="output" tabindex="0" role="log" aria-label="Output">${lines.map((line) => html`<span class=${line.stream ?? ""}>${line.text ?? value(line)}${"\n"}</span>`)}</pre></section>`}
      ${run.input && Object.keys(run.input).length > 0 && html`<section><h3>Input</h3><pre class="data">${value(run.input)}</pre></section>`}
      ${run.output != null && html`<section><h3>Result</h3><pre class="data">${value(run.output)}</pre></section>`}
      <section><h3>Story</h3><ol class="story">${(run.story ?? []).map((line) => html`<li><time>${clock(line.at)}</time><span>${line.what}${line.why && html`<small>${line.why}</small>`}</span></li>`)}</ol></section>`}
  </aside>`;
}

// Where it was before, and why each assignment ended.
function Assignments({ run }) {
  const past = run.previous_assignments ?? [];
  return past.length > 0 && html`<section><h3>Earlier assignments</h3><ol class="story">${past.map((one) => html`<li key=${one.epoch}><time>${clock(one.assigned_at)}</time>
    <span>${one.device}, ${duration(one.ended_at - one.assigned_at)}${one.score != null && `, score ${one.score.toFixed(1)}`}<small>${words(one.reason)}${one.detail && `: ${one.detail}`}</small></span></li>`)}</ol></section>`;
}

const fact = (name, text) => text != null && text !== "" && html`<div><dt>${name}</dt><dd>${text}</dd></div>`;
