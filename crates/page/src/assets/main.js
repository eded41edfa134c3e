// The page: state, frame, keys, and the loop that renders at most ten times per second.

import { h, icon, patchChildren } from './dom.js';
import { full, plural, precise, short } from './format.js';
import { Model, countWhile } from './model.js';
import { causesOf, chainOf, edgesOf, effectsOf, rootType } from './chain.js';
import { detect } from './detectors.js';
import { laneOrder } from './lanes.js';
import { commandSentence, title } from './names.js';
import { Connection } from './stream.js';
import { actMenu } from './act.js';
import { findings } from './findings.js';
import { objectPanel, objects, forest } from './objects.js';
import { operators } from './operators.js';
import { keysDialog, palette } from './palette.js';
import { panel } from './panel.js';
import { download, perfetto } from './perfetto.js';
import { queuePanel, queues, SORTS } from './queues.js';
import { timebar } from './timebar.js';
import { followEnd, shown, timeline } from './timeline.js';
import { why, whyPanel } from './why.js';

/** @type {any} */ 
const VIEWS = [['timeline', 'Timeline', 'timeline', timeline], ['why', 'Why', 'why', why], ['queues', 'Queues', 'queues', queues], ['objects', 'Objects', 'objects', objects], ['findings', 'Findings', 'findings', findings], ['operators', 'Operators', 'operators', operators]];
const RENDER_MS = 100;
/** New records are shown at most four times per second. */
const STREAM_MS = 250;
const ANNOUNCE_MS = 5000;
/** New records per drawing whose rows fade in. */
const FADES_MAX = 60;
const HIDDEN_KINDS = ['Lease', 'Event'];

class App {
  constructor() {
    this.model = new Model();
    this.views = VIEWS.map(([id, name, symbol]) => [id, name, symbol]);
    this.view = 'timeline';
    this.info = /** @type {any} */ ({ mode: 'live' });
    this.status = /** @type {any} */ ({ connected: true });
    this.isReady = false;
    this.position = null;
    this.selected = null;
    this.chain = null;
    this.filters = { ns: '', kind: '', hidden: new Set(HIDDEN_KINDS), lanes: (null), find: '', allQueues: false, sort: '' };
    this.table = false;
    this.fold = true;
    this.range = 60e6;
    this.viewport = { top: 0, height: 900 };
    this.scrollTo = null;
    this.whyId = '';
    this.whyTab = 'reconciles';
    this.queue = null;
    this.object = null;
    this.finding = '';
    this.palette = null;
    this.keysOpen = false;
    this.menu = '';
    this.actOpen = false;
    this.actMessage = '';
    this.confirming = null;
    this.diffs = new Map();
    this.loadedFields = new Map();
    this.open = new Map();
    this.cache = { existing: /** @type {any} */ (null), findings: /** @type {any} */ (null) };
    this.timer = 0;
    this.interval = 0;
    this.lastRender = 0;
    this.drawn = 0;
    this.announced = { at: 0, total: 0 };
    this.connection = null;
    /** The records that are read now. */
    this.loading = null;
    this.token = '';
    this.scope = { ns: '', kind: '' };
    /** Namespaces and kinds that were seen, whatever the scope. */
    this.names = { ns: new Set(), kinds: new Set(HIDDEN_KINDS) };
  }

  // ---- data ----

  /**
   * Reads the records that pass the filter of the server, and shows them when all stored ones are
   * there; until then the former ones stay.
   * @param {{ns: string, kind: string}} scope
   */
  async connect(scope) {
    const query = scopeQuery(scope);
    const model = new Model();
    const former = this.connection;
    const connection = new Connection(this.token, query, {
      last: () => model.last,
      frame: (type, data) => this.frame(model, type, data),
      status: (status) => { this.status = status; this.render(); },
    });
    this.loading = model;
    this.connection = connection;
    this.scope = scope;
    this.filters.ns = scope.ns;
    if (!this.isReady) this.model = model;
    former?.close();
    const { status, data } = await connection.json('/api/info');
    if (status !== 200) throw new Error(String(status));
    this.info = data;
    if (this.info.mode === 'replay') this.range = Infinity;
    const existing = await connection.json(`/api/objects?${query}`);
    if (existing.data) model.addExisting(existing.data);
    await connection.start();
  }

