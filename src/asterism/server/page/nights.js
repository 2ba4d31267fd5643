// The plans of a schedule as one row of a list: the newest one, and those before it on request. A tick is named by its
// time in the zone of its schedule.

const TICK = /^(.+)-(\d{4})(\d\d)(\d\d)T(\d\d)(\d\d)(\d\d)Z$/;

// The schedule and tick that a plan is named after: {schedule, at}; null for a plan that no schedule has created.
export function tickOf(plan, schedules) {
  const [, name, year, month, day, hour, minute, second] = TICK.exec(plan) ?? [];
  const schedule = schedules.find((one) => one.name === name && one.plan != null);
  return schedule ? { schedule, at: new Date(Date.UTC(year, month - 1, day, hour, minute, second)) } : null;
}

// Such as "Fri 13 Nov, 03:00 EST".
export function tickText({ schedule, at }) {
  const terms = { weekday: "short", day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", hour12: false, timeZoneName: "short" };
  if (at.getUTCFullYear() !== new Date().getUTCFullYear()) terms.year = "numeric";
  return at.toLocaleString("en-GB", { ...terms, timeZone: schedule.cron ? schedule.timezone : "UTC" });
}

// Rows of a list of plans, in its order: {plan, tick}, and for those of a schedule, at the place of the first one,
// {schedule, nights}.
export function rowsOf(plans, schedules) {
  const rows = [];
  const bySchedule = new Map();
  for (const plan of plans) {
    const tick = tickOf(plan.name, schedules);
    if (!tick) rows.push({ plan });
    else if (bySchedule.has(tick.schedule.name)) bySchedule.get(tick.schedule.name).nights.push({ plan, tick });
    else {
      bySchedule.set(tick.schedule.name, { schedule: tick.schedule, nights: [{ plan, tick }] });
      rows.push(bySchedule.get(tick.schedule.name));
    }
  }
  for (const row of bySchedule.values()) row.nights.sort((one, other) => other.tick.at - one.tick.at);
  return rows;
}
