// A large graph at a distance: a box for each layer, or each kind of task in it, with counts by status. Layers run from
// left to right, in as many rows as the window shows best, so that every name can be read.
import { HEIGHT, WIDTH } from "./box_size.js";
import { familyOf, shared } from "./graph_model.js";

const MOST_LAYERS = 60; // more are joined, some to a box
const MOST_KINDS = 4; // of a layer; more are one box
const FEW = 3; // tasks of a layer that are drawn one by one
const COUNTS = 0.61; // from this zoom on, a box has room for its counts
const [COLUMN, ROW, BETWEEN] = [WIDTH + 44, HEIGHT + 22, 44];
export const MARGIN = 24;

// The same form as a drawing of tasks: {boxes, blocks, edges}. A box of the kind "bundle" has its members.
export function overview(model, size) {
  const columns = columnsOf(model);
  const perRow = bestRow(columns, size);
  const boxes = new Map();
  const rows = Array.from({ length: Math.ceil(columns.length / perRow) }, (_, row) => columns.slice(row * perRow, (row + 1) * perRow));
  let top = 0;
  for (const row of rows) {
    const height = Math.max(...row.map((column) => column.length)) * ROW;
    row.forEach((column, index) => column.forEach((box, place) => boxes.set(box.id, { ...box, x: index * COLUMN, y: top + (height - column.length * ROW) / 2 + place * ROW + ROW / 2 })));
    top += height + BETWEEN;
  }
  const boxOf = boxesOf(model, columns);
  return { boxes, blocks: new Map(), edges: [...edgesOf(model, columns, boxes, boxOf, perRow), ...turns(model, rows, boxes, boxOf)], perRow };
}

function columnsOf(model) {
  const linked = new Set(model.edges.flatMap((edge) => [edge.source, edge.target].flatMap((id) => model.blocks.get(id)?.members.map((box) => box.id) ?? [id])));
  const alone = [...model.boxes.values()].filter((box) => !linked.has(box.id));
  const layers = [...Map.groupBy([...model.boxes.values()].filter((box) => linked.has(box.id)), (box) => box.layer)].sort(([one], [other]) => one - other).map(([, boxes]) => boxes);
  const joint = Math.ceil(layers.length / MOST_LAYERS);
  const columns = [];
  for (let at = 0; at < layers.length; at += joint) columns.push(bundles(layers.slice(at, at + joint).flat(), joint));
  if (alone.length) columns.push(bundles(alone, 1));
  return columns;
}

// The boxes of a column: folds and few tasks as they are, others by the first word of their names.
function bundles(boxes, layers) {
  const inOrder = boxes.toSorted((one, other) => one.layer - other.layer || one.y - other.y);
  const tasks = inOrder.filter((box) => box.kind === "task");
  const single = inOrder.filter((box) => box.kind !== "task");
  if (layers === 1 && tasks.length <= FEW) return inOrder;
  const kinds = Map.groupBy(tasks, (box) => familyOf(box.name));
  const parts = layers === 1 && kinds.size <= MOST_KINDS ? [...kinds.values()] : [tasks];
  return [...parts.filter((part) => part.length).map((part) => (part.length === 1 ? part[0] : bundle(part))), ...single];
}

const bundle = (members) => ({ id: `bundle:${members[0].id}`, kind: "bundle", layer: members[0].layer, name: jointName(members.map((box) => box.name)), members: members.map((box) => box.id) });

const order = new Intl.Collator(undefined, { numeric: true }); // localeCompare would make one for each pair of names

// "check-…", "extract-…-from-staging"; "step-000–099" where numbers tell the tasks apart.
function jointName(names) {
  const [begin, end] = shared(names);
  const first = names.reduce((least, name) => (order.compare(name, least) < 0 ? name : least));
  const last = names.reduce((most, name) => (order.compare(name, most) >= 0 ? name : most));
  const differs = (name) => name.slice(begin, name.length - end);
  if (names.every((name) => /^\d+\]?$/.test(differs(name)))) return `${first}–${last.slice(begin)}`;
  if (!begin && !end) return `${first} … ${last}`;
  return `${first.slice(0, begin)}…${end ? first.slice(-end) : ""}`;
}

