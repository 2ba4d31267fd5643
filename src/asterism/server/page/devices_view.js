// Devices: slots, load, battery, age of the heartbeat, the runs that each holds, and its past assignments.
import { address, addressOf, setQuery } from "./address.js";
import { get } from "./api.js";
import { Command, Empty, Failure, Status, table, useList } from "./parts.js";
import { html, useEffect, useState } from "./ui.js";
import { ago, clock, duration } from "./words.js";

const LOOKS = { busy: "running", ready: "completed", silent: "failed", left: "cancelled", replaced: "cancelled", draining: "waiting", resting: "waiting", suspended: "waiting", watching: "pending" };

export function DevicesView({ fleet }) {
  const { query } = address.value;
  const { items, problem, read } = useList(async () => (await get(["devices"])).items, [fleet.changed.value]);
  const [now, setNow] = useState(Date.now() / 1000);
  useEffect(() => { const timer = setInterval(() => setNow(Date.now() / 1000), 5000); return () => clearInterval(timer); }, []);
  if (problem && !items) return html`<${Failure} problem=${problem} retry=${read} />`;
  if (!items) return html`<p class="loading">Loading…</p>`;
  if (!items.length) return html`<${Empty} title="No device yet."><p>To make this machine a device of the fleet:</p><${Command} text="asterism device join laptop" /><p>To let another machine join over HTTPS, without the password of the store:</p><${Command} text="asterism device invite --name 'lab-*'" /><//>`;
  const shown = items.filter((one) => query.left === "1" || !["left", "replaced", "revoked"].includes(one.state));
  return html`<div><div class="row-head"><span class="note">${shown.length} of ${items.length} devices</span><span class="spring"></span><label><input type="checkbox" checked=${query.left === "1"} onChange=${(event) => setQuery({ left: event.target.checked ? "1" : "" })} /> show devices that have left</label></div>
    <ul class="devices">${shown.map((one) => html`<${Device} key=${one.session ?? one.name} item=${one} now=${now} open=${query.device === one.name} changed=${fleet.changed.value} />`)}</ul></div>`;
}

function Device({ item, now, open, changed }) {
  const share = item.slots ? Math.min(1, item.used / item.slots) : 0;
  return html`<li class=${`device is-${LOOKS[item.state] ?? "pending"}`}>
    <button class="device-head" aria-expanded=${String(open)} onClick=${() => setQuery({ device: open ? "" : item.name })}>
      <b>${item.name}</b><${Status} status=${LOOKS[item.state] ?? "pending"} text=${item.state} />
      ${item.slots === 0 ? html`<span class="meter-text">takes no tasks</span>` : html`<span class="meter"><span class="meter-text">${item.used} of ${item.slots} slots</span><svg viewBox="0 0 100 6" preserveAspectRatio="none" aria-hidden="true"><rect class="meter-back" width="100" height="6" rx="3" /><rect class="meter-fill" width=${share * 100} height="6" rx="3" /></svg></span>`}
      ${item.coordinator && html`<span class="tag">coordinator</span>`}<span class="device-beat">heartbeat ${ago(item.last_heartbeat_at, now)}</span></button>
    <dl class="facts">${fact("Can", item.can?.join(", "))}${fact("Load", item.load != null ? Number(item.load).toFixed(2) : "")}${fact("Battery", battery(item.battery))}${fact("Backlog", item.backlog || "")}
      ${fact("Host", hostName(item.host))}${fact("Quality", item.quality != null ? Number(item.quality).toFixed(2) : "")}${fact("Resting", item.resting)}${fact("Joined", clock(item.joined_at))}</dl>
    ${open && html`<${DeviceDetail} name=${item.name} changed=${changed} />`}</li>`;
}

const fact = (name, text) => text != null && text !== "" && html`<div><dt>${name}</dt><dd>${text}</dd></div>`;
const battery = (level) => (level == null ? "" : typeof level === "number" ? `${Math.round(level <= 1 ? level * 100 : level)} %` : String(level));

// The host of a session is followed by marks of the machine and of its disk.
const hostName = (host) => host && host.split(" ")[0];

function DeviceDetail({ name, changed }) {
  const { items, problem } = useList(() => get(["devices", name]), [name, changed]);
  if (problem) return html`<${Failure} problem=${problem} />`;
  if (!items) return html`<p class="loading">Loading…</p>`;
  const held = items.holds;
  const past = items.latest.filter((run) => !held.some((one) => one.id === run.id));
  return html`<div class="device-detail"><h3>Holds</h3>${held.length ? runTable(`Runs that ${name} holds`, held) : html`<p class="note">No run.</p>`}
    <h3>Earlier assignments</h3>${past.length ? runTable(`Earlier assignments of ${name}`, past) : html`<p class="note">None yet.</p>`}</div>`;
}

const runTable = (label, runs) => table(label, ["Run", "Status", "Workflow", "Started", "Took"], runs.map((run) => ({ key: run.id, cells: [
  html`<a href=${addressOf(["fleet", "runs"], { run: run.id })}>${run.shown_label || run.label || run.workflow}</a>`, html`<${Status} status=${run.status} />`, run.workflow,
  clock(run.started_at), run.started_at ? duration((run.ended_at ?? Date.now() / 1000) - run.started_at) : ""] })));
