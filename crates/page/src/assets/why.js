// View: why an object was reconciled, what each reconcile wrote, its versions, fields and events.

import { h, icon } from './dom.js';
import { ago, clock, duration, full, long, middle, plural, precise, quantile, seconds, short, value } from './format.js';
import { pathToRoot } from './chain.js';
import { isClient } from './model.js';
import { commandSentence, title, tone, writerName } from './names.js';
import { controllerShape, copyButton, diff, empty, factList, heads, health, note, objectName, op, resultTag, section, writerShape } from './parts.js';

const IDLE_US = 10e6;
const RECONCILES_MAX = 60;
const VERSIONS_MAX = 80;
const WINDOW_US = 600e6;

/** The reconciles that concern an object: of its key, by the controllers of its kind. */
export function reconcilesOf(app, object) {
  const { seq } = app.at();
  const lower = short(object.kind).toLowerCase();
  return app.model.reconciles.filter((reconcile) => reconcile.seq <= seq && reconcile.name === object.name && (reconcile.ns || '') === (object.ns || '')
    && concerns(reconcile, object, lower));
}

function concerns(reconcile, object, lower) {
  if (title(reconcile.controller) === lower || reconcile.controller.startsWith(lower)) return true;
  if (reconcile.causes.some((cause) => cause.kind === object.kind && cause.object.name === object.name)) return true;
  if (reconcile.links.some((link) => link.write.kind === object.kind && link.write.name === object.name)) return true;
  return reconcile.writes.some((write) => write.kind === object.kind && write.name === object.name);
}

export function why(app) {
  const object = app.whyObject();
  if (!object) {
    return h('div', { class: 'scroll' }, empty('No object selected', 'Select a write or reconcile in the timeline, or jump to an object.',
      h('button', { class: 'btn', onclick: () => app.openPalette() }, 'Jump to object', h('kbd', null, 'Ctrl K'))));
  }
  const { seq, time } = app.at();
  const versions = object.versions.filter((write) => write.seq <= seq);
  const newest = versions[versions.length - 1];
  const digest = newest ? newest.digest : object.base?.digest;
  const reconciles = reconcilesOf(app, object);
  const fields = app.fields(object);
  const events = eventsOf(app, object);
  const tabs = [['reconciles', 'Reconciles', reconciles.length], ['versions', 'Versions', versions.length], ['fields', 'Fields', fields ? fields.length : 0], ['events', 'Events', events.length]];
  const facts = [
    digest?.status ? ['State', digest.status] : null,
    digest?.generation ? ['Generation', digest.observed ? `${digest.generation}, observed ${digest.observed}` : String(digest.generation)] : null,
    ['Version', newest ? String(newest.version) : String(object.base?.version || 'unknown')],
    newest ? ['Changed', ago(time - newest.time)] : null,
  ];
  return h('div', { class: 'scroll' }, h('div', { class: 'why' },
    h('div', { class: 'why-h' }, h('div', null, h('div', { class: 'crumb' }, object.ns || 'cluster-scoped', icon('right', 12), short(object.kind)), h('h2', { class: 'big' }, object.name)),
      factList(facts)),
    h('div', { class: 'bar', role: 'tablist' }, tabs.map(([id, name, n]) => h('button', {
      key: id, role: 'tab', id: `tab-${id}`, 'aria-selected': app.whyTab === id ? 'true' : 'false', 'aria-controls': 'why-body', tabindex: app.whyTab === id ? 0 : -1,
      onclick: () => app.setWhyTab(id), onkeydown: (event) => tabKeys(app, tabs, event),
    }, `${name} `, h('span', null, String(n))))),
    h('div', { id: 'why-body', role: 'tabpanel', 'aria-labelledby': `tab-${app.whyTab}`, tabindex: 0 },
      app.whyTab === 'reconciles' ? reconcileList(app, reconciles, time) : app.whyTab === 'versions' ? versionList(app, versions, time)
        : app.whyTab === 'fields' ? fieldList(app, fields) : eventList(events, time))));
}

function tabKeys(app, tabs, event) {
  const step = event.key === 'ArrowRight' ? 1 : event.key === 'ArrowLeft' ? -1 : 0;
  if (!step) return;
  event.stopPropagation();
  const place = tabs.findIndex(([id]) => id === app.whyTab);
  const next = tabs[(place + step + tabs.length) % tabs.length][0];
  app.setWhyTab(next);
  requestAnimationFrame(() => document.getElementById(`tab-${next}`)?.focus());
}

