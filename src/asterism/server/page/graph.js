// The graph with its camera: zoom, pan, minimap and keyboard. It never moves by itself after the first fit. Where the
// names of tasks could not be read, it shows the overview of layers instead.
import { HEIGHT, WIDTH } from "./box_size.js";
import { Bundle, Definitions, Edge, FoldBox, Frame, Ghost, TaskBox } from "./graph_boxes.js";
import { bounds, drawing, fit, neighbour, snapped, visible } from "./graph_model.js";
import { MARGIN, overview } from "./graph_overview.js";
import { inRows, rowsFor } from "./graph_rows.js";
import { Minimap } from "./minimap.js";
import { edgeKey } from "./plan_state.js";
import { html, useCallback, useEffect, useLayoutEffect, useMemo, useRef, useSignal, useState } from "./ui.js";
import { ENDED, plural } from "./words.js";

const ALL = 0.9; // from this zoom on, a box shows more than its name
const LEAST = 0.445; // names can be read down to this zoom
const MOST = 3;
const SMALLEST = 11.5; // pixels of a letter
const SIZES = [13, 15, 17, 20, 23, 26];
const INTO = 1.5; // this zoom of the overview leads to the tasks

function useSize(element) {
  const [size, setSize] = useState(null);
  useLayoutEffect(() => {
    const watch = new ResizeObserver(([entry]) => setSize({ width: entry.contentRect.width, height: entry.contentRect.height }));
    watch.observe(element.current);
    return () => watch.disconnect();
  }, []);
  return size;
}

