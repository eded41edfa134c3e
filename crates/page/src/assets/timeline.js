// View: lanes of clients, API server and controllers, time downwards.

import { h, icon } from './dom.js';
import { clock, count, duration, full, long, middle, millis, plural, precise, short } from './format.js';
import { CHIP, command, layout, ROW } from './lanes.js';
import { isClient } from './model.js';
import { changeText, commandSentence, reconcileLabel, signWord, title, tone, verb, writerName } from './names.js';
import { activated, commandLine, controllerName, controllerShape, empty, heads, objectName, op, writerShape } from './parts.js';

const state = { layout: /** @type {any} */ (null), key: '', scroll: 0, follows: true, input: -Infinity };

/** The size of the label of a requeue, and how far it may be from the middle of its line. */
const LABEL = { width: 96, height: 18, away: 400 };

/** A scroll follows the input that caused it within this time. */
const INPUT_MS = 1000;

function compute(app, width) {
  const { model, filters } = app;
  const key = [model.changed, app.at().seq, filters.ns, [...filters.hidden].join(), filters.lanes ? [...filters.lanes].join() : '', filters.find, app.fold, app.chain ? `${app.selected}:${app.chain.members.size}` : '', width].join('|');
  if (state.key !== key) {
    state.key = key;
    state.layout = layout(model, {
      seq: app.at().seq, ns: filters.ns, hidden: filters.hidden, lanes: filters.lanes, chain: app.chain, width, fold: app.fold, find: filters.find,
    });
  }
  return state.layout;
}

/** Shows new rows as they appear, until the user scrolls. */
export function followEnd() {
  state.follows = true;
}

/** The layout that is shown, for keys and tests. */
export const shown = () => state.layout;

export function timeline(app) {
  if (!app.model.writeList.length) return nothing(app);
  const width = Math.max(320, app.mainWidth());
  const plan = compute(app, width);
  if (!plan.rows.length && !plan.folds.length) {
    return h('div', { class: 'scroll' }, empty('No records match', `${plural(plan.hidden, 'record')} ${plan.hidden === 1 ? 'is' : 'are'} hidden by filters.`,
      h('button', { class: 'btn', onclick: () => app.clearFilters() }, 'Clear filters', h('kbd', null, 'Esc'))));
  }
  if (app.table) return table(app, plan);
  if (app.isNarrow()) return spine(app, plan);
  return lanes(app, plan);
}

function nothing(app) {
  if (!app.isReady) return skeleton(app);
  return h('div', { class: 'scroll' }, empty('No records yet', 'Apply a sample. Its chain appears here as it happens.',
    commandLine('kubectl apply -f samples/deployment.yaml')));
}

function skeleton(app) {
  return h('div', { class: 'scroll', 'aria-busy': 'true' },
    h('div', { class: 'loading' }, `Reading records ${count(app.model.total)}`),
    [0, 1, 2, 3, 4, 5].map((i) => h('div', { key: i, class: 'skr' }, [56, 88, 168, 96].map((w, j) => h('div', { key: j, class: 'sk', css: { width: `${w}px` } })))));
}

function lanes(app, plan) {
  const { columns } = plan;
  const view = app.viewport;
  const top = view.top - view.height;
  const bottom = view.top + 2 * view.height;
  const isNear = (y, end) => end >= top && y <= bottom;
  const { chain } = app;
  const rows = plan.rows.filter((row) => isNear(row.y, row.y + ROW));
  const blocks = plan.blocks.filter((block) => isNear(block.y, block.bottom));
  // The region itself is in the tab order while the record that is the tab stop is not drawn.
  const hasTabStop = rows.some((row) => row.write && app.tabStop(row.write.id)) || blocks.some((block) => app.tabStop(block.node.id));
  return h('div', {
    class: 'scroll lanes-scroll', id: 'lanes', tabindex: hasTabStop ? -1 : 0,
    onscroll: (event) => onScroll(app, event.currentTarget),
    onwheel: onInput, ontouchmove: onInput, onpointerdown: onInput, onkeydown: onInput,
    // The target of this drawing: one that is set later belongs to the next, with other positions.
    ref: (element) => keepScroll(app, element, plan, app.scrollTo),
  },
  head(app, plan),
  h('div', { class: 'lanes', role: 'group', 'aria-label': 'Timeline', css: { height: `${plan.height}px`, width: `${columns.width}px` } },
    h('svg', { width: columns.width, height: plan.height, 'aria-hidden': 'true', class: 'edges' },
      [columns.clients, columns.api, ...columns.lanes.values()].map((column, i) => h('line', { key: `l${i}`, class: 'life', x1: column.x, x2: column.x, y1: 0, y2: plan.height })),
      plan.edges.filter((edge) => isNear(edge.top, edge.bottom)).map((edge) => drawEdge(edge, chain))),
    plan.folds.filter((fold) => isNear(fold.y, fold.y + 24)).map((fold) => drawFold(fold, columns)),
    gaps(app, plan, isNear),
    rows.map((row) => drawRow(app, row, columns)),
    blocks.map((block) => drawBlock(app, block)),
    timerLabels(plan.edges.filter((edge) => edge.type === 'timer' && isNear(edge.top, edge.bottom)), blocks, columns.width)));
}

