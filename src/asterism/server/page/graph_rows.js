// Layers of a wide and low graph in several rows, which use the height of the window, so that names can be read. Which
// layers a row has is decided when the whole graph is fitted into the window, and stays. What an edit does not touch
// stays where it is, as long as there is room between the rows for what it adds.
import { COLUMN, HEIGHT, ROW, WIDTH } from "./box_size.js";
import { bounds, fit } from "./graph_model.js";

const READABLE = 0.75; // from this zoom on, layers stay side by side
const LEAST = 0.6; // smaller boxes are no better in rows
const LARGER = 1.25; // so much larger boxes are worth rows
const BETWEEN = 48; // the least room between two rows, for the ways from one to another
const LANES = 7; // ways beside each other
const GAP = COLUMN - WIDTH;

// How many layers a row has, and how far each row is moved down: {perRow, down}. Null where all layers stay in one row.
export function rowsFor(model, size) {
  const look = (boxes) => fit(bounds(boxes.values()), size.width, size.height).zoom;
  const plain = look(model.boxes);
  const least = Math.max(plain * LARGER, LEAST);
  if (plain >= READABLE || model.boxes.size * COLUMN * ROW * least ** 2 > size.width * size.height) return null;
  let best = { zoom: least };
  for (let perRow = columnsOf(model).length - 1; perRow > 1; perRow -= 1) {
    const drawn = inRows(model, { perRow, down: [] });
    const zoom = Math.min(1, look(drawn.boxes));
    if (zoom > best.zoom + 0.001) best = { zoom, perRow, drawn };
  }
  if (!best.drawn) return null;
  // The rest of the height is room for what edits add.
  const { top, bottom } = bounds(best.drawn.boxes.values());
  const spare = Math.min(ROW, (size.height / best.zoom - (bottom - top) - 2 * BETWEEN) / (best.drawn.down.length - 1));
  return { perRow: best.perRow, down: best.drawn.down.map((down, row) => down + row * Math.max(0, spare)) };
}

// The drawing with its layers in rows. A dependency between rows passes between layers and between rows. `at` is where a
// place of the plain drawing is.
export function inRows(model, rows) {
  if (!rows) return { ...model, at: (place) => place };
  const { cuts, rowOf, down, middles } = parted(model, rows);
  const at = ([x, y, ...others]) => [x - cuts[rowOf(x)] + cuts[0], y + down[rowOf(x)], ...others];
  const boxes = new Map([...model.boxes].map(([id, box]) => { const [x, y] = at([box.x, box.y]); return [id, { ...box, x, y }]; }));
  const blocks = new Map([...model.blocks].map(([id, block]) => {
    const [[left, top], [right, bottom]] = [at([block.left, block.top]), at([block.right, block.bottom])];
    return [id, { ...block, left, top, right, bottom, members: block.members.map((box) => boxes.get(box.id)) }];
  }));
  const rowsOf = (edge) => [rowOf(edge.points[0][0]), rowOf(edge.points.at(-1)[0])];
  const crossing = model.edges.filter((edge) => { const [from, to] = rowsOf(edge); return from !== to; });
  // In this order, ways out of boxes do not cross each other, nor do those into boxes.
  const out = lanes(crossing, "source", ([x, y], [otherX, otherY]) => x - otherX || otherY - y);
  const into = lanes(crossing, "target", ([, y], [, otherY]) => y - otherY);
  const layerEnd = (edge) => Math.max(edge.points[0][0], model.layerWidth?.get(boxes.get(edge.source)?.layer)?.[1] ?? 0);
  const edges = model.edges.map((edge) => {
    const [from, to] = rowsOf(edge);
    if (from === to) return { ...edge, points: edge.points.map(at) };
    const levels = [...new Set([middles[from], middles[to - 1]])];
    const [start, [end], last] = [edge.points[0], [layerEnd(edge), 0], edge.points.at(-1)].map(at);
    return { ...edge, square: true, points: way(start, end, last, levels, cuts[0], out.get(edge.source), into.get(edge.target)) };
  });
  return { ...model, boxes, blocks, edges, at, down };
}

// Box -> where its ways run, from 0 to 1, so that those of different boxes are apart.
function lanes(edges, end, order) {
  const place = ({ points }) => points.at(end === "source" ? 0 : -1);
  const ids = [...new Set(edges.toSorted((one, other) => order(place(one), place(other))).map((edge) => edge[end]))];
  const count = Math.min(LANES, ids.length);
  return new Map(ids.map((id, index) => [id, (index % count) / count]));
}

// Down beside the source to the middle between two rows, beside the rows that it passes, and to the target.
function way([x, y], end, [toX, toY], middles, left, out, into) {
  const [right, before, aside] = [end + GAP * (0.15 + out / 3), toX - GAP * (0.2 + into / 3), left - GAP * out / 3];
  const levels = middles.map((middle) => middle + BETWEEN * 0.6 * (out - 0.4));
  const past = levels.length > 1 ? [[aside, levels[0]], [aside, levels[1]]] : [];
  return [[x, y], [right, y], [right, levels[0]], ...past, [before, levels.at(-1)], [before, toY], [toX, toY]];
}

// Where each layer begins. One that has no box any more keeps its place, so that no other moves.
function columnsOf({ boxes, layerWidth }, least = 0) {
  if (layerWidth) return [...layerWidth.values()].map(([left]) => left - GAP / 2);
  return Array.from({ length: Math.max(least, ...[...boxes.values()].map((box) => box.layer + 1)) }, (_, layer) => layer * COLUMN);
}

// Where rows begin in the plain drawing, how far each moves down, at least as far as it did, and the middles between them.
function parted(model, { perRow, down }) {
  const cuts = columnsOf(model, perRow * down.length).filter((_, index) => index % perRow === 0);
  const rowOf = (x) => Math.max(0, cuts.findLastIndex((cut) => cut <= x));
  const spans = cuts.map(() => [Infinity, -Infinity]);
  const take = (x, top, bottom) => {
    const span = spans[rowOf(x)];
    [span[0], span[1]] = [Math.min(span[0], top), Math.max(span[1], bottom)];
  };
  for (const { x, y } of model.boxes.values()) take(x, y - HEIGHT / 2, y + HEIGHT / 2);
  for (const { left, top, bottom } of model.blocks.values()) take(left, top, bottom);
  for (const { points } of model.edges) if (rowOf(points[0][0]) === rowOf(points.at(-1)[0])) for (const [x, y] of points) take(x, y, y);
  const [moved, middles] = [[], []];
  let end = -Infinity;
  spans.forEach(([top, bottom], row) => {
    const least = row && top < bottom ? end + BETWEEN - top : -Infinity;
    moved.push(Math.max(least, down[row] ?? 0));
    if (row) middles.push(top < bottom ? (end + top + moved[row]) / 2 : end + BETWEEN / 2);
    if (top < bottom) end = bottom + moved[row];
  });
  return { cuts, rowOf, down: moved, middles };
}