export function Graph({ state, view, layout, marks, selected, select, found, collapsed, finished, openFold, controls }) {
  const frame = useRef(null);
  const size = useSize(frame);
  const camera = useSignal(null);
  const focused = useSignal(null);
  const [far, setFar] = useState(null); // whether the overview is shown; null before the first look
  // Which tasks have finished matters only while they are collapsed.
  const plain = useMemo(() => drawing(view, layout, { collapsed, finished }), [view.dependencies, layout, collapsed, finished, finished && view]);
  const [rows, setRows] = useState(null);
  const tasks = useMemo(() => inRows(plain, rows), [plain, rows]);
  const wholeOf = (drawn) => fit(bounds(drawn.boxes.values()), size.width, size.height);
  const isLarge = size && wholeOf(tasks).zoom < LEAST;
  const layers = useMemo(() => (size && far ? overview(tasks, farWindow(size)) : null), [tasks, size, far]);
  const isBundled = layers && [...layers.boxes.values()].some((box) => box.kind === "bundle");
  const model = layers ?? tasks;

  const look = (next) => { camera.value = next; };
  const wantedFirst = useRef([]); // what was asked for before the first look
  const lookAt = (boxes, margin) => {
    const area = bounds(boxes);
    const { zoom } = fit(area, size.width, size.height, margin);
    look(centred((area.left + area.right) / 2, (area.top + area.bottom) / 2, Math.max(LEAST, zoom)));
  };
  const centred = (x, y, zoom) => ({ zoom, x: size.width / 2 - x * zoom, y: size.height / 2 - y * zoom });
  const fitAll = () => {
    if (!size) return;
    const next = rowsFor(plain, size);
    const whole = wholeOf(inRows(plain, next));
    setRows(next);
    setFar(whole.zoom < LEAST);
    look(whole.zoom < LEAST ? farLook(overview(plain, farWindow(size)), size) : whole);
  };
  useEffect(() => {
    if (!size || camera.value || !tasks.boxes.size) return;
    fitAll();
    revealAll(wantedFirst.current);
  }, [size, tasks]);
  // A graph that has become small has no overview.
  useEffect(() => { if (far && !isLarge && size && tasks.boxes.size) fitAll(); }, [far, isLarge]);
  useLayoutEffect(() => { if (far && camera.value) look(farLook(layers, size)); }, [layers?.perRow, layers?.boxes.size]);
  const zoomBy = (factor, x = size.width / 2, y = size.height / 2) => {
    const old = camera.value;
    if (layers && factor > 1 && old.zoom * factor > Math.max(INTO, farLook(layers, size).zoom * 1.2)) return enter(nearest(layers, (x - old.x) / old.zoom, (y - old.y) / old.zoom));
    if (!layers && factor < 1 && isLarge && old.zoom * factor < LEAST) return fitAll();
    const zoom = Math.min(MOST, Math.max(LEAST, old.zoom * factor));
    return look({ zoom, x: x - ((x - old.x) * zoom) / old.zoom, y: y - ((y - old.y) * zoom) / old.zoom });
  };
  // From the overview to the tasks of a box in it.
  const enter = (box) => {
    setFar(false);
    const boxes = (box.kind === "bundle" ? box.members : [box.id]).map((id) => tasks.boxes.get(id));
    if (fit(bounds(boxes), size.width, size.height).zoom >= LEAST) return lookAt(boxes);
    const [first] = boxes.sort((one, other) => urgency(state, one) - urgency(state, other));
    return look(centred(first.x, first.y, ALL));
  };
  const reveal = (id) => {
    const box = tasks.boxes.get(id) ?? tasks.boxes.get(tasks.hiddenIn.get(id));
    if (!box || !size) return;
    if (!camera.value || (far && !layers?.boxes.has(box.id))) {
      setFar(false);
      look(centred(box.x, box.y, ALL));
      return;
    }
    // No further than needed, so that the surroundings stay in sight.
    const place = model.boxes.get(box.id) ?? box;
    const old = camera.value;
    const inside = (at, half, length) => Math.min(length - half, Math.max(half, at)) - at;
    const dx = inside(place.x * old.zoom + old.x, (WIDTH / 2 + 24) * old.zoom, size.width);
    const dy = inside(place.y * old.zoom + old.y, (HEIGHT / 2 + 24) * old.zoom, size.height);
    if (dx || dy) look({ ...old, x: old.x + dx, y: old.y + dy });
  };
  // Several boxes at once: the camera moves only if one of them is out of sight.
  const revealAll = (ids) => {
    if (!camera.value || !size) wantedFirst.current = ids;
    const wanted = ids.map((id) => tasks.boxes.get(id)).filter(Boolean);
    if (!wanted.length || !camera.value || !size) return;
    if (inSight(bounds(wanted), camera.value, size) && !far) return;
    setFar(false);
    lookAt(wanted, 60);
  };
  const focusBox = (id) => {
    focused.value = id;
    reveal(id);
    requestAnimationFrame(() => frame.current?.querySelector(`[data-box="${CSS.escape(id)}"]`)?.focus({ preventScroll: true }));
  };
  controls.current = { fitAll, zoomBy, reveal, revealAll, focusBox, first: () => found?.values().next().value ?? model.boxes.keys().next().value };

  const choose = (box) => (box.kind === "fold" ? openFold(box.fold) : box.kind === "bundle" ? enter(box) : select(box.id));
  const onKeyDown = (event) => {
    const id = event.target.dataset?.box ?? (event.target === frame.current ? focused.value ?? controls.current.first() : null);
    const box = model.boxes.get(id) ?? model.boxes.values().next().value;
    if (event.key.startsWith("Arrow") && box) {
      const next = event.target === frame.current ? box : neighbour(model, box.id, event.key);
      if (next) focusBox(next.id);
      event.preventDefault();
    } else if ((event.key === "Enter" || event.key === " ") && box) {
      choose(box);
      if (box.kind === "bundle") focusBox(box.members[0]);
      event.preventDefault();
    }
  };
  const drag = useDrag(camera, zoomBy);
  useWheel(frame, zoomBy);

  const cell = camera.value && snapped(camera.value);
  const shown = useMemo(() => (cell && size ? visible([...model.boxes.values()], cell, size.width, size.height) : []), [model, cell?.zoom, cell?.x, cell?.y, size]);
  const isWhole = camera.value && size && inSight(bounds(tasks.boxes.values()), camera.value, size);
  const label = `Graph of the plan ${view.name}: ${plural(view.tasks.length, "task")}, ${plural(view.dependencies.length, "dependency").replace("ys", "ies")}`;
  return html`<div class="graph" ref=${frame} tabindex="0" role="group" aria-label=${`${label}. Arrow keys move between tasks, Enter opens one.`}
      onKeyDown=${onKeyDown} onPointerDown=${drag.down} onPointerMove=${drag.move} onPointerUp=${drag.up} onPointerCancel=${drag.up}>
    ${camera.value && size && html`<${GraphDrawing} ...${{ state, model, shown, camera: camera.value, size, selected, choose, found, marks, focused, at: tasks.at, layout, drag }} />`}
    ${camera.value && size && !far && !isWhole && html`<${Minimap} ...${{ state, model: tasks, camera, size }} />`}
    ${far && layers && html`<p class="graph-note">By layer. ${isBundled ? "Press a box to see its tasks." : "Zoom in to see all dependencies."}</p>`}
  </div>`;
}