  /** A frame of the stream. @param {any} model the records that it belongs to */
  frame(model, type, data) {
    if (type === 'records') model.add(data.records);
    else if (type === 'gap') model.addGap(data.after, data.missed);
    else if (type === 'state') model.add([data]);
    if (type === 'records' && data.to) model.last = Math.max(model.last, data.to);
    if (type === 'ready' && this.loading === model) {
      this.isReady = true;
      this.replace(model);
    }
    if (this.model !== model) return;
    if (this.chain && this.isLive()) this.chain = chainOf(this.node(this.selected) || this.chain.root);
    this.render(STREAM_MS);
  }

  /** Shows other records. */
  replace(model) {
    if (this.model === model) return;
    this.rememberNames();
    this.model = model;
    this.position = null;
    this.drawn = model.total;
    const node = this.node(this.selected);
    this.selected = node ? this.selected : null;
    this.chain = node ? chainOf(node) : null;
  }

  rememberNames() {
    for (const object of this.model.objects.values()) {
      if (object.ns) this.names.ns.add(object.ns);
      this.names.kinds.add(short(object.kind));
    }
  }

  /** @param {Partial<{ns: string, kind: string}>} change */
  setScope(change) {
    const scope = { ...this.scope, ...change };
    if (scope.ns === this.scope.ns && scope.kind === this.scope.kind) return;
    this.connect(scope).catch(() => undefined);
    this.show(this.view);
  }

  // ---- time ----

  isLive() { return this.position === null; }

  at() {
    if (this.position === null) return { seq: this.model.last, time: this.model.lastTime };
    return { seq: this.position, time: this.model.timeAt(this.position) };
  }

  pause() { this.seek(this.model.last); }

  goLive() {
    this.position = null;
    followEnd();
    this.render();
  }

  seek(seq) {
    this.position = Math.max(this.model.first, Math.min(this.model.last, seq));
    this.render();
  }

  step(direction) {
    const { seq } = this.at();
    const { records } = this.model;
    if (direction < 0) {
      for (let i = records.length - 1; i >= 0; i -= 1) if (records[i].seq < seq) return this.seek(records[i].seq);
    } else {
      const next = records.find((record) => record.seq > seq);
      if (next) return this.seek(next.seq);
    }
    return undefined;
  }

  setRange(range) { this.range = range; this.render(); }

  state() { return this.model.stateAt(this.position === null ? Infinity : this.position); }

  existing(seq) {
    const key = `${this.model.changed}|${seq}`;
    if (this.cache.existing?.key !== key) this.cache.existing = { key, list: this.model.existingAt(seq) };
    return this.cache.existing.list;
  }

  findings() {
    const { seq, time } = this.at();
    // Detectors read thousands of records, so at most once per second.
    const key = this.isLive() ? `live|${Math.floor(performance.now() / 1000)}` : `${seq}`;
    if (this.cache.findings?.key !== key) this.cache.findings = { key, list: detect(this.model, seq, time) };
    return this.cache.findings.list;
  }

  // ---- selection ----

  /** @param {string | null} id @returns {any} */
  node(id) {
    if (!id) return null;
    if (id[0] === 'w') return this.model.writes.get(Number(id.slice(1))) || null;
    const seq = Number(id.slice(1));
    const { reconciles } = this.model;
    const found = reconciles[countWhile(reconciles, (reconcile) => reconcile.seq < seq)];
    return found?.seq === seq ? found : null;
  }

  select(id) {
    this.selected = id;
    const node = this.node(id);
    this.chain = node ? chainOf(node) : null;
    if (!node && this.isLive()) followEnd();
    if (node) this.whyId = this.objectOf(node)?.id || this.whyId;
    if (node) this.scrollTo = id;
    this.render();
  }

