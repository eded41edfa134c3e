// View: work queues with their keys, wait and work quantiles; caches with revision, lag and relists.

import { h, icon } from './dom.js';
import { clock, count, duration, full, plural, quantile, short } from './format.js';
import { bars, histogram, spark } from './charts.js';
import { title } from './names.js';
import { laneOrder } from './lanes.js';
import { activated, controllerShape, empty, factList, heads, number } from './parts.js';

const WINDOW_US = 600e6;
const PARTS = 30;
const PIPS_MAX = 6;
const CACHES_SHOWN = 6;

/** What the controllers can be sorted by, the largest number first. @type {Record<string, (at: any) => number>} */
export const SORTS = {
  errors: (at) => at.errors,
  'back-off': (at) => at.queue?.backoff || 0,
  wait: (at) => at.wait.p99 || 0,
  work: (at) => at.work.p99 || 0,
};

/** The numbers of each controller at a moment. */
export function queueRows(app) {
  const { seq, time } = app.at();
  const { model } = app;
  const span = Math.min(WINDOW_US, Math.max(30e6, time - model.firstTime));
  const from = time - span;
  const rows = new Map();
  const row = (controller) => {
    let found = rows.get(controller);
    if (!found) {
      found = { controller, starts: [], waits: [], works: [], errors: 0, queue: null };
      rows.set(controller, found);
    }
    return found;
  };
  for (let i = model.reconciles.length - 1; i >= 0; i -= 1) {
    const reconcile = model.reconciles[i];
    if (reconcile.seq > seq) continue;
    if (reconcile.time < from) break;
    const at = row(reconcile.controller);
    at.starts.push(reconcile.time);
    if (reconcile.wait !== undefined) at.waits.push([reconcile.time, reconcile.wait]);
    if (reconcile.endSeq && reconcile.endSeq <= seq) {
      if (reconcile.took !== undefined) at.works.push([reconcile.time, reconcile.took]);
      if (reconcile.result === 'error') at.errors += 1;
    }
  }
  for (const queue of app.state()?.queues || []) row(queue.controller).queue = queue;
  const list = laneOrder(rows.keys()).map((name) => rows.get(name));
  for (const at of list) {
    at.rate = at.starts.length / (span / 1e6);
    at.wait = quantiles(at.waits, from, span);
    at.work = quantiles(at.works, from, span);
    at.activity = histogram(at.starts, from, time, PARTS);
  }
  return { list, span };
}

/** @param {Array<[number, number]>} pairs @param {number} from @param {number} span */
function quantiles(pairs, from, span) {
  const parts = Array.from({ length: PARTS }, () => /** @type {any} */ ([]));
  for (const [time, value] of pairs) parts[Math.min(PARTS - 1, Math.floor(((time - from) / span) * PARTS))].push(value);
  const at = (q) => parts.map((part) => quantile(part.sort((a, b) => a - b), q));
  const all = pairs.map(([, value]) => value).sort((a, b) => a - b);
  return { p50: quantile(all, 0.5), p99: quantile(all, 0.99), low: at(0.5), high: at(0.99) };
}

export function queues(app) {
  const { list } = queueRows(app);
  if (!list.length) return h('div', { class: 'scroll' }, empty('No controllers', 'No controller records into this trace.'));
  const busy = list.filter((at) => at.starts.length || (at.queue && at.queue.ready + at.queue.processing + at.queue.delayed));
  const sort = SORTS[app.filters.sort];
  const shown = [...(app.filters.allQueues || !busy.length ? list : busy)];
  if (sort) shown.sort((a, b) => sort(b) - sort(a));
  if (app.isNarrow()) return narrow(app, shown);
  return h('div', { class: 'scroll' }, h('table', { class: 'grid q' },
    heads('Controller', '#Ready', 'Reconciles', 'In flight', '#Back-off', '#Next due', 'Wait in queue', 'Work', '#Errors'),
    h('tbody', null, shown.map((at) => row(app, at)))), caches(app));
}

function nextDue(at) {
  const first = at.queue?.keys.delayed[0];
  return first ? duration(first.due_us) : 'none';
}

function inFlight(at) {
  const { queue } = at;
  if (!queue) return h('span', { class: 't3' }, 'unknown');
  if (queue.workers > PIPS_MAX) return h('span', { class: queue.processing ? '' : 't3' }, `${queue.processing} of ${queue.workers}`);
  return h('span', { class: 'pips', role: 'img', 'aria-label': `${queue.processing} of ${queue.workers}` }, Array.from({ length: queue.workers }, (_, i) => h('i', { key: i, class: i < queue.processing ? 'on' : '' })));
}

