// The parts of the SVG graph: a box for each task or fold, and a curve for each dependency.
import { HEIGHT, WIDTH } from "./box_size.js";
import { curve } from "./graph_model.js";
import { fitLines, fitName, fitText } from "./text_fit.js";
import { classes, html } from "./ui.js";
import { mark, plural, words } from "./words.js";

const LEFT = 35;
const ROOM = WIDTH - LEFT - 8;
const [NAME, REMARK] = ["600 13px", "12px"];
const TWO_LINES = 20; // the largest letters of which two lines fit a box

export function shownStatus(task) {
  if (task.status === "running" && task.phase) return task.phase;
  return task.status === "pending" && task.waiting ? "waiting" : task.status;
}

// When the work on a task began and ended: without its wait for a device. Undefined if it has not begun.
export function workSpan(task) {
  if (task.attempt || task.phase) return task.attempt?.begun_at ? { begin: task.attempt.begun_at, end: task.attempt.ended_at } : undefined;
  return task.started_at ? { begin: task.started_at, end: task.ended_at } : undefined;
}

// How long it waited for a device, or has waited until now.
export function waitSeconds(task, now = Date.now() / 1000) {
  if (task.attempt) return (task.attempt.begun_at ?? task.attempt.ended_at ?? now) - task.attempt.created_at;
  return task.phase === "queued" && task.started_at ? now - task.started_at : undefined;
}

// A large group that stands for its elements.
export const isFolded = (task) => Object.keys(task.behind ?? {}).length > 0;

const URGENT = ["failed", "running", "starting", "queued", "completed", "cancelled", "waiting", "pending"];
export const byUrgency = (counts) => URGENT.filter((status) => counts[status]).map((status) => [status, counts[status]]);
const countsText = (counts) => byUrgency(counts).map(([status, number]) => `${mark(status)} ${number.toLocaleString("en")}`).join("  ");

// The second line of a box: the most urgent remark.
export function remark(task) {
  if (isFolded(task)) return countsText(task.behind);
  if (task.held_by?.length) return `held by ${task.held_by.join(", ")}`;
  if (task.status === "failed" && task.reason) return task.reason;
  if (task.provisional) return "provisional";
  if (task.needless) return "needless";
  return [words(shownStatus(task)), ...circumstances(task)].join(" · ");
}

const circumstances = (task) => [task.waits_for, task.phase !== "queued" && task.device, task.attempts > 1 && `attempt ${task.attempts}`].filter(Boolean);

// The same beside a status that is shown already.
export function remarkBesideStatus(task) {
  const text = remark(task);
  return text.startsWith(words(shownStatus(task))) ? circumstances(task).join(" · ") : text;
}

export function spoken(task) {
  const held = task.held_by?.length ? `, held by ${task.held_by.join(", ")}` : "";
  const elements = byUrgency(task.behind ?? {}).map(([status, number]) => `, ${number} ${words(status)}`).join("");
  return `${task.name || task.id}, ${words(shownStatus(task))}${elements}${held}${task.phase === "queued" ? " for a device" : task.device ? `, on ${task.device}` : ""}${task.provisional ? ", provisional" : ""}${task.status === "failed" && task.reason ? `: ${task.reason}` : ""}`;
}

// `text` is "all", or the size of the letters of the name where there is no room for more.
export function TaskBox({ box, task, text, selected, focusable, dim, mark: change, press }) {
  const data = task.value;
  const held = data.held_by?.length > 0;
  const name = data.name || data.id;
  return html`<g class=${classes("box", `is-${shownStatus(data)}`, { fold: isFolded(data), selected, dim, held, provisional: data.provisional, [`mark-${change}`]: change })}
      transform=${`translate(${box.x - WIDTH / 2} ${box.y - HEIGHT / 2})`} data-box=${box.id}
      role="button" tabindex=${focusable ? 0 : -1} aria-pressed=${selected ? "true" : "false"} onClick=${() => press(box)}>
    <title>${spoken(data)}</title>
    ${isFolded(data) && html`<${Behind} />`}
    <rect class="body" width=${WIDTH} height=${HEIGHT} rx="9" />
    ${held && html`<rect class="hatch" width=${WIDTH} height=${HEIGHT} rx="9" />`}
    <path class="edge" d=${EDGE} />
    <text class="mark" x="20" y="29" text-anchor="middle">${mark(shownStatus(data))}</text>
    ${text === "all" ? html`<text class="name" x=${LEFT} y="20">${nameThatFits(name, box.short, NAME)}</text><text class="remark" x=${LEFT} y="36">${fitText(remark(data), REMARK, ROOM)}</text>`
    : html`<${LargeName} left=${LEFT} letters=${text} lines=${linesOf(name, box.short, text, held && `held by ${data.held_by.join(", ")}`)} />`}
    ${change && html`<${Badge} change=${change} />`}
  </g>`;
}

// The whole name, or what tells it from those beside it, or a part of that.
const nameThatFits = (name, short, font) => (short && fitName(name, font, ROOM) !== name ? fitName(short, font, ROOM) : fitName(name, font, ROOM));

function linesOf(name, short, letters, held) {
  const font = `600 ${letters}px`;
  if (letters > TWO_LINES) return [nameThatFits(name, short, font)];
  if (held) return [nameThatFits(name, short, font), fitText(held, font, ROOM)];
  const lines = fitLines(name, font, ROOM);
  return short && lines.join("").includes("…") ? fitLines(short, font, ROOM) : lines;
}

const EDGE = `M9 0 H5.5 V${HEIGHT} H9 A9 9 0 0 1 0 ${HEIGHT - 9} V9 A9 9 0 0 1 9 0Z`;

