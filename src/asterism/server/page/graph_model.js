// What the graph shows, as plain data: tasks, collapsed groups and finished parts, and the routes between them.
import { HEIGHT, WIDTH } from "./box_size.js";
import { addToFold, foldedTasks, settleFolds } from "./graph_folds.js";
import { arranged } from "./graph_wrap.js";
import { edgeKey } from "./plan_state.js";

// A drawing: boxes by id, blocks of boxes by id, and edges with the points that they pass. Positions are centres of boxes.
export function drawing(view, layout, { collapsed = new Set(), finished = false } = {}) {
  const folds = foldedTasks(view, collapsed, finished);
  const boxes = new Map();
  for (const task of view.tasks) {
    const place = layout.nodes[task.id];
    if (!place) continue;
    const fold = folds.get(task.id);
    if (fold === undefined) boxes.set(task.id, { id: task.id, kind: "task", name: task.name || task.id, x: place[0], y: place[1], layer: place[2] });
    else addToFold(boxes, fold, task, place);
  }
  const hiddenIn = new Map([...folds].map(([task, fold]) => [task, fold.id]));
  settleFolds(view, layout, boxes, hiddenIn);
  const { edges, blocks, layerWidth } = arranged(boxes, routes(view, layout, hiddenIn, boxes), folds.size > 0);
  for (const edge of edges) edge.points = pointsOf(edge, boxes, blocks, layerWidth);
  nameShortly(boxes);
  return { boxes, blocks, edges, hiddenIn, layerWidth };
}

// The dependencies between boxes. `bends` are [left, y, right] in each layer that one passes, from the layer `first` on.
function routes(view, layout, hiddenIn, boxes) {
  const bends = new Map((layout.edges ?? []).map((edge) => [edgeKey(edge), edge.points]));
  const drawn = new Map();
  for (const edge of view.dependencies) {
    const source = hiddenIn.get(edge.source) ?? edge.source;
    const target = hiddenIn.get(edge.target) ?? edge.target;
    const [from, to] = [boxes.get(source), boxes.get(target)];
    if (source === target || !from || !to) continue;
    const own = source === edge.source && target === edge.target;
    const key = own ? edgeKey(edge) : `${source}\u0000${target}`;
    if (drawn.has(key)) continue;
    const passed = (own ? bends.get(key) ?? [] : []).map(([x, y]) => [x - WIDTH / 2, y, x + WIDTH / 2]);
    drawn.set(key, { key, source, target, kind: kindOf(edge), label: labelOf(edge), cut: edge.cut, first: from.layer + 1, bends: passed });
  }
  return [...drawn.values()];
}

// Straight past the boxes of a layer, so that no curve runs behind one.
function pointsOf(edge, boxes, blocks, layerWidth) {
  const [from, to] = [ends(edge.source, boxes, blocks), ends(edge.target, boxes, blocks)];
  const right = layerWidth?.get(boxes.get(edge.source)?.layer)?.[1];
  const start = right > from.right ? [[from.right, from.y], [right, from.y]] : [[from.right, from.y]];
  return [...start, ...edge.bends.flatMap(([left, y, end]) => [[left, y], [end, y]]), [to.left, to.y]];
}

function ends(id, boxes, blocks) {
  const block = blocks.get(id);
  if (block) return { left: block.left, right: block.right, y: (block.top + block.bottom) / 2 };
  const { x, y } = boxes.get(id);
  return { left: x - WIDTH / 2, right: x + WIDTH / 2, y };
}

// Names of one layer often begin and end alike: `short` is what differs, for boxes that have no room for more. Of an
// element of a group, the name of the group and the brackets are left out without a mark.
function nameShortly(boxes) {
  const layers = Map.groupBy([...boxes.values()].filter((box) => box.kind === "task"), (box) => box.layer);
  for (const layer of layers.values()) {
    for (const family of Map.groupBy(layer, (box) => familyOf(box.name)).values()) {
      if (family.length < 2) continue;
      const [begin, end] = shared(family.map((box) => box.name));
      for (const box of family) {
        const part = box.name.slice(begin, box.name.length - end);
        const [group, bracket] = /^[^[]+\[.+\]$/.test(box.name) ? [box.name.indexOf("[") + 1, 1] : [0, 0];
        if (part) box.short = `${begin > group ? "…" : ""}${box.name.slice(Math.max(begin, group), box.name.length - Math.max(end, bracket))}${end > bracket ? "…" : ""}`;
      }
    }
  }
}

// The first word of a name.
export const familyOf = (name) => /^[^-_.:/ [\d]*/.exec(name)[0];

// How many letters all names have in common at their beginnings and at their ends; whole words only, and whole versions.
export function shared(names) {
  const [first] = names;
  const shortest = Math.min(...names.map((name) => name.length));
  let begin = 0;
  while (begin < shortest && names.every((name) => name[begin] === first[begin])) begin += 1;
  while (begin > 0 && /([\p{L}\d]|\d\.)$/u.test(first.slice(0, begin))) begin -= 1;
  let end = 0;
  while (end < shortest - begin && names.every((name) => name.at(-1 - end) === first.at(-1 - end))) end += 1;
  while (end > 0 && /^([\p{L}\d]|\.\d)/u.test(first.slice(-end))) end -= 1;
  return [begin, end];
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
  const own = [id, [...model.blocks.values()].find((block) => block.members.includes(box))?.id];
  const boxesOf = (end) => model.blocks.get(end)?.members ?? [model.boxes.get(end)];
  if (key === "ArrowRight") return near(model.edges.filter((edge) => own.includes(edge.source)).flatMap((edge) => boxesOf(edge.target)));
  if (key === "ArrowLeft") return near(model.edges.filter((edge) => own.includes(edge.target)).flatMap((edge) => boxesOf(edge.source)));
  const down = key === "ArrowDown" ? 1 : -1;
  const column = [...model.boxes.values()].filter((other) => other.x === box.x && (other.y - box.y) * down > 0);
  return near(column);
}

export const matches = (task, search) =>
  !search || [task.id, task.name, task.device, task.status].some((text) => String(text ?? "").toLowerCase().includes(search.toLowerCase()));
