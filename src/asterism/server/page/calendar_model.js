// The calendar of a schedule as data: its days with the ticks of each, and what a day says in words.
import { plural } from "./words.js";

// What is worst comes first: a day has the look of the first state that one of its ticks has.
export const STATES = ["failed", "missed", "none", "skipped", "cancelled", "running", "waiting", "due", "succeeded"];
const TEXTS = { none: "not created" };
export const stateText = (state) => TEXTS[state] ?? state;

const date = (day) => new Date(`${day}T00:00:00Z`);
const text = (day, terms) => date(day).toLocaleDateString("en", { timeZone: "UTC", ...terms });
export const dayText = (day) => text(day, { day: "numeric", month: "long" });
export const fullDayText = (day) => text(day, { weekday: "long", day: "numeric", month: "long", year: "numeric" });
export const monthText = (month) => text(`${month}-01`, { month: "long", year: "numeric" });

const iso = (moment) => moment.toISOString().slice(0, 10);
export const dayAfter = (day, number) => iso(new Date(date(day).getTime() + number * 86_400_000));
export function monthAfter(month, number) {
  const [year, index] = month.split("-").map(Number);
  return iso(new Date(Date.UTC(year, index - 1 + number, 1))).slice(0, 7);
}
export const lastDay = (month) => dayAfter(`${monthAfter(month, 1)}-01`, -1);

// The weeks of a month, from Monday on; null stands for a day of another month.
export function weeksOf(month) {
  const days = Array.from({ length: Number(lastDay(month).slice(8)) }, (_, index) => `${month}-${String(index + 1).padStart(2, "0")}`);
  const cells = [...Array((date(days[0]).getUTCDay() + 6) % 7).fill(null), ...days];
  while (cells.length % 7) cells.push(null);
  return Array.from({ length: cells.length / 7 }, (_, week) => cells.slice(week * 7, week * 7 + 7));
}

// Days by date: {ticks, counts, late, state}.
export function daysOf(ticks) {
  const days = new Map();
  for (const tick of ticks) {
    const day = days.get(tick.date) ?? { ticks: [], counts: {}, late: 0 };
    day.ticks.push(tick);
    day.counts[tick.state] = (day.counts[tick.state] ?? 0) + 1;
    day.late += tick.late ? 1 : 0;
    days.set(tick.date, day);
  }
  for (const day of days.values()) day.state = STATES.find((state) => day.counts[state]);
  return days;
}

export function sumOf(days) {
  const counts = {};
  let late = 0;
  for (const day of days) {
    late += day.late;
    for (const [state, number] of Object.entries(day.counts)) counts[state] = (counts[state] ?? 0) + number;
  }
  return { counts, late };
}

// Such as "22 succeeded, 2 failed, 1 late"; of a single tick only the words.
export function countsText({ counts, late, ticks }) {
  const single = ticks?.length === 1;
  const parts = STATES.filter((state) => counts[state]).map((state) => (single ? stateText(state) : `${counts[state].toLocaleString("en")} ${stateText(state)}`));
  return [...parts, ...(late ? [single ? "late" : `${late.toLocaleString("en")} late`] : [])].join(", ");
}

export const labelOf = (day, entry) => `${dayText(day)}: ${entry ? `${entry.ticks.length > 1 ? `${plural(entry.ticks.length, "tick")}: ` : ""}${countsText(entry)}` : "no tick"}`;
