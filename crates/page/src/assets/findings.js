// View: findings of the detectors, and one of them in detail.

import { h, icon, outside } from './dom.js';
import { ago, clock, full, long, plural, precise, short, value } from './format.js';
import { DETECTORS } from './detectors.js';
import { title, verb, writerName } from './names.js';
import { activated, commandLine, controllerShape, empty, heads, note, objectName } from './parts.js';

const ICONS = { 'hot-loop': 'loop', fight: 'loop', idle: 'copy', finalizer: 'pin', permission: 'lock', streak: 'error', lag: 'clock' };
const POINTS_MAX = 60;

export function findings(app) {
  const list = app.findings();
  const { time } = app.at();
  const quiet = DETECTORS.filter(([type]) => !list.some((finding) => finding.type === type)).map(([, name]) => name);
  const selected = list.find((finding) => finding.id === app.finding) || list[0];
  return h('div', { class: 'split' },
    h('div', { class: 'list' }, list.length ? h('div', { role: 'listbox', 'aria-label': 'Findings' }, list.map((finding) => h('div', {
      key: finding.id, class: `fi${selected === finding ? ' sel' : ''}`, role: 'option', 'aria-selected': selected === finding ? 'true' : 'false', 'data-finding': finding.type, ...activated(() => app.selectFinding(finding.id)),
    }, h('span', { class: `state ${finding.severityName}` }, icon((ICONS)[finding.type])), h('div', null, h('b', null, finding.title), finding.object ? objectName(finding.object, full(finding.object)) : h('span', { class: 'obj' }, h('b', null, finding.subject)), h('p', null, finding.text)), h('time', null, ago(time - finding.time))))) : null,
    h('div', { key: 'quiet', class: 'fi quiet' }, h('span', { class: 'state ok' }, icon('check')), h('div', null, h('b', null, quiet.length === DETECTORS.length ? 'All detectors found nothing' : `${plural(quiet.length, 'detector')} found nothing`), h('p', null, quiet.join(', '))), h('time', null))),
    selected ? detail(app, selected) : h('div', { class: 'fd' }, empty('Nothing found', 'Detectors read every record: loops, conflicts, permissions, errors, finalizers and caches.')));
}

function detail(app, finding) {
  const mark = writerMarks(app, finding);
  const target = finding.changes ? finding.changes[finding.changes.length - 1].write : finding.reconcile || null;
  return h('div', { class: 'fd scroll' },
    h('div', { class: 'fd-h' }, h('span', { class: `tag ${finding.severityName}` }, icon((ICONS)[finding.type], 12), finding.title), h('span', { class: 't2' }, `since ${clock(finding.since)}, ${long((finding.time - finding.since) / 1e6)}`), h('span', { class: 'grow' }), target ? h('button', { class: 'btn', onclick: () => app.showInTimeline(target) }, 'Show in timeline', h('kbd', null, 'T')) : null),
    h('h2', null, finding.heading), h('p', { class: 'lead' }, finding.lead),
    finding.changes ? [steps(finding, mark), turn(app, finding, mark)] : null,
    h('div', { class: 'two' }, finding.changes ? writers(finding, mark) : reasons(app, finding), h('section', { class: 'box' }, h('h3', { class: 'h' }, 'What to do'), h('div', { class: 'bd' }, h('p', null, finding.advice), finding.command ? commandLine(finding.command) : null))),
    finding.changes ? lastWrites(finding, mark) : null);
}

/** The symbol of each writer, the same in chart and tables. @returns {(name: string) => any} */
function writerMarks(app, finding) {
  const controllers = new Map();
  for (const { write } of finding.changes || []) if (write.writer) controllers.set(writerName(write), write.writer.controller);
  const others = (finding.writers || []).filter((name) => !controllers.has(name));
  return (name) => (controllers.has(name) ? controllerShape(controllers.get(name), app.model) : outside(12, others.indexOf(name)));
}

