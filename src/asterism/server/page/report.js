// A report: the page about one plan, in a file that has its documents with it (report/html_report.py).
import { address, addressOf, go, parseAddress } from "./address.js";
import { answerWith } from "./api.js";
import { EditsView } from "./edits_view.js";
import { Status, table } from "./parts.js";
import { PlanState } from "./plan_state.js";
import { PlanView } from "./plan_view.js";
import { ThemeButton } from "./theme.js";
import { TimelineView } from "./timeline_view.js";
import { html, render, signal, useEffect, useMemo } from "./ui.js";
import { clock, duration, mark, plural, words } from "./words.js";

const VIEWS = { summary: "Summary", graph: "Plan", timeline: "Timeline", edits: "Edits" };
const [MOST, FEW] = [50, 12]; // failures in the summary, and cancelled tasks
const data = JSON.parse(document.getElementById("data").textContent);
const { plan, summary } = data;
const home = ["plans", plan.name, "summary"];

const ANSWERS = {
  versions: data.versions, changes: { items: data.changes, next: null }, approvals: { items: [] }, cycles: { items: [] },
};
answerWith(([first, , what, task, detail]) => {
  if (first === "me") return { operations: [] };
  if (what !== "tasks") return ANSWERS[what] ?? plan;
  if (detail === "logs") return { items: logOf(data.logs[task] ?? []), next: null };
  return detail === "why" ? { reasons: [] } : data.tasks[task] ?? {};
});

// The lines of all attempts, with a line between two of them.
function logOf(attempts) {
  return attempts.flatMap(({ attempt, left_out, lines }) => [
    ...(attempts.length > 1 ? [{ stream: "gap", text: `-- attempt ${attempt} --` }] : []),
    ...(left_out ? [{ stream: "gap", text: `… ${plural(left_out, "earlier line")} …` }] : []),
    ...lines.map(([stream, text]) => ({ stream, text })),
  ]);
}

function Page() {
  const { parts } = address.value;
  const view = parts[1] === plan.name && VIEWS[parts[2]] ? parts[2] : "summary";
  const state = useMemo(() => new PlanState(plan.name), []);
  const draft = useMemo(() => signal(null), []);
  useEffect(() => { document.title = `${plan.name}: report`; }, []);
  useEffect(() => {
    // A link within a document that has no address of its own would leave it.
    const follow = (event) => {
      const link = event.target.closest?.("a[href^='#/']")?.getAttribute("href");
      if (!link || event.ctrlKey || event.metaKey) return;
      event.preventDefault();
      const { parts: to, query } = parseAddress(link);
      go(to, query);
    };
    const keys = (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest?.("input, textarea, select")) return;
      const name = Object.keys(VIEWS)[Number(event.key) - 1];
      if (name) go(["plans", plan.name, name]);
    };
    addEventListener("click", follow);
    addEventListener("keydown", keys);
    return () => { removeEventListener("click", follow); removeEventListener("keydown", keys); };
  }, []);
  const ready = state.view.value && state.layout.value;
  const select = (task) => go(["plans", plan.name, "graph"], { task });
  return html`<header class="top"><span class="brand">Report</span>
    <nav class="plan-nav" aria-label=${`Plan ${plan.name}`}><span class="plan-name" title=${plan.name}>${plan.name}</span>${Object.entries(VIEWS).map(([name, text]) => html`<a href=${addressOf(["plans", plan.name, name])} aria-current=${view === name ? "page" : undefined} data-text=${text}>${text}</a>`)}</nav>
    <span class="spring"></span><${ThemeButton} /></header>
    <main id="main" tabindex="-1" class="plan-page report-page">${!ready ? html`<p class="loading">Loading…</p>`
      : view === "graph" ? html`<${PlanView} state=${state} draft=${draft} />`
      : view === "timeline" ? html`<${TimelineView} state=${state} select=${select} />`
      : view === "edits" ? html`<${EditsView} state=${state} draft=${draft} />` : html`<${Summary} />`}</main>`;
}

// What a person asks first: how it ended, what failed and why, with what, and how it was before.
function Summary() {
  const failed = plan.tasks.filter((task) => task.status === "failed");
  const never = plan.tasks.filter((task) => task.status === "cancelled");
  const to = (task) => html`<a href=${addressOf(["plans", plan.name, "graph"], { task: task.id })}>${task.id}</a>`;
  return html`<div class="column report">
    <div class="row-head"><h2>${plan.name}</h2><${Status} status=${plan.state} text=${plan.state_text} /></div>
    ${summary.took && html`<p>${summary.took.replace(/^a/, "A")}</p>`}
    <p class="counts">${Object.entries(plan.counts).map(([status, number]) => html`<a class=${`count is-${status}`} href=${addressOf(["plans", plan.name, "graph"], { status })}><span class="glyph" aria-hidden="true">${mark(status)}</span>${number.toLocaleString("en")} ${words(status)}</a>`)}</p>
    <p class="note">${[summary.began && `Began ${summary.began}`, summary.device.length && `on ${summary.device.join(", ")}`, summary.file && `from ${summary.file}`].filter(Boolean).join(" · ")}</p>
    ${failed.length + never.length > 0 && html`<section><h3>Failures</h3><ol class="batches">${failed.slice(0, MOST).map((task) => html`<li class="batch is-failed" key=${task.id}>
        <p class="head"><b>${to(task)}</b><span class="note">failed${task.device && ` on ${task.device}`}${task.attempts > 1 && ` after ${plural(task.attempts, "attempt")}`}</span><span class="spring"></span><time>${clock(task.ended_at)}</time></p>
        ${task.reason && html`<p class="reason">${task.reason}</p>`}</li>`)}</ol>
      ${failed.length > MOST && html`<p class="note">and ${plural(failed.length - MOST, "more failed task")}</p>`}
      ${never.length > 0 && html`<p class="note">${plural(never.length, "task")} cancelled: ${never.slice(0, FEW).map((task, index) => [index ? ", " : "", to(task)])}${never.length > FEW && ` and ${never.length - FEW} more`}</p>`}</section>`}
    ${summary.params.length > 0 && html`<section><h3>Parameters</h3><${Pairs} items=${summary.params} /></section>`}
    ${summary.earlier.length > 0 && html`<section><h3>Earlier runs</h3>${table("Earlier runs", ["Plan", "State", "Began", "Duration"], summary.earlier.map((run) => ({ key: run.name, cells: [run.name, html`<${Status} status=${run.state} />`, clock(run.started_at), run.took === null ? "" : duration(run.took)] })))}</section>`}
    <section><h3>Figures</h3><${Pairs} items=${summary.figures} /></section>
  </div>`;
}

const Pairs = ({ items }) => html`<dl class="facts">${items.map(([name, text]) => html`<div><dt>${name}</dt><dd>${text}</dd></div>`)}</dl>`;

if (address.peek().parts[1] !== plan.name) address.value = { parts: home, query: {} };
const root = document.getElementById("page");
root.replaceChildren();
render(html`<${Page} />`, root);
