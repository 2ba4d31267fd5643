// The whole graph in a corner, with the window as a frame; a press moves the window.
import { HEIGHT, WIDTH } from "./box_size.js";
import { shownStatus } from "./graph_boxes.js";
import { bounds } from "./graph_model.js";
import { html, useEffect, useMemo, useRef, useSignalEffect } from "./ui.js";

const SIZE = { width: 168, height: 104 };
const TONES = { queued: "--amber", starting: "--amber", running: "--blue", completed: "--green", failed: "--red", cancelled: "--grey" };

export function Minimap({ state, model, camera, size }) {
  const canvas = useRef(null);
  const area = useMemo(() => bounds(model.boxes.values()), [model]);
  const scale = Math.min((SIZE.width - 8) / (area.right - area.left), (SIZE.height - 8) / (area.bottom - area.top));
  const left = (SIZE.width - (area.right - area.left) * scale) / 2 - area.left * scale;
  const top = (SIZE.height - (area.bottom - area.top) * scale) / 2 - area.top * scale;

  const draw = () => {
    const ratio = devicePixelRatio || 1;
    const context = canvas.current?.getContext("2d");
    if (!context) return;
    const style = getComputedStyle(canvas.current);
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, SIZE.width, SIZE.height);
    for (const box of model.boxes.values()) {
      const task = state.tasks.get(box.id)?.peek();
      const status = task && shownStatus(task);
      context.fillStyle = style.getPropertyValue(TONES[status] ?? "--wire");
      context.fillRect((box.x - WIDTH / 2) * scale + left, (box.y - HEIGHT / 2) * scale + top, Math.max(1.5, WIDTH * scale), Math.max(1.5, HEIGHT * scale));
    }
    const { zoom, x, y } = camera.value;
    context.strokeStyle = style.getPropertyValue("--ink");
    context.lineWidth = 1.5;
    context.strokeRect((-x / zoom) * scale + left, (-y / zoom) * scale + top, (size.width / zoom) * scale, (size.height / zoom) * scale);
  };
  useEffect(draw);
  useSignalEffect(() => { state.changed.value; draw(); });

  const move = (event) => {
    if (!event.buttons) return;
    const place = canvas.current.getBoundingClientRect();
    const { zoom } = camera.value;
    const [x, y] = [(event.clientX - place.left - left) / scale, (event.clientY - place.top - top) / scale];
    camera.value = { zoom, x: size.width / 2 - x * zoom, y: size.height / 2 - y * zoom };
  };
  const ratio = devicePixelRatio || 1;
  return html`<canvas ref=${canvas} class="minimap" aria-hidden="true" width=${SIZE.width * ratio} height=${SIZE.height * ratio}
    onPointerDown=${move} onPointerMove=${move} />`;
}