function reconcileList(app, all, now) {
  if (!all.length) return h('p', { class: 't3' }, 'No reconcile of this object is recorded.');
  const reconciles = all.slice(-RECONCILES_MAX);
  const out = [];
  let previous = 0;
  for (const reconcile of reconciles) {
    if (previous && reconcile.time - previous > IDLE_US) {
      out.push(h('div', { key: `i${reconcile.id}`, class: 'why-fold' }, icon('cut', 16), h('b', null, long((reconcile.time - previous) / 1e6)), 'idle, folded'));
    }
    out.push(card(app, reconcile, previous, now));
    previous = reconcile.time;
  }
  const omitted = all.length - reconciles.length;
  return [omitted ? h('p', { key: 'omitted', class: 't3 small' }, `${plural(omitted, 'earlier reconcile')} not shown`) : null, out];
}

function card(app, reconcile, previous, now) {
  const isDone = reconcile.endSeq && reconcile.endSeq <= app.at().seq;
  const wait = reconcile.wait || 0;
  const work = isDone ? reconcile.took || 0 : 0;
  const share = wait + work ? Math.round((wait / (wait + work)) * 96) : 0;
  const isPlain = !reconcile.writes.length && !reconcile.links.length;
  const since = previous ? `+${duration(reconcile.time - previous)}` : ago(now - reconcile.time);
  return h('div', { key: reconcile.id, class: 'rec', 'data-id': reconcile.id, 'data-seq': reconcile.seq },
    h('time', { title: precise(reconcile.time) }, precise(reconcile.time), h('small', null, since)),
    h('div', { class: 'dot' }, h('span', null, controllerShape(reconcile.controller, app.model))),
    h('div', { class: `card${app.selected === reconcile.id ? ' is-sel' : ''}` },
      h('div', { class: 'card-h' },
        h('button', { class: 'plain', onclick: () => app.select(reconcile.id) }, h('b', null, title(reconcile.controller)), ' ', h('span', { class: 't3' }, `#${reconcile.seq}`)),
        resultTag(reconcile, app.at().seq), reconcile.attempt > 1 ? h('span', { class: 'tag' }, `attempt ${reconcile.attempt}`) : null,
        h('span', { class: 'cut t2 grow', title: reconcile.error || '' }, reconcile.error || (isPlain ? causeText(reconcile) : '')),
        h('span', { class: `dur c${tone(reconcile.controller, app.model)}`, 'aria-hidden': 'true' }, h('i', { class: 'w', css: { width: `${share}px` } }), h('i', { class: 'k', css: { width: `${96 - share}px` } })),
        h('span', { class: 'took t2' }, reconcile.wait === undefined ? '' : `wait ${duration(wait)}, `, isDone && reconcile.took !== undefined ? `work ${duration(work)}` : 'running')),
      isPlain ? null : h('div', { class: 'card-b' }, becauseColumn(app, reconcile), wroteColumn(app, reconcile))));
}

function causeText(reconcile) {
  const cause = reconcile.causes[0];
  if (!cause) return 'no cause recorded';
  if (cause.event === 'retry') return reconcile.attempt > 1 ? 'retry after a failure' : `requeued${cause.reason ? `: ${cause.reason}` : ''}`;
  return `${short(cause.kind)} ${cause.object.name} ${cause.event || ''}`;
}

function becauseColumn(app, reconcile) {
  const causes = reconcile.causes.length + reconcile.omitted;
  const items = reconcile.links.map(({ write }) => {
    const root = pathToRoot(write).at(-1);
    const by = write.writer ? (write.writer.controller === reconcile.controller && write.name === reconcile.name ? `${title(write.writer.controller)}, own write` : `${title(write.writer.controller)} wrote ${write.sub || 'it'}`)
      : isClient(write) ? `${commandSentence(write)}, user ${write.user}` : write.known ? `${writerName(write)}, without a reconcile` : 'cause not recorded';
    return h('div', { key: write.id, class: 'cause', title: root.type === 'write' && isClient(root) ? `root: ${commandSentence(root)}` : '' }, op(write),
      h('div', null, h('button', { class: 'plain', onclick: () => app.select(write.id) }, `${short(write.kind)} ${middle(write.name, 26)} ${write.deletion ? 'deleted' : write.previous === undefined && write.known ? 'added' : 'updated'} at ${write.version}`), h('small', null, writerShape(write, app.model), by)));
  });
  const retry = reconcile.causes.find((cause) => cause.event === 'retry');
  if (retry) {
    items.push(h('div', { key: 'retry', class: 'cause' }, icon('clock', 14), h('div', null, reconcile.attempt > 1 ? 'Retry after a failure' : 'Requeue was due', h('small', null, retry.reason || 'timer'))));
  }
  return h('div', null, h('div', { class: 'lab' }, causes > 1 ? `Because: ${causes} causes merged` : 'Because'), items.length ? items : h('p', { class: 't3 small' }, causeText(reconcile)));
}