const inSight = (area, { zoom, x, y }, { width, height }) => area.left * zoom + x >= 0 && area.right * zoom + x <= width && area.top * zoom + y >= 0 && area.bottom * zoom + y <= height;

// The window without its last line, which says what one sees.
const farWindow = ({ width, height }) => ({ width, height: height - 36 });

// The whole overview, or its begin where it is longer than the window.
function farLook(layers, size) {
  const area = bounds(layers.boxes.values());
  const look = fit(area, size.width, farWindow(size).height, MARGIN);
  if (look.zoom >= LEAST) return look;
  const zoom = Math.max(LEAST, Math.min(1, (size.width - 2 * MARGIN) / (area.right - area.left)));
  return { zoom, x: size.width / 2 - ((area.left + area.right) / 2) * zoom, y: MARGIN - area.top * zoom };
}

const nearest = (model, x, y) => [...model.boxes.values()].reduce((near, box) => (Math.hypot(box.x - x, box.y - y) < Math.hypot(near.x - x, near.y - y) ? box : near));

// What failed comes first, then what runs, then what has not ended.
function urgency(state, box) {
  const status = state.tasks.get(box.id)?.peek().status;
  return ["failed", "running"].includes(status) ? ["failed", "running"].indexOf(status) : ENDED.has(status) ? 3 : 2;
}

function GraphDrawing({ state, model, shown, camera, size, selected, choose, found, marks, focused, at, layout, drag }) {
  const latest = useRef(null);
  latest.current = choose;
  const press = useCallback((box) => { if (!drag.moved()) latest.current(box); }, []);
  const text = camera.zoom >= ALL ? "all" : SIZES.find((letters) => letters * camera.zoom >= SMALLEST) ?? SIZES.at(-1);
  // Elements that are the same objects as before are not compared: moving the camera costs one attribute.
  const lines = useMemo(() => {
    const ids = new Set(shown.map((box) => box.id));
    const blocks = [...model.blocks.values()].filter((block) => block.members.some((box) => ids.has(box.id)));
    for (const block of blocks) ids.add(block.id);
    const all = (edge, keys) => keys && edge.keys.length > 0 && edge.keys.every((key) => keys.has(key));
    const change = (edge) => (all(edge, marks.edges) ? "added" : all(edge, marks.cut) ? "removed" : null);
    const has = (id) => found.has(id) || (model.boxes.get(id) ?? model.blocks.get(id))?.members?.some((member) => found.has(member.id ?? member));
    return html`<g class="lines" aria-hidden="true">
      ${blocks.map((block) => html`<${Frame} key=${block.id} block=${block} />`)}
      ${marks.gone.map((edge) => html`<${GoneEdge} key=${`gone ${edgeKey(edge)}`} ...${{ edge, layout, marks, at }} />`)}
      ${model.edges.filter((edge) => ids.has(edge.source) || ids.has(edge.target)).map((edge) => html`<${Edge} key=${edge.key} edge=${edge} change=${change(edge)}
        dim=${found && !(has(edge.source) && has(edge.target))} />`)}</g>`;
  }, [model, shown, marks, found, layout]);
  const focusable = [focused.value, selected].find((id) => shown.some((box) => box.id === id)) ?? shown[0]?.id;
  const boxes = useMemo(() => shown.map((box) => {
    const terms = { key: box.id, box, state, text, focusable: focusable === box.id, press };
    if (box.kind === "fold") return html`<${FoldBox} ...${terms} />`;
    if (box.kind === "bundle") return html`<${Bundle} ...${terms} dim=${found !== null && !box.members.some((id) => found.has(id))} mark=${box.members.map((id) => changeOf(marks, id)).find(Boolean)} />`;
    return html`<${TaskBox} ...${terms} task=${taskSignal(state, marks, box.id)} selected=${selected === box.id} dim=${found !== null && !found.has(box.id)} mark=${changeOf(marks, box.id)} />`;
  }), [model, shown, marks, found, selected, focusable, text]);
  return html`<svg role="none" width=${size.width} height=${size.height} class="graph-drawing">
    <${Definitions} />
    <g transform=${`translate(${camera.x} ${camera.y}) scale(${camera.zoom})`}>
      ${lines}
      ${marks.removed.map(({ task, place }) => html`<${Ghost} key=${`gone ${task.id}`} task=${task} place=${at(place)} />`)}
      ${boxes}
    </g>
  </svg>`;
}

