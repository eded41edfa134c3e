// View: the tree of objects by owner. The objects that changed recently or fail are drawn, the rest
// is counted.

import { h, icon } from './dom.js';
import { ago, count, full, middle, pathEnd, plural, precise, short } from './format.js';
import { bars, histogram } from './charts.js';
import { writerName } from './names.js';
import { activated, diff, empty, factList, heads, health, note, section, writerShape } from './parts.js';

const DRAWN_MAX = 200;
/** The last forest: top bar and view need the same. */
const drawn = { id: '', plan: /** @type {any} */ (null) };
const WINDOW_US = 600e6;
const QUIET = new Set(['Lease', 'Event', 'ControllerRevision', 'EndpointSlice', 'FlowSchema', 'PriorityLevelConfiguration', 'ClusterRole', 'ClusterRoleBinding', 'Role', 'RoleBinding', 'APIService', 'IPAddress', 'ServiceAccount', 'ConfigMap', 'PriorityClass', 'ServiceCIDR', 'Endpoints', 'CSINode', 'CustomResourceDefinition', 'ComponentStatus']);

const cell = (props, ...children) => h('td', { role: 'gridcell', ...props }, ...children);
/** The height of a row, and the rows in the document: those in sight and a screen around them. */
const ROW = 30;
const ROWS_SHOWN = 90;

/** The forest at a moment. */
export function forest(app) {
  const { model, filters } = app;
  const id = [model.changed, app.at().seq, filters.ns, filters.kind].join('|');
  if (drawn.id !== id) {
    drawn.id = id;
    drawn.plan = plant(app);
  }
  return drawn.plan;
}

function plant(app) {
  const { seq, time } = app.at();
  const { ns, kind } = app.filters;
  const existing = app.existing(seq);
  const byUid = new Map();
  const children = new Map();
  for (const item of existing) if (item.digest?.uid) byUid.set(item.digest.uid, item);
  const roots = [];
  for (const item of existing) {
    const owner = item.digest?.owners?.map((uid) => byUid.get(uid)).find(Boolean);
    item.parent = owner || null;
    if (owner) {
      if (!children.has(owner)) children.set(owner, []);
      children.get(owner).push(item);
    } else roots.push(item);
  }
  const score = (item) => (item.digest?.health === 'failed' ? 1e12 : item.digest?.health === 'progressing' ? 5e11 : 0) + (item.write ? item.write.time / 1e6 - time / 1e6 : -1e6) - (QUIET.has(short(item.object.kind)) ? 1e9 : 0);
  const matches = (item) => (!ns || item.object.ns === ns) && (!kind || short(item.object.kind) === kind);
  const candidates = existing.filter(matches).sort((a, b) => score(b) - score(a));
  const chosen = new Set();
  for (const item of candidates) {
    if (chosen.size >= DRAWN_MAX) break;
    for (let at = item; at; at = at.parent) chosen.add(at);
  }
  return { existing, roots, children, drawn: chosen, total: candidates.length };
}

export function objects(app) {
  const plan = forest(app);
  if (!plan.existing.length) return h('div', { class: 'scroll' }, empty('No objects', 'Objects appear with their first recorded write.'));
  const { time } = app.at();
  const spaces = new Map();
  for (const item of plan.roots) {
    const isNamespace = item.object.kind === 'Namespace';
    const name = isNamespace ? item.object.name : item.object.ns || '';
    if (!spaces.has(name)) spaces.set(name, []);
    if (!isNamespace) spaces.get(name).push(item);
  }
  const names = [...spaces.keys()].sort((a, b) => (a === '' ? 1 : b === '' ? -1 : (a === 'default' ? -1 : b === 'default' ? 1 : a.localeCompare(b))));
  const rows = [];
  for (const name of names) {
    if (app.filters.ns && name !== app.filters.ns) continue;
    spaceRows(app, plan, name, (spaces.get(name)), rows, time);
  }
  const above = Math.max(0, Math.min(rows.length - ROWS_SHOWN, Math.floor((app.treeTop || 0) / ROW) - 30));
  const shown = rows.slice(above, above + ROWS_SHOWN);
  const space = (key, count) => (count > 0 ? h('tr', { key, 'aria-hidden': 'true' }, h('td', { colspan: 6, css: { height: `${count * ROW}px` } })) : null);
  return h('div', { class: 'scroll', onscroll: (event) => { app.treeTop = event.currentTarget.scrollTop; app.render(); } }, h('table', { class: 'grid tree', role: 'treegrid', 'aria-label': 'Objects by owner' },
    heads('Object', 'Status', 'Changed', 'Last writer', '#Version', 'Writes, 10 min'),
    h('tbody', null, space('above', above), shown, space('below', rows.length - above - shown.length))));
}