// How many columns a row has where the whole is drawn largest.
function bestRow(columns, size) {
  const zoomOf = (perRow) => {
    let height = -BETWEEN;
    for (let at = 0; at < columns.length; at += perRow) height += Math.max(...columns.slice(at, at + perRow).map((column) => column.length)) * ROW + BETWEEN;
    return Math.min((size.width - 2 * MARGIN) / (perRow * COLUMN), (size.height - 2 * MARGIN) / height);
  };
  const choices = columns.map((_, index) => index + 1);
  const readable = choices.filter((perRow) => perRow === 1 || (size.width - 2 * MARGIN) / (perRow * COLUMN) >= COUNTS);
  return readable.reduce((best, perRow) => (zoomOf(perRow) > zoomOf(best) + 0.001 ? perRow : best), 1);
}

// The box of the overview that each box and block of the drawing is in.
function boxesOf(model, columns) {
  const found = new Map(columns.flat().flatMap((box) => (box.kind === "bundle" ? box.members : [box.id]).map((id) => [id, box.id])));
  for (const block of model.blocks.values()) found.set(block.id, found.get(block.members[0].id));
  return found;
}

// Dependencies within a row. One that skips a column passes below the boxes of the row.
function edgesOf(model, columns, boxes, boxOf, perRow) {
  const columnOf = new Map(columns.flatMap((column, index) => column.map((box) => [box.id, index])));
  const drawn = new Map();
  const bottoms = new Map();
  for (const [id, column] of columnOf) bottoms.set(Math.floor(column / perRow), Math.max(bottoms.get(Math.floor(column / perRow)) ?? -Infinity, boxes.get(id).y + HEIGHT / 2));
  for (const edge of model.edges) {
    const [source, target] = [boxOf.get(edge.source), boxOf.get(edge.target)];
    const key = `${source}\u0000${target}`;
    const [from, to] = [columnOf.get(source), columnOf.get(target)];
    if (drawn.has(key) || to <= from || Math.floor(from / perRow) !== Math.floor(to / perRow)) continue;
    const [start, end] = [boxes.get(source), boxes.get(target)];
    const [right, left, low] = [start.x + WIDTH / 2, end.x - WIDTH / 2, bottoms.get(Math.floor(from / perRow)) + 10];
    const way = to === from + 1 ? [] : [[right + 14, start.y], [right + 14, low], [left - 18, low], [left - 18, end.y]];
    drawn.set(key, { key, keys: [], source, target, kind: source === edge.source && target === edge.target ? edge.kind : "success", label: "", points: [[right, start.y], ...way, [left, end.y]], square: way.length > 0 });
  }
  return drawn.values();
}

// The ways from a row to a later one, in the room between the rows and left of them: one line, which the boxes of a row
// share.
function turns(model, rows, boxes, boxOf) {
  const rowOf = new Map(rows.flatMap((row, index) => row.flat().map((box) => [box.id, index])));
  const middles = rows.map((row) => Math.max(...row.flat().map((box) => boxes.get(box.id).y)) + ROW / 2 + BETWEEN / 2);
  const margin = -WIDTH / 2 - 18;
  const lines = new Map();
  const line = (id, points, plain) => { const key = `turn ${plain} ${id} ${points.at(0)} ${points.at(-1)}`; lines.set(key, { key, keys: [], source: id, target: id, kind: "success", label: "", points, square: true, plain }); };
  for (const edge of model.edges) {
    const [source, target] = [boxOf.get(edge.source), boxOf.get(edge.target)];
    const [from, to] = [rowOf.get(source), rowOf.get(target)];
    if (!(from < to)) continue;
    const [right, left] = [boxes.get(source).x + WIDTH / 2, boxes.get(target).x - WIDTH / 2];
    const [above, middle] = [middles[from], middles[to - 1]];
    line(source, [[right, boxes.get(source).y], [right + 14, boxes.get(source).y], [right + 14, above], [margin, above], ...(above === middle ? [] : [[margin, middle]])], true);
    line(target, [[margin, middle], [left - 18, middle], [left - 18, boxes.get(target).y], [left, boxes.get(target).y]], false);
  }
  return lines.values();
}
