// The calendar of a schedule: months of days, each with the states of its ticks. A day with one plan opens it; one with
// several ticks lists them.
import { address, addressOf, setQuery } from "./address.js";
import { get } from "./api.js";
import { countsText, dayAfter, daysOf, fullDayText, labelOf, lastDay, monthAfter, monthText, STATES, stateText, sumOf, weeksOf } from "./calendar_model.js";
import { Command, Failure, table, useList } from "./parts.js";
import { next, times } from "./schedules_view.js";
import { classes, html, useEffect, useRef, useState } from "./ui.js";
import { duration, mark } from "./words.js";

const PAGE = 1000;
const MOST_TICKS = 20_000; // of a month
const CALM = 5000; // ms between two readings of a month
const WEEKDAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];
const MARKS = { succeeded: mark("completed"), missed: "!", none: "–", skipped: "↷", due: mark("pending"), waiting: mark("queued") };
const markOf = (state) => MARKS[state] ?? mark(state);
const SHOWN = { wide: 3, middle: 2, narrow: 1 };

export function CalendarView({ schedule, fleet, state, actions }) {
  const { query } = address.value;
  const number = useShownMonths();
  const [today, setToday] = useState(null);
  const [months, setMonths] = useState({}); // what was read of each, by month
  const now = today ?? new Date().toISOString().slice(0, 10);
  const last = query.month ?? now.slice(0, 7);
  const shown = Array.from({ length: number }, (_, index) => monthAfter(last, index - number + 1));
  const receive = (month, read) => { setToday(read.today); setMonths((old) => ({ ...old, [month]: read })); };
  const changed = useCalm(fleet.changed.value);
  const days = daysOf(shown.flatMap((month) => months[month]?.items ?? []));
  const day = query.day && shown.includes(query.day.slice(0, 7)) ? query.day : null;
  const turn = (step) => setQuery({ month: monthAfter(last, step), day: "" }, { entry: true });
  const late = shown.flatMap((month) => months[month]?.items ?? []).filter((tick) => tick.late && ["running", "waiting"].includes(tick.state));
  return html`<section class="calendar" aria-label=${`Calendar of ${schedule.name}`}>
    <div class="row-head"><a class="button" href=${addressOf(["fleet", "schedules"])}>← Schedules</a><h2>${schedule.name}</h2>${state}<span class="spring"></span>${actions}</div>
    <p class="note">${schedule.workflow ? `Workflow ${schedule.workflow}` : "A plan"}, ${times(schedule)}; next ${next(schedule)}. Days are those of ${schedule.cron ? schedule.timezone : "UTC"}.</p>
    ${late.length > 0 && html`<p class="late-now" role="status"><b>Late:</b> ${late.slice(0, 5).map((tick) => html`<a href=${workAddress(schedule, tick)}>${timeText(tick, true)}, ${tick.state}</a> `)}${late.length > 5 && html`and ${late.length - 5} more`}</p>`}
    <div class="row-head"><span class="buttons"><button onClick=${() => turn(-number)}>← Earlier</button><button onClick=${() => turn(number)} disabled=${last > monthAfter(now.slice(0, 7), 11)}>Later →</button>
      ${query.month && html`<button onClick=${() => setQuery({ month: "", day: "" }, { entry: true })}>Today</button>`}</span><span class="spring"></span><${Legend} days=${days} /></div>
    <${Months} schedule=${schedule} shown=${shown} days=${days} today=${now} day=${day} changed=${changed} receive=${receive} />
    ${day && html`<${Day} schedule=${schedule} day=${day} entry=${days.get(day)} />`}
  </section>`;
}

// How many months fit beside each other.
function useShownMonths() {
  const fits = () => (innerWidth >= 1000 ? SHOWN.wide : innerWidth >= 660 ? SHOWN.middle : SHOWN.narrow);
  const [number, setNumber] = useState(fits);
  useEffect(() => {
    const resized = () => setNumber(fits());
    addEventListener("resize", resized);
    return () => removeEventListener("resize", resized);
  }, []);
  return number;
}

// A value that changes no more often than the lists of a schedule are read.
function useCalm(value) {
  const [calm, setCalm] = useState(value);
  const since = useRef(Date.now());
  useEffect(() => {
    if (value === calm) return undefined;
    const timer = setTimeout(() => { since.current = Date.now(); setCalm(value); }, since.current + CALM - Date.now());
    return () => clearTimeout(timer);
  }, [value]);
  return calm;
}

// Of the time before the schedule, only ticks with work are shown: the others are no gaps.
async function readMonth({ name, start }, month) {
  const read = { items: [], more: false, today: "" };
  for (let after; ;) {
    const page = await get(["schedules", name, "ticks"], { first: `${month}-01`, last: lastDay(month), after, limit: PAGE });
    read.items.push(...page.items.filter((tick) => tick.state !== "none" || tick.tick >= start));
    read.today = page.today;
    read.more = page.next != null;
    if (page.next == null || read.items.length >= MOST_TICKS) return read;
    after = page.next;
  }
}

function Legend({ days }) {
  const { counts, late } = sumOf(days.values());
  return html`<ul class="legend" aria-label="States">${STATES.filter((state) => counts[state]).reverse().map((state) => html`<li class=${`tick-${state}`}><span class="glyph" aria-hidden="true">${markOf(state)}</span> ${counts[state].toLocaleString("en")} ${stateText(state)}</li>`)}
    ${late > 0 && html`<li class="is-late"><span class="late-mark" aria-hidden="true"></span> ${late.toLocaleString("en")} late</li>`}</ul>`;
}

