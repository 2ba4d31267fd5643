// The graph with its camera: zoom, pan, minimap and keyboard. It never moves by itself after the first fit.
import { GraphCanvas } from "./graph_canvas.js";
import { Definitions, Edge, FoldBox, Ghost, TaskBox } from "./graph_boxes.js";
import { HEIGHT, WIDTH, bounds, drawing, fit, neighbour, snapped, visible } from "./graph_model.js";
import { Minimap } from "./minimap.js";
import { edgeKey } from "./plan_state.js";
import { html, useCallback, useEffect, useLayoutEffect, useMemo, useRef, useSignal, useState } from "./ui.js";
import { ENDED, plural } from "./words.js";

export const MOST_SVG = 1_500;
const READABLE = 0.7;
const READABLE_TEXT = 0.3;
const SMALL_SCREEN = 720;

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
  // Which tasks have finished matters only while they are collapsed.
  const model = useMemo(() => drawing(view, layout, { collapsed, finished }), [view.dependencies, layout, collapsed, finished, finished && view]);

  const fitAll = () => size && (camera.value = fit(bounds(model.boxes.values()), size.width, size.height));
  useEffect(() => { if (size && !camera.value && model.boxes.size) camera.value = firstLook(model, state, size); }, [size, model]);
  const zoomBy = (factor, x = size.width / 2, y = size.height / 2) => {
    const old = camera.value;
    const zoom = Math.min(3, Math.max(0.04, old.zoom * factor));
    camera.value = { zoom, x: x - ((x - old.x) * zoom) / old.zoom, y: y - ((y - old.y) * zoom) / old.zoom };
  };
  const reveal = (id) => {
    const box = model.boxes.get(id);
    if (!box || !camera.value || !size) return;
    const old = camera.value;
    if (old.zoom < 0.45) {
      camera.value = { zoom: 0.6, x: size.width / 2 - box.x * 0.6, y: size.height / 2 - box.y * 0.6 };
      return;
    }
    // No further than needed, so that the surroundings stay in sight.
    const inside = (at, half, length) => Math.min(length - half, Math.max(half, at)) - at;
    const dx = inside(box.x * old.zoom + old.x, (WIDTH / 2 + 24) * old.zoom, size.width);
    const dy = inside(box.y * old.zoom + old.y, (HEIGHT / 2 + 24) * old.zoom, size.height);
    if (dx || dy) camera.value = { ...old, x: old.x + dx, y: old.y + dy };
  };
  // Several boxes at once: the camera moves only if one of them is out of sight.
  const revealAll = (ids) => {
    const wanted = ids.map((id) => model.boxes.get(id)).filter(Boolean);
    if (!wanted.length || !camera.value || !size) return;
    const { zoom, x, y } = camera.value;
    const area = bounds(wanted);
    const inSight = area.left * zoom + x >= 0 && area.right * zoom + x <= size.width && area.top * zoom + y >= 0 && area.bottom * zoom + y <= size.height;
    if (inSight && zoom >= READABLE_TEXT) return;
    const whole = fit(area, size.width, size.height, 60);
    camera.value = whole.zoom < zoom ? whole : { zoom, x: size.width / 2 - ((area.left + area.right) / 2) * zoom, y: size.height / 2 - ((area.top + area.bottom) / 2) * zoom };
  };
  const focusBox = (id) => {
    focused.value = id;
    reveal(id);
    requestAnimationFrame(() => frame.current?.querySelector(`[data-box="${CSS.escape(id)}"]`)?.focus({ preventScroll: true }));
  };
  controls.current = { fitAll, zoomBy, reveal, revealAll, focusBox, first: () => found?.values().next().value ?? model.boxes.keys().next().value };

  const onKeyDown = (event) => {
    const id = event.target.dataset?.box ?? (event.target === frame.current ? focused.value ?? controls.current.first() : null);
    if (event.key.startsWith("Arrow") && id) {
      const next = event.target === frame.current ? model.boxes.get(id) : neighbour(model, id, event.key);
      if (next) focusBox(next.id);
      event.preventDefault();
    } else if ((event.key === "Enter" || event.key === " ") && id) {
      const box = model.boxes.get(id);
      if (box.kind === "fold") openFold(box.fold);
      else select(id);
      event.preventDefault();
    }
  };
  const drag = useDrag(camera);
  useWheel(frame, zoomBy);

  const cell = camera.value && snapped(camera.value);
  const shown = useMemo(() => (cell && size ? visible([...model.boxes.values()], cell, size.width, size.height) : []), [model, cell?.zoom, cell?.x, cell?.y, size]);
  const useCanvas = shown.length > MOST_SVG;
  const label = `Graph of the plan ${view.name}: ${plural(view.tasks.length, "task")}, ${plural(view.dependencies.length, "dependency").replace("ys", "ies")}`;
  const clicked = (event) => {
    if (!useCanvas || drag.moved()) return;
    const area = frame.current.getBoundingClientRect();
    const [x, y] = [(event.clientX - area.left - camera.value.x) / camera.value.zoom, (event.clientY - area.top - camera.value.y) / camera.value.zoom];
    const box = shown.find((one) => Math.abs(one.x - x) < WIDTH / 2 && Math.abs(one.y - y) < HEIGHT / 2);
    if (box) (box.kind === "fold" ? openFold(box.fold) : select(box.id));
  };
  return html`<div class="graph" ref=${frame} tabindex="0" role="group" aria-label=${`${label}. Arrow keys move between tasks, Enter opens one.`}
      onKeyDown=${onKeyDown} onPointerDown=${drag.down} onPointerMove=${drag.move} onPointerUp=${drag.up} onPointerCancel=${drag.up} onClick=${clicked}>
    ${camera.value && size && (useCanvas
      ? html`<${GraphCanvas} ...${{ state, model, boxes: shown, camera, size, selected, found, label }} />`
      : html`<${GraphDrawing} ...${{ state, model, shown, camera: camera.value, size, selected, select, found, marks, focused, openFold, layout, drag }} />`)}
    ${camera.value && size && html`<${Minimap} ...${{ state, model, camera, size }} />`}
    ${useCanvas && html`<p class="graph-note">${plural(shown.length, "task")} drawn without names: zoom in, or show them as a list.</p>`}
  </div>`;
}

