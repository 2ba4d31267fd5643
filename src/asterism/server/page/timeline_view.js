// The timeline: a lane per device, with edit cycles and holds drawn over it. It can be zoomed, and follows the present.
import { address, setQuery } from "./address.js";
import { get } from "./api.js";
import { Definitions } from "./graph_boxes.js";
import { Empty, Failure } from "./parts.js";
import { PlanHistory, inRows, lanes, nextBar, spans, ticks } from "./timeline_model.js";
import { fitLines, fitName, widthOf } from "./text_fit.js";
import { classes, html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "./ui.js";
import { ENDED_STATES, clock, duration, mark, words } from "./words.js";

const LANE = 26;
const GAP = 12;
const HEAD = 28;
const STRIP = 18;
const STRIPS = { cycle: "edit cycles", hold: "held" };
const LEAST_LETTERS = 7; // of a name that is cut: fewer tell nothing

// The events of the plan from its beginning, then as they come.
function useHistory(state) {
  const [history] = useState(() => new PlanHistory());
  const [turn, setTurn] = useState(0);
  const [problem, setProblem] = useState(null);
  useEffect(() => {
    let closed = false;
    let waiting = [];
    const listen = (kind, data) => {
      if (waiting) waiting.push([kind, data]);
      else {
        history.add(kind, data);
        setTurn((old) => old + 1);
      }
    };
    state.listeners.add(listen);
    const read = async () => {
      for (let since = null; ;) {
        const page = await get(["plans", state.name, "changes"], { since });
        if (closed) return;
        for (const event of page.items) history.add(event.kind, event);
        if (!page.next) break;
        since = page.next;
      }
      for (const [kind, data] of waiting) history.add(kind, data);
      waiting = null;
      setTurn((old) => old + 1);
    };
    read().catch(setProblem);
    return () => { closed = true; state.listeners.delete(listen); };
  }, [state]);
  return { history, turn, problem };
}

function useWidth(frame) {
  const [width, setWidth] = useState(0);
  useLayoutEffect(() => {
    const watch = new ResizeObserver(([entry]) => setWidth(entry.contentRect.width));
    watch.observe(frame.current);
    return () => watch.disconnect();
  }, []);
  return width;
}

// A zoom keeps the middle of the window; a window at the end of a running plan stays at its end.
function useSteadyZoom(scroll, drawn, running) {
  const before = useRef(drawn);
  useLayoutEffect(() => {
    const box = scroll.current;
    const old = before.current;
    before.current = drawn;
    if (!box || old === drawn) return;
    const atEnd = running && box.scrollLeft + box.clientWidth >= old - 2;
    box.scrollLeft = atEnd ? drawn : ((box.scrollLeft + box.clientWidth / 2) * drawn) / old - box.clientWidth / 2;
  }, [drawn]);
}

export function TimelineView({ state, select }) {
  const view = state.view.value;
  const { query } = address.value;
  const { history, turn, problem } = useHistory(state);
  const frame = useRef(null);
  const width = useWidth(frame);
  const running = !ENDED_STATES.has(view.state) && state.version === null && view.as_of === undefined;
  const [now, setNow] = useState(Date.now() / 1000);
  useEffect(() => {
    if (!running) return undefined;
    const timer = setInterval(() => setNow(Date.now() / 1000), 1000);
    return () => clearInterval(timer);
  }, [running]);
  const past = view.edit?.at; // the time of the version that is shown
  const shown = useMemo(() => history.until(state.version === null ? null : past), [history, turn, past, state.version]);
  const known = shown.bounds();
  const begin = known.start;
  const end = running ? Math.max(now, known.end) : state.version !== null ? Math.max(past, begin) : Math.max(known.end, view.as_of ?? known.end);
  const zoom = Math.max(1, Number(query.zoom) || 1);
  const zoomBy = (factor) => setQuery({ zoom: String(Math.min(200, Math.max(1, Math.round(zoom * factor * 10) / 10))) });
  const empty = !shown.executions.size;
  useEffect(() => {
    const keys = (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select, dialog")) return;
      const act = { "+": () => zoomBy(1.6), "=": () => zoomBy(1.6), "-": () => zoomBy(1 / 1.6), "0": () => setQuery({ zoom: "" }) }[event.key];
      if (act) { event.preventDefault(); act(); }
    };
    addEventListener("keydown", keys);
    return () => removeEventListener("keydown", keys);
  });
  return html`<div class="column wide"><div class="row-head"><h2>Timeline</h2><span class="note">${empty ? "" : duration(end - begin)}</span><span class="spring"></span>
      <span class="zoom" role="group" aria-label="Zoom"><button aria-label="Zoom out" title="−" onClick=${() => zoomBy(1 / 1.6)}>−</button><button title="0" onClick=${() => setQuery({ zoom: "" })}>Fit</button><button aria-label="Zoom in" title="+" onClick=${() => zoomBy(1.6)}>+</button></span></div>
    ${problem && html`<${Failure} problem=${problem} />`}
    <div class="timeline-frame" ref=${frame}>${empty ? html`<${Empty} title="Nothing has started yet."><p>Bars appear here as devices start tasks.</p><//>`
      : html`<${Chart} ...${{ shown, begin, end, width, zoom, running, select, names: state.tasks, selected: query.task }} />`}</div>
    <p class="legend"><span class="key cycle-key"></span> edit cycle <span class="key hold-key"></span> tasks are held ${["running", "completed", "failed", "cancelled"].map((status) => html`<span class=${`is-${status}`}><span class="glyph">${mark(status)}</span> ${status}</span>`)}</p>
    ${!empty && shown.cycles.size + shown.holds.size > 0 && html`<details><summary>Edit cycles and holds as a list</summary><ul class="plain-list">${spans(shown, end).map((one) => html`<li>${clock(one.start)}, ${duration(one.end - one.start)}: ${one.text}</li>`)}</ul></details>`}
  </div>`;
}

// A plan learns when a task ends which device had it; the view knows it before.
const laneOf = (one, task) => (one.ended_at != null || !task || task.started_at !== one.started_at ? one.device : task.device ?? one.device);

function Chart({ shown, begin, end, width, zoom, running, select, names, selected }) {
  const taskOf = (id) => (running ? names.get(id)?.value : undefined);
  const found = lanes([...shown.executions.values()].map((one) => ({ ...one, device: laneOf(one, taskOf(one.task)) })), end, taskOf);
  const label = width < 560 ? 92 : width < 1000 ? 132 : 190;
  const drawn = Math.max(120, width - label) * zoom;
  const x = (at) => ((Math.max(begin, at) - begin) / Math.max(0.001, end - begin)) * drawn;
  const scroll = useRef(null);
  useSteadyZoom(scroll, drawn, running);
  const [focused, setFocused] = useState(null);
  const bars = found.flatMap((lane) => lane.bars);
  const stop = bars.some((bar) => bar.key === focused) ? focused : bars[0]?.key;
  const walk = (event, from) => {
    const next = nextBar(found, from, event.key);
    if (!event.key.startsWith("Arrow")) return;
    event.preventDefault();
    if (next) { setFocused(next.key); scroll.current.querySelector(`[data-bar="${CSS.escape(next.key)}"]`)?.focus(); }
  };
  const marked = spans(shown, end);
  let height = HEAD;
  const strips = Object.keys(STRIPS).map((kind) => ({ kind, ...inRows(marked.filter((one) => one.kind === kind)) })).filter((strip) => strip.rows)
    .map((strip) => { const top = height; height += strip.rows * STRIP + GAP / 2; return { ...strip, top }; });
  const places = found.map((lane) => { const place = height; height += lane.rows * LANE + GAP; return place; });
  return html`<div class="timeline">
    <div class="timeline-labels">${strips.map(({ kind, top, rows }) => html`<span class="strip-label" style=${{ top: `${top}px`, height: `${rows * STRIP}px` }}>${STRIPS[kind]}</span>`)}${found.map((lane, index) => html`<span class="lane-label" title=${lane.device} style=${{ top: `${places[index]}px`, height: `${lane.rows * LANE}px`, width: `${label - 8}px` }}>${fitLines(lane.device, "600 12.5px", label - 12).map((line) => html`<span>${line}</span>`)}</span>`)}</div>
    <div class="timeline-scroll" ref=${scroll} style=${{ marginLeft: `${label}px` }} tabindex="0" role="region" aria-label="Timeline of devices. Arrow keys move between tasks, Enter opens one.">
    <svg role="none" width=${drawn} height=${height + 6}><${Definitions} />
      ${ticks(begin, end, drawn).map((tick) => html`<g class="tick" aria-hidden="true"><line x1=${x(tick)} x2=${x(tick)} y1="20" y2=${height} />${x(tick) + 4 + widthOf(duration(tick - begin), "11.5px") <= drawn && html`<text x=${x(tick) + 4} y="14">${duration(tick - begin)}</text>`}</g>`)}
      ${strips.flatMap(({ bars, top }) => bars.map((one) => html`<${Span} span=${one} top=${top + one.row * STRIP} left=${x(one.start)} width=${Math.max(3, x(one.end) - x(one.start))} />`))}
      ${found.map((lane, index) => html`<g transform=${`translate(0 ${places[index]})`}>${lane.bars.map((bar) => html`<${Bar} key=${bar.key} bar=${bar} name=${names.get(bar.task)?.peek().name || bar.task} x=${x} drawn=${drawn} select=${select} selected=${selected === bar.task} stop=${stop === bar.key} walk=${walk} />`)}</g>`)}
      ${running && html`<line class="present" x1=${drawn - 1} x2=${drawn - 1} y1="20" y2=${height} />`}
    </svg></div></div>`;
}

// An edit cycle or a hold, in a strip of its own above the lanes.
function Span({ span, top, left, width }) {
  return html`<g class=${span.kind} transform=${`translate(${left} ${top})`}><title>${span.text}</title><rect width=${width} height=${STRIP - 4} rx="3" />${span.kind === "hold" && html`<rect class="hatch" width=${width} height=${STRIP - 4} rx="3" />`}
    ${widthOf(span.name, "11px") + 10 <= width && html`<text x="5" y="11">${span.name}</text>`}</g>`;
}

function Bar({ bar, name, x, drawn, select, selected, stop, walk }) {
  const left = x(bar.start);
  const width = Math.max(3, x(bar.end) - left);
  const text = `${name}, ${words(bar.status)} on ${bar.device}, ${duration(bar.end - bar.start)}, from ${clock(bar.start)}`;
  const [inside, beside] = barName(name, width - 32, Math.min(drawn, x(bar.next)) - left - width - 12);
  const open = (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); select(bar.task); } else walk(event, bar); };
  return html`<g class=${classes("bar", `is-${bar.status}`, { selected, provisional: bar.provisional })} role="button" tabindex=${stop ? 0 : -1} data-bar=${bar.key} transform=${`translate(${left} ${bar.row * LANE})`}
      onClick=${() => select(bar.task)} onKeyDown=${open}>
    <title>${text}</title><rect width=${width} height=${LANE - 5} rx="4" />
    ${width > 16 && html`<text x=${width > 26 ? 7 : width / 2 - 5} y="15">${mark(bar.status)} ${inside}</text>`}${beside && html`<text class="beside" x=${width + 5} y="15">${beside}</text>`}</g>`;
}

// The name of a bar, [in it, beside it]: whole where it fits, of an element of a group what tells it from the others,
// or a part of it.
function barName(name, room, roomBeside) {
  for (const text of [name, /\[(.+)\]$/.exec(name)?.[1]]) {
    if (text && widthOf(text, "12px") <= room) return [text, ""];
    if (text && widthOf(text, "12px") <= roomBeside) return ["", text];
  }
  const cut = room > 0 ? fitName(name, "12px", room) : "";
  return [cut.length > LEAST_LETTERS ? cut : "", ""];
}
