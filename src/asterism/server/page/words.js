// Statuses, times and values as text. The marks differ in shape, so that colour only helps.
const MARKS = {
  pending: "○", waiting: "◌", queued: "◔", starting: "◔", running: "◐", completed: "●", failed: "✗", cancelled: "⊘", removed: "⊖",
  accepted: "✓", rejected: "✗",
  // runs of a fleet
  created: "○", assigned: "◔", claimed: "◔", processing: "◐", pausing: "◌", reassigning: "◌", paused: "❙❙",
  executing: "◐", at_rest: "◌", ready: "○", unreadable: "?", partially_failed: "✗", repaired: "●", cancelling: "⊘",
};

export const mark = (status) => MARKS[status] ?? "•";
export const ENDED = new Set(["completed", "failed", "cancelled"]);
export const ENDED_STATES = new Set(["completed", "failed", "partially_failed", "cancelled", "repaired"]);

// A status as it is shown: a pending task with open dependencies is "waiting".
export const words = (status) => String(status ?? "unknown").replaceAll("_", " ");

export function clock(seconds) {
  if (seconds == null) return "";
  const date = new Date(seconds * 1000);
  const time = date.toLocaleTimeString(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
  return date.toDateString() === new Date().toDateString() ? time : `${date.toLocaleDateString("en", { day: "numeric", month: "short", ...(date.getFullYear() === new Date().getFullYear() ? {} : { year: "numeric" }) })}, ${time}`;
}

export function duration(seconds) {
  if (seconds == null || Number.isNaN(seconds)) return "";
  const value = Math.max(0, seconds);
  if (value === 0) return "0 s";
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  if (value < 60) return `${value < 10 ? Number(value.toFixed(1)) : Math.round(value)} s`;
  if (value < 3600) return parts(value, 60, "min", 1, "s");
  if (value < 86400) return parts(value, 3600, "h", 60, "min");
  return parts(value, 86400, "d", 3600, "h");
}

function parts(value, large, largeName, small, smallName) {
  const whole = Math.round(value / small) * small;
  const rest = Math.round((whole % large) / small);
  return `${Math.floor(whole / large)} ${largeName}${rest ? ` ${rest} ${smallName}` : ""}`;
}

// Money, with more digits below a cent; the same as in the story.
export function dollars(amount) {
  if (amount >= 0.01 || !amount) return `$${amount.toFixed(2)}`;
  return `$${amount < 1e-4 ? Number(amount.toPrecision(2)) : amount.toFixed(4)}`;
}

// A number of bytes, as the commands say it: "64 KiB", "1.2 MiB".
export function fileSize(size) {
  const power = size < 1024 ? 0 : Math.min(3, Math.floor(Math.log2(size) / 10));
  return `${Number((size / 1024 ** power).toPrecision(size < 1024 ? 4 : 3))} ${["bytes", "KiB", "MiB", "GiB"][power]}`;
}

// What a model has cost, such as "2 calls of openai:gpt-5, 1,204 tokens in, 88 out, $0.0031, 2.1 s".
export function costText(cost) {
  const money = cost.dollars === null ? "price unknown" : dollars(cost.dollars);
  const tokens = [`${cost.input_tokens.toLocaleString("en")} tokens in`, `${cost.output_tokens.toLocaleString("en")} out`];
  return [`${plural(cost.calls, "call")}${cost.model ? ` of ${cost.model}` : ""}`, ...tokens, money, duration(cost.seconds)].join(", ");
}

export const ago = (seconds, now = Date.now() / 1000) => (seconds == null ? "never" : `${duration(now - seconds)} ago`);
export const plural = (number, noun) => `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;

export function value(data) {
  if (data === undefined) return "";
  return typeof data === "string" ? data : JSON.stringify(data, null, 2);
}

// An edit in a line, in the words of docs/reference/edits.md. Rejected batches may hold anything, so nothing is assumed.
export function editText(edit) {
  if (typeof edit === "string") return edit;
  const edge = `${edit.source} → ${edit.target}`;
  const terms = [edit.on && edit.on !== "success" ? `on ${edit.on}` : "", edit.handled ? "handled" : "", edit.when ? `when ${edit.when}` : ""].filter(Boolean).join(" ");
  switch (edit.op) {
    case "add_task": return `add task ${edit.task?.id}`;
    case "remove_task": return `remove task ${edit.task_id}${edit.dependents ? ` (dependents: ${edit.dependents})` : ""}`;
    case "update_task": return `update task ${edit.task_id}: ${Object.keys(edit.changes ?? {}).join(", ")}`;
    case "add_dependency": return `add dependency ${edge} ${terms}`.trim();
    case "update_dependency": return `update dependency ${edge} ${terms}`.trim();
    case "remove_dependency": return `remove dependency ${edge}`;
    case "cancel_task": return `cancel task ${edit.task_id}${edit.reason ? ` (${edit.reason})` : ""}`;
    case "remove_taint": return `remove the taint (${edit.reason})`;
    default: return JSON.stringify(edit);
  }
}

// "+", "−" or "~" for the diff column of an edit.
export function editSign(edit) {
  const text = typeof edit === "string" ? edit : edit.op ?? "";
  return /^add/.test(text) ? "+" : /^(remove|cancel)/.test(text) ? "−" : "~";
}
