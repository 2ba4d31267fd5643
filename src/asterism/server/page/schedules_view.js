// Schedules: when each starts what, and the calendar of one of them.
import { address, addressOf } from "./address.js";
import { get, post } from "./api.js";
import { CalendarView } from "./calendar_view.js";
import { Action, Command, Empty, Failure, Status, table, useList } from "./parts.js";
import { html } from "./ui.js";
import { duration } from "./words.js";

export function SchedulesView({ fleet }) {
  const { items, problem, read } = useList(async () => (await get(["schedules"])).items, [fleet.changed.value]);
  if (problem) return html`<${Failure} problem=${problem} retry=${read} />`;
  if (!items) return html`<p class="loading">Loading…</p>`;
  if (!items.length) return html`<${Empty} title="No schedule yet."><p>To run a plan every night:</p><${Command} text="asterism schedule add nightly --plan nightly.yaml --cron '0 3 * * *'" /><//>`;
  const chosen = items.find((one) => one.name === address.value.query.schedule);
  if (chosen) return html`<${CalendarView} key=${chosen.name} schedule=${chosen} fleet=${fleet} state=${state(chosen)} actions=${actions(chosen, read)} />`;
  return table("Schedules", ["Schedule", "Starts", "When", "Next", "State", "Actions"], items.map((one) => ({ key: one.name, cells: [
    html`<a href=${addressOf(["fleet", "schedules"], { schedule: one.name })}>${one.name}</a>`, one.workflow ?? "a plan", times(one), next(one), state(one), actions(one, read)] })));
}

export const times = (one) => `${one.cron ?? (one.every ? `every ${duration(one.every)}` : "")}${one.timezone && one.cron ? ` ${one.timezone}` : ""}`;
export const next = (one) => (one.paused != null ? "–" : one.due_in != null ? `in ${duration(one.due_in)}` : "never");
const state = (one) => (one.paused != null ? html`<${Status} status="paused" text=${`paused ${one.paused}`} />` : html`<${Status} status="ready" text="active" />`);

function actions(one, read) {
  const act = (what) => async () => { await post(["schedules", one.name, what]); await read(); };
  return html`<span class="buttons">${one.paused != null ? html`<${Action} operation="resume_schedule" act=${act("resume")}>Resume<//>` : html`<${Action} operation="pause_schedule" act=${act("pause")}>Pause<//>`}<${Action} operation="run_schedule" act=${act("run")}>Run now<//></span>`;
}