const changeOf = (marks, id) => (marks.added.has(id) ? "added" : marks.changed.has(id) ? "changed" : marks.doomed?.has(id) ? "removed" : marks.stopped?.has(id) ? "cancelled" : null);

// A task of a preview is not in the plan yet.
const taskSignal = (state, marks, id) => marks.planned?.get(id) ?? state.tasks.get(id) ?? { value: { id, status: "pending" } };

function GoneEdge({ edge, layout, marks, at }) {
  const removed = new Map(marks.removed.map(({ task, place }) => [task.id, place]));
  const place = (id) => layout.nodes[id] ?? removed.get(id);
  const [from, to] = [place(edge.source), place(edge.target)];
  if (!from || !to) return null;
  const [[x, y], [toX, toY]] = [at(from), at(to)];
  const points = [[x + WIDTH / 2, y], [toX - WIDTH / 2, toY]];
  return html`<${Edge} edge=${{ kind: "success", points }} change="removed" />`;
}

// One pointer pans, two pinch. A press that moved is no click.
function useDrag(camera, zoomBy) {
  const pointers = useRef(new Map());
  const travelled = useRef(0);
  const at = (event) => {
    const area = event.currentTarget.getBoundingClientRect();
    return [event.clientX - area.left, event.clientY - area.top];
  };
  return {
    moved: () => travelled.current > 5,
    down: (event) => {
      if (event.target.closest(".minimap")) return;
      if (!pointers.current.size) travelled.current = 0;
      pointers.current.set(event.pointerId, at(event));
    },
    move: (event) => {
      const old = pointers.current.get(event.pointerId);
      if (!old || !camera.value) return;
      const now = at(event);
      travelled.current += Math.abs(now[0] - old[0]) + Math.abs(now[1] - old[1]);
      if (travelled.current > 5 && !event.currentTarget.hasPointerCapture(event.pointerId)) event.currentTarget.setPointerCapture(event.pointerId);
      const before = camera.value;
      if (pointers.current.size === 1) {
        camera.value = { ...before, x: before.x + now[0] - old[0], y: before.y + now[1] - old[1] };
      } else {
        const [other] = [...pointers.current].filter(([id]) => id !== event.pointerId).map(([, place]) => place);
        const far = (one) => Math.hypot(one[0] - other[0], one[1] - other[1]) || 1;
        zoomBy(far(now) / far(old), ...other);
      }
      pointers.current.set(event.pointerId, now);
    },
    up: (event) => pointers.current.delete(event.pointerId),
  };
}

function useWheel(frame, zoomBy) {
  const latest = useRef(zoomBy);
  latest.current = zoomBy;
  useEffect(() => {
    const wheel = (event) => {
      event.preventDefault();
      const area = frame.current.getBoundingClientRect();
      latest.current(Math.exp(-event.deltaY / 400), event.clientX - area.left, event.clientY - area.top);
    };
    frame.current.addEventListener("wheel", wheel, { passive: false });
    return () => frame.current?.removeEventListener("wheel", wheel);
  }, []);
}
