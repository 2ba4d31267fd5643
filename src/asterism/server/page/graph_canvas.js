// The graph on two canvases, for more boxes than SVG redraws smoothly: dependencies below, tasks above. Progress redraws
// only the tasks. Status has a shape as well as a colour.
import { HEIGHT, WIDTH } from "./graph_model.js";
import { shownStatus } from "./graph_boxes.js";
import { fitName } from "./text_fit.js";
import { html, useEffect, useRef, useSignalEffect } from "./ui.js";
import { mark } from "./words.js";

const TONES = { running: "--blue", completed: "--green", failed: "--red", cancelled: "--grey", waiting: "--amber", pending: "--grey" };
const READABLE = 0.28; // below this zoom a box is a plain rectangle

function prepared(canvas, { camera, size }) {
  const context = canvas.getContext("2d");
  const ratio = devicePixelRatio || 1;
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, size.width, size.height);
  context.setTransform(ratio * camera.zoom, 0, 0, ratio * camera.zoom, ratio * camera.x, ratio * camera.y);
  const style = getComputedStyle(canvas);
  const cache = new Map();
  const colour = (name) => {
    if (!cache.has(name)) cache.set(name, style.getPropertyValue(name).trim());
    return cache.get(name);
  };
  return { context, colour };
}

function paintLines(canvas, scene) {
  const { context, colour } = prepared(canvas, scene);
  const shown = new Set(scene.boxes.map((box) => box.id));
  context.lineWidth = Math.max(1, 0.7 / scene.camera.zoom);
  context.strokeStyle = colour("--wire");
  context.globalAlpha = 0.45;
  context.beginPath();
  for (const edge of scene.model.edges) {
    if (!shown.has(edge.source) && !shown.has(edge.target)) continue;
    edge.points.forEach(([x, y], index) => (index ? context.lineTo(x, y) : context.moveTo(x, y)));
  }
  context.stroke();
}

function paintBoxes(canvas, scene) {
  const { context, colour } = prepared(canvas, scene);
  const paint = scene.camera.zoom < READABLE ? paintPlain : paintNamed;
  for (const box of scene.boxes) {
    const task = scene.tasks.get(box.id)?.peek();
    const status = task ? shownStatus(task) : "pending";
    context.globalAlpha = scene.found && !scene.found.has(box.id) ? 0.25 : 1;
    const [left, top] = [box.x - WIDTH / 2, box.y - HEIGHT / 2];
    paint(context, colour, { box, task, status, left, top, tone: colour(TONES[status] ?? "--grey"), selected: box.id === scene.selected });
    if (task?.held_by?.length) hatch(context, left, top, colour("--amber"));
  }
  context.globalAlpha = 1;
}

// Open tasks are outlines, running ones half full, completed ones full, failed ones in three parts, cancelled
// ones thin.
function paintPlain(context, colour, { status, left, top, tone, selected }) {
  context.fillStyle = selected ? colour("--ink") : tone;
  context.fillRect(left, top, WIDTH, HEIGHT);
  if (status === "pending" || status === "waiting" || status === "running") {
    const begin = status === "running" ? WIDTH / 2 : 5;
    context.fillStyle = colour("--paper");
    context.fillRect(left + begin, top + 5, WIDTH - begin - 5, HEIGHT - 10);
  } else if (status === "failed") {
    context.fillStyle = colour("--paper");
    context.fillRect(left + WIDTH / 3, top, WIDTH / 9, HEIGHT);
    context.fillRect(left + (5 * WIDTH) / 9, top, WIDTH / 9, HEIGHT);
  } else if (status === "cancelled") {
    context.fillStyle = colour("--paper");
    context.fillRect(left, top, WIDTH, HEIGHT / 2);
  }
}

function paintNamed(context, colour, { box, task, status, left, top, tone, selected }) {
  context.fillStyle = colour("--paper");
  context.strokeStyle = selected ? colour("--ink") : tone;
  context.lineWidth = selected ? 4 : 2;
  context.beginPath();
  context.roundRect(left, top, WIDTH, HEIGHT, 9);
  context.fill();
  context.stroke();
  context.fillStyle = tone;
  context.font = "17px sans-serif";
  context.fillText(mark(status), left + 12, box.y + 6);
  context.fillStyle = colour("--ink");
  context.font = "600 13px sans-serif";
  context.fillText(fitName(task?.name || task?.id || box.fold || box.id, "600 13px", WIDTH - 43), left + 35, box.y + 5);
}

function hatch(context, left, top, tone) {
  context.strokeStyle = tone;
  context.lineWidth = 2;
  context.beginPath();
  for (let x = 0; x < WIDTH - HEIGHT; x += 14) {
    context.moveTo(left + x, top + HEIGHT);
    context.lineTo(left + x + HEIGHT, top);
  }
  context.stroke();
}

// Calls `paint` at most once a frame.
function useFrame(paint) {
  const frame = useRef(0);
  return () => {
    frame.current ||= requestAnimationFrame(() => {
      frame.current = 0;
      paint();
    });
  };
}

export function GraphCanvas({ state, model, boxes, camera, size, selected, found, label }) {
  const [below, above, scene] = [useRef(null), useRef(null), useRef(null)];
  scene.current = { model, boxes, camera: camera.value, tasks: state.tasks, selected, found, size };
  const drawLines = useFrame(() => below.current && paintLines(below.current, scene.current));
  const drawBoxes = useFrame(() => above.current && paintBoxes(above.current, scene.current));
  useEffect(drawLines, [model, boxes, camera.value, size]);
  useEffect(drawBoxes);
  useSignalEffect(() => { state.changed.value; drawBoxes(); });
  useEffect(() => {
    const colours = matchMedia("(prefers-color-scheme: dark)");
    const watch = new MutationObserver(() => { drawLines(); drawBoxes(); });
    watch.observe(document.documentElement, { attributeFilter: ["data-theme"] });
    colours.addEventListener("change", drawLines);
    return () => { watch.disconnect(); colours.removeEventListener("change", drawLines); };
  }, []);
  const ratio = devicePixelRatio || 1;
  const [width, height] = [Math.round(size.width * ratio), Math.round(size.height * ratio)];
  return html`<canvas ref=${below} class="graph-canvas" aria-hidden="true" width=${width} height=${height} />
    <canvas ref=${above} class="graph-canvas" role="img" aria-label=${label} width=${width} height=${height} />`;
}
