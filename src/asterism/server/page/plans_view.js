// The plans of the store.
import { address, addressOf, setQuery } from "./address.js";
import { get, me } from "./api.js";
import { Command, Empty, Failure, Status, useList } from "./parts.js";
import { may } from "./permissions.js";
import { html } from "./ui.js";
import { ago, mark, plural, words } from "./words.js";

// What a person has to decide.
const attention = (plan) => [plan.waiting_edits ? `${plural(plan.waiting_edits, "edit")} wait${plan.waiting_edits === 1 ? "s" : ""}` : "", plan.budget_spent ? "budget spent" : ""].filter(Boolean);

export function PlansView({ fleet }) {
  return may("list_plans") ? html`<${PlanList} fleet=${fleet} />` : html`<${OwnPlans} />`;
}

// For those who may edit some plans and read no others: the plans that their scopes name.
function OwnPlans() {
  const scopes = me.value?.scopes ?? [];
  const plans = scopes.filter((scope) => /^edit:[^*?]+$/.test(scope)).map((scope) => scope.slice(5));
  return html`<div class="column"><${Empty} title="You may not list the plans."><p>Your scopes are ${scopes.join(", ")}.${scopes.some((scope) => scope.startsWith("edit:")) ? " They let you open these plans, by their addresses:" : ""}</p>
    <ul class="plain-list">${plans.map((name) => html`<li><a href=${addressOf(["plans", name, "graph"])}>${name}</a></li>`)}</ul><//></div>`;
}

function PlanList({ fleet }) {
  const { query } = address.value;
  const { items, problem, read } = useList(async () => (await get(["plans"], { limit: 500, ...(query.search ? { name: query.search } : {}) })).items, [fleet.changed.value, query.search]);
  if (problem && !items) return html`<div class="column"><${Failure} problem=${problem} retry=${read} /></div>`;
  if (!items) return html`<p class="loading">Loading…</p>`;
  return html`<div class="column"><div class="row-head"><h2>Plans</h2><span class="spring"></span>
      <label class="search"><span class="visually-hidden">Search plans</span><input type="search" placeholder="Search plans" value=${query.search ?? ""} onInput=${(event) => setQuery({ search: event.target.value })} /></label></div>
    ${!items.length && !query.search && html`<${Empty} title="No plan yet."><p>To run a plan and watch it here:</p><${Command} text="asterism run plan.yaml --serve" /><p>Or to run one in the store that this server serves:</p><${Command} text="asterism run plan.yaml --store sqlite:///fleet.db --id release" /><//>`}
    ${!items.length && query.search && html`<${Empty} title="No plan matches." />`}
    <ul class="plans">${items.map((one) => html`<li key=${one.name}><a class="plan-card" href=${addressOf(["plans", one.name, "graph"])}>
      <span class="plan-title"><b>${one.name}</b>${attention(one).map((text) => html` <span class="attention">${text}</span>`)}</span><${Status} status=${one.paused ? "paused" : one.state} text=${one.paused ? "paused" : one.state_text ?? words(one.state)} />
      <span class="plan-counts">${Object.entries(one.counts ?? {}).filter(([, number]) => number).map(([status, number]) => html`<span class=${`is-${status}`} title=${words(status)}><span class="glyph" aria-hidden="true">${mark(status)}</span>${number.toLocaleString("en")}<span class="visually-hidden"> ${words(status)}</span></span>`)}</span>
      <span class="note">version ${one.version ?? 0}${one.started_at ? `, started ${ago(one.started_at)}` : ""}</span></a></li>`)}</ul></div>`;
}
