// The detail panel: a write or a reconcile, why it happened, and what it led to.

import { h, icon } from './dom.js';
import { duration, full, middle, plural, seconds, short } from './format.js';
import { isClient } from './model.js';
import { changeText, commandSentence, sign, title, verb, writerName } from './names.js';
import { controllerShape, copyButton, diff, factList, note, objectName, op, section } from './parts.js';

const STEPS_MAX = 12;
const EFFECTS_MAX = 8;
const WRITES_MAX = 12;

export function panel(app) {
  const node = app.node(app.selected);
  if (!node) return null;
  return node.type === 'write' ? writePanel(app, node) : reconcilePanel(app, node);
}

function head(app, symbol, text, node, facts) {
  return h('div', { class: 'p-head' },
    h('div', { class: 'row' }, symbol, h('span', { class: 't2' }, text), h('span', { class: 'grow' }), h('span', { class: 't3' }, `#${node.seq}`),
      h('button', { class: 'btn icon ghost', 'aria-label': 'Close', onclick: () => app.select(null) }, icon('close'))),
    h('h2', null, full(node)),
    factList(facts));
}

function foot(app, node) {
  const object = node.type === 'write' ? node : app.objectOf(node);
  const command = `bellerophon trace ${short(object ? object.kind : node.controller).toLowerCase()}/${node.name}${node.ns && node.ns !== 'default' ? ` -n ${node.ns}` : ''}`;
  return h('div', { class: 'p-foot' },
    h('button', { class: 'btn', onclick: () => app.openWhy(node) }, 'Open why', h('kbd', null, 'W')),
    h('span', { class: 'copy' }, copyButton(command), 'Copy command'));
}

function reconcilePanel(app, node) {
  const isDone = node.endSeq && node.endSeq <= app.at().seq;
  const tone = node.result === 'error' ? 'bad' : 'good';
  return h('aside', { class: 'panel', 'aria-label': 'Details' },
    head(app, controllerShape(node.controller, app.model), `${title(node.controller)} reconciled`, node, [
      ['Result', isDone ? node.result : 'running', isDone ? tone : ''],
      ['Wait', node.wait === undefined ? 'none' : duration(node.wait)],
      ['Work', isDone && node.took !== undefined ? duration(node.took) : 'unknown'],
      ['Attempt', String(node.attempt)],
    ]),
    node.error ? h('div', { class: 'p-sec bad' }, h('p', { class: 'error-text' }, node.error)) : null,
    whySection(app, node), wroteSection(app, node), ledSection(app, node), foot(app, node));
}

function writePanel(app, node) {
  const { writer } = node;
  return h('aside', { class: 'panel', 'aria-label': 'Details' },
    head(app, op(node), `${short(node.kind)} ${{ '+': 'added', '~': 'updated', '−': 'deleted' }[sign(node)]}`, node, [
      ['Version', String(node.version)], ['Writer', middle(writerName(node), 16)], ['Verb', node.sub ? `${node.verb} ${node.sub}` : node.verb || 'unknown'], ['State', node.digest?.status || 'none'],
    ]),
    whySection(app, node),
    section(['Changed', note(node.previous === undefined ? 'new object' : `since ${node.previous}`)],
      node.known ? diff(node.changes, node.more) : h('p', { class: 't3 small' }, 'The API server runs in another process, so the change is not recorded.'), fullDiff(app, node)),
    writer ? null : section(['Request'], h('dl', { class: 'kv' }, h('dt', null, 'User'), h('dd', null, node.user || 'API server'), h('dt', null, 'Field manager'), h('dd', null, node.manager || 'none'))),
    ledSection(app, node), foot(app, node));
}

function fullDiff(app, node) {
  if (!node.more) return null;
  const loaded = app.diffs.get(node.version);
  if (!loaded) return h('button', { class: 'btn', onclick: () => app.loadDiff(node.version) }, 'Show all fields');
  if (loaded.forgotten) return h('p', { class: 'warn-text' }, `Diff forgotten. Version ${loaded.forgotten} is no longer kept. Oldest kept: ${loaded.oldest}.`);
  return diff(loaded.changes, loaded.more);
}