// The arrow keys go from day to day; one day at a time can be reached with Tab.
function Months({ schedule, shown, days, today, day, changed, receive }) {
  const [focus, setFocus] = useState(null);
  const root = useRef(null);
  const reached = [focus, day, today].find((one) => one && shown.includes(one.slice(0, 7))) ?? `${shown.at(-1)}-01`;
  const keys = (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -7, ArrowDown: 7 }[event.key];
    const from = event.target.closest?.("[data-day]")?.dataset.day;
    if (!step || !from) return;
    const to = root.current.querySelector(`[data-day="${dayAfter(from, step)}"]`);
    event.preventDefault();
    if (to) { setFocus(to.dataset.day); to.focus(); }
  };
  const cell = (one) => html`<${Cell} key=${one} schedule=${schedule} day=${one} entry=${days.get(one)} today=${today} chosen=${one === day} reached=${one === reached} focused=${setFocus} />`;
  return html`<div class="months" ref=${root} onKeyDown=${keys}>${shown.map((month) => html`<${Month} key=${month} schedule=${schedule} month=${month} changed=${changed} receive=${receive} cell=${cell} />`)}</div>`;
}

function Month({ schedule, month, changed, receive, cell }) {
  const { items: found, problem, read } = useList(() => readMonth(schedule, month), [changed]);
  useEffect(() => { if (found) receive(month, found); }, [found]);
  return html`<table class="month" aria-busy=${String(!found)}>
    <caption>${monthText(month)}${found?.more && html` <small>the first ${MOST_TICKS.toLocaleString("en")} ticks</small>`}${problem && html`<${Failure} problem=${problem} retry=${read} />`}</caption>
    <thead><tr>${WEEKDAYS.map((text) => html`<th scope="col" abbr=${text}>${text.slice(0, 2)}</th>`)}</tr></thead>
    <tbody>${weeksOf(month).map((week) => html`<tr>${week.map((one) => html`<td>${one && cell(one)}</td>`)}</tr>`)}</tbody></table>`;
}

function Cell({ schedule, day, entry, today, chosen, reached, focused }) {
  const only = entry?.ticks.length === 1 ? entry.ticks[0] : null;
  const terms = {
    "data-day": day, tabindex: reached ? 0 : -1, "aria-label": labelOf(day, entry), title: labelOf(day, entry), onFocus: () => focused(day),
    class: classes("day", `tick-${entry?.state ?? "empty"}`, { today: day === today, chosen, "is-late": entry?.late }), "aria-current": day === today ? "date" : undefined,
  };
  const content = html`<span class="day-number">${Number(day.slice(8))}</span>${only ? html`<span class="glyph">${markOf(only.state)}</span>` : entry && html`<${Shares} entry=${entry} />`}`;
  if (only?.work) return html`<a ...${terms} href=${workAddress(schedule, only)}>${content}</a>`;
  return html`<button ...${terms} aria-pressed=${String(chosen)} disabled=${!entry} onClick=${() => setQuery({ day: chosen ? "" : day })}>${content}</button>`;
}

// A bar with the share of each state.
function Shares({ entry }) {
  let at = 0;
  const total = entry.ticks.length;
  return html`<svg class="shares" viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">${STATES.toReversed().filter((state) => entry.counts[state]).map((state) => {
    const width = (100 * entry.counts[state]) / total;
    at += width;
    return html`<rect class=${`tick-${state}`} x=${at - width} width=${width} height="10" />`;
  })}</svg>`;
}

function Day({ schedule, day, entry }) {
  const rows = (entry?.ticks ?? []).map((tick) => ({ key: tick.tick, cells: [
    tick.work ? html`<a href=${workAddress(schedule, tick)}>${timeText(tick)}</a>` : timeText(tick),
    html`<span class=${`status tick-${tick.state}`}><span class="glyph" aria-hidden="true">${markOf(tick.state)}</span>${stateText(tick.state)}${tick.late ? ", late" : ""}</span>`,
    tick.started_at == null ? "" : duration((tick.ended_at ?? Date.now() / 1000) - tick.started_at), tick.why] }));
  const gaps = (entry?.ticks ?? []).some((tick) => ["missed", "none"].includes(tick.state));
  return html`<section class="day-ticks" aria-live="polite"><h3>${fullDayText(day)}</h3>
    ${rows.length ? table(`Ticks of ${day}`, ["Tick", "State", "Took", "Why"], rows) : html`<p class="note">No tick.</p>`}
    ${gaps && schedule.plan != null && html`<p>To create what is missing of this day:</p><${Command} text=${`asterism schedule backfill ${schedule.name} --from ${day} --to ${day}`} />`}</section>`;
}

const workAddress = (schedule, tick) => (schedule.plan != null ? addressOf(["plans", tick.work, "graph"]) : addressOf(["fleet", "runs"], { run: tick.work }));

// The time of a tick in the zone of its schedule, with the offset: an hour may come twice.
function timeText(tick, withDay = false) {
  const [, day, time, offset] = /^(.{10})T(.{5}(?::(?!00).{2})?)(?::00)?(.*)$/.exec(tick.local);
  return `${withDay ? `${day} ` : ""}${time} ${offset === "+00:00" ? "UTC" : offset}`;
}