function wroteColumn(app, reconcile) {
  return h('div', null, h('div', { class: 'lab' }, 'Wrote'),
    reconcile.writes.length ? reconcile.writes.slice(0, 10).map((write) => h('div', { key: write.id, class: 'wr' },
      h('div', { class: 'wr-h' }, op(write), objectName(write), h('span', { class: 'mono' }, String(write.version))), write.changes.length ? diff(write.changes.slice(0, 8), write.more + Math.max(0, write.changes.length - 8), 'left') : null))
      : h('p', { class: 't3 small' }, reconcile.calls.length ? reconcile.calls.map((call) => call.text).join(', ') : 'nothing'));
}

function versionList(app, versions, now) {
  if (!versions.length) return h('p', { class: 't3' }, 'No version is recorded.');
  return h('div', { class: 'versions' }, versions.slice(-VERSIONS_MAX).reverse().map((write) => h('section', { key: write.id, class: 'write', 'data-id': write.id },
    h('button', { class: 'wh', onclick: () => app.select(write.id) }, op(write), h('b', null, String(write.version)), h('span', { class: 'who t2' }, writerShape(write, app.model), writerName(write), write.sub ? ` ${write.verb} ${write.sub}` : ` ${write.verb}`),
      h('span', { class: 'mono' }, `${precise(write.time)}, ${ago(now - write.time)}`)), write.changes.length ? h('div', { class: 'wb' }, diff(write.changes, write.more, 'left')) : null)));
}

/** @param {any[] | null} fields */
function fieldList(app, fields) {
  if (!fields) return h('p', { class: 't3' }, app.info.mode === 'replay' ? 'A recorded file has the changes of fields, not whole objects.' : 'Reading the object.');
  return h('table', { class: 'grid slim' }, heads('Field', 'Value', 'Field manager'),
    h('tbody', null, fields.map((field) => h('tr', { key: field.path }, h('td', { class: 'mono' }, field.path), h('td', { class: 'mono cut', title: value(field.value) }, middle(value(field.value), 60)), h('td', null, field.manager || '')))));
}

function eventsOf(app, object) {
  const { seq } = app.at();
  const found = [];
  for (const event of app.model.objects.values()) {
    if (event.kind === 'Event' && event.ns === (object.ns || 'default') && event.name.startsWith(`${object.name}.`)) {
      for (const write of event.versions) if (write.seq <= seq && !write.deletion) found.push(write);
    }
  }
  return found.sort((a, b) => a.seq - b.seq);
}

function eventList(events, now) {
  if (!events.length) return h('p', { class: 't3' }, 'No event of this object is recorded.');
  return h('table', { class: 'grid slim' }, heads('Time', 'Event', 'Recorded by'),
    h('tbody', null, events.slice(-50).reverse().map((write) => h('tr', { key: write.id }, h('td', { class: 't2' }, `${precise(write.time)}, ${ago(now - write.time)}`), h('td', null, write.name), h('td', null, write.manager)))));
}