  /** The object that a node is about. */
  objectOf(node) {
    if (!node) return null;
    if (node.type === 'write') return this.model.objects.get(`${node.kind}|${node.ns || ''}|${node.name}`) || null;
    if (node.type !== 'reconcile') return node.id ? this.model.objects.get(node.id) || null : null;
    const own = node.causes.find((cause) => cause.object.name === node.name && (cause.object.namespace || '') === (node.ns || ''))?.kind
      || node.links.find((link) => link.write.name === node.name)?.write.kind || node.writes.find((write) => write.name === node.name)?.kind;
    if (own) return this.model.objects.get(`${own}|${node.ns || ''}|${node.name}`) || null;
    for (const object of this.model.objects.values()) {
      if (object.name === node.name && (object.ns || '') === (node.ns || '') && short(object.kind).toLowerCase() === title(node.controller)) return object;
    }
    return null;
  }

  /** What followed from a node. */
  effects(node) {
    const { seq } = this.at();
    const seen = new Set([node]);
    const pending = [node];
    const reconciles = [];
    let end = node.endTime || node.time;
    while (pending.length && seen.size < 1500) {
      for (const next of effectsOf(pending.pop())) {
        if (seen.has(next) || next.seq > seq) continue;
        seen.add(next);
        pending.push(next);
        if (next.type === 'reconcile') reconciles.push(next);
        end = Math.max(end, next.endTime || next.time);
      }
    }
    reconciles.sort((a, b) => a.seq - b.seq);
    return { reconciles, end };
  }

  tabStop(id) {
    if (this.selected) return this.selected === id;
    const plan = shown();
    return !!plan?.rows.length && plan.rows[plan.rows.length - 1].id === id;
  }

  openWhy(target) {
    const object = target?.type ? this.objectOf(target) : target;
    if (object) this.whyId = object.id;
    this.show('why');
  }

  whyObject() { return this.model.objects.get(this.whyId) || null; }

  setWhyTab(tab) { this.whyTab = tab; this.render(); }

  showInTimeline(node) {
    this.show('timeline');
    this.select(node.id);
    this.scrollTo = node.id;
    this.render();
  }

  selectQueue(name) { this.queue = this.queue === name ? null : name; this.render(); }

  selectObject(id) {
    this.object = id;
    if (id) this.whyId = id;
    this.render();
  }

  selectFinding(id) { this.finding = id; this.render(); }

  isOpen(id, initial) { return this.open.has(id) ? this.open.get(id) : initial; }

  toggle(id, initial) { this.open.set(id, !this.isOpen(id, initial)); this.render(); }

  // ---- data on demand ----

  /** The fields of an object with their managers; null while they are read. */
  fields(object) {
    if (this.info.mode === 'replay' || !this.info.diffs) return null;
    const { seq } = this.at();
    const write = [...object.versions].reverse().find((candidate) => candidate.seq <= seq);
    const version = write?.version || object.base?.version;
    const key = `${object.id}|${version}`;
    const known = this.loadedFields.get(key);
    if (known !== undefined) return known;
    this.loadedFields.set(key, null);
    if (this.loadedFields.size > 200) this.loadedFields.delete(this.loadedFields.keys().next().value);
    const query = write ? `version=${version}` : `kind=${encodeURIComponent(object.kind)}&namespace=${encodeURIComponent(object.ns || '')}&name=${encodeURIComponent(object.name)}`;
    this.connection?.json(`/api/object?${query}`).then(({ status, data }) => {
      this.loadedFields.set(key, status === 200 ? fieldsOf(data) : []);
      this.render();
    }).catch(() => undefined);
    // The fields of the previous version stay until the new ones are read.
    for (const [other, list] of this.loadedFields) if (list && other.startsWith(`${object.id}|`)) return list;
    return null;
  }

  loadDiff(version) {
    this.connection?.json(`/api/diff?version=${version}`).then(({ data }) => {
      if (data) this.diffs.set(version, data);
      this.render();
    }).catch(() => undefined);
  }