/** Labels on the lines of requeues, where they cover no block. @param {any[]} edges @param {any[]} blocks @param {number} width */
function timerLabels(edges, blocks, width) {
  const taken = blocks.map((block) => ({ left: block.x, right: block.x + block.width, top: block.y, bottom: block.y + Math.max(CHIP, block.height) }));
  return edges.map((edge) => {
    const x = Math.min(edge.x, width - LABEL.width / 2);
    const near = taken.filter((box) => box.left < x + LABEL.width / 2 && box.right > x - LABEL.width / 2);
    const isFree = (y) => y >= edge.top + 2 && y + LABEL.height <= edge.bottom - 2 && near.every((box) => box.bottom < y || box.top > y + LABEL.height);
    const middle = (edge.top + edge.bottom - LABEL.height) / 2;
    for (let away = 0; away <= LABEL.away; away += 4) {
      const top = [middle - away, middle + away].find(isFree);
      if (top !== undefined) {
        taken.push({ left: x - LABEL.width / 2, right: x + LABEL.width / 2, top, bottom: top + LABEL.height });
        return h('span', { key: `t${edge.id}`, class: 'timer', css: { left: `${x}px`, top: `${top}px` } }, `requeue ${duration(Math.max(0, edge.delay))}`);
      }
    }
    return null;
  });
}

function onInput() {
  state.input = performance.now();
}

function onScroll(app, element) {
  const isAtEnd = element.scrollHeight - element.scrollTop - element.clientHeight < 60;
  state.follows = isAtEnd;
  app.viewport = { top: element.scrollTop, height: element.clientHeight };
  // Only a scroll of the user pauses, not one of the page or of a shorter document.
  const isOfUser = performance.now() - state.input < INPUT_MS;
  if (isOfUser && !isAtEnd && app.isLive() && element.scrollTop < state.scroll - 4) app.pause();
  state.scroll = element.scrollTop;
  app.render();
}

function keepScroll(app, element, plan, target) {
  requestAnimationFrame(() => {
    const height = element.clientHeight;
    if (target && target === app.scrollTo) {
      const node = plan.rows.find((row) => row.id === target) || plan.blocks.find((block) => block.id === target);
      app.scrollTo = null;
      state.follows = false;
      // What was clicked stays where it is, unless the rest of the drawing moved it out of sight.
      const isVisible = node && node.y >= element.scrollTop && node.y + ROW <= element.scrollTop + height;
      if (node && !isVisible) element.scrollTop = Math.max(0, node.y - height / 3);
    } else if (state.follows && app.isLive() && !app.chain) {
      const end = element.scrollHeight - height;
      if (Math.abs(element.scrollTop - end) > 1) {
        element.scrollTop = end;
      }
    }
    if (app.viewport.height !== height || Math.abs(app.viewport.top - element.scrollTop) > 1) {
      app.viewport = { top: element.scrollTop, height };
      app.render();
    }
  });
}

function head(app, plan) {
  const { columns, lanes: list } = plan;
  const queues = new Map((app.state()?.queues || []).map((queue) => [queue.controller, queue]));
  const clients = new Set(plan.writes.filter(isClient).map((write) => write.manager));
  const version = plan.writes.length ? plan.writes[plan.writes.length - 1].version : 0;
  const cell = (column, name, facts, key) => h('div', { key, class: 'lh', css: { left: `${column.x}px`, width: `${column.width}px` } }, name, h('span', null, facts));
  return h('div', { class: 'lanes-head', css: { width: `${columns.width}px` } },
    cell(columns.clients, h('b', null, icon('user', 14), 'Clients'), `${clients.size} active`, 'clients'),
    cell(columns.api, h('b', null, 'API server'), version ? `revision ${version}` : 'in another process', 'api'),
    list.map((lane) => {
      const queue = queues.get(lane.name);
      const facts = lane.title === 'kubelets' ? nodesText(app) : queue ? `${queue.ready} queued` : '';
      return cell(columns.lanes.get(lane.name), h('b', null, controllerShape(lane.name, app.model), h('span', { class: 'cut lane-name', title: lane.name }, lane.title)), facts, lane.name);
    }));
}

function nodesText(app) {
  let nodes = 0;
  for (const object of app.model.objects.values()) if (object.kind === 'Node') nodes += 1;
  return plural(nodes, 'node');
}

