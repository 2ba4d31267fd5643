// Where boxes stand once parts of the graph are collapsed or wrapped, as plain data: twins, which have the same
// dependencies and the same dependents, form a block of several columns, and no empty column or row stays.
import { COLUMN, HEIGHT, ROW, WIDTH } from "./box_size.js";

const BEND = 0.4 * ROW;
const [BLOCK_COLUMN, BLOCK_ROW] = [WIDTH + 14, HEIGHT + 10];
export const PADDING = 12; // between the frame of a block and its boxes
const MOST_BESIDE = 10; // twins that stand below each other
const GAP = 24; // between parts of the graph

// The blocks of twins: {id, layer, members, rows, columns}.
function blocksOf(boxes, edges) {
  const [above, below] = [new Map(), new Map()];
  const note = (map, id, text) => (map.has(id) ? map.get(id).push(text) : map.set(id, [text]));
  for (const edge of edges) {
    const kind = `${edge.kind} ${edge.label} ${edge.cut ?? ""}`;
    note(above, edge.target, `${edge.source} ${kind}`);
    note(below, edge.source, `${edge.target} ${kind}`);
  }
  const alike = new Map();
  for (const box of boxes.values()) {
    const texts = [above.get(box.id), below.get(box.id)].map((found) => (found ?? []).sort().join("\u0000"));
    if (box.kind === "task" && texts.some(Boolean)) note(alike, [box.layer, ...texts].join("\u0001"), box);
  }
  return [...alike.values()].filter((members) => members.length > MOST_BESIDE).map((members) => {
    members.sort((one, other) => one.y - other.y);
    const rows = Math.ceil(Math.sqrt((members.length * BLOCK_COLUMN) / BLOCK_ROW));
    return { id: `block ${members[0].id}`, layer: members[0].layer, members, rows, columns: Math.ceil(members.length / rows) };
  });
}

// Of the dependencies from or to each twin, one stays: that of the block.
function joined(edges, blockOf) {
  const seen = new Map();
  for (const edge of edges) {
    const [source, target] = [edge.source, edge.target].map((id) => blockOf.get(id)?.id ?? id);
    const key = source === edge.source && target === edge.target ? edge.key : `${source}\u0000${target}\u0000${edge.kind}\u0000${edge.label}\u0000${edge.cut ?? ""}`;
    if (seen.has(key)) seen.get(key).keys.push(edge.key);
    else seen.set(key, { ...edge, key, keys: [edge.key], source, target });
  }
  return [...seen.values()];
}

// Boxes, edges whose bends are [x, y] in each layer that they pass, and blocks. Boxes move in place. Where nothing is
// collapsed and there are no twins, everything stands where the server has put it.
export function arranged(boxes, edges, collapsed) {
  const blocks = blocksOf(boxes, edges);
  if (!blocks.length && !collapsed) return { edges: edges.map((edge) => ({ ...edge, keys: [edge.key] })), blocks: new Map() };
  const blockOf = new Map(blocks.flatMap((block) => block.members.map((box) => [box.id, block])));
  const kept = joined(edges, blockOf).map((edge) => ({ ...edge, bends: edge.bends.map((bend) => [...bend]) }));
  for (const layer of new Set(blocks.map((block) => block.layer))) stack(layer, boxes, kept, blocks, blockOf);
  closeRows(boxes, kept, blocks);
  const layerWidth = closeColumns(boxes, kept, blocks);
  for (const block of blocks) frame(block);
  return { edges: kept, blocks: new Map(blocks.map((block) => [block.id, block])), layerWidth };
}

// Within a layer, each block stands where its first member stood, and nothing stands beside it: what was between its
// members follows below, in the same order.
function stack(layer, boxes, edges, blocks, blockOf) {
  const items = [...boxes.values()].filter((box) => box.layer === layer && !blockOf.has(box.id)).map((box) => ({ top: box.y - ROW / 2, height: ROW, put: (top) => { box.y = top + ROW / 2; } }));
  for (const block of blocks.filter((one) => one.layer === layer)) {
    const room = ROW / 2 + PADDING;
    items.push({ top: block.members[0].y - room, height: (block.rows - 1) * BLOCK_ROW + 2 * room, put: (top) => block.members.forEach((box, index) => {
      box.y = top + room + (index % block.rows) * BLOCK_ROW;
      box.cell = Math.floor(index / block.rows);
    }) });
  }
  for (const edge of edges) {
    const bend = edge.bends[layer - edge.first];
    if (bend) items.push({ top: bend[1] - BEND / 2, height: BEND, put: (top) => { bend[1] = top + BEND / 2; } });
  }
  let free = -Infinity;
  for (const item of items.sort((one, other) => one.top - other.top)) {
    const top = Math.max(free, item.top);
    item.put(top);
    free = top + item.height;
  }
}

// Rows that nothing stands in go.
function closeRows(boxes, edges, blocks) {
  const taken = [...boxes.values()].map((box) => [box.y - ROW / 2, box.y + ROW / 2]);
  for (const block of blocks) taken.push([block.members[0].y - ROW / 2 - PADDING, block.members[0].y + (block.rows - 1) * BLOCK_ROW + ROW / 2 + PADDING]);
  for (const edge of edges) for (const [, y] of edge.bends) taken.push([y - BEND / 2, y + BEND / 2]);
  taken.sort((one, other) => one[0] - other[0]);
  const cuts = []; // [from where, how much less]
  let end = taken[0]?.[0] ?? 0;
  let less = 0;
  for (const [top, bottom] of taken) {
    if (top - end > GAP) { less += top - end - GAP; cuts.push([top, less]); }
    end = Math.max(end, bottom);
  }
  const moved = (y, room) => y - (cuts.findLast(([from]) => from <= y - room + 0.01)?.[1] ?? 0);
  for (const box of boxes.values()) box.y = moved(box.y, ROW / 2);
  for (const edge of edges) for (const bend of edge.bends) bend[1] = moved(bend[1], BEND / 2);
}

// Layers without boxes go; one with a block is as wide as the block. Returns layer -> [left, right] of its boxes.
function closeColumns(boxes, edges, blocks) {
  const wide = new Map();
  for (const box of boxes.values()) wide.set(box.layer, 1);
  for (const block of blocks) wide.set(block.layer, Math.max(wide.get(block.layer), block.columns));
  const spans = new Map();
  let left = (COLUMN - WIDTH) / 2;
  for (const layer of [...wide.keys()].sort((one, other) => one - other)) {
    const right = left + WIDTH + (wide.get(layer) - 1) * BLOCK_COLUMN;
    spans.set(layer, [left, right]);
    left = right + COLUMN - WIDTH;
  }
  for (const box of boxes.values()) box.x = spans.get(box.layer)[0] + WIDTH / 2 + (box.cell ?? 0) * BLOCK_COLUMN;
  for (const edge of edges) edge.bends = edge.bends.map(([, y], index) => [spans.get(edge.first + index), y]).filter(([span]) => span).map(([[from, to], y]) => [from, y, to]);
  return spans;
}

function frame(block) {
  const [xs, ys] = [block.members.map((box) => box.x), block.members.map((box) => box.y)];
  const [left, right, top, bottom] = [Math.min(...xs) - WIDTH / 2, Math.max(...xs) + WIDTH / 2, Math.min(...ys) - HEIGHT / 2, Math.max(...ys) + HEIGHT / 2];
  Object.assign(block, { left: left - PADDING, right: right + PADDING, top: top - PADDING, bottom: bottom + PADDING });
}