  act(body) {
    this.actMessage = 'Sent';
    this.connection?.fetch('/api/act', { method: 'POST', body: JSON.stringify(body), headers: { 'content-type': 'application/json' } })
      .then((response) => response.json()).then((data) => { this.actMessage = data.done || data.error; this.render(); }).catch(() => { this.actMessage = 'The server did not respond'; this.render(); });
    this.render();
  }

  toggleAct() { this.actOpen = !this.actOpen; this.actMessage = ''; this.render(); }

  confirm(object) { this.confirming = object; this.render(); }

  // ---- frame ----

  show(id) {
    if (id === 'timeline' && this.view !== id) this.scrollTo = this.selected;
    this.view = id;
    this.menu = '';
    const query = scopeQuery(this.scope);
    history.replaceState(null, '', `#${id}${query ? `?${query}` : ''}`);
    this.render();
  }

  isNarrow() { return innerWidth <= 720; }

  mainWidth() {
    const hasPanel = !!this.panelNode && innerWidth >= 1200;
    return innerWidth - (this.isNarrow() ? 0 : 64) - (hasPanel ? 360 : 0) - 12;
  }

  clearFilters() {
    this.filters = { ...this.filters, ns: '', kind: '', hidden: new Set(HIDDEN_KINDS), lanes: null, find: '' };
    this.setScope({ ns: '', kind: '' });
    this.render();
  }

  setFind(text) { this.filters.find = text; this.render(); }

  openPalette() {
    this.palette = { text: '', at: 0 };
    this.keysOpen = false;
    this.draw();
    document.getElementById('palette-input')?.focus();
  }

  setPalette(value) { this.palette = value; this.draw(); }

  closeOverlay() {
    this.palette = null;
    this.keysOpen = false;
    this.menu = '';
    this.actOpen = false;
    this.render();
  }

  /** Draws soon; `interval` is the time between two draws. */
  render(interval = RENDER_MS) {
    if (this.timer && interval >= this.interval) return;
    clearTimeout(this.timer);
    this.interval = interval;
    const wait = Math.max(0, interval - (performance.now() - this.lastRender));
    this.timer = window.setTimeout(() => requestAnimationFrame(() => this.draw()), wait);
  }

  draw() {
    clearTimeout(this.timer);
    this.timer = 0;
    this.lastRender = performance.now();
    const view = VIEWS.find(([id]) => id === this.view) || VIEWS[0];
    this.panelNode = this.view === 'timeline' ? panel(this) : this.view === 'why' ? whyPanel(this) : this.view === 'queues' ? queuePanel(this) : this.view === 'objects' ? objectPanel(this) : null;
    if (this.isNarrow() && this.view === 'why') this.panelNode = null;
    const root = /** @type {any} */ (document.getElementById('app'));
    // Each fade is a layer of the compositor, and hundreds of them take longer than the drawing.
    const isBusy = this.model.total - this.drawn > FADES_MAX;
    this.drawn = this.model.total;
    root.className = `app${this.panelNode ? ' with-panel' : ''}${isBusy ? ' busy' : ''}`;
    root.dataset.view = this.view;
    root.dataset.seq = String(this.at().seq);
    root.dataset.ready = String(this.isReady);
    // Before the top bar, which shows what the view laid out. A view has its own element, and with it
    // its own scroll position.
    const body = { ...view[3](this), key: this.view + (this.table ? '-table' : '') };
    patchChildren(root, [rail(this), topbar(this, view), h('main', { key: 'main', class: 'main', id: 'main' }, banner(this), body), this.panelNode ? h('div', { key: 'panel', class: 'panel-slot' }, this.panelNode) : null, h('div', { key: 'time', class: 'time-slot' }, timebar(this))]);
    patchChildren(document.getElementById('overlay'), [palette(this), keysDialog(this)]);
    if (this.isReady && !performance.getEntriesByName('ready').length) performance.mark('ready');
    this.announce();
  }