function quantileCell(numbers) {
  return h('div', { class: 'qs' }, spark(numbers.low, numbers.high), h('div', null,
    h('span', null, 'p99'), h('b', null, numbers.p99 === undefined ? 'none' : duration(numbers.p99)), h('span', { class: 'acc' }, 'p50'), h('b', null, numbers.p50 === undefined ? 'none' : duration(numbers.p50))));
}

function row(app, at) {
  const { queue } = at;
  const isSelected = app.queue === at.controller;
  return h('tr', { key: at.controller, class: isSelected ? 'sel' : '', 'data-controller': at.controller, ...activated(() => app.selectQueue(at.controller)) },
    h('td', null, h('div', { class: 'name' }, controllerShape(at.controller, app.model), h('div', null, h('b', null, title(at.controller)), h('small', null, `${at.rate.toFixed(1)} reconciles/s`)))),
    h('td', { class: `num${queue?.ready ? '' : ' t3'}` }, queue ? count(queue.ready) : '0'),
    h('td', null, bars(at.activity, { w: 68, h: 24, tone: queue && queue.ready > 2 * queue.workers ? 'warn' : '' })),
    h('td', null, inFlight(at)),
    number(queue?.backoff ? h('span', { class: 'tag warn' }, icon('loop', 12), String(queue.backoff)) : h('span', { class: 't3' }, '0')),
    h('td', { class: `num${nextDue(at) === 'none' ? ' t3' : ''}` }, nextDue(at)),
    h('td', null, quantileCell(at.wait)), h('td', null, quantileCell(at.work)),
    number(at.errors ? h('span', { class: 'tag error' }, icon('error', 12), count(at.errors)) : h('span', { class: 't3' }, '0')));
}

function narrow(app, list) {
  return h('div', { class: 'scroll' }, list.map((at) => h('section', { key: at.controller, class: 'qn' },
    h('div', { class: 'hd' }, controllerShape(at.controller, app.model), h('b', null, title(at.controller)), h('span', { class: `tag${at.errors ? ' error' : ''}` }, plural(at.errors, 'error'))),
    factList([['Ready', at.queue ? at.queue.ready : 0], ['In flight', at.queue ? `${at.queue.processing} of ${at.queue.workers}` : 'unknown'], ['Back-off', at.queue?.backoff || 0], ['Next due', nextDue(at)]]),
    h('div', { class: 'two-q' }, h('div', null, h('small', null, 'Wait in queue'), quantileCell(at.wait)), h('div', null, h('small', null, 'Work'), quantileCell(at.work))))));
}

function caches(app) {
  const now = app.state();
  if (!now) return null;
  const merged = new Map();
  for (const cache of now.caches) {
    const known = merged.get(cache.kind);
    if (!known || (cache.version || 0) < (known.version || 0)) merged.set(cache.kind, { ...cache, relists: cache.relists + (known?.relists || 0), informers: (known?.informers || 0) + 1 });
    else {
      known.relists += cache.relists;
      known.informers += 1;
      known.lag_us = Math.max(known.lag_us, cache.lag_us);
    }
  }
  const list = [...merged.values()].sort((a, b) => b.lag_us - a.lag_us || b.objects - a.objects);
  const shown = app.filters.allQueues ? list : list.slice(0, CACHES_SHOWN);
  return [h('div', { key: 'h', class: 'sec-h' }, h('h2', null, 'Caches'), h('span', null, `${plural(now.caches.length, 'informer')}, ${shown.length} kinds shown, most lag first`)),
    h('table', { key: 't', class: 'grid' }, heads('Kind', '#Objects', '#Revision', '#Not delivered', '#Lag', '#Silent for', '#Relists', 'Last list'),
      h('tbody', null, shown.map((cache) => {
        const behind = cache.backlog > 0 && cache.lag_us > 1e6;
        const listed = app.model.lists.get(cache.kind);
        const [kind, ...group] = cache.kind.split('.');
        return h('tr', { key: cache.kind }, h('td', null, h('b', { class: 'strong' }, kind), ' ', h('span', { class: 't3' }, group.join('.') || 'core')),
          number(count(cache.objects)), number(cache.version ? String(cache.version) : 'unknown'),
          number(cache.backlog ? count(cache.backlog) : h('span', { class: 't3' }, '0')),
          number(behind ? h('span', { class: 'tag warn' }, icon('clock', 12), duration(cache.lag_us)) : h('span', { class: 't3' }, '0')),
          h('td', { class: 'num t2' }, duration(cache.silence_us)),
          number(String(Math.max(0, cache.relists - cache.informers))), h('td', { class: 't2' }, listed ? `${clock(listed.time_us)}, ${plural(listed.objects, 'object')}` : 'before the first record'));
      })))];
}