function spaceRows(app, plan, name, items, rows, time) {
  const self = plan.existing.find((item) => item.object.kind === 'Namespace' && item.object.name === name);
  const all = plan.existing.filter((item) => (item.object.ns || '') === name && item.object.kind !== 'Namespace');
  const id = `ns:${name}`;
  const isQuiet = name.startsWith('kube-') || name === '';
  const isOpen = app.isOpen(id, !isQuiet);
  const writes = all.flatMap((item) => item.object.versions.map((write) => write.time));
  const last = Math.max(0, ...all.map((item) => item.write?.time || 0));
  const kinds = counts(all);
  rows.push(h('tr', { key: id, class: 'ns', role: 'row', 'aria-level': 1, 'aria-expanded': isOpen ? 'true' : 'false', ...activated(() => app.toggle(id, !isQuiet)) },
    cell(null, h('div', { class: 'nm' }, h('span', { class: 'tw' }, icon(isOpen ? 'down' : 'right', 14)), name ? [h('span', { key: 'k', class: 'kind' }, 'Namespace'), h('b', { key: 'b' }, name)] : h('b', null, 'Cluster-scoped'), h('span', { class: 'cnt' }, name ? plural(all.length, 'object') : kinds))),
    cell(null, self && self.digest?.status !== 'Active' ? health(self.digest) : null), cell({ class: 't2' }, last ? ago(time - last) : ''), cell(null), cell(null), cell(null, bars(histogram(writes, time - WINDOW_US, time, 36), { w: 92 }))));
  if (isOpen) level(app, plan, items, 1, [], rows, time, id);
}

/** `24 Nodes, 31 others`. @param {any[]} items */
function counts(items) {
  const kinds = new Map();
  for (const item of items) kinds.set(short(item.object.kind), (kinds.get(short(item.object.kind)) || 0) + 1);
  return [...kinds].sort((a, b) => b[1] - a[1]).slice(0, 3).map(([kind, n]) => `${count(n)} ${n === 1 ? kind : kind.endsWith('s') ? `${kind}es` : `${kind}s`}`).join(', ') + (kinds.size > 3 ? ', …' : '');
}

/** @param {any[]} items @param {number} depth @param {boolean[]} lines @param {any[]} rows @param {number} time @param {string} path */
function level(app, plan, items, depth, lines, rows, time, path) {
  const shown = items.filter((item) => plan.drawn.has(item) && (depth > 1 || !QUIET.has(short(item.object.kind)) || app.filters.kind)).sort((a, b) => short(a.object.kind).localeCompare(short(b.object.kind)) || a.object.name.localeCompare(b.object.name));
  const rest = items.filter((item) => !shown.includes(item));
  shown.forEach((item, i) => {
    const isLast = i === shown.length - 1 && !rest.length;
    objectRow(app, plan, item, depth, [...lines, isLast], rows, time);
  });
  if (rest.length) {
    rows.push(h('tr', { key: `rest:${path}`, class: 'grp', role: 'row', 'aria-level': depth + 1 }, cell({ colspan: 6 }, h('div', { class: 'nm' }, indent([...lines, true]), h('span', { class: 'tw' }), counts(rest), h('span', { class: 'cnt' }, 'not drawn')))));
  }
}

/** @param {boolean[]} lines */
function indent(lines) {
  return lines.map((isLast, i) => h('span', { key: `i${i}`, class: `ind ${i < lines.length - 1 ? (isLast ? '' : 'l') : isLast ? 'e' : 't'}` }));
}

/** @param {number} depth @param {boolean[]} lines @param {any[]} rows @param {number} time */
function objectRow(app, plan, item, depth, lines, rows, time) {
  const { object, write, digest } = item;
  const owned = plan.children.get(item) || [];
  const isOpen = owned.length > 0 && app.isOpen(object.id, depth < 4);
  const isSelected = app.object === object.id;
  rows.push(h('tr', {
    key: object.id, class: isSelected ? 'sel' : '', role: 'row', 'aria-level': depth + 1, 'aria-expanded': owned.length ? (isOpen ? 'true' : 'false') : undefined, tabindex: 0, 'data-object': object.id,
    onclick: () => app.selectObject(object.id), onkeydown: (event) => rowKeys(app, object, owned.length > 0, isOpen, depth, event),
  },
  cell(null, h('div', { class: 'nm' }, indent(lines), h('span', { class: 'tw', onclick: (event) => { event.stopPropagation(); if (owned.length) app.toggle(object.id, depth < 4); } }, owned.length ? icon(isOpen ? 'down' : 'right', 14) : null), h('span', { class: 'kind' }, short(object.kind)), h('b', { class: 'cut', title: full(object) }, middle(object.name, 48)), owned.length && !isOpen ? h('span', { class: 'cnt' }, `${owned.length} owned`) : null)),
  cell(null, health(digest)), cell({ class: 't2' }, write ? ago(time - write.time) : ''),
  cell(null, write ? h('span', { class: 'who' }, writerShape(write, app.model), middle(writerName(write), 18)) : null),
  cell({ class: 'num t2' }, write ? String(write.version) : ''), cell(null, bars(histogram(object.versions.map((v) => v.time), time - WINDOW_US, time, 36), { w: 92 }))));
  if (isOpen) level(app, plan, owned, depth + 1, lines, rows, time, object.id);
}