  announce() {
    const now = performance.now();
    if (now - this.announced.at < ANNOUNCE_MS || this.model.total === this.announced.total || !this.isReady) return;
    const element = document.getElementById('announce');
    if (element) element.textContent = plural(this.model.total - this.announced.total, 'new record');
    this.announced = { at: now, total: this.model.total };
  }

  toggleTheme() {
    const theme = document.documentElement.dataset.theme === 'dark' ? 'light' : 'dark';
    document.documentElement.dataset.theme = theme;
    try {
      localStorage.setItem('bellerophon-theme', theme);
    } catch {
      // The choice is kept for this page only.
    }
    this.render();
  }

  /** Moves the selection in the timeline. @param {string} key */
  move(key) {
    const plan = shown();
    if (!plan) return;
    const node = this.node(this.selected);
    /** @type {any} */ let next = null;
    if (key === 'ArrowUp' || key === 'ArrowDown') {
      const list = plan.rows.filter((row) => row.write).map((row) => row.write);
      const place = node ? list.findIndex((write) => write === node || (write.writer && write.writer === node)) : -1;
      next = place < 0 ? list[list.length - 1] : list[place + (key === 'ArrowDown' ? 1 : -1)];
    } else if (node) {
      const list = key === 'ArrowLeft' ? causesOf(node) : effectsOf(node);
      next = list.filter((candidate) => candidate.seq <= this.at().seq)[0];
    }
    if (!next) return;
    this.select(next.id);
    this.scrollTo = next.id;
    requestAnimationFrame(() => requestAnimationFrame(() => (/** @type {any} */ (document.querySelector(`[data-id="${next.id}"]`)))?.focus({ preventScroll: true })));
  }
}

/** The fields of an object as paths, each with its manager. */
function fieldsOf(object) {
  const managers = new Map();
  for (const entry of object.metadata?.managedFields || []) walkFields(entry.fieldsV1 || {}, '', entry.manager, managers);
  const fields = [];
  const walk = (value, path) => {
    if (fields.length > 300) return;
    if (value && typeof value === 'object' && !Array.isArray(value) && Object.keys(value).length) {
      for (const name in value) walk(value[name], path ? `${path}.${name}` : name);
    } else if (Array.isArray(value) && value.length && typeof value[0] === 'object') {
      value.forEach((item, i) => walk(item, `${path}[${item.name || item.type || i}]`));
    } else fields.push({ path, value, manager: managerOf(path, managers) });
  };
  for (const name of ['spec', 'data', 'status']) if (object[name] !== undefined) walk(object[name], name);
  return fields;
}

function walkFields(set, path, manager, managers) {
  for (const key in set) {
    if (!key.startsWith('f:')) {
      if (key.startsWith('k:')) walkFields(set[key], `${path}[${Object.values(JSON.parse(key.slice(2)))[0]}]`, manager, managers);
      continue;
    }
    const next = path ? `${path}.${key.slice(2)}` : key.slice(2);
    if (!Object.keys(set[key]).length) managers.set(next, manager);
    else walkFields(set[key], next, manager, managers);
  }
}

