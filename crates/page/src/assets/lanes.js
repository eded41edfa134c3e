// The layout of the timeline: rows, lanes, blocks and edges. Pure: no document.
//
// One row is one object version. A reconcile is one block over the rows of its writes; without a
// write it is one row. Idle time and records outside of a selected chain are folded.

import { isClient } from './model.js';
import { edgesOf } from './chain.js';
import { title } from './names.js';

export const ROW = 40;
export const CHIP = 30;
export const FOLD = 24;
/** Idle time that is folded. */
const IDLE_US = 250000;
/** Rows that are laid out: the newest. */
const ROWS_MAX = 600;
const TRACK = 11;
const TRACKS_MAX = 8;
/** Rows outside of a chain that are shown dimmed, between rows of it. */
const OUTSIDE_SHOWN = 1;

const LAST_LANES = ['scheduler', 'kubelets'];
const FIRST_LANES = ['deployment', 'replicaset', 'endpointslice'];

function rank(name) {
  const lane = title(name);
  const first = FIRST_LANES.indexOf(lane);
  if (first >= 0) return first;
  const last = LAST_LANES.indexOf(lane);
  return last >= 0 ? 1000 + last : 10;
}

/** Controllers in the order of their lanes. @param {Iterable<string>} names */
export const laneOrder = (names) => [...names].sort((a, b) => rank(a) - rank(b) || title(a).localeCompare(title(b)));

/**
 * @param {any} model
 * @param {{seq: number, ns: string, hidden: Set<string>, lanes: Set<string> | null, chain: any, width: number, fold: boolean, find: string}} options
 */
export function layout(model, options) {
  const { seq, chain } = options;
  const matches = (node) => !options.find || node.name.includes(options.find);
  const isShown = (write) => write.seq <= seq && !options.hidden.has(write.kind.split('.', 1)[0])
    && (!options.ns || write.ns === options.ns || (chain && chain.members.has(write)))
    && (matches(write) || (chain && chain.members.has(write)));
  const writes = [];
  let hidden = 0;
  for (let i = model.writeList.length - 1; i >= 0 && writes.length < ROWS_MAX; i -= 1) {
    const write = model.writeList[i];
    if (isShown(write)) writes.push(write);
    else hidden += 1;
  }
  writes.reverse();
  const oldest = writes.length ? writes[0].seq : 0;
  const shownWrites = new Set(writes);
  const blocks = [];
  const active = new Map();
  for (let i = model.reconciles.length - 1; i >= 0; i -= 1) {
    const reconcile = model.reconciles[i];
    if (reconcile.seq > seq) continue;
    if (reconcile.seq < oldest) break;
    const written = reconcile.writes.filter((write) => shownWrites.has(write));
    const inChain = chain && chain.members.has(reconcile);
    const linked = reconcile.links.some((link) => shownWrites.has(link.write));
    const inNs = !options.ns || reconcile.ns === options.ns;
    if (!inChain && !written.length && (!linked || !inNs || !matches(reconcile))) continue;
    // Without a namespace filter, reconciles of hidden kinds have nothing to show.
    if (!written.length && reconcile.writes.length && !linked) continue;
    blocks.push({ node: reconcile, writes: written });
    const weight = (inChain ? 10 : 1) * (1 + written.length * 100);
    active.set(reconcile.controller, (active.get(reconcile.controller) || 0) + weight);
  }
  blocks.reverse();
  const lanes = chooseLanes(active, options);
  const shownLanes = new Set(lanes.map((lane) => lane.name));
  const visible = blocks.filter((block) => shownLanes.has(block.node.controller));
  const rows = placeRows(writes, visible, options);
  const columns = place(lanes, options.width);
  const placed = placeBlocks(visible, rows, columns);
  const edges = route(rows, placed, columns, shownWrites);
  return { rows: rows.list, folds: rows.folds, blocks: placed, lanes, columns, edges, height: rows.height, hidden, writes, total: active.size };
}

function chooseLanes(active, options) {
  const chosen = options.lanes
    ? [...options.lanes]
    : [...active.entries()].sort((a, b) => b[1] - a[1]).slice(0, lanesThatFit(options.width)).map(([name]) => name);
  return laneOrder(chosen).map((name) => ({ name, title: title(name) }));
}

