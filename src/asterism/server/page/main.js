// The page: its frame, the view that the address names, and what is the same in all views.
import { address, addressOf, go } from "./address.js";
import { connection, me, post, signIn } from "./api.js";
import { BudgetBanner } from "./budget_banner.js";
import { EMPTY_REQUEST } from "./edit_request.js";
import { EditsView } from "./edits_view.js";
import { FleetState } from "./fleet_state.js";
import { FleetView, tabsFor } from "./fleet_view.js";
import { Action, Command, Dialog, Empty, Failure, Status } from "./parts.js";
import { knowsPlan, may, readPermissions } from "./permissions.js";
import { Person } from "./person.js";
import { PlanState } from "./plan_state.js";
import { PlanView } from "./plan_view.js";
import { PlansView } from "./plans_view.js";
import { SubmitView } from "./submit_view.js";
import { ThemeButton } from "./theme.js";
import { TimeTravel } from "./time_travel.js";
import { TimelineView } from "./timeline_view.js";
import { html, render, signal, useEffect, useMemo, useState } from "./ui.js";
import { ENDED_STATES, words } from "./words.js";

const VIEWS = { graph: "Plan", timeline: "Timeline", edits: "Edits" };
const KEYS = [["/", "search tasks"], ["g, then arrow keys", "walk through the graph"], ["Enter", "open a task"], ["Escape", "close the drawer"], ["+  −  0", "zoom in, zoom out, fit"],
  ["f", "collapse finished tasks"], ["l", "graph as a list"], ["e", "edit the plan"], ["a", "ask a model for a change"], ["1  2  3", "plan, timeline, edits"], ["p", "all plans"], ["d", "fleet"], ["n", "new plan"], ["[  ]", "earlier, later version"], ["?", "this list"]];

// Why somebody who is known may do nothing: a person without a group, behind a proxy.
const denied = signal("");

function Page() {
  const { parts } = address.value;
  const [help, setHelp] = useState(false);
  const plan = parts[0] === "plans" && parts[1] ? parts[1] : null;
  useEffect(() => {
    const keys = (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest?.("input, textarea, select, dialog")) return;
      const act = { "?": () => setHelp(true), p: () => go(["plans"]), d: () => go(["fleet", "devices"]), n: () => may("submit_plan") && go(["submit"]) }[event.key]
        ?? (plan && { 1: () => go(["plans", plan, "graph"]), 2: () => go(["plans", plan, "timeline"]), 3: () => go(["plans", plan, "edits"]),
          "[": () => document.querySelector(".travel button[aria-label='Earlier version']")?.click(), "]": () => document.querySelector(".travel button[aria-label='Later version']")?.click() }[event.key]);
      if (act) { event.preventDefault(); act(); }
    };
    addEventListener("keydown", keys);
    return () => removeEventListener("keydown", keys);
  });
  const view = plan ? VIEWS[parts[2]] ?? "Plan" : parts[0] === "fleet" ? "Fleet" : parts[0] === "submit" ? "New plan" : "Plans";
  useEffect(() => { document.title = `${plan ? `${plan}: ${view}` : view} – Asterism`; }, [plan, view]);
  return html`<a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); document.getElementById("main").focus(); }}>Skip to the content</a>
    <${Header} plan=${plan} view=${view} help=${() => setHelp(true)} />
    ${connection.value === "lost" && html`<p class="banner" role="alert">The connection to the server is lost. The page shows the last known state and tries again.</p>`}
    ${denied.value ? html`<main id="main" tabindex="-1"><div class="column"><${Empty} title="You may not use this server."><p>${denied.value}</p><p><button onClick=${() => location.reload()}>Try again</button></p><//></div></main>`
    : connection.value === "signed out" ? html`<main id="main" tabindex="-1"><${SignedOut} /></main>`
    : plan ? html`<${PlanPage} key=${plan} name=${plan} />` : html`<${FleetPage} view=${view} />`}
    ${help && html`<${Dialog} title="Keyboard" close=${() => setHelp(false)}><dl class="keys">${KEYS.map(([key, text]) => html`<div><dt><kbd>${key}</kbd></dt><dd>${text}</dd></div>`)}</dl><//>`}`;
}

function Header({ plan, view, help }) {
  const link = (text, parts) => html`<a href=${addressOf(parts)} aria-current=${view === text ? "page" : undefined} data-text=${text}>${text}</a>`;
  return html`<header class="top"><a class="brand" href="#/plans"><img src="/page/star.svg" alt="" width="22" height="22" />Asterism</a>
    <nav aria-label="Main">${me.value && html`${link("Plans", ["plans"])}${tabsFor().length > 0 && link("Fleet", ["fleet", tabsFor()[0]])}`}</nav>
    ${plan && html`<nav class="plan-nav" aria-label=${`Plan ${plan}`}><span class="plan-name" title=${plan}>${plan}</span>${Object.entries(VIEWS).map(([name, text]) => link(text, ["plans", plan, name]))}</nav>`}
    <span class="spring"></span>
    <${Person} />
    <${ThemeButton} />
    <button class="plain" onClick=${help} aria-label="Keyboard shortcuts" title="Keyboard shortcuts (?)">?</button></header>`;
}

const SignedOut = () => html`<div class="column"><${Empty} title="You are not signed in."><p>The server prints a link that logs a browser in when it starts. The link works once, within 10 minutes. This command prints a new one:</p><${Command} text="asterism token login" /><p><button onClick=${() => location.reload()}>Try again</button></p><//></div>`;

