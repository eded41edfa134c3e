// Overlays: jump to an object, chain or view; the list of keys.

import { h, icon } from './dom.js';
import { ago, full, middle, precise, short } from './format.js';
import { isClient } from './model.js';
import { commandSentence } from './names.js';
import { objectName } from './parts.js';

const FOUND_MAX = 6;

function results(app) {
  const text = app.palette.text.trim().toLowerCase();
  const { seq, time } = app.at();
  const found = [];
  if (text) {
    const objects = [];
    for (const object of app.model.objects.values()) {
      if (['Event', 'Lease'].includes(short(object.kind))) continue;
      const name = `${short(object.kind)} ${full(object)}`.toLowerCase();
      const place = name.indexOf(text);
      if (place >= 0) objects.push({ object, score: (object.name.toLowerCase().startsWith(text) ? 0 : 1000) + place + name.length / 100 });
    }
    objects.sort((a, b) => a.score - b.score);
    for (const { object } of objects.slice(0, FOUND_MAX)) {
      const last = object.versions[object.versions.length - 1];
      found.push({ group: 'Objects', id: object.id, symbol: 'objects', label: objectName(object, full(object)), right: last ? ago(time - last.time) : '', run: () => app.openWhy(object), alternative: () => last && app.showInTimeline(last) });
    }
    let chains = 0;
    for (let i = app.model.writeList.length - 1; i >= 0 && chains < 4; i -= 1) {
      const write = app.model.writeList[i];
      if (write.seq <= seq && isClient(write) && `${commandSentence(write)} ${full(write)}`.toLowerCase().includes(text)) {
        chains += 1;
        found.push({ group: 'Chains', id: write.id, symbol: 'timeline', label: `${commandSentence(write)} of ${short(write.kind)} ${write.name}`, right: precise(write.time), run: () => app.showInTimeline(write) });
      }
    }
    found.push({ group: 'Actions', id: 'filter', symbol: 'filter', label: `Filter this view by “${middle(text, 24)}”`, right: h('kbd', null, '/'), run: () => app.setFind(text) });
    const first = objects[0]?.object;
    if (first) {
      const command = `bellerophon trace ${short(first.kind).toLowerCase()}/${first.name}`;
      found.push({ group: 'Actions', id: 'copy', symbol: 'copy', label: h('span', null, 'Copy ', h('code', null, command)), right: '', run: () => navigator.clipboard?.writeText(command) });
    }
  }
  for (const [id, name, symbol] of app.views) {
    if (!text || name.toLowerCase().includes(text)) found.push({ group: 'Views', id: `v${id}`, symbol, label: name, right: '', run: () => app.show(id) });
  }
  return found;
}

export function palette(app) {
  if (!app.palette) return null;
  const list = results(app);
  const at = Math.min(app.palette.at, list.length - 1);
  const run = (item) => { app.closeOverlay(); item.run(); };
  let group = '';
  return h('div', { class: 'scrim', onclick: (event) => { if (event.target === event.currentTarget) app.closeOverlay(); } },
    h('div', { class: 'pal', role: 'dialog', 'aria-modal': 'true', 'aria-label': 'Jump to object or view' },
      h('div', { class: 'in' }, icon('search'), h('input', {
        type: 'text', id: 'palette-input', autocomplete: 'off', spellcheck: 'false', role: 'combobox', 'aria-expanded': 'true', 'aria-controls': 'palette-list', 'aria-activedescendant': list[at] ? `p-${at}` : undefined, 'aria-label': 'Jump to object or view', placeholder: 'Jump to object or view', value: app.palette.text,
        oninput: (event) => app.setPalette({ text: event.currentTarget.value, at: 0 }),
        onkeydown: (event) => {
          if (event.key === 'ArrowDown') app.setPalette({ ...app.palette, at: Math.min(list.length - 1, at + 1) });
          else if (event.key === 'ArrowUp') app.setPalette({ ...app.palette, at: Math.max(0, at - 1) });
          else if (event.key === 'Enter' && list[at]) { if (event.ctrlKey && list[at].alternative) { app.closeOverlay(); list[at].alternative(); } else run(list[at]); } else return;
          event.preventDefault();
        },
      }), h('kbd', null, 'Esc')),
      h('ul', { id: 'palette-list', role: 'listbox', 'aria-label': 'Results' }, list.map((item, i) => {
        const isFirst = item.group !== group;
        group = item.group;
        return [isFirst ? h('li', { key: `g${item.group}`, class: 'g', role: 'presentation' }, item.group) : null,
          h('li', { key: item.id, id: `p-${i}`, role: 'option', 'aria-selected': i === at ? 'true' : 'false', class: i === at ? 'on' : '', onclick: () => run(item) }, icon(item.symbol), h('span', { class: 'cut' }, item.label), h('span', { class: 'r' }, item.right))];
      })),
      h('div', { class: 'hint' }, h('span', null, h('kbd', null, '↑'), h('kbd', null, '↓'), ' select'), h('span', null, h('kbd', null, 'Enter'), ' why'), h('span', null, h('kbd', null, 'Ctrl Enter'), ' chain in timeline'))));
}

const KEYS = [['1–6', 'Views'], ['Ctrl K', 'Jump'], ['↑ ↓', 'Previous, next'], ['← →', 'Cause, effect'], ['Enter', 'Chain'], ['W', 'Why'], ['T', 'Timeline'], ['B', 'Table'], ['Space', 'Pause'], ['L', 'Live'], [', .', 'Step'], ['F', 'Fold idle time'], ['/', 'Filter'], ['D', 'Theme'], ['Esc', 'Clear'], ['?', 'Keys']];

export function keysDialog(app) {
  if (!app.keysOpen) return null;
  return h('div', { class: 'scrim', onclick: () => app.closeOverlay() }, h('div', { class: 'pal', role: 'dialog', 'aria-modal': 'true', 'aria-label': 'Keys' }, h('div', { class: 'in' }, h('h2', null, 'Keys'), h('span', { class: 'grow' }), h('kbd', null, 'Esc')), h('dl', { class: 'keys' }, KEYS.map(([key, name]) => h('div', { key }, h('dt', null, name), h('dd', null, h('kbd', null, key)))))));
}
