// The timeline: a lane per device, with edit cycles and holds drawn over it. It can be zoomed, and follows the present.
import { address, setQuery } from "./address.js";
import { shownStatus } from "./graph_boxes.js";
import { bars, holds, lanes, ticks } from "./timeline_model.js";
import { Empty } from "./parts.js";
import { classes, html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "./ui.js";
import { ENDED_STATES, clock, duration, mark, words } from "./words.js";

const LANE = 26;
const LABEL = 132;

export function TimelineView({ state, select }) {
  const view = state.view.value;
  const { query } = address.value;
  const running = !ENDED_STATES.has(view.state) && state.version === null;
  const [now, setNow] = useState(Date.now() / 1000);
  const frame = useRef(null);
  const [width, setWidth] = useState(0);
  useEffect(() => { if (!running) return; const timer = setInterval(() => setNow(Date.now() / 1000), 1000); return () => clearInterval(timer); }, [running]);
  useLayoutEffect(() => { const watch = new ResizeObserver(([entry]) => setWidth(entry.contentRect.width)); if (frame.current) watch.observe(frame.current); return () => watch.disconnect(); }, []);
  state.changed.value;
  const tasks = view.tasks.map((task) => state.tasks.get(task.id)?.value ?? task);
  const end = running ? now : Math.max(view.ended_at ?? 0, ...tasks.map((task) => task.ended_at ?? 0), ...(view.cycles ?? []).map((one) => one.closed_at ?? one.opened_at ?? 0));
  const found = useMemo(() => lanes(bars(tasks, end)), [view, state.changed.value, Math.floor(end)]);
  const begin = Math.min(view.started_at ?? Infinity, ...found.flatMap((lane) => lane.bars.map((bar) => bar.start)));
  const zoom = Math.max(1, Number(query.zoom) || 1);
  const total = Math.max(0.001, end - begin);
  const empty = found.length === 0;
  const label = width < 560 ? 84 : LABEL;
  const drawn = Math.max(120, width - label) * zoom;
  const x = (at) => ((at - begin) / total) * drawn;
  const height = found.reduce((sum, lane) => sum + lane.rows * LANE + 12, 34);
  const zoomBy = (factor) => setQuery({ zoom: String(Math.min(200, Math.max(1, Math.round(zoom * factor * 10) / 10))) });
  const cycles = holds(view, begin, end);
  let top = 28;
  const places = found.map((lane) => { const place = top; top += lane.rows * LANE + 12; return place; });
  return html`<div class="column wide"><div class="row-head"><h2>Timeline</h2><span class="note">${empty ? "" : duration(total)}</span><span class="spring"></span>
      <span class="zoom" role="group" aria-label="Zoom"><button aria-label="Zoom out" onClick=${() => zoomBy(1 / 1.6)}>−</button><button onClick=${() => setQuery({ zoom: "" })}>Fit</button><button aria-label="Zoom in" onClick=${() => zoomBy(1.6)}>+</button></span></div>
    <div class="timeline-frame" ref=${frame}>
    ${empty ? html`<${Empty} title="Nothing has started yet."><p>Bars appear here as devices start tasks.</p><//>` : html`<div class="timeline">
      <div class="timeline-labels">${found.map((lane, index) => html`<span class="lane-label" title=${lane.device} style=${{ top: `${places[index]}px`, height: `${lane.rows * LANE}px`, width: `${label - 8}px` }}>${lane.device}</span>`)}</div>
      <div class="timeline-scroll" style=${{ marginLeft: `${label}px` }} tabindex="0" role="region" aria-label="Timeline of devices">
      <svg width=${drawn} height=${height}>
        ${ticks(begin, end, drawn).map((tick) => html`<g class="tick" aria-hidden="true"><line x1=${x(tick)} x2=${x(tick)} y1="20" y2=${height} /><text x=${x(tick) + 4} y="14">${duration(tick - begin) || "0"}</text></g>`)}
        ${cycles.map((one) => html`<g class=${one.kind}><title>${one.text}</title><rect x=${x(one.start)} y="20" width=${Math.max(2, x(one.end) - x(one.start))} height=${height - 20} /></g>`)}
        ${found.map((lane, index) => html`<g transform=${`translate(0 ${places[index]})`}>${lane.bars.map((bar) => html`<${Bar} key=${bar.key} bar=${bar} x=${x} select=${select} selected=${query.task === bar.task.id} />`)}</g>`)}
        ${running && html`<line class="present" x1=${drawn - 1} x2=${drawn - 1} y1="20" y2=${height} />`}
      </svg></div></div>`}
    </div>
    <p class="legend"><span class="key cycle-key"></span> edit cycle open <span class="key hold-key"></span> a task is held ${["running", "completed", "failed", "cancelled"].map((status) => html`<span class=${`is-${status}`}><span class="glyph">${mark(status)}</span> ${status}</span>`)}</p>
    ${!empty && cycles.length > 0 && html`<details><summary>Edit cycles and holds as a list</summary><ul class="plain-list">${cycles.map((one) => html`<li>${clock(one.start)}: ${one.text}</li>`)}</ul></details>`}
  </div>`;
}

function Bar({ bar, x, select, selected }) {
  const { task } = bar;
  const status = shownStatus(task);
  const left = x(bar.start);
  const width = Math.max(3, x(bar.end) - left);
  const text = `${task.name || task.id}, ${words(status)} on ${bar.device}, ${duration(bar.end - bar.start)}, from ${clock(bar.start)}`;
  return html`<g class=${classes("bar", `is-${status}`, { selected, provisional: task.provisional })} role="button" tabindex="0" transform=${`translate(${left} ${bar.row * LANE})`}
      onClick=${() => select(task.id)} onKeyDown=${(event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); select(task.id); } }}>
    <title>${text}</title><rect width=${width} height=${LANE - 5} rx="4" />
    ${width > 34 && html`<text x="7" y="15">${`${mark(status)} ${task.name || task.id}`.slice(0, Math.max(1, Math.floor((width - 10) / 7.2)))}</text>`}</g>`;
}