function FleetPage({ view }) {
  const fleet = useMemo(() => new FleetState(), []);
  useEffect(() => () => fleet.close(), []);
  return html`<main id="main" tabindex="-1">${view === "Fleet" ? html`<${FleetView} fleet=${fleet} />` : view === "New plan" && may("submit_plan") ? html`<${SubmitView} />` : html`<${PlansView} fleet=${fleet} />`}</main>`;
}

function PlanPage({ name }) {
  const { parts, query } = address.value;
  const version = query.version ? Number(query.version) : null;
  const state = useMemo(() => new PlanState(name, version, query.opened), []);
  const draft = useMemo(() => signal(null), []);
  useEffect(() => () => state.close(), []);
  useEffect(() => { state.travel(version); }, [version]);
  const view = state.view.value;
  if (!view || !state.layout.value || !knowsPlan(name)) {
    return html`<main id="main" tabindex="-1">${state.problem.value ? html`<div class="column"><${Failure} problem=${state.problem.value} retry=${() => state.reload()} /></div>` : html`<p class="loading">Loading…</p>`}</main>`;
  }
  const select = (task) => go(["plans", name, "graph"], { task, version: query.version });
  const tab = VIEWS[parts[2]] ? parts[2] : "graph";
  return html`<main id="main" tabindex="-1" class="plan-page">
    <${PlanBar} state=${state} view=${view} edit=${tab === "graph" ? () => { draft.value ??= { edits: [], reason: "" }; } : null} ask=${tab === "graph" ? () => { draft.value ??= EMPTY_REQUEST; } : null} />
    ${state.problem.value && html`<${Failure} problem=${state.problem.value} retry=${() => state.reload()} />`}
    ${state.version === null && view.budget?.held_since && !ENDED_STATES.has(view.state) && html`<${BudgetBanner} state=${state} budget=${view.budget} />`}
    ${tab === "graph" ? html`<${PlanView} state=${state} draft=${draft} />` : tab === "timeline" ? html`<${TimelineView} state=${state} select=${select} />` : html`<${EditsView} state=${state} draft=${draft} />`}
    ${tab !== "edits" && html`<${TimeTravel} state=${state} />`}
  </main>`;
}

function reviewText(cycles) {
  const editors = [...new Set(cycles.map((one) => one.claimed_by))].join(", ");
  const tasks = cycles.flatMap((one) => one.tasks);
  return `${editors} reviews ${tasks.slice(0, 2).join(", ") || "the plan"}${tasks.length > 2 ? " …" : ""}`;
}

// The tick of a plan in the zone of its schedule, such as "2026-11-13 03:00 America/New_York".
const timeOf = (tick) => `${tick.tick.slice(0, 16).replace("T", " ")} ${tick["tick.zone"] ?? ""}`.trim();

function PlanBar({ state, view, edit, ask }) {
  const act = (what) => async () => { await post(["plans", state.name, what]); await state.reload(); };
  const ended = ENDED_STATES.has(view.state);
  const failed = (view.counts?.failed ?? 0) + (view.counts?.cancelled ?? 0);
  const cycles = (view.cycles ?? []).filter((one) => !one.closed_at);
  const reviewed = cycles.filter((one) => one.claimed_by && !one.on_hold); // an editor works on these
  const open = (view.approvals ?? []).length + cycles.length - reviewed.length;
  return html`<div class="plan-bar"><${Status} status=${view.paused ? "paused" : view.state} text=${view.paused ? "paused" : view.state_text ?? words(view.state)} />
    <span class="note">${view.tick?.tick && `tick ${timeOf(view.tick)}, `}version ${view.version}${state.version !== null ? ", as it was" : view.owner ? `, run by ${view.owner.device ?? view.owner}` : ended ? "" : ", nobody runs it"}</span>
    ${open > 0 && state.version === null && html`<a class="attention" href=${addressOf(["plans", state.name, "edits"])}>${open} waiting<span> for a person</span></a>`}
    ${reviewed.length > 0 && state.version === null && html`<a class="review" href=${addressOf(["plans", state.name, "edits"])}>${reviewText(reviewed)}</a>`}
    <span class="spring"></span>
    ${state.version === null && html`${ask && may("propose_edit") && html`<button data-operation="propose_edit" title="a" onClick=${ask}>Ask</button>`}${edit && may("edit_plan") && html`<button class="primary" data-operation="edit_plan" title="e" onClick=${edit}>Edit</button>`}${!ended && (view.paused || view.state === "at_rest" ? html`<${Action} operation="resume_plan" act=${act("resume")}>Resume<//>` : html`<${Action} operation="pause_plan" act=${act("pause")}>Pause<//>`)}
      ${!ended && html`<${Action} operation="cancel_plan" kind="danger" confirm="Cancel the plan?" act=${act("cancel")}>Cancel<//>`}
      ${ended && failed > 0 && html`<${Action} operation="retry_plan" act=${act("retry")}>Retry failed tasks<//>`}`}</div>`;
}

if (!location.hash) history.replaceState(null, "", "#/plans");
address.value = { ...address.value, ...(address.value.parts.length ? {} : { parts: ["plans"] }) };
await Promise.all([signIn(), readPermissions()]).catch((problem) => {
  if (problem.status === 403) denied.value = problem.message;
  else if (problem.status !== 401) connection.value = "lost";
});
const root = document.getElementById("page");
root.replaceChildren();
render(html`<${Page} />`, root);
export { me };