function managerOf(path, managers) {
  for (let at = path; at; at = at.replace(/(\.[^.[]+|\[[^\]]*\]|^[^.[]+)$/, '')) if (managers.has(at)) return managers.get(at);
  return '';
}

function rail(app) {
  const problems = app.findings().length;
  return h('nav', { key: 'rail', class: 'rail', 'aria-label': 'Views' }, h('span', { class: 'mark' }, icon('mark', 20)),
    VIEWS.map(([id, name, symbol]) => h('a', { key: id, href: `#${id}`, 'aria-current': app.view === id ? 'page' : undefined, onclick: (event) => { event.preventDefault(); app.show(id); } }, icon(symbol, 18), h('span', null, name), id === 'findings' && problems ? h('span', { class: 'badge', 'aria-label': `${problems} findings` }, String(problems)) : null)),
    h('button', { class: 'end', onclick: () => { app.keysOpen = true; app.render(); } }, icon('keys', 18), h('span', null, 'Keys')));
}

/** @param {App} app @param {string} id @param {() => any} content */
function dropdown(app, id, label, content) {
  const isOpen = app.menu === id;
  return h('div', { key: id, class: 'act only-wide' }, h('button', { class: 'btn', 'aria-haspopup': 'true', 'aria-expanded': isOpen ? 'true' : 'false', onclick: () => { app.menu = isOpen ? '' : id; app.render(); } }, label, icon('down', 12)), isOpen ? h('div', { class: 'menu left' }, content()) : null);
}

/** The parameters of the server's filter. @param {{ns: string, kind: string}} scope */
function scopeQuery(scope) {
  const query = new URLSearchParams();
  if (scope.ns) query.set('namespace', scope.ns);
  if (scope.kind) query.set('kind', scope.kind);
  return query.toString();
}

function namespaces(app) {
  app.rememberNames();
  return [...app.names.ns].sort();
}

/** @param {App} app @param {string} id @param {string} name @param {string[]} values @param {string} current @param {(value: string) => void} choose @param {string} [none] the text of no value */
function chooser(app, id, name, values, current, choose, none = 'all') {
  const pick = (value) => { choose(value); app.menu = ''; app.render(); };
  return dropdown(app, id, [`${name} `, h('b', null, current || none)], () => ['', ...values].map((value) => h('button', { key: value, 'aria-pressed': value === current ? 'true' : 'false', onclick: () => pick(value) }, h('span', null, value || none), value === current ? icon('check', 14) : null)));
}

/** @param {App} app @param {string} id @param {string[]} values @param {(value: string) => boolean} isOn @param {(value: string) => void} toggle */
function checklist(app, id, label, values, isOn, toggle) {
  return dropdown(app, id, label, () => values.map((value) => h('button', { key: value, role: 'menuitemcheckbox', 'aria-checked': isOn(value) ? 'true' : 'false', onclick: () => { toggle(value); app.render(); } }, h('span', null, title(value)), isOn(value) ? icon('check', 14) : null)));
}

function topbar(app, view) {
  const { filters } = app;
  const parts = [h('h1', { key: 'h1' }, view[1])];
  if (app.view === 'timeline') {
    const plan = shown();
    const lanes = plan ? plan.lanes.length : 0;
    const all = laneOrder(app.model.controllers.keys());
    parts.push(chooser(app, 'ns', 'Namespace', namespaces(app), filters.ns, (value) => app.setScope({ ns: value })),
      chooser(app, 'only', 'Kind', kinds(app), app.scope.kind, (value) => app.setScope({ kind: value })),
      checklist(app, 'lanes', ['Lanes ', h('b', null, `${lanes} of ${all.length}`)], all, (name) => (filters.lanes ? filters.lanes.has(name) : !!plan?.lanes.some((lane) => lane.name === name)), (name) => {
        const set = new Set(filters.lanes || plan?.lanes.map((lane) => lane.name) || []);
        if (set.has(name)) set.delete(name); else set.add(name);
        filters.lanes = set;
      }),
      checklist(app, 'hidden', ['Hidden ', h('b', null, [...filters.hidden].slice(0, 2).join(', ') || 'none')], kinds(app), (kind) => filters.hidden.has(kind), (kind) => { if (filters.hidden.has(kind)) filters.hidden.delete(kind); else filters.hidden.add(kind); filters.hidden = new Set(filters.hidden); }));
    if (app.chain && !app.isNarrow()) {
      parts.push(h('span', { key: 'sep', class: 'sep' }), h('button', { key: 'chain', class: 'btn chain-chip', 'aria-pressed': 'true', title: 'Clear the chain', onclick: () => app.select(null) }, 'Chain ', h('b', null, chainName(app)), icon('close', 12)));
    }
  } else if (app.view === 'why') {
    const object = app.whyObject();
    parts.push(h('button', { key: 'object', class: 'btn', onclick: () => app.openPalette() }, object ? [`${short(object.kind)} `, h('b', { key: 'n' }, full(object))] : 'Choose an object', icon('down', 12)));
  } else if (app.view === 'queues') {
    parts.push(h('button', { key: 'all', class: 'btn only-wide', 'aria-pressed': filters.allQueues ? 'true' : 'false', onclick: () => { filters.allQueues = !filters.allQueues; app.render(); } }, 'Controllers ', h('b', null, filters.allQueues ? 'all' : 'active')),
      chooser(app, 'sort', 'Sort', Object.keys(SORTS), filters.sort, (value) => { filters.sort = value; }, 'lane order'));
  } else if (app.view === 'objects') {
    const plan = forest(app);
    parts.push(chooser(app, 'ns', 'Namespace', namespaces(app), filters.ns, (value) => app.setScope({ ns: value })), chooser(app, 'kind', 'Kind', kinds(app), filters.kind, (value) => { filters.kind = value; }),
      h('span', { key: 'n', class: 'tag only-wide' }, plan.total > 200 ? `200 of ${plan.total} drawn: changed recently or failing` : plural(plan.total, 'object')));
  }
  if (app.scope.kind && app.view !== 'timeline') parts.push(h('button', { key: 'scope', class: 'btn chain-chip', 'aria-pressed': 'true', title: 'Show all kinds', onclick: () => app.setScope({ kind: '' }) }, 'Only ', h('b', null, app.scope.kind), icon('close', 12)));
  if (filters.find) parts.push(h('button', { key: 'find', class: 'btn chain-chip', 'aria-pressed': 'true', onclick: () => app.setFind('') }, 'Name ', h('b', null, filters.find), icon('close', 12)));
  parts.push(h('span', { key: 'grow', class: 'grow' }));
  const act = actMenu(app);
  if (act) parts.push(h('span', { key: 'act' }, act));
  if (app.view === 'timeline') {
    parts.push(h('button', { key: 'table', class: 'btn icon ghost only-wide', 'aria-label': 'Table', 'aria-pressed': app.table ? 'true' : 'false', title: 'Table (B)', onclick: () => { app.table = !app.table; app.render(); } }, icon('table')),
      h('button', { key: 'save', class: 'btn icon ghost only-wide', 'aria-label': 'Export for Perfetto', title: 'Export for Perfetto', onclick: () => download('bellerophon-perfetto.json', JSON.stringify(perfetto(app.model).file)) }, icon('save')));
  }
  parts.push(h('button', { key: 'search', class: 'btn search', onclick: () => app.openPalette() }, icon('search', 14), h('span', { class: 'only-wide' }, 'Jump to object or view'), h('kbd', { class: 'only-wide' }, 'Ctrl K')),
    h('button', { key: 'theme', class: 'btn icon ghost', 'aria-label': 'Theme', onclick: () => app.toggleTheme() }, icon(document.documentElement.dataset.theme === 'dark' ? 'sun' : 'moon')));
  return h('header', { key: 'top', class: 'top' }, parts);
}

function kinds(app) {
  app.rememberNames();
  return [...app.names.kinds].sort();
}

function chainName(app) {
  const { root } = app.chain;
  return root.type === 'write' ? commandSentence(root) : `${title(root.controller)} ${root.name}`;
}

function banner(app) {
  if (app.status.unauthorized) return h('div', { class: 'banner err', role: 'alert' }, icon('lock'), h('b', null, '401 Unauthorized.'), 'Open the address printed by bellerophon up; it carries the token.');
  if (app.status.connected === false) return h('div', { class: 'banner err', role: 'alert' }, icon('cut'), h('b', null, 'Disconnected.'), `Shown up to #${app.model.last}. Next try in ${Math.ceil(app.status.retry / 1000)} s.`, h('button', { class: 'btn', onclick: () => app.connection?.wake?.() }, 'Retry now'));
  if (app.info.mode === 'replay' && app.isReady && app.model.records.length) return h('div', { class: 'banner' }, icon('play', 14), h('b', null, 'Replay'), `of ${app.info.file}, ${precise(app.model.firstTime)} to ${precise(app.model.lastTime)}, ${plural(app.model.records.length, 'record')}.`, h('button', { class: 'btn', onclick: () => app.seek(app.model.first) }, 'Go to start'));
  if (app.chain && app.isNarrow() && app.view === 'timeline') return h('div', { class: 'banner' }, h('b', null, 'Chain'), h('span', { class: 'cut' }, chainName(app)), h('button', { class: 'btn icon ghost', 'aria-label': 'Clear', onclick: () => app.select(null) }, icon('close')));
  return null;
}

function onKey(app, event) {
  const target = (event.target);
  if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === 'k') {
    event.preventDefault();
    app.openPalette();
    return;
  }
  if (event.key === 'Escape') {
    if (app.palette || app.keysOpen || app.menu || app.actOpen) app.closeOverlay();
    else if (app.selected) app.select(null);
    else if (app.view === 'queues' && app.queue) app.selectQueue(null);
    else if (app.view === 'objects' && app.object) app.selectObject(null);
    else app.clearFilters();
    return;
  }
  if (['INPUT', 'SELECT', 'TEXTAREA'].includes(target.tagName) || event.ctrlKey || event.metaKey || event.altKey || app.palette) return;
  const node = app.node(app.selected);
  if (/^[1-6]$/.test(event.key)) app.show(VIEWS[Number(event.key) - 1][0]);
  else if (event.key.startsWith('Arrow') && app.view === 'timeline') app.move(event.key);
  else if (event.key === 'w' || event.key === 'W') app.openWhy(node || app.model.objects.get(app.object || ''));
  else if (event.key === 't' || event.key === 'T') { if (node) app.showInTimeline(node); else app.show('timeline'); } else if (event.key === 'b' || event.key === 'B') app.table = !app.table;
  else if (event.key === ' ' && target.tagName !== 'BUTTON') { if (app.isLive()) app.pause(); else app.goLive(); } else if (event.key === 'l' || event.key === 'L') app.goLive();
  else if (event.key === ',') app.step(-1);
  else if (event.key === '.') app.step(1);
  else if (event.key === 'f' || event.key === 'F') app.fold = !app.fold;
  else if (event.key === '/') app.openPalette();
  else if (event.key === 'd' || event.key === 'D') app.toggleTheme();
  else if (event.key === '?') app.keysOpen = true;
  else return;
  event.preventDefault();
  app.render();
}