/** The value over time, by writer. */
function steps(finding, mark) {
  const points = finding.changes.slice(-POINTS_MAX);
  const values = [...new Set(points.flatMap((point) => [value(point.old), value(point.new)]))].sort((a, b) => a.localeCompare(b, undefined, { numeric: true })).slice(0, 6);
  const from = points[0].write.time;
  const to = points[points.length - 1].write.time;
  const x = (time) => 60 + ((time - from) / Math.max(1, to - from)) * 640;
  const y = (v) => 24 + (values.length - 1 - values.indexOf(value(v))) * Math.min(54, 90 / Math.max(1, values.length - 1));
  let path = `M40 ${y(points[0].old)}`;
  for (const point of points) path += `H${x(point.write.time).toFixed(1)}V${y(point.new)}`;
  const height = 150;
  return h('section', { key: 'steps', class: 'box' }, h('h3', { class: 'h' }, finding.path, note('value by writer'), h('span', { class: 'grow' }), finding.writers.map((name) => h('span', { key: name, class: 'who n' }, mark(name), name))),
  h('svg', { class: 'steps', viewBox: `0 0 740 ${height}`, 'aria-hidden': 'true' },
    values.map((v) => [h('text', { key: `t${v}`, x: 34, y: 28 + (values.length - 1 - values.indexOf(v)) * Math.min(54, 90 / Math.max(1, values.length - 1)), class: 'tick end' }, v.length > 5 ? `${v.slice(0, 4)}…` : v)]),
    h('path', { class: 'step', d: `${path}H720` }),
    points.map((point, i) => {
      const symbol = mark(writerName(point.write));
      return { ...symbol, key: i, props: { ...symbol.props, x: x(point.write.time) - 6, y: y(point.new) - 6 } };
    }),
    [0, 0.5, 1].map((share) => h('text', { key: share, class: 'tick', x: 60 + share * 600, y: height - 8 }, clock(from + share * (to - from))))));
}

function turn(app, finding, mark) {
  const recent = finding.changes.slice(-3);
  const start = recent[0].write.time;
  const cells = [];
  recent.forEach((change, i) => {
    cells.push(h('div', { key: `w${i}` }, h('small', null, i ? `+${((change.write.time - start) / 1e6).toFixed(3)} s` : precise(change.write.time)), h('span', { class: 'who' }, mark(writerName(change.write)), `${writerName(change.write)} writes ${value(change.new)}`), h('small', null, `version ${change.write.version}, ${change.write.writer ? `field manager ${change.write.manager}` : 'outside this process'}`)));
    const [effect] = change.write.effects;
    if (effect && i === 0) cells.push(h('div', { key: `e${i}` }, h('small', null, `+${(Math.max(0, effect.time - start) / 1e6).toFixed(3)} s`), h('span', { class: 'who' }, controllerShape(effect.controller, app.model), `${title(effect.controller)} reconciles`), h('small', null, `cause: ${short(change.write.kind)} updated at ${change.write.version}`)));
  });
  return h('section', { key: 'turn', class: 'box' }, h('h3', { class: 'h' }, 'One turn of the loop', note(`${((recent[recent.length - 1].write.time - start) / 1e6).toFixed(2)} s, ${plural(cells.length, 'step')}`)), h('div', { class: 'bd turn' }, cells));
}

function writers(finding, mark) {
  const rows = finding.writers.map((name) => {
    const own = finding.changes.filter((change) => writerName(change.write) === name);
    return { name, own, last: own[own.length - 1] };
  });
  return h('section', { class: 'box' }, h('h3', { class: 'h' }, `Writers of ${finding.path}`, note('60 s')), h('table', { class: 'grid slim' },
    heads('Field manager', 'Verb', '#Writes', '#Value'),
    h('tbody', null, rows.map((row) => h('tr', { key: row.name }, h('td', null, h('span', { class: 'who' }, mark(row.name), row.name)), h('td', null, verb(row.last.write)), h('td', { class: 'num' }, String(row.own.length)), h('td', { class: 'num mono' }, value(row.last.new)))))));
}

function reasons(app, finding) {
  const { reconcile } = finding;
  return h('section', { class: 'box' }, h('h3', { class: 'h' }, 'Last attempt'), h('div', { class: 'bd' }, reconcile
    ? [h('p', { key: 'w' }, h('span', { class: 'who' }, controllerShape(reconcile.controller, app.model), `${title(reconcile.controller)} ${full(reconcile)}, attempt ${reconcile.attempt}`)), h('p', { key: 't', class: 't2' }, precise(reconcile.time)), reconcile.error ? h('p', { key: 'e', class: 'error-text' }, reconcile.error) : null]
    : h('p', null, finding.text)));
}

function lastWrites(finding, mark) {
  const shown = finding.changes.slice(-5).reverse();
  return h('section', { class: 'box' }, h('h3', { class: 'h' }, 'Last writes', note(`newest first, ${shown.length} of ${finding.changes.length}`)), h('table', { class: 'grid slim' },
    heads('Time', 'Field manager', 'Value', 'Version', 'Because'),
    h('tbody', null, shown.map((change) => {
      const cause = change.write.writer?.links[0]?.write;
      return h('tr', { key: change.write.id }, h('td', { class: 't2' }, precise(change.write.time)), h('td', null, h('span', { class: 'who' }, mark(writerName(change.write)), writerName(change.write))), h('td', { class: 'mono' }, `${value(change.old)} → ${value(change.new)}`), h('td', { class: 't2' }, String(change.write.version)), h('td', { class: 't2' }, cause ? `${short(cause.kind)} updated at ${cause.version}` : 'outside this process'));
    }))));
}