const lanesThatFit = (width) => Math.max(3, Math.min(12, Math.floor((width - 72 - 104 - 240) / 116)));

/** The x and width of each lane. @param {any[]} lanes @param {number} width */
function place(lanes, width) {
  const minima = [72, 104, 240, ...lanes.map((lane) => (lane.title === 'kubelets' ? 120 : lane.title === 'scheduler' ? 112 : 116))];
  const spare = Math.max(0, width - minima.reduce((sum, minimum) => sum + minimum, 0));
  const others = minima.length - 3;
  let x = 0;
  const columns = minima.map((minimum, i) => {
    let wide = minimum;
    if (i === 2) wide += others ? spare * 0.3 : spare;
    else if (i > 2) wide += (spare * 0.7) / others;
    const column = { x, width: wide };
    x += wide;
    return column;
  });
  return { time: columns[0], clients: columns[1], api: columns[2], lanes: new Map(lanes.map((lane, i) => [lane.name, columns[i + 3]])), width: x };
}

function placeRows(writes, blocks, options) {
  const { chain } = options;
  const items = [
    ...writes.map((write) => ({ seq: write.seq, time: write.time, write, block: null })),
    ...blocks.filter((block) => !block.writes.length).map((block) => ({ seq: block.node.seq, time: block.node.time, write: null, block })),
  ].sort((a, b) => a.seq - b.seq);
  const list = [];
  const folds = [];
  const of = new Map();
  let y = 6;
  /** @type {any} */ let previous = null;
  let second = '';
  let skipped = [];
  const isInside = (item) => !chain || chain.members.has(item.write || item.block.node);
  const addFold = (fold) => {
    folds.push({ y, ...fold });
    y += FOLD;
  };
  const addRow = (item) => {
    if (previous && options.fold && item.time - previous.time > IDLE_US) {
      addFold({ id: `f${item.seq}`, idle: item.time - previous.time });
      y += 6;
    }
    const now = String(Math.floor(item.time / 1e6));
    const row = { id: item.write ? item.write.id : item.block.node.id, y, time: item.time, seq: item.seq, write: item.write, cells: new Set(), newSecond: now !== second, isDim: !isInside(item) };
    second = now;
    list.push(row);
    y += ROW;
    previous = row;
    return row;
  };
  const flush = (isEnd) => {
    if (!skipped.length) return;
    if (!isEnd && skipped.length <= OUTSIDE_SHOWN) {
      for (const item of skipped) of.set(item.write || item.block, addRow(item));
    } else {
      const first = skipped[0];
      const last = skipped[skipped.length - 1];
      addFold({ id: `o${first.seq}`, outside: skipped.length, idle: last.time - first.time });
      previous = { time: last.time };
    }
    skipped = [];
  };
  for (const item of items) {
    if (!isInside(item)) {
      skipped.push(item);
      continue;
    }
    flush(false);
    if (!item.write) {
      const { node } = item.block;
      const row = list[list.length - 1];
      const isFree = row && previous === row && !row.cells.has(node.controller) && item.time - row.time < IDLE_US
        && row.write && !node.links.some((link) => link.write === row.write);
      const placed = isFree ? row : addRow(item);
      placed.cells.add(node.controller);
      of.set(item.block, placed);
    } else {
      const row = addRow(item);
      of.set(item.write, row);
      if (item.write.writer) row.cells.add(item.write.writer.controller);
    }
  }
  flush(true);
  return { list, folds, of, height: y + 12 };
}

function placeBlocks(blocks, rows, columns) {
  const placed = [];
  const open = new Map();
  for (const block of blocks) {
    const own = block.writes.map((write) => rows.of.get(write)).filter(Boolean);
    if (!own.length) {
      const row = rows.of.get(block);
      if (row) own.push(row);
    }
    if (!own.length) continue;
    const top = Math.min(...own.map((row) => row.y));
    const bottom = Math.max(...own.map((row) => row.y)) + CHIP;
    const column = columns.lanes.get(block.node.controller);
    const taken = (open.get(block.node.controller) || []).filter((other) => other.bottom > top);
    let sub = 0;
    while (taken.some((other) => other.sub === sub)) sub += 1;
    const offset = Math.min(sub, 3) * 12;
    const at = {
      id: block.node.id, node: block.node, writes: block.writes, rows: own, x: column.x + 7 + offset, y: top,
      width: Math.min(column.width - 16 - offset, 150), height: bottom - top, bottom, sub, isDim: own.every((row) => row.isDim),
    };
    open.set(block.node.controller, [...taken, at]);
    placed.push(at);
  }
  return placed;
}

