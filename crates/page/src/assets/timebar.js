// The time bar: live or paused, records per second, and the slider over the recorded time.

import { h, icon } from './dom.js';
import { clock, count, duration, plural, precise } from './format.js';

const RANGES = [['1 min', 60e6], ['5 min', 300e6], ['10 min', 600e6], ['all', Infinity]];
const PARTS = 160;

/** Records per part of a window, and per second at its end: the newest are read first. */
function recordCounts(app, from, to) {
  const { records } = app.model;
  const counts = new Array(PARTS).fill(0);
  let recent = 0;
  for (let i = records.length - 1; i >= 0; i -= 1) {
    const time = records[i].time_us;
    if (time < from) break;
    counts[Math.min(PARTS - 1, Math.max(0, Math.floor(((time - from) / (to - from)) * PARTS)))] += 1;
    if (time > to - 5e6) recent += 1;
  }
  return { counts, perSecond: recent / 5 };
}

export function timebar(app) {
  const { model } = app;
  const live = app.isLive();
  const at = app.at();
  const range = app.range === Infinity ? Math.max(1e6, model.lastTime - model.firstTime) : app.range;
  const to = model.lastTime || 1;
  const from = to - range;
  const { counts, perSecond } = recordCounts(app, from, to);
  const position = Math.max(0, Math.min(1, (at.time - from) / range));
  const behind = model.records.length && !live ? model.last - at.seq : 0;
  return h('footer', { class: 'time' },
    h('button', { class: 'btn icon', 'aria-label': live ? 'Pause' : 'Resume', onclick: () => (live ? app.pause() : app.goLive()) }, icon(live ? 'pause' : 'play')),
    pill(app, live),
    app.status.connected === false ? h('span', { class: 'lag' }, `Last record ${duration(Math.max(0, Date.now() - app.status.since) * 1000)} ago`) : live ? h('span', { class: 'lag' }, `${count(perSecond)} records/s`)
      : h('span', { class: 'lag' }, `${duration(Math.max(0, model.lastTime - at.time))} behind, ${plural(Math.max(0, behind), 'new record')}`),
    live ? null : h('button', { class: 'btn primary only-wide', onclick: () => app.goLive() }, app.info.mode === 'replay' ? 'Go to end' : 'Go live', h('kbd', { class: 'inv' }, 'L')),
    strip(app, counts, from, to, position),
    live ? h('span', { class: 'only-wide' }, menuRange(app)) : h('span', { class: 'only-wide steps-b' }, h('button', { class: 'btn icon ghost', 'aria-label': 'Previous record', onclick: () => app.step(-1) }, icon('prev')), h('button', { class: 'btn icon ghost', 'aria-label': 'Next record', onclick: () => app.step(1) }, icon('next'))),
    h('div', { class: 'now' }, h('b', null, model.lastTime ? precise(at.time) : ''), h('span', null, live ? `#${at.seq}` : `#${at.seq} of ${model.last}`)));
}

function pill(app, live) {
  if (app.status.connected === false) return h('span', { class: 'pill off' }, icon('cut', 14), 'Disconnected');
  if (app.info.mode === 'replay') return h('span', { class: 'pill paused' }, icon('play', 12), 'Replay');
  return live ? h('span', { class: 'pill live' }, h('i', { class: 'live-dot' }), 'Live') : h('span', { class: 'pill paused' }, icon('pause', 12), 'Paused');
}

function menuRange(app) {
  const current = RANGES.find(([, range]) => range === app.range) || RANGES[0];
  return h('label', { class: 'btn select' }, h('span', { class: 'sr' }, 'Time range'), h('select', { onchange: (event) => app.setRange(RANGES[event.currentTarget.selectedIndex][1]) }, RANGES.map(([name]) => h('option', { key: name, selected: name === current[0] }, name))), icon('down', 12));
}

function strip(app, counts, from, to, position) {
  const W = 1000;
  const step = W / counts.length;
  const max = Math.max(8, ...counts);
  const chain = app.chain ? chainParts(app, from, to, counts.length) : new Set();
  const cut = position * counts.length;
  const bar = (holds) => counts.map((value, i) => {
    if (!value || !holds(i)) return '';
    const tall = Math.max(1.5, (value / max) * 22);
    return `M${(i * step).toFixed(1)} ${(26 - tall).toFixed(1)}h${(step - 1.4).toFixed(1)}v${tall.toFixed(1)}h-${(step - 1.4).toFixed(1)}z`;
  }).join('');
  const span = to - from;
  const every = span <= 90e6 ? 10e6 : span <= 400e6 ? 60e6 : span <= 1200e6 ? 120e6 : span / 6;
  const ticks = [];
  for (let t = Math.ceil(from / every) * every; t < to; t += every) ticks.push(t);
  const findings = app.findings().filter((finding) => finding.since > from && finding.since < to);
  return h('div', {
    class: 'strip', role: 'slider', tabindex: 0, 'aria-label': 'Time', 'aria-valuemin': app.model.first, 'aria-valuemax': Math.max(app.model.first, app.model.last), 'aria-valuenow': app.at().seq, 'aria-valuetext': `${precise(app.at().time)}, record ${app.at().seq}`,
    onpointerdown: (event) => drag(app, event, from, to), onpointermove: (event) => { if (event.buttons) drag(app, event, from, to); },
    onkeydown: (event) => { if (event.key === 'ArrowLeft') { event.stopPropagation(); app.step(-1); } else if (event.key === 'ArrowRight') { event.stopPropagation(); app.step(1); } else if (event.key === 'Home') app.seek(app.model.first); else if (event.key === 'End') app.goLive(); },
  },
  h('svg', { viewBox: `0 0 ${W} 28`, preserveAspectRatio: 'none', 'aria-hidden': 'true', class: 'hist' },
    h('path', { class: 'axis', d: `M0 26.5H${W}` }), h('path', { class: 'bar', d: bar((i) => !chain.has(i) && i <= cut) }), h('path', { class: 'bar late', d: bar((i) => i > cut) }), h('path', { class: 'bar acc', d: bar((i) => chain.has(i) && i <= cut) })),
  ticks.map((t) => h('span', { key: t, class: 'tick only-wide', css: { left: `${((t - from) / span) * 100}%` } }, clock(t))),
  findings.map((finding) => h('span', { key: finding.id, class: `mark ${finding.severityName}`, css: { left: `${((finding.since - from) / span) * 100}%` }, title: finding.heading })),
  h('span', { class: 'knob', css: { left: `${position * 100}%` } }));
}

function chainParts(app, from, to, parts) {
  const found = new Set();
  for (const node of app.chain.members) found.add(Math.floor(((node.time - from) / (to - from)) * parts));
  return found;
}

/** @param {PointerEvent} event @param {number} from @param {number} to */
function drag(app, event, from, to) {
  const box = (/** @type {any} */ (event.currentTarget)).getBoundingClientRect();
  const share = Math.max(0, Math.min(1, (event.clientX - box.left) / box.width));
  if (share > 0.995) app.goLive();
  else app.seek(app.model.seqAt(from + share * (to - from)));
}