/** The keys of a queue. */
export function queuePanel(app) {
  if (!app.queue) return null;
  const { list } = queueRows(app);
  const at = list.find((candidate) => candidate.controller === app.queue);
  if (!at) return null;
  const { queue } = at;
  const keys = queue ? queue.ready + queue.processing + queue.delayed : 0;
  const failing = app.findings().filter((finding) => finding.controller === at.controller);
  const running = new Map([...app.model.running.values()].filter((r) => r.controller === at.controller).map((r) => [full(r), r]));
  return h('aside', { class: 'panel', 'aria-label': 'Queue' },
    h('div', { class: 'p-head' }, h('div', { class: 'row' }, controllerShape(at.controller, app.model), h('span', { class: 't2' }, `Queue of ${title(at.controller)}`), h('span', { class: 'grow' }), h('button', { class: 'btn icon ghost', 'aria-label': 'Close', onclick: () => app.selectQueue(null) }, icon('close'))),
      h('h2', null, plural(keys, 'key')),
      factList([['Added', queue ? count(queue.adds) : 'unknown'], ['Retries', queue ? count(queue.retries) : 'unknown'], ['Longest in flight', queue?.processing ? duration(queue.longest_us) : 'none'], ['Workers', queue ? String(queue.workers) : 'unknown']])),
    queue ? [
      keyList(app, 'In flight', queue.processing, queue.keys.processing, (entry) => (entry.age_us === undefined ? '' : duration(entry.age_us)), running),
      keyList(app, 'Ready', queue.ready, queue.keys.ready, (entry) => (entry.age_us === undefined ? '' : `waits ${duration(entry.age_us)}`), null),
      keyList(app, queue.backoff ? 'Back-off and delayed' : 'Delayed', queue.delayed, queue.keys.delayed, (entry) => `in ${duration(entry.due_us)}`, null),
    ] : null,
    failing.map((finding) => h('div', { key: finding.id, class: 'p-sec' }, h('div', { class: 'note warn' }, icon('findings'), h('div', null, h('b', null, finding.title), h('p', null, finding.text))))));
}

/** @param {string} name @param {number} total @param {any[]} entries @param {(entry: any) => string} right @param {Map<string, any> | null} running */
function keyList(app, name, total, entries, right, running) {
  return h('div', { class: 'p-sec', key: name }, h('h3', { class: 'h' }, name, h('span', { class: 'n' }, count(total))), entries.map((entry, i) => {
    const key = entry.namespace ? `${entry.namespace}/${entry.name}` : entry.name;
    const reconcile = running?.get(key);
    const causes = entry.causes.length ? entry.causes : reconcile?.causes || [];
    const cause = causes[0];
    const text = entry.failures ? `${plural(entry.failures, 'failure')}${lastError(app, key)}` : cause ? `${short(cause.kind)} ${cause.event || 'changed'}${cause.version ? ` at ${cause.version}` : ''}${cause.reason ? `: ${cause.reason}` : ''}${causes.length > 1 ? `, ${causes.length} causes` : ''}` : 'no cause';
    return h('div', { key: `${key}${i}`, class: 'qi' }, h('b', { class: 'cut' }, key), h('span', null, right(entry)), h('small', null, icon(entry.failures ? 'loop' : 'clock', 12), h('span', { class: 'cut' }, text)));
  }), total > entries.length ? h('p', { class: 't3 small' }, `${count(total - entries.length)} more`) : null);
}

function lastError(app, key) {
  for (let i = app.model.reconciles.length - 1, n = 0; i >= 0 && n < 4000; i -= 1, n += 1) {
    const reconcile = app.model.reconciles[i];
    if (reconcile.controller === app.queue && full(reconcile) === key && reconcile.error) return `, ${reconcile.error}`;
  }
  return '';
}