function whySection(app, node) {
  const path = app.chain ? [...app.chain.path].reverse() : [node];
  const causes = node.type === 'write' ? (node.writer ? 1 : 0) : node.causes.length + node.omitted;
  const root = path[0];
  const isCommand = root.type === 'write' && isClient(root);
  const steps = [];
  if (isCommand) steps.push(step(app, icon('user', 14), commandSentence(root), `user ${root.user}`, root.time, `c${root.id}`, root));
  else if (root.type === 'reconcile' && root !== node) steps.push();
  for (const at of path.slice(-STEPS_MAX)) {
    if (at === node) {
      steps.push(h('li', { key: at.id, class: 'here' }, h('span', null, at.type === 'write' ? op(at) : controllerShape(at.controller, app.model)), h('span', null, at.type === 'write' ? 'This write' : 'This reconcile'), h('time', null, seconds(at.time))));
    } else if (at.type === 'write') {
      steps.push(step(app, op(at), `${short(at.kind)} ${middle(at.name, 22)} ${{ '+': 'added', '~': 'updated', '−': 'deleted' }[sign(at)]}`, at.known && !at.forgotten ? `version ${at.version}` : `version ${at.version}, cause not recorded`, at.time, at.id, at));
    } else {
      steps.push(step(app, controllerShape(at.controller, app.model), `${title(at.controller)} reconciled ${middle(at.name, 20)}`, at.took === undefined ? 'running' : `${at.result}, ${duration(at.took)}`, at.time, at.id, at));
    }
  }
  const before = isCommand ? `${plural(path.length - 1, 'step')} from the command` : root.type === 'reconcile' ? 'from a timer or the start' : `written by ${writerName(root)}`;
  const merged = node.type === 'reconcile' && node.causes.length > 1
    ? h('ul', { class: 'causes' }, node.causes.map((cause, i) => h('li', { key: i, class: 't2' }, `${short(cause.kind)} ${cause.object.name} ${cause.event || ''}${cause.version ? ` at ${cause.version}` : ''}${cause.reason ? `: ${cause.reason}` : ''}`)), node.omitted ? h('li', { key: 'more', class: 't3' }, `${node.omitted} more`) : null)
    : null;
  return section(['Why', note(`${node.type === 'reconcile' ? `${plural(causes, 'cause')}, ` : ''}${before}`)], h('ol', { class: 'chain' }, steps), merged);
}

function step(app, symbol, text, small, time, key, node) {
  return h('li', { key }, h('span', null, symbol), h('button', { onclick: () => app.select(node.id), title: full(node) }, text, h('small', null, small)), h('time', null, seconds(time)));
}

function wroteSection(app, node) {
  const total = node.writes.length + node.calls.length;
  return section(['Wrote', note(total ? plural(total, 'version') : 'nothing')],
    node.writes.slice(0, WRITES_MAX).map((write) => h('div', { key: write.id, class: 'write' },
      h('button', { class: 'wh', onclick: () => app.select(write.id) }, op(write), objectName(write, write.sub === 'status' ? `${middle(write.name, 20)} status` : middle(write.name, 26)), h('span', { class: 'mono' }, String(write.version))),
      write.changes.length ? h('div', { class: 'wb' }, diff(write.changes.slice(0, 6), write.more + Math.max(0, write.changes.length - 6))) : null)),
    node.calls.map((call) => h('div', { key: call.seq, class: 'write' }, h('div', { class: 'wh' }, h('span', { class: 't3' }, call.text), objectName(call, middle(call.name, 24))))),
    node.writes.length > WRITES_MAX ? h('p', { class: 't3 small' }, `${node.writes.length - WRITES_MAX} more`) : null);
}

function ledSection(app, node) {
  const effects = app.effects(node);
  if (!effects.reconciles.length) return section(['Led to', note('no reconcile')]);
  const groups = new Map();
  for (const reconcile of effects.reconciles) {
    const group = groups.get(reconcile.controller) || { controller: reconcile.controller, count: 0, writes: [], last: 0, first: reconcile };
    group.count += 1;
    group.writes.push(...reconcile.writes);
    group.last = Math.max(group.last, reconcile.endTime || reconcile.time);
    groups.set(reconcile.controller, group);
  }
  const list = [...groups.values()].sort((a, b) => a.first.time - b.first.time);
  return section(['Led to', note(`${plural(effects.reconciles.length, 'reconcile')}, converged after ${duration(effects.end - node.time)}`)],
    h('ol', { class: 'chain plain' }, list.slice(0, EFFECTS_MAX).map((group) => h('li', { key: group.controller }, h('span', null, controllerShape(group.controller, app.model)),
      h('button', { onclick: () => app.select(group.first.id) }, effectText(group)), h('time', null, `+${duration(Math.max(0, group.first.time - node.time))}`)))),
    list.length > EFFECTS_MAX ? h('p', { class: 't3 small' }, `${list.length - EFFECTS_MAX} more controllers`) : null);
}

function effectText(group) {
  const name = title(group.controller);
  const last = group.writes[group.writes.length - 1];
  if (!last) return `${name} reconciled ${plural(group.count, 'key')}, no write`;
  const kinds = new Set(group.writes.map((write) => short(write.kind)));
  const objects = new Set(group.writes.map((write) => write.name)).size;
  if (verb(last) === 'bind') return `${name} bound ${plural(objects, 'pod')}`;
  if (kinds.size === 1 && objects > 1) return `${name} wrote ${objects} ${[...kinds][0]}s`;
  return `${name}: ${short(last.kind)} ${changeText(last)}`;
}
