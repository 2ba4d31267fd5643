// The fleet: devices, runs, schedules, series and notices.
import { address, addressOf } from "./address.js";
import { AuditView } from "./audit_view.js";
import { BatchesView } from "./batches_view.js";
import { DevicesView } from "./devices_view.js";
import { RunsView } from "./runs_view.js";
import { get } from "./api.js";
import { Command, Empty, Failure, Status, table, useCalmRows, useList } from "./parts.js";
import { may } from "./permissions.js";
import { SchedulesView } from "./schedules_view.js";
import { html } from "./ui.js";
import { ago, clock, plural, words } from "./words.js";

const TABS = { devices: "Devices", runs: "Runs", batches: "Batches", schedules: "Schedules", series: "Series", notices: "Notices", audit: "Audit" };
export const tabsFor = () => Object.keys(TABS).filter((name) => may(`list_${name}`));

export function FleetView({ fleet }) {
  const tabs = tabsFor();
  const tab = tabs.includes(address.value.parts[1]) ? address.value.parts[1] : tabs[0];
  if (!tab) return html`<div class="column"><${Empty} title="You may not see the fleet."><p>This needs the scope observe.</p><//></div>`;
  const View = { devices: DevicesView, runs: RunsView, batches: BatchesView, schedules: SchedulesView, series: SeriesView, notices: NoticesView, audit: AuditView }[tab];
  return html`<div class="column wide"><nav class="tabs" aria-label="Fleet">${tabs.map((name) => html`<a href=${addressOf(["fleet", name])} aria-current=${name === tab ? "page" : undefined} data-text=${TABS[name]}>${TABS[name]}</a>`)}</nav>
    <${View} fleet=${fleet} key=${tab} /></div>`;
}

function whyNotPromoted(one) {
  if (!one.queue?.length) return "";
  return one.paused ? `paused ${one.paused}` : one.why_not_promoted ?? (one.active != null ? `${issue(one.active)} is active` : "");
}

const issue = (item) => (typeof item === "number" ? `#${item}` : item ?? "");

function SeriesView({ fleet }) {
  const { items, problem, read } = useList(async () => (await get(["series"])).items, [fleet.changed.value]);
  if (problem) return html`<${Failure} problem=${problem} retry=${read} />`;
  if (!items) return html`<p class="loading">Loading…</p>`;
  if (!items.length) return html`<${Empty} title="No series yet."><p>A series has one active issue and a queue. To make an issue the active one, or to queue it:</p><${Command} text="asterism series claim main --issue 12" /><//>`;
  return table("Series", ["Series", "State", "Active", "Since", "Queue", "Why not promoted"], items.map((one) => ({ key: one.name, cells: [
    one.name, html`<${Status} status=${one.status === "active" ? "running" : one.status === "free" ? "ready" : one.status} text=${words(one.status)} />`,
    one.problem ?? (issue(one.active) || "none"), one.since != null ? `${ago(one.since)}${one.by ? ` by ${one.by}` : ""}` : "",
    (one.queue ?? []).map(issue).join(", ") || "empty", whyNotPromoted(one)] })));
}

const SHOWN_NOTICES = 300;
const NOTICE_PAGE = 1000;

// The API lists the oldest first.
async function newestNotices() {
  let found = [];
  for (let after = 0; ;) {
    const page = await get(["notices"], { after, limit: NOTICE_PAGE });
    found = [...found, ...page.items].slice(-SHOWN_NOTICES);
    if (page.items.length < NOTICE_PAGE) return found.reverse();
    after = page.next;
  }
}

// The message with a link at the name of the plan or the schedule that it is about.
function linked({ kind, message }) {
  const [, before, noun, name, after] = /^(.*?\b)(plan|schedule) ([\w.@-]*[\w@-])(.*)$/s.exec(message) ?? [];
  if (!name) return message;
  const to = noun === "schedule" ? addressOf(["fleet", "schedules"], { schedule: name }) : addressOf(["plans", name, kind === "approval" || kind === "budget" ? "edits" : "graph"]);
  return html`${before}${noun} <a href=${to}>${name}</a>${noun === "schedule" ? linked({ kind, message: after }) : after}`;
}

function NoticesView({ fleet }) {
  const { items, problem, read } = useList(newestNotices, [fleet.changed.value]);
  const { shown, fresh, showAll } = useCalmRows(items, "", (one) => one.number);
  if (problem) return html`<${Failure} problem=${problem} retry=${read} />`;
  if (!items) return html`<p class="loading">Loading…</p>`;
  if (!items.length) return html`<${Empty} title="No notice."><p>Notices report lost devices, late results and similar events. To follow them in a terminal:</p><${Command} text="asterism notice list --follow" /><//>`;
  return html`${fresh > 0 && html`<p><button class="fresh" onClick=${showAll}>Show ${plural(fresh, "new notice")}</button></p>`}<ol class="notices">${shown.map((one) => html`<li key=${one.number}><time>${clock(one.at)}</time><b>${words(one.kind)}</b><span>${linked(one)}</span>
    ${one.run && html`<a href=${addressOf(["fleet", "runs"], { run: one.run })}>run ${one.run.slice(0, 12)}</a>`}${one.device && html`<a href=${addressOf(["fleet", "devices"], { device: one.device })}>${one.device}</a>`}</li>`)}</ol>`;
}