/** The token of the URL, kept for this tab only. */
function takeToken() {
  const match = /token=([0-9a-f]+)/.exec(location.hash);
  if (match) {
    sessionStorage.setItem('bellerophon-token', match[1]);
    history.replaceState(null, '', '#timeline');
  }
  return sessionStorage.getItem('bellerophon-token') || '';
}

async function start() {
  const app = new App();
  app.token = takeToken();
  const [id, query] = location.hash.slice(1).split('?');
  if (VIEWS.some(([view]) => view === id)) app.view = id;
  const parameters = new URLSearchParams(query);
  // For tests and for the console: the data that the page shows.
  (/** @type {any} */ (window)).bellerophon = { app, edgesOf, rootType, perfetto, shown, detect, Model };
  document.addEventListener('keydown', (event) => onKey(app, event));
  document.addEventListener('click', (event) => {
    if ((app.menu || app.actOpen) && !(/** @type {any} */ (event.target)).closest('.act')) app.closeOverlay();
  });
  addEventListener('resize', () => app.render());
  addEventListener('hashchange', () => { const [view] = location.hash.slice(1).split('?'); if (VIEWS.some(([name]) => name === view)) app.show(view); });
  app.draw();
  try {
    await app.connect({ ns: parameters.get('namespace') || '', kind: parameters.get('kind') || '' });
  } catch {
    if (!app.status.unauthorized) app.status = app.token ? { connected: false, since: Date.now(), retry: 1000 } : { unauthorized: true };
    app.render();
  }
}

start();
