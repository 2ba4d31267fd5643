// The layout of a graph: the place of each task, and the bends of each dependency that passes layers.
//
// A small layered layout after Sugiyama: layers by longest path; dependencies that skip layers get a bend in each layer
// that they pass; layers are ordered so that few edges cross (`untangle`: sweep down and up, sort each layer by the mean
// position of its neighbours, keep the best order); then every task moves as near to its neighbours as the order allows
// (`spread`: least squares under order constraints, solved exactly in linear time by pooling neighbours into blocks).
// Components are laid out one by one and stacked. Tasks without dependencies come last, as a grid.
//
// The layout of a plan that changes keeps what has not changed where it is (`updated`). Places are [layer, row]; all
// walks are loops, so that a chain of many thousand tasks is as safe as a short one.
import { COLUMN, ROW } from "./box_size.js";

const MOST_BENDS = 10_000; // past this many, the longest edges run straight
const ALIGNMENTS = 8;
const SWEEPS = 8;
const TASK_ROOM = 0.5; // rows on each side of a task
const BEND_ROOM = 0.2; // and of a bend
const COMPONENT_GAP = 0.35;
const LOOSEST = 2; // a layout with so many times as many layers as the graph needs,
const SPARE_LAYERS = 4; // and so many more, is made anew
const TOUCH = 1e-9;
const keyOf = ({ source, target }) => `${source}\u0000${target}`;

// The layout of a view in pixels, near the layout `before`: `nodes` has the centre and the layer of each task, `edges`
// the dependencies that bend.
export function layoutOf(view, before = null) {
  const graph = new TaskGraph(view.tasks.map((task) => task.id), view.dependencies);
  const { places, bends } = before ? updated(before, graph) : fresh(graph);
  const pixels = ([layer, row]) => [layer * COLUMN + COLUMN / 2, Math.round(row * ROW * 10) / 10];
  return {
    places, bends,
    nodes: Object.fromEntries([...places].map(([id, place]) => [id, [...pixels(place), place[0]]])),
    edges: view.dependencies.filter((edge) => bends.has(keyOf(edge))).map((edge) => ({ source: edge.source, target: edge.target, points: bends.get(keyOf(edge)).map(pixels) })),
  };
}

// Tasks by number, with their neighbours, in topological order. Dependencies on tasks that are not there do not count.
class TaskGraph {
  constructor(ids, dependencies) {
    this.ids = ids;
    this.number = new Map(ids.map((id, number) => [id, number]));
    this.edges = dependencies.filter((edge) => this.number.has(edge.source) && this.number.has(edge.target));
    this.ends = this.edges.map((edge) => [this.number.get(edge.source), this.number.get(edge.target)]);
    const [above, below] = [ids.map(() => new Set()), ids.map(() => new Set())];
    for (const [source, target] of this.ends) { above[target].add(source); below[source].add(target); }
    [this.above, this.below] = [above, below].map((sides) => sides.map((side) => [...side]));
    const open = this.above.map((sources) => sources.length);
    this.order = [...ids.keys()].filter((task) => open[task] === 0);
    for (let at = 0; at < this.order.length; at += 1) for (const child of this.below[this.order[at]]) if ((open[child] -= 1) === 0) this.order.push(child);
    if (this.order.length < ids.length) throw new Error("The dependencies form a cycle.");
    this.layers = ids.map(() => 0);
    for (const task of this.order) this.layers[task] = this.#below(task, this.layers);
    const singles = this.order.filter((task) => this.isSingle(task)).length;
    this.depth = Math.max(maximum(this.layers, -1) + 1, Math.ceil(Math.sqrt(singles))); // layers of connected tasks, or columns of a grid of others
  }

  #below(task, layers) {
    return this.above[task].reduce((most, source) => Math.max(most, layers[source] + 1), 0);
  }

  isSingle(task) {
    return !this.above[task].length && !this.below[task].length;
  }

  // The layer of each task: its old one, unless a dependency pushes it further. A new task without dependencies stands
  // just before the first task that depends on it.
  layersNear(places) {
    const layers = this.ids.map(() => 0);
    for (const task of this.order) {
      const pushed = this.#below(task, layers);
      const old = places.get(this.ids[task]);
      if (old) layers[task] = Math.max(old[0], pushed);
      else if (pushed) layers[task] = pushed;
      else {
        const known = this.below[task].map((child) => places.get(this.ids[child])?.[0]).filter((layer) => layer !== undefined);
        layers[task] = Math.max(0, (known.length ? Math.min(...known) : 0) - 1);
      }
    }
    return layers;
  }

  components() {
    const seen = new Set();
    const found = [];
    for (const start of this.ids.keys()) {
      if (seen.has(start)) continue;
      seen.add(start);
      const component = [start];
      for (let at = 0; at < component.length; at += 1) {
        for (const other of [...this.above[component[at]], ...this.below[component[at]]]) if (!seen.has(other)) { seen.add(other); component.push(other); }
      }
      found.push(component.sort((one, other) => one - other));
    }
    return found;
  }
}