// The whole graph; on a small screen, where that could not be read, the part where work goes on.
function firstLook(model, state, size) {
  const all = fit(bounds(model.boxes.values()), size.width, size.height);
  if (all.zoom >= READABLE || size.width > SMALL_SCREEN) return all;
  const status = (box) => state.tasks.get(box.id)?.peek().status;
  const boxes = [...model.boxes.values()];
  const box = boxes.find((one) => status(one) === "running") ?? boxes.find((one) => !ENDED.has(status(one))) ?? boxes[0];
  return { zoom: READABLE, x: size.width / 2 - box.x * READABLE, y: size.height / 2 - box.y * READABLE };
}

function GraphDrawing({ state, model, shown, camera, size, selected, select, found, marks, focused, openFold, layout, drag }) {
  const latest = useRef(null);
  latest.current = { select, openFold };
  const choose = useCallback((id) => { if (!drag.moved()) latest.current.select(id); }, []);
  const open = useCallback((box) => { if (!drag.moved()) latest.current.openFold(box.fold); }, []);
  const text = camera.zoom < READABLE_TEXT ? "none" : camera.zoom < READABLE ? "name" : "all";
  // Elements that are the same objects as before are not compared: moving the camera costs one attribute.
  const lines = useMemo(() => {
    const ids = new Set(shown.map((box) => box.id));
    const change = (edge) => (marks.edges.has(edge.key) ? "added" : marks.cut?.has(edge.key) ? "removed" : null);
    return html`<g class="lines" aria-hidden="true">
      ${marks.gone.map((edge) => html`<${GoneEdge} key=${`gone ${edgeKey(edge)}`} ...${{ edge, layout, marks }} />`)}
      ${model.edges.filter((edge) => ids.has(edge.source) || ids.has(edge.target)).map((edge) => html`<${Edge} key=${edge.key} edge=${edge} change=${change(edge)}
        dim=${found && !(found.has(edge.source) && found.has(edge.target))} />`)}</g>`;
  }, [model, shown, marks, found, layout]);
  const focusable = [focused.value, selected].find((id) => shown.some((box) => box.id === id)) ?? shown[0]?.id;
  const boxes = useMemo(() => shown.map((box) => box.kind === "fold"
    ? html`<${FoldBox} key=${box.id} box=${box} state=${state} text=${text} focusable=${focusable === box.id} open=${open} />`
    : html`<${TaskBox} key=${box.id} box=${box} task=${taskSignal(state, marks, box.id)} text=${text} selected=${selected === box.id} focusable=${focusable === box.id}
        dim=${found !== null && !found.has(box.id)} mark=${changeOf(marks, box.id)} select=${choose} />`), [model, shown, marks, found, selected, focusable, text]);
  return html`<svg width=${size.width} height=${size.height} class="graph-drawing">
    <${Definitions} />
    <g transform=${`translate(${camera.x} ${camera.y}) scale(${camera.zoom})`}>
      ${lines}
      ${marks.removed.map(({ task, place }) => html`<${Ghost} key=${`gone ${task.id}`} task=${task} place=${place} />`)}
      ${boxes}
    </g>
  </svg>`;
}

const changeOf = (marks, id) => (marks.added.has(id) ? "added" : marks.changed.has(id) ? "changed" : marks.doomed?.has(id) ? "removed" : marks.stopped?.has(id) ? "cancelled" : null);

// A task of a preview is not in the plan yet.
const taskSignal = (state, marks, id) => marks.planned?.get(id) ?? state.tasks.get(id) ?? { value: { id, status: "pending" } };

function GoneEdge({ edge, layout, marks }) {
  const removed = new Map(marks.removed.map(({ task, place }) => [task.id, place]));
  const place = (id) => layout.nodes[id] ?? removed.get(id);
  const [from, to] = [place(edge.source), place(edge.target)];
  if (!from || !to) return null;
  const points = [[from[0] + WIDTH / 2, from[1]], [to[0] - WIDTH / 2, to[1]]];
  return html`<${Edge} edge=${{ kind: "success", points }} change="removed" />`;
}

// One pointer pans, two pinch. A press that moved is no click.
function useDrag(camera) {
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
        const zoom = Math.min(3, Math.max(0.04, (before.zoom * far(now)) / far(old)));
        camera.value = { zoom, x: other[0] - ((other[0] - before.x) * zoom) / before.zoom, y: other[1] - ((other[1] - before.y) * zoom) / before.zoom };
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