function drawEdge(edge, chain) {
  const isOn = chain && chain.members.has(edge.to) && (edge.type === 'command' || chain.members.has(edge.from));
  const isRoot = isOn && chain.onPath.has(edge.to) && (edge.type === 'command' ? edge.to === chain.root : chain.onPath.has(edge.from));
  const kind = `${isOn ? ' on' : ''}${isRoot ? ' root' : ''}${edge.type === 'timer' ? ' timer-e' : ''}`;
  return h('g', { key: edge.id, class: 'edge', 'data-edge': edge.id, 'data-type': edge.type },
    h('path', { class: `e${kind}`, d: edge.d }), h('path', { class: `a${isOn ? ' on' : ''}`, d: edge.tip }),
    edge.count ? h('text', { class: 'edge-count', x: edge.x + 5, y: edge.bottom - 6 }, String(edge.count)) : null);
}

function drawFold(fold, columns) {
  const text = fold.outside
    ? [h('b', null, fold.idle > 1000 ? duration(fold.idle) : '0.1 ms'), `, ${plural(fold.outside, 'record')} outside the chain, folded`]
    : [h('b', null, fold.idle > 60e6 ? long(fold.idle / 1e6) : duration(fold.idle)), ' idle, folded'];
  return h('div', { key: fold.id, class: 'fold', css: { top: `${fold.y}px`, width: `${columns.width}px` } },
    h('span', { class: 'foldtxt', css: { left: `${columns.api.x}px` } }, icon('cut', 16), h('span', null, text)));
}

/** @param {(y: number, end: number) => boolean} isNear */
function gaps(app, plan, isNear) {
  return app.model.gaps.map((gap) => {
    const row = plan.rows.find((candidate) => candidate.seq > gap.after);
    if (!row || !isNear(row.y, row.y)) return null;
    return h('div', { key: `g${gap.after}`, class: 'gapline', css: { top: `${row.y - 8}px`, width: `${plan.columns.width}px` } },
      h('span', { class: 'tag warn' }, icon('cut', 12), `${plural(gap.missed, 'record')} missing, #${gap.after + 1} to #${gap.after + gap.missed}`));
  });
}

function drawRow(app, row, columns) {
  const { write } = row;
  const parts = [h('div', { key: `time-${row.id}`, class: 'tm', css: { top: `${row.y}px`, width: `${columns.time.width - 10}px` } },
    row.newSecond ? h('b', null, clock(row.time)) : null, h('span', { class: row.newSecond ? '' : 'one' }, millis(row.time)))];
  if (!write) return parts;
  const isSelected = app.selected === write.id;
  const call = command(write);
  const dim = row.isDim ? ' dim' : '';
  if (call) {
    parts.push(h('button', {
      key: `cmd-${row.id}`, class: `cmd${dim}`, 'data-cmd': write.id, tabindex: -1, css: { top: `${row.y}px`, left: `${columns.clients.x + 6}px`, width: `${columns.clients.width - 20}px` },
      title: `${commandSentence(write)} of ${short(write.kind)} ${full(write)}, user ${write.user}`, onclick: () => app.select(write.id),
    }, h('b', null, call.who), h('span', null, call.what)));
  }
  parts.push(h('button', {
    key: row.id, class: `chip${dim}${isSelected ? ' is-sel' : ''}`, 'data-seq': write.seq, 'data-id': write.id,
    tabindex: app.tabStop(write.id) ? 0 : -1, css: { top: `${row.y}px`, left: `${columns.api.x + 8}px`, width: `${columns.api.width - 20}px` },
    title: `${precise(write.time)} #${write.seq} ${write.kind} ${full(write)}`, onclick: () => app.select(write.id),
  }, h('span', { class: 'sr' }, `${full(write)} ${signWord(write)} by ${writerName(write)}, version `), op(write), h('span', { class: 'l1 cut' }, h('i', null, short(write.kind)), ' ', h('b', null, middle(write.name, 30))), h('span', { class: 'l2 cut' }, changeText(write)), h('span', { class: 'rv' }, String(write.version))));
  return parts;
}

