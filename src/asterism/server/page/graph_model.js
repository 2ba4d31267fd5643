// What the graph shows, as plain data: tasks, collapsed groups and finished parts, and the routes between them.
import { addToFold, foldedTasks, settleFolds } from "./graph_folds.js";
import { edgeKey } from "./plan_state.js";

export const WIDTH = 184;
export const HEIGHT = 46;

// A drawing: boxes by id, and edges with the points that they pass. Positions are centres of boxes.
export function drawing(view, layout, { collapsed = new Set(), finished = false } = {}) {
  const folds = foldedTasks(view, collapsed, finished);
  const boxes = new Map();
  for (const task of view.tasks) {
    const place = layout.nodes[task.id];
    if (!place) continue;
    const fold = folds.get(task.id);
    if (fold === undefined) boxes.set(task.id, { id: task.id, kind: "task", x: place[0], y: place[1], layer: place[2] });
    else addToFold(boxes, fold, task, place);
  }
  const hiddenIn = new Map([...folds].map(([task, fold]) => [task, fold.id]));
  settleFolds(view, layout, boxes, hiddenIn);
  return { boxes, edges: routes(view, layout, hiddenIn, boxes) };
}

function routes(view, layout, hiddenIn, boxes) {
  const bends = new Map((layout.edges ?? []).map((edge) => [`${edge.source}\u0000${edge.target}`, edge.points]));
  const drawn = new Map();
  for (const edge of view.dependencies) {
    const source = hiddenIn.get(edge.source) ?? edge.source;
    const target = hiddenIn.get(edge.target) ?? edge.target;
    const [from, to] = [boxes.get(source), boxes.get(target)];
    if (source === target || !from || !to) continue;
    const key = source === edge.source && target === edge.target ? edgeKey(edge) : `${source}\u0000${target}`;
    if (drawn.has(key)) continue;
    // Straight past the boxes of a layer, so that no curve runs behind one.
    const passed = (key === edgeKey(edge) ? bends.get(key) ?? [] : []).flatMap(([x, y]) => [[x - WIDTH / 2, y], [x + WIDTH / 2, y]]);
    drawn.set(key, { key, source, target, kind: kindOf(edge), label: labelOf(edge), points: [[from.x + WIDTH / 2, from.y], ...passed, [to.x - WIDTH / 2, to.y]] });
  }
  return [...drawn.values()];
}

export const kindOf = (edge) => (edge.when ? "condition" : edge.on && edge.on !== "success" ? edge.on : "success");
export const labelOf = (edge) => (edge.when ? `if ${edge.when}` : edge.on && edge.on !== "success" ? (edge.on === "always" || edge.on === "teardown" ? edge.on : `on ${edge.on}`) : "");

// A smooth curve through the points, flat at each of them.
export function curve(points) {
  let text = `M${points[0][0]} ${points[0][1]}`;
  for (let index = 1; index < points.length; index += 1) {
    const [x0, y0] = points[index - 1];
    const [x1, y1] = points[index];
    const bend = Math.max(18, Math.abs(x1 - x0) / 2);
    text += y0 === y1 ? ` L${x1} ${y1}` : ` C${x0 + bend} ${y0} ${x1 - bend} ${y1} ${x1} ${y1}`;
  }
  return text;
}

export function bounds(boxes) {
  let [left, top, right, bottom] = [Infinity, Infinity, -Infinity, -Infinity];
  for (const box of boxes) {
    left = Math.min(left, box.x - WIDTH / 2);
    right = Math.max(right, box.x + WIDTH / 2);
    top = Math.min(top, box.y - HEIGHT / 2);
    bottom = Math.max(bottom, box.y + HEIGHT / 2);
  }
  return left === Infinity ? { left: 0, top: 0, right: WIDTH, bottom: HEIGHT } : { left, top, right, bottom };
}

// The scale and offset that show a rectangle; never larger than life.
export function fit(area, width, height, margin = 28) {
  const scale = Math.min(1.1, (width - 2 * margin) / (area.right - area.left), (height - 2 * margin) / (area.bottom - area.top));
  const zoom = Math.max(0.04, scale);
  const x = (width - (area.left + area.right) * zoom) / 2;
  const y = (height - (area.top + area.bottom) * zoom) / 2;
  return { zoom, x, y };
}

const SNAP = 200;

// The camera in steps of some pixels, so that moving it does not change the visible boxes with each pixel.
export const snapped = ({ zoom, x, y }) => ({ zoom, x: Math.round(x / SNAP) * SNAP, y: Math.round(y / SNAP) * SNAP });

// The boxes within the window, with a margin so that nothing pops up at its border.
export function visible(boxes, camera, width, height) {
  const margin = WIDTH / 2 + SNAP / camera.zoom;
  const left = -camera.x / camera.zoom - margin;
  const top = -camera.y / camera.zoom - margin;
  const right = left + width / camera.zoom + 2 * margin;
  const bottom = top + height / camera.zoom + 2 * margin;
  return boxes.filter((box) => box.x > left && box.x < right && box.y > top && box.y < bottom);
}

// The box next to another in the direction of an arrow key: along dependencies sideways, within the layer up and down.
export function neighbour(model, id, key) {
  const box = model.boxes.get(id);
  if (!box) return null;
  const near = (boxes) => boxes.reduce((best, other) => (!best || Math.abs(other.y - box.y) < Math.abs(best.y - box.y) ? other : best), null);
  if (key === "ArrowRight") return near(model.edges.filter((edge) => edge.source === id).map((edge) => model.boxes.get(edge.target)));
  if (key === "ArrowLeft") return near(model.edges.filter((edge) => edge.target === id).map((edge) => model.boxes.get(edge.source)));
  const down = key === "ArrowDown" ? 1 : -1;
  const column = [...model.boxes.values()].filter((other) => other.x === box.x && (other.y - box.y) * down > 0);
  return near(column);
}

export const matches = (task, search) =>
  !search || [task.id, task.name, task.device, task.status].some((text) => String(text ?? "").toLowerCase().includes(search.toLowerCase()));