function rowKeys(app, object, hasChildren, isOpen, depth, event) {
  const target = (event.currentTarget);
  if (event.key === 'Enter') app.selectObject(object.id);
  else if (event.key === 'ArrowRight' && hasChildren && !isOpen) app.toggle(object.id, depth < 4);
  else if (event.key === 'ArrowLeft' && hasChildren && isOpen) app.toggle(object.id, depth < 4);
  else if (event.key === 'ArrowDown') (target.nextElementSibling)?.focus();
  else if (event.key === 'ArrowUp') (target.previousElementSibling)?.focus();
  else return;
  event.preventDefault();
  event.stopPropagation();
}

export function objectPanel(app) {
  const object = app.object ? app.model.objects.get(app.object) : null;
  if (!object) return null;
  const { seq, time } = app.at();
  const versions = object.versions.filter((write) => write.seq <= seq);
  const newest = versions[versions.length - 1];
  const digest = newest ? newest.digest : object.base?.digest;
  const fields = app.fields(object);
  const spec = fields ? fields.filter((field) => field.path.startsWith('spec.')).slice(0, 8) : [];
  const facts = [digest?.status ? ['State', digest.status] : null, digest?.generation ? ['Generation', String(digest.generation)] : null, ['Version', newest ? String(newest.version) : String(object.base?.version || 'unknown')], digest?.created ? ['Age', ago(time - Date.parse(digest.created) * 1000).replace(' ago', '')] : null];
  return h('aside', { class: 'panel', 'aria-label': 'Object' },
    h('div', { class: 'p-head' }, h('div', { class: 'row' }, h('span', { class: 't2' }, short(object.kind)), digest?.health === 'ok' ? null : health(digest), h('span', { class: 'grow' }), h('button', { class: 'btn icon ghost', 'aria-label': 'Close', onclick: () => app.selectObject(null) }, icon('close'))),
      h('h2', null, full(object)), factList(facts)),
    newest ? section(['Last change', note(`${ago(time - newest.time)}, ${precise(newest.time)}`)], h('div', { class: 'write' }, h('div', { class: 'wh' }, writerShape(newest, app.model), h('span', null, `${writerName(newest)} ${newest.verb}${newest.sub ? ` ${newest.sub}` : ''}`), h('span', { class: 'mono' }, String(newest.version))), newest.changes.length ? h('div', { class: 'wb' }, diff(newest.changes.slice(0, 8), newest.more)) : null)) : null,
    spec.length ? section(['Fields and their managers'], h('table', { class: 'fields' }, h('tbody', null, spec.map((field) => h('tr', { key: field.path }, h('td', { class: 'mono cut', title: field.path }, pathEnd(field.path, 19)), h('td', { class: 'mono cut', title: String(field.value) }, middle(String(field.value), 7)), h('td', { title: field.manager }, middle(field.manager || '', 16))))))) : null,
    digest?.conditions?.length ? section(['Conditions'], digest.conditions.map(([name, status, reason]) => h('div', { key: name, class: 'own' }, h('span', { class: `state ${status === 'True' ? 'ok' : ''}` }, icon(status === 'True' ? 'check' : 'clock', 14), name), h('span', { class: 't3' }, reason || status)))) : null,
    digest?.finalizers?.length ? section(['Finalizers'], digest.finalizers.map((name) => h('p', { key: name, class: 'mono small' }, name))) : null,
    versions.length ? section(['Versions', note(`${versions.length} recorded, oldest ${versions[0].version}`)], bars(histogram(versions.map((v) => v.time), versions[0].time, Math.max(time, versions[0].time + 1), 32), { w: 316, h: 32, tone: 'acc' })) : null,
    h('div', { class: 'p-foot' }, h('button', { class: 'btn', onclick: () => app.openWhy(object) }, 'Open why', h('kbd', null, 'W')), newest ? h('button', { class: 'btn ghost', onclick: () => app.showInTimeline(newest) }, 'Show in timeline', h('kbd', null, 'T')) : null));
}