const maximum = (numbers, least) => numbers.reduce((most, number) => Math.max(most, number), least);

// -- a layout from nothing --------------------------------------------------------------------------------------------

function fresh(graph) {
  const chains = bendChains(graph);
  const leaving = graph.ids.map(() => []);
  graph.ends.forEach(([source], edge) => leaving[source].push(edge));
  const rows = new Map();
  const components = graph.components();
  let height = 0;
  for (const component of components.filter((one) => one.length > 1)) {
    if (height) height += COMPONENT_GAP;
    const placed = aligned(netOf(graph, component, chains, leaving));
    let last = 0;
    for (const [node, row] of placed) { rows.set(node, row + height); last = Math.max(last, row); }
    height += last + TASK_ROOM;
  }
  const places = new Map();
  const singles = components.filter((one) => one.length === 1).map(([task]) => task);
  const columns = Math.max(maximum(graph.layers, -1) + 1, Math.ceil(Math.sqrt(singles.length)));
  const top = height ? height + COMPONENT_GAP : 0;
  const cell = new Map(singles.map((task, turn) => [task, [turn % columns, top + Math.floor(turn / columns) + TASK_ROOM]]));
  graph.ids.forEach((id, task) => places.set(id, cell.get(task) ?? [graph.layers[task], rows.get(task)]));
  const bends = new Map();
  for (const [edge, [first, count]] of chains) {
    const layer = graph.layers[graph.ends[edge][0]] + 1;
    bends.set(keyOf(graph.edges[edge]), Array.from({ length: count }, (_, step) => [layer + step, rows.get(first + step)]));
  }
  return { places, bends };
}

// Edge -> [first node, number of nodes] that stand for its bends; the longest edges may go without.
function bendChains({ ends, layers, ids }) {
  const spans = ends.map(([source, target]) => layers[target] - layers[source] - 1);
  const chains = new Map();
  let [next, left] = [ids.length, MOST_BENDS];
  for (const edge of [...spans.keys()].sort((one, other) => spans[one] - spans[other])) {
    if (spans[edge] <= 0 || spans[edge] > left) continue;
    chains.set(edge, [next, spans[edge]]);
    next += spans[edge];
    left -= spans[edge];
  }
  return chains;
}

// One component with its bends as nodes: every link joins neighbouring layers.
function netOf({ ends, layers: layerOf, ids }, component, chains, leaving) {
  const net = { layers: [], above: new Map(), below: new Map(), isBend: (node) => node >= ids.length };
  const stand = (layer, node) => { (net.layers[layer] ??= []).push(node); net.above.set(node, net.above.get(node) ?? []); net.below.set(node, net.below.get(node) ?? []); };
  const links = (side, node) => side.get(node) ?? side.set(node, []).get(node);
  for (const task of component.toSorted((one, other) => layerOf[one] - layerOf[other])) {
    stand(layerOf[task], task);
    for (const edge of leaving[task]) {
      const target = ends[edge][1];
      const [first, count] = chains.get(edge) ?? [0, 0];
      const chain = Array.from({ length: count }, (_, step) => first + step);
      chain.forEach((bend, step) => stand(layerOf[task] + 1 + step, bend));
      if (!count && layerOf[target] !== layerOf[task] + 1) continue;
      let upper = task;
      for (const lower of [...chain, target]) {
        links(net.below, upper).push(lower);
        links(net.above, lower).push(upper);
        upper = lower;
      }
    }
  }
  return net;
}