const LargeName = ({ lines, letters, left, up = 0 }) => lines.map((line, index) => html`<text class="name" style=${{ fontSize: `${letters}px` }} x=${left} y=${HEIGHT / 2 - up + letters * (0.36 + 1.06 * (index - (lines.length - 1) / 2))}>${line}</text>`);

const BADGES = { added: "new", removed: "removed", changed: "changed", cancelled: "cancel" };

function Badge({ change }) {
  const text = BADGES[change] ?? change;
  const width = 12 + text.length * 6.4;
  return html`<g class="badge" transform=${`translate(${WIDTH - width - 6} -8)`}>
    <rect width=${width} height="16" rx="8" /><text x=${width / 2} y="11.5" text-anchor="middle">${text}</text>
  </g>`;
}

function countsOf(state, box) {
  const counts = {};
  for (const id of box.members) {
    const task = state.tasks.get(id)?.value;
    const status = task ? shownStatus(task) : "pending";
    counts[status] = (counts[status] ?? 0) + 1;
  }
  return counts;
}

export function FoldBox({ box, state, text: amount, focusable, press }) {
  const counts = countsOf(state, box);
  const title = `${box.fold} (${box.members.length})`;
  return html`<g class="box fold" transform=${`translate(${box.x - WIDTH / 2} ${box.y - HEIGHT / 2})`} data-box=${box.id}
      role="button" tabindex=${focusable ? 0 : -1} onClick=${() => press(box)}>
    <title>${`${box.fold}: ${plural(box.members.length, "task")}, collapsed${spokenCounts(counts)}. Press Enter or click to expand.`}</title>
    <${Behind} />
    <${Counted} title=${title} counts=${counts} amount=${amount} />
  </g>`;
}

// Tasks of a layer in the overview.
export function Bundle({ box, state, text: amount, focusable, dim, mark: change, press }) {
  const counts = countsOf(state, box);
  return html`<g class=${classes("box bundle", { dim, "is-failed": counts.failed, [`mark-${change}`]: change })} transform=${`translate(${box.x - WIDTH / 2} ${box.y - HEIGHT / 2})`} data-box=${box.id}
      role="button" tabindex=${focusable ? 0 : -1} onClick=${() => press(box)}>
    <title>${`${box.name}: ${plural(box.members.length, "task")}${spokenCounts(counts)}. Press Enter or click to see them.`}</title>
    <${Counted} title=${box.name} counts=${counts} amount=${amount} />
    ${change && html`<${Badge} change=${change} />`}
  </g>`;
}

const spokenCounts = (counts) => byUrgency(counts).map(([status, number]) => `, ${number} ${words(status)}`).join("");

const ColouredCounts = ({ counts }) => byUrgency(counts).map(([status, number]) => html`<tspan class=${`mark is-${status}`}>${mark(status)}</tspan>${` ${number.toLocaleString("en")}  `}`);

// A title, counts by status, and their shares as a bar.
function Counted({ title, counts, amount }) {
  const total = Object.values(counts).reduce((sum, number) => sum + number, 0) || 1;
  const room = WIDTH - 24;
  let at = 12;
  return html`<rect class="body" width=${WIDTH} height=${HEIGHT} rx="9" />
    ${amount === "all" ? html`<text class="name" x="12" y="18">${fitText(title, NAME, room)}</text><text class="remark" x="12" y="34"><${ColouredCounts} counts=${counts} /></text>`
    : html`<${LargeName} left=${12} up=${3} letters=${amount} lines=${[fitText(title, `600 ${amount}px`, room), ...(amount > TWO_LINES ? [] : [html`<${ColouredCounts} counts=${counts} />`])]} />`}
    ${URGENT.filter((status) => counts[status]).map((status) => {
      const width = ((WIDTH - 24) * counts[status]) / total;
      at += width;
      return html`<rect class=${`share is-${status}`} x=${at - width} y=${HEIGHT - 6} width=${width} height="3" />`;
    })}`;
}

// The frame around twins, which the dependencies of all of them end at.
export const Frame = ({ block }) => html`<rect class="frame" x=${block.left} y=${block.top} width=${block.right - block.left} height=${block.bottom - block.top} rx="12" />`;

const Behind = () => [6, 3].map((offset) => html`<rect class="body behind" x=${offset} y=${offset} width=${WIDTH} height=${HEIGHT} rx="9" />`);

export function Ghost({ task, place }) {
  const name = task.name || task.id;
  return html`<g class="box mark-removed ghost" transform=${`translate(${place[0] - WIDTH / 2} ${place[1] - HEIGHT / 2})`} aria-hidden="true">
    <rect class="body" width=${WIDTH} height=${HEIGHT} rx="9" />
    <text class="mark" x="20" y="29" text-anchor="middle">${mark("removed")}</text>
    <text class="name" x=${LEFT} y="20">${fitName(name, NAME, ROOM)}</text><text class="remark" x=${LEFT} y="36">removed</text>
    <${Badge} change="removed" />
  </g>`;
}

export function Edge({ edge, change, dim }) {
  return html`<g class=${classes("line", `on-${edge.kind}`, { dim, [`mark-${change}`]: change })}>
    ${edge.label && html`<title>${edge.label}</title>`}
    <path d=${edge.square ? `M${edge.points.join(" L")}` : curve(edge.points)} marker-end=${edge.plain ? undefined : "url(#arrow)"} />
  </g>`;
}

export function Definitions() {
  return html`<defs>
    <pattern id="hatch" width="9" height="9" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><rect class="hatch-line" width="3" height="9" /></pattern>
    <marker id="arrow" class="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="9" markerHeight="9" markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0.6 7.4 4 0 7.4Z" /></marker>
  </defs>`;
}
