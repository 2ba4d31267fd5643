// The graph on a canvas, for more boxes than SVG redraws smoothly. Status has a shape as well as a colour.
import { HEIGHT, WIDTH } from "./graph_model.js";
import { shorten, shownStatus } from "./graph_boxes.js";
import { html, useEffect, useRef, useSignalEffect } from "./ui.js";
import { mark } from "./words.js";

const TONES = { running: "--blue", completed: "--green", failed: "--red", cancelled: "--grey", waiting: "--amber", pending: "--grey" };

// The dependencies of the boxes as one path, which stays the same from frame to frame.
let known = {};
function linesOf(model, boxes) {
  if (known.model === model && known.boxes === boxes) return known.path;
  const shown = new Set(boxes.map((box) => box.id));
  const path = new Path2D();
  for (const edge of model.edges) {
    if (!shown.has(edge.source) && !shown.has(edge.target)) continue;
    edge.points.forEach(([x, y], index) => (index ? path.lineTo(x, y) : path.moveTo(x, y)));
  }
  known = { model, boxes, path };
  return path;
}

export function paint(context, { model, boxes, camera, tasks, selected, found, size, ratio, colours }) {
  const { zoom } = camera;
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, size.width, size.height);
  context.setTransform(ratio * zoom, 0, 0, ratio * zoom, ratio * camera.x, ratio * camera.y);
  context.lineWidth = Math.max(1, 0.7 / zoom);
  context.strokeStyle = colours("--wire");
  context.globalAlpha = 0.45;
  context.stroke(linesOf(model, boxes));
  for (const box of boxes) {
    const task = tasks.get(box.id)?.peek();
    const status = task ? shownStatus(task) : "pending";
    const tone = colours(TONES[status] ?? "--grey");
    context.globalAlpha = found && !found.has(box.id) ? 0.25 : 1;
    context.fillStyle = colours("--paper");
    context.strokeStyle = box.id === selected ? colours("--ink") : tone;
    context.lineWidth = box.id === selected ? 4 : 2;
    const [left, top] = [box.x - WIDTH / 2, box.y - HEIGHT / 2];
    context.beginPath();
    context.roundRect(left, top, WIDTH, HEIGHT, 9);
    context.fill();
    context.stroke();
    context.fillStyle = tone;
    if (zoom > 0.28) {
      context.font = "17px sans-serif";
      context.fillText(mark(status), left + 12, box.y + 6);
      context.fillStyle = colours("--ink");
      context.font = "600 13px sans-serif";
      context.fillText(shorten(task?.name || task?.id || box.fold || box.id), left + 35, box.y + 5);
    } else if (status !== "pending" && status !== "waiting") {
      context.fillRect(left + 6, top + 6, status === "running" ? WIDTH / 2 - 6 : WIDTH - 12, HEIGHT - 12);
    }
    if (task?.held_by?.length) hatch(context, left, top, colours("--amber"));
  }
  context.globalAlpha = 1;
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

export function GraphCanvas({ state, model, boxes, camera, size, selected, found, label }) {
  const canvas = useRef(null);
  const frame = useRef(0);
  const scene = useRef(null);
  scene.current = { model, boxes, camera: camera.value, tasks: state.tasks, selected, found, size };
  const redraw = () => {
    if (frame.current) return;
    frame.current = requestAnimationFrame(() => {
      frame.current = 0;
      if (!canvas.current) return;
      const style = getComputedStyle(canvas.current);
      const cache = new Map();
      const colours = (name) => {
        if (!cache.has(name)) cache.set(name, style.getPropertyValue(name).trim());
        return cache.get(name);
      };
      paint(canvas.current.getContext("2d"), { ...scene.current, ratio: devicePixelRatio || 1, colours });
    });
  };
  useEffect(redraw);
  useSignalEffect(() => { state.changed.value; redraw(); });
  const ratio = devicePixelRatio || 1;
  return html`<canvas ref=${canvas} class="graph-canvas" role="img" aria-label=${label} width=${size.width * ratio} height=${size.height * ratio} />`;
}