// A row for every node: in untangled order, each drawn towards its neighbours, none too close.
function aligned(net) {
  const layers = untangle(net.layers, net.above, net.below);
  const rows = new Map();
  const settle = (layer, found) => layer.forEach((node, place) => rows.set(node, found[place]));
  const gaps = layers.map((layer) => layer.map((node, place) => (place ? room(net, node) + room(net, layer[place - 1]) : 0)));
  layers.forEach((layer, place) => settle(layer, spread(layer.map(() => 0), layer.map(() => 1), gaps[place])));
  for (let turn = 0; turn < ALIGNMENTS; turn += 1) {
    const down = turn % 2 === 0;
    const towards = down ? net.above : net.below;
    for (const place of down ? layers.keys() : [...layers.keys()].reverse()) {
      const [targets, weights] = [[], []];
      for (const node of layers[place]) {
        let [total, sum] = [0, 0];
        for (const other of towards.get(node)) {
          const pull = [1, 2, 8][net.isBend(node) + net.isBend(other)]; // long edges look best straight
          total += pull;
          sum += pull * rows.get(other);
        }
        targets.push(total ? sum / total : rows.get(node));
        weights.push(total || 1);
      }
      settle(layers[place], spread(targets, weights, gaps[place]));
    }
  }
  let top = Infinity;
  for (const row of rows.values()) top = Math.min(top, row);
  return [...rows].map(([node, row]) => [node, row - top + TASK_ROOM]);
}

const room = (net, node) => (net.isBend(node) ? BEND_ROOM : TASK_ROOM);

// The order of each layer with few crossings.
function untangle(layers, above, below) {
  let [best, fewest, current] = [layers, crossings(layers, below), layers];
  for (let sweep = 0; sweep < SWEEPS && fewest; sweep += 1) {
    current = sweep % 2 === 0 ? swept(current, above) : swept(current.toReversed(), below).reverse();
    const count = crossings(current, below);
    if (count < fewest) [best, fewest] = [current, count];
  }
  return best;
}

function swept(layers, towards) {
  const position = new Map();
  return layers.map((layer) => {
    // A node without neighbours there stays about where it is, instead of jumping to one end.
    const centre = new Map(layer.map((node, place) => {
      const others = towards.get(node);
      return [node, others.length ? others.reduce((sum, other) => sum + position.get(other), 0) / others.length : place];
    }));
    const ordered = layer.toSorted((one, other) => centre.get(one) - centre.get(other));
    ordered.forEach((node, place) => position.set(node, place));
    return ordered;
  });
}

// How many pairs of edges between neighbouring layers cross.
export function crossings(layers, below) {
  const position = new Map(layers.flatMap((layer) => layer.map((node, place) => [node, place])));
  let count = 0;
  layers.slice(0, -1).forEach((layer, depth) => {
    const counts = new Array(layers[depth + 1].length + 1).fill(0); // a Fenwick tree of the ends so far
    let passed = 0;
    for (const node of layer) {
      const ends = below.get(node).map((other) => position.get(other));
      for (const end of ends) {
        count += passed;
        for (let at = end + 1; at > 0; at -= at & -at) count -= counts[at];
      }
      for (const end of ends) for (let at = end + 1; at < counts.length; at += at & -at) counts[at] += 1;
      passed += ends.length;
    }
  });
  return count;
}

// Positions nearest to the targets such that each is at least `gaps[i]` after the one before it; a heavier weight gives
// way less. `gaps[0]` is not used.
export function spread(targets, weights, gaps) {
  let offset = 0;
  const offsets = gaps.map((gap, place) => (offset += place ? gap : 0));
  const blocks = []; // [weighted mean, weight, members]
  targets.forEach((target, place) => {
    let [mean, total, members] = [target - offsets[place], weights[place], 1];
    while (blocks.length && blocks.at(-1)[0] > mean) {
      const [otherMean, otherTotal, otherMembers] = blocks.pop();
      mean = (mean * total + otherMean * otherTotal) / (total + otherTotal);
      total += otherTotal;
      members += otherMembers;
    }
    blocks.push([mean, total, members]);
  });
  const found = [];
  for (const [mean, , members] of blocks) for (let turn = 0; turn < members; turn += 1) found.push(mean + offsets[found.length]);
  return found;
}

// -- a layout near another one ----------------------------------------------------------------------------------------