function drawBlock(app, block) {
  const { node } = block;
  const isSelected = app.selected === node.id;
  const isDone = node.endSeq && node.endSeq <= app.at().seq;
  const took = isDone && node.took !== undefined ? duration(node.took) : isDone ? '' : 'running';
  const room = Math.max(6, Math.floor((block.width - 16) / 7.8));
  // The accessible name has what is visible, for users who speak it.
  const lines = [h('span', { key: 'sr', class: 'sr' }, `${reconcileLabel(node, duration)}, `), h('div', { key: 'k', class: 'k' }, h('span', { class: 'cut' }, middle(node.name, room)))];
  const isFailed = isDone && (node.result === 'error');
  const kubelet = title(node.controller) === 'kubelets' && block.writes[0]?.digest?.node;
  const texts = block.writes.length
    ? block.writes.map((write, i) => [block.rows[i], kubelet || verb(write)])
    : [[block.rows[0], isFailed ? 'error' : node.calls.length ? node.calls[0].text.split(' ', 1)[0] : 'no write']];
  const lastRow = Math.max(...block.rows.map((row) => row.y));
  texts.forEach(([row, text], i) => {
    const offset = row.y - block.y + 15;
    lines.push(h('div', { key: i, class: `v${isFailed ? ' bad' : ''}`, css: { top: `${offset}px` } }, h('span', { class: 'cut' }, text), row.y === lastRow ? h('em', null, took) : null));
  });
  return h('button', {
    key: node.id, class: `blk c${tone(node.controller, app.model)}${block.isDim ? ' dim' : ''}${isSelected ? ' is-sel' : ''}${isFailed ? ' failed' : ''}`,
    'data-id': node.id, 'data-seq': node.seq, tabindex: app.tabStop(node.id) ? 0 : -1,
    css: { top: `${block.y}px`, left: `${block.x}px`, width: `${block.width}px`, height: `${Math.max(CHIP, block.height)}px` },
    title: `${precise(node.time)} #${node.seq} ${title(node.controller)} ${full(node)}${node.error ? `: ${node.error}` : ''}`, onclick: () => app.select(node.id),
  }, lines);
}

/** The table twin: same data, same order, same selection. */
function table(app, plan) {
  const rows = plan.rows.filter((row) => row.write);
  const visible = rows.slice(-400);
  return h('div', { class: 'scroll' }, h('table', { class: 'grid' },
    heads('Time', 'Written by', 'Object', 'Change', '#Version', 'Caused reconciles'),
    h('tbody', null, visible.map((row) => {
      const { write } = row;
      const isSelected = app.selected === write.id || (write.writer && app.selected === write.writer.id);
      const caused = [...new Set(write.effects.filter((effect) => effect.seq <= app.at().seq).map((effect) => effect.controller))];
      return h('tr', { key: row.id, class: isSelected ? 'sel' : '', 'data-seq': write.seq, 'data-id': write.id, ...activated(() => app.select(write.id)) },
        h('td', { class: 't2' }, precise(write.time)),
        h('td', null, h('span', { class: 'who' }, writerShape(write, app.model), isClient(write) ? `${write.manager}, ${write.sub ? `${write.verb} ${write.sub}` : write.verb}` : writerName(write))),
        h('td', null, h('span', { class: 'who' }, op(write), objectName(write))),
        h('td', { class: 'mono cut' }, changeText(write)), h('td', { class: 'num t2' }, String(write.version)),
        h('td', null, caused.length ? h('span', { class: 'whos' }, caused.map((name) => h('span', { key: name }, controllerName(name, app.model)))) : h('span', { class: 't3' }, 'none')));
    }))));
}

/** Narrow screens: one column, each writer with its writes. */
function spine(app, plan) {
  const groups = [];
  for (const row of plan.rows.slice(-200)) {
    if (!row.write) continue;
    const writer = row.write.writer || row.write.manager;
    const last = groups[groups.length - 1];
    if (last && last.writer === writer) last.writes.push(row.write);
    else groups.push({ writer, writes: [row.write], time: row.time });
  }
  return h('div', { class: 'scroll spine', ref: (element) => { if (app.isLive() && !app.chain) requestAnimationFrame(() => { element.scrollTop = element.scrollHeight; }); } }, groups.map((group, i) => {
    const first = group.writes[0];
    const reconcile = first.writer;
    const isSelected = reconcile ? app.selected === reconcile.id : app.selected === first.id;
    return h('section', { key: first.id, class: `sg${isSelected ? ' cur' : ''}${i === groups.length - 1 ? ' last' : ''}` },
      h('span', { class: 'dot' }, writerShape(first, app.model)),
      h('div', null, h('div', { class: 'hd' }, h('b', null, reconcile ? title(reconcile.controller) : first.manager || 'apiserver'),
        reconcile ? ` reconciled${reconcile.took === undefined ? '' : `, ${duration(reconcile.took)}`}` : ` ${first.sub ? `${first.verb} ${first.sub}` : first.verb}`, h('time', null, precise(group.time))),
      h('ul', null, group.writes.map((write) => h('li', { key: write.id }, h('button', { 'data-id': write.id, 'data-seq': write.seq, onclick: () => app.select(reconcile ? reconcile.id : write.id) },
        op(write), h('span', { class: 'cut' }, objectName(write, middle(write.name, 24)), h('small', { class: 'cut' }, changeText(write))), h('span', { class: 't3' }, String(write.version))))))));
  }));
}