/** The lines between chips and blocks. @param {any[]} blocks @param {Set<any>} shown */
function route(rows, blocks, columns, shown) {
  const blockOf = new Map(blocks.map((block) => [block.node, block]));
  const edges = [];
  const right = columns.api.x + columns.api.width - 12;
  const left = columns.api.x + 8;
  const tracks = new Map();
  const drops = new Map();
  for (const edge of edgesOf(shown, blocks.map((block) => block.node))) {
    const { type, from, to } = edge;
    if (type === 'command') {
      const row = rows.of.get(to);
      if (row) edges.push({ ...edge, d: `M${columns.clients.x + columns.clients.width - 16} ${row.y + 15}H${left - 6}`, tip: `M${left} ${row.y + 15}l-7 -3.5v7z`, top: row.y, bottom: row.y + CHIP });
    } else if (type === 'write') {
      const row = rows.of.get(to);
      const block = blockOf.get(from);
      if (row && block) edges.push({ ...edge, d: `M${block.x} ${row.y + 15}H${right + 7}`, tip: `M${right + 1} ${row.y + 15}l7 -3.5v7z`, top: row.y, bottom: row.y + CHIP });
    } else {
      const block = blockOf.get(to);
      if (!block) continue;
      const source = type === 'event' ? rows.of.get(from) : blockOf.get(from);
      if (!source) continue;
      const start = type === 'event' ? source.y + CHIP : source.bottom;
      const number = drops.get(block) || 0;
      drops.set(block, number + 1);
      // For each track of the lane: the block that its last drop leads to, and where that ends.
      const lane = tracks.get(to.controller) || [];
      let track = type === 'timer' ? TRACKS_MAX - 1 : 0;
      const isTaken = (t) => lane[t] && (lane[t].to === block || lane[t].bottom > start);
      // More than four drops into one block share a track.
      if (type === 'event' && number < 4) while (track < TRACKS_MAX - 1 && isTaken(track)) track += 1;
      else if (type === 'event') track = 3;
      lane[track] = { to: block, bottom: block.y };
      tracks.set(to.controller, lane);
      const x = Math.min(block.x + 16 + track * TRACK, block.x + block.width - 6);
      const y = start + 3;
      if (start > block.y) {
        // The record of the write came after the start of the reconcile.
        const middle = source.y + CHIP / 2;
        const isBeside = middle < block.bottom;
        edges.push(isBeside
          ? { ...edge, d: `M${right} ${middle}H${block.x - 6}`, tip: `M${block.x} ${middle}l-7 -3.5v7z`, top: block.y, bottom: source.y + CHIP, x }
          : { ...edge, d: `M${right - 14} ${start}v3H${x - 3}q3 0 3 -3V${block.bottom + 5}`, tip: `M${x} ${block.bottom}l-3.5 6h7z`, top: block.y, bottom: start + 3, x });
        continue;
      }
      const d = type === 'event' ? `M${right - 14} ${start}v3H${x - 3}q3 0 3 3V${Math.max(y, block.y - 5)}` : `M${x} ${start}V${block.y - 5}`;
      edges.push({ ...edge, d, tip: `M${x} ${block.y}l-3.5 -6h7z`, top: start, bottom: block.y, x, count: number > 3 ? number + 1 : 0, delay: type === 'timer' ? to.time - from.endTime : 0 });
    }
  }
  return edges;
}

/** The text of a client's command. */
export function command(write) {
  if (!isClient(write)) return null;
  const verb = write.sub ? `${write.verb} ${write.sub}` : write.verb;
  return { who: write.manager || write.user || 'client', what: verb };
}