// Takes over what stays, then finds free rows for the rest.
function updated(before, graph) {
  const layers = graph.layersNear(before.places);
  if (!before.places.size || maximum(layers, -1) >= LOOSEST * graph.depth + SPARE_LAYERS) return fresh(graph);
  const [columns, placed, bends] = [new Map(), new Map(), new Map()];
  const column = (layer) => columns.get(layer) ?? columns.set(layer, new Column()).get(layer);
  const old = (task) => before.places.get(graph.ids[task]);
  const put = (task, place) => { column(place[0]).take(place[1], TASK_ROOM); placed.set(task, place); };
  const putNear = (task, row) => put(task, [layers[task], column(layers[task]).nearest(row, TASK_ROOM)]);
  // Tasks that keep their layer, and bends between two of those.
  for (const task of graph.ids.keys()) if (old(task)?.[0] === layers[task]) put(task, old(task));
  graph.edges.forEach((edge, number) => {
    const chain = before.bends.get(keyOf(edge));
    if (!chain || !graph.ends[number].every((end) => placed.has(end))) return;
    for (const [layer, row] of chain) column(layer).take(row, BEND_ROOM);
    bends.set(keyOf(edge), chain);
  });
  // Tasks that a dependency has pushed to a later layer.
  for (const task of graph.order) if (old(task) && !placed.has(task)) putNear(task, old(task)[1]);
  const top = Math.min(...[...before.places.values()].map(([, row]) => row - TASK_ROOM));
  // New tasks, each after its dependencies; those without neighbours fill a grid below the rest.
  const singles = [];
  for (const task of graph.order) {
    if (placed.has(task)) continue;
    if (graph.isSingle(task)) { singles.push(task); continue; }
    const near = [...graph.above[task], ...graph.below[task]].filter((other) => placed.has(other)).map((other) => placed.get(other)[1]);
    putNear(task, near.length ? near.reduce((sum, row) => sum + row, 0) / near.length : top + TASK_ROOM);
  }
  if (singles.length) {
    const connected = [...placed].filter(([task]) => !graph.isSingle(task)).map(([, [, row]]) => row);
    const first = connected.length ? maximum(connected, -Infinity) + TASK_ROOM + COMPONENT_GAP : Math.min(0, top);
    let turn = 0;
    for (const task of singles) {
      for (; ; turn += 1) {
        const place = [turn % graph.depth, first + Math.floor(turn / graph.depth) + TASK_ROOM];
        if (column(place[0]).isFree(place[1], TASK_ROOM)) { put(task, place); break; }
      }
    }
  }
  // Bends of dependencies that are new, or whose ends have moved.
  let left = MOST_BENDS - [...bends.values()].reduce((sum, chain) => sum + chain.length, 0);
  graph.edges.forEach((edge, number) => {
    const [[from, first], [to, last]] = graph.ends[number].map((end) => placed.get(end));
    const count = to - from - 1;
    if (bends.has(keyOf(edge)) || count <= 0 || count > left) return;
    const chain = before.bends.get(keyOf(edge));
    const wanted = chain?.length === count ? chain.map(([, row]) => row) : Array.from({ length: count }, (_, step) => first + ((last - first) * (step + 1)) / (count + 1));
    bends.set(keyOf(edge), wanted.map((row, step) => {
      const layer = from + 1 + step;
      const free = column(layer).nearest(row, BEND_ROOM);
      column(layer).take(free, BEND_ROOM);
      return [layer, free];
    }));
    left -= count;
  });
  return { places: new Map(graph.ids.map((id, task) => [id, placed.get(task)])), bends };
}

// The first place in sorted numbers behind all that are not greater.
function after(numbers, value) {
  let [low, high] = [0, numbers.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (numbers[middle] <= value) low = middle + 1;
    else high = middle;
  }
  return low;
}

// The rows of one layer that are taken, as sorted intervals that do not touch.
class Column {
  starts = [];
  ends = [];

  isFree(row, space) {
    const place = after(this.ends, row - space + TOUCH);
    return place === this.starts.length || this.starts[place] >= row + space - TOUCH;
  }

  // The free row nearest to the wanted one; the later of two that are equally near.
  nearest(wanted, space) {
    if (this.isFree(wanted, space)) return wanted;
    let last = after(this.ends, wanted - space + TOUCH);
    let first = last;
    while (last + 1 < this.starts.length && this.starts[last + 1] - this.ends[last] < 2 * space - TOUCH) last += 1;
    while (first > 0 && this.starts[first] - this.ends[first - 1] < 2 * space - TOUCH) first -= 1;
    const [later, earlier] = [this.ends[last] + space, this.starts[first] - space];
    return wanted - earlier < later - wanted - TOUCH ? earlier : later;
  }

  take(row, space) {
    let [start, end] = [row - space, row + space];
    const [first, last] = [after(this.ends, start - TOUCH), after(this.starts, end + TOUCH)];
    if (first < last) [start, end] = [Math.min(start, this.starts[first]), Math.max(end, this.ends[last - 1])];
    this.starts.splice(first, Math.max(0, last - first), start);
    this.ends.splice(first, Math.max(0, last - first), end);
  }
}