/** The panel beside the reconciles. */
export function whyPanel(app) {
  const object = app.whyObject();
  if (!object) return null;
  const { seq, time } = app.at();
  const reconciles = reconcilesOf(app, object);
  const recent = reconciles.filter((reconcile) => time - reconcile.time < WINDOW_US);
  const done = recent.filter((reconcile) => reconcile.endSeq && reconcile.endSeq <= seq);
  const sorted = (member) => done.map((reconcile) => reconcile[member]).filter((n) => n !== undefined).sort((a, b) => a - b);
  const work = sorted('took');
  const wait = sorted('wait');
  const idle = recent.filter((reconcile) => !reconcile.writes.length && !reconcile.calls.length).length;
  const next = nextRequeue(app, object);
  const last = reconciles[reconciles.length - 1];
  const root = last ? pathToRoot(last).at(-1) : null;
  const owned = ownedBy(app, object);
  const command = `bellerophon trace ${short(object.kind).toLowerCase()}/${object.name}${object.ns && object.ns !== 'default' ? ` -n ${object.ns}` : ''}`;
  const two = (list) => (list.length ? `${duration(quantile(list, 0.5) || 0)}, ${duration(quantile(list, 0.99) || 0)}` : 'none');
  return h('aside', { class: 'panel', 'aria-label': 'Details' },
    section(['Next requeue'], next
      ? [h('p', { class: 'due' }, h('b', null, `in ${duration(next.due_us)}`), ' ', h('span', { class: 't3' }, clock(time + next.due_us))), h('p', { class: 't2' }, `${next.controller}${next.causes[0]?.reason ? `: ${next.causes[0].reason}` : ''}. ${next.failures ? `${plural(next.failures, 'failure')}, back-off.` : 'No failures, no back-off.'}`)]
      : h('p', { class: 't2' }, 'None. The next reconcile follows a change.')),
    root ? section(['Root', note('of the newest chain')], h('ol', { class: 'chain' },
      h('li', { key: 'root' }, h('span', null, root.type === 'write' ? writerShape(root, app.model) : controllerShape(root.controller, app.model)), h('span', null, root.type === 'write' ? (isClient(root) ? commandSentence(root) : `${writerName(root)} wrote ${short(root.kind)}`) : `${title(root.controller)}, timer or start`, h('small', null, root.type === 'write' && isClient(root) ? `user ${root.user}` : full(root))), h('time', null, seconds(root.time))),
      h('li', { key: 'this', class: 'here' }, h('span', null, controllerShape(last.controller, app.model)), h('span', null, `${plural(reconciles.length, 'reconcile')} of this object`), h('time', null, seconds(last.time)))),
    h('button', { class: 'btn', onclick: () => app.showInTimeline(last) }, 'Show in timeline', h('kbd', null, 'T'))) : null,
    section(['Reconciles', note('last 10 min')], h('dl', { class: 'kv' },
      h('dt', null, 'Total'), h('dd', null, String(recent.length)), h('dt', null, 'Errors'), h('dd', null, String(recent.filter((r) => r.result === 'error').length)),
      h('dt', null, 'Without a write'), h('dd', null, recent.length ? `${idle}, ${Math.round((idle / recent.length) * 100)} %` : '0'), h('dt', null, 'Work p50, p99'), h('dd', null, two(work)), h('dt', null, 'Wait p50, p99'), h('dd', null, two(wait)))),
    managers(app, object),
    owned.length ? section(['Owns'], owned.slice(0, 12).map((item) => h('div', { key: item.object.id, class: 'own' }, h('button', { class: 'plain cut', onclick: () => app.openWhy(item.object) }, objectName(item.object)), health(item.digest) || h('span', { class: 't3' }, 'no status'))), owned.length > 12 ? h('p', { class: 't3 small' }, `${owned.length - 12} more`) : null) : null,
    h('div', { class: 'p-foot' }, h('span', { class: 'copy mono' }, copyButton(command), command)));
}

function nextRequeue(app, object) {
  /** @type {any} */ let found = null;
  for (const queue of app.state()?.queues || []) {
    for (const entry of queue.keys.delayed) {
      if (entry.name === object.name && (entry.namespace || '') === (object.ns || '') && (title(queue.controller) === short(object.kind).toLowerCase() || entry.causes.some((cause) => cause.kind === object.kind))) {
        if (!found || entry.due_us < found.due_us) found = { ...entry, controller: title(queue.controller) };
      }
    }
  }
  return found;
}

function managers(app, object) {
  const fields = app.fields(object);
  if (!fields) return null;
  const top = new Map();
  for (const field of fields) {
    if (!field.manager) continue;
    const path = field.path.startsWith('status') ? 'status' : field.path.split(/[.[]/).slice(0, 2).join('.');
    if (!top.has(path)) top.set(path, field.manager);
  }
  if (!top.size) return null;
  return section(['Field managers'], h('dl', { class: 'kv mono' }, [...top].slice(0, 12).map(([path, manager]) => [h('dt', { key: `t${path}` }, path), h('dd', { key: `d${path}` }, manager)])));
}

export function ownedBy(app, object) {
  const { seq } = app.at();
  const existing = app.existing(seq);
  const self = existing.find((item) => item.object === object);
  const uid = self?.digest?.uid;
  return uid ? existing.filter((item) => item.digest?.owners?.[0] === uid) : [];
}
