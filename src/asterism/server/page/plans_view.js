// The plans of the store.
import { address, addressOf, setQuery } from "./address.js";
import { get, me } from "./api.js";
import { rowsOf, tickText } from "./nights.js";
import { Command, Empty, Failure, Status, table, useList } from "./parts.js";
import { may } from "./permissions.js";
import { RecentEnds, recentOf } from "./recent_ends.js";
import { html, useState } from "./ui.js";
import { clock, duration, plural, words } from "./words.js";

// That nothing moves, and why; or what a person has to decide.
const attention = (plan) => plan.stalled ? [`nothing moves: ${plan.stalled}`] : [plan.waiting_edits ? `${plural(plan.waiting_edits, "approval")} wait${plan.waiting_edits === 1 ? "s" : ""}` : "", plan.budget_spent ? "budget spent" : ""].filter(Boolean);

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

const PAGE = 100;

async function readPlans(filter, limit) {
  for (let items = [], after; ;) {
    const page = await get(["plans"], { ...filter, after, limit: Math.min(limit - items.length, PAGE) });
    items = [...items, ...page.items];
    after = page.next;
    if (!after || items.length >= limit) return { items, next: after };
  }
}

function PlanList({ fleet }) {
  const { query } = address.value;
  const filter = { name: query.search, tag: query.tag };
  const [limit, setLimit] = useState(PAGE);
  const { items: schedules } = useList(async () => (may("list_schedules") ? (await get(["schedules"])).items : []), [fleet.changed.value]);
  const { items: page, problem, read } = useList(() => readPlans(filter, limit), [fleet.changed.value, query.search, query.tag, limit]);
  if (problem && !page) return html`<div class="column"><${Failure} problem=${problem} retry=${read} /></div>`;
  if (!page || !schedules) return html`<p class="loading">Loading…</p>`;
  const { items } = page;
  const opened = (query.nights ?? "").split("|").filter(Boolean);
  const row = (one, name) => ({ key: one.name, cells: [
    html`${name ?? html`<a href=${addressOf(["plans", one.name, "graph"])}>${one.name}</a>`}${attention(one).map((text) => html` <span class="attention">${text}</span>`)}${(one.tags ?? []).map((tag) => html` <button class="tag" aria-label=${`Only plans with the tag ${tag}`} onClick=${() => setQuery({ tag })}>${tag}</button>`)}`,
    html`<${Status} status=${one.paused ? "paused" : one.state} text=${one.paused ? "paused" : one.state_text ?? words(one.state)} />`, html`<${Progress} plan=${one} />`, html`<${RecentEnds} plans=${recent.get(one.name)} />`,
    one.started_at ? duration((one.ended_at ?? Date.now() / 1000) - one.started_at) : "", clock(one.started_at), clock(one.ended_at), one.owner ?? ""] });
  const link = ({ plan, tick }) => html`<a href=${addressOf(["plans", plan.name, "graph"])} title=${plan.name}>${tickText(tick)}</a>`;
  // The plans of a schedule are one row: the newest, and the others below it when it is opened.
  const nights = ({ schedule: { name }, nights: [newest, ...others] }) => {
    const open = opened.includes(name);
    const toggle = () => setQuery({ nights: (open ? opened.filter((one) => one !== name) : [...opened, name]).join("|") });
    const more = others.length > 0 && html` <button class="small nights" aria-expanded=${String(open)} aria-label=${`${plural(others.length, "earlier plan")} of ${name}`} onClick=${toggle}>${open ? "−" : "+"} ${others.length.toLocaleString("en")} earlier</button>`;
    return [row(newest.plan, html`<a href=${addressOf(["fleet", "schedules"], { schedule: name })}>${name}</a> · ${link(newest)}${more}`), ...(open ? others.map((one) => row(one.plan, html`<span class="night">${link(one)}</span>`)) : [])];
  };
  const filtered = query.search || query.tag;
  const recent = recentOf(items);
  return html`<div class="column wide plans"><div class="row-head"><h2>Plans</h2>
      ${query.tag && html`<button onClick=${() => setQuery({ tag: "" })} aria-label=${`Show plans without the tag ${query.tag}, too`}>tag ${query.tag} ✕</button>`}<span class="spring"></span>
      <label class="search"><span class="visually-hidden">Search plans</span><input type="search" placeholder="Search plans" value=${query.search ?? ""} onInput=${(event) => setQuery({ search: event.target.value })} /></label>
      ${may("submit_plan") && html`<a class="button" data-operation="submit_plan" href="#/submit">New plan</a>`}</div>
    ${!items.length && !filtered && html`<${Empty} title="No plan yet.">${may("submit_plan") && html`<p>Press “New plan”, or run one in a terminal, in the store that this server serves:</p><${Command} text="asterism run plan.yaml --store sqlite:///fleet.db --id release" />`}<//>`}
    ${!items.length && filtered && html`<${Empty} title="No plan matches." />`}
    ${items.length > 0 && table("Plans", ["Plan", "State", "Progress", "Last five", "Took", "Started", "Ended", "Run by"], rowsOf(items, schedules).flatMap((one) => (one.nights ? nights(one) : row(one.plan))))}
    ${page.next && html`<p><button onClick=${() => setLimit(limit + 2 * PAGE)}>Show more</button></p>`}</div>`;
}

const ORDER = ["completed", "failed", "cancelled", "running", "starting", "queued", "waiting", "pending"];

// How many tasks have ended, as a bar with the parts of each status, and in words.
export function Progress({ plan }) {
  const counts = Object.entries(plan.counts ?? {}).filter(([, number]) => number).sort(([one], [other]) => ORDER.indexOf(one) - ORDER.indexOf(other));
  const all = counts.reduce((sum, [, number]) => sum + number, 0);
  if (!all) return null;
  let at = 0;
  const parts = counts.map(([status, number]) => {
    const width = (100 * number) / all;
    at += width;
    return html`<rect class=${`is-${status}`} x=${at - width} width=${width} height="6" />`;
  });
  const text = counts.map(([status, number]) => `${number.toLocaleString("en")} ${words(status)}`).join(", ");
  return html`<span class="progress" title=${text}><span>${(plan.done ?? 0).toLocaleString("en")} of ${all.toLocaleString("en")}</span>
    <svg viewBox="0 0 100 6" preserveAspectRatio="none" aria-hidden="true">${parts}</svg><span class="visually-hidden">${text}</span></span>`;
}
