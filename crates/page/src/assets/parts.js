// Small parts that several views share.

import { h, icon, outside, shape } from './dom.js';
import { full, short, value } from './format.js';
import { isClient } from './model.js';
import { sign, signWord, title, tone } from './names.js';

/** The sign of a write. */
export function op(write) {
  const kind = { '+': 'add', '~': 'upd', '−': 'del' }[sign(write)];
  return h('span', { class: `op ${kind}`, role: 'img', 'aria-label': signWord(write) }, sign(write));
}

/** Kind and name. @param {string} [name] */
export function objectName(object, name) {
  return h('span', { class: 'obj cut', title: `${object.kind} ${full(object)}` },
    h('i', null, short(object.kind)), h('b', { class: 'cut' }, name || object.name));
}

/** Colour and shape of a controller. @param {string} controller @param {number} [size] */
export const controllerShape = (controller, model, size) => shape(tone(controller, model), size);

/** The symbol of who wrote a version. */
export function writerShape(write, model) {
  if (write.writer) return controllerShape(write.writer.controller, model);
  return isClient(write) ? icon('user', 13) : outside();
}

/** A controller with its symbol. @param {string} controller */
export function controllerName(controller, model) {
  return h('span', { class: 'who' }, controllerShape(controller, model), title(controller));
}

/** One value of a diff. @param {'old' | 'new'} side */
function diffValue(v, side) {
  return v === undefined ? h('span', { class: 'unset' }, 'unset') : h('span', { class: `val ${side}`, title: value(v) }, value(v));
}

/** Changed fields. @param {any[]} changes @param {number} [more] @param {string} [extra] */
export function diff(changes, more = 0, extra = '') {
  if (!changes.length) return h('p', { class: 't3 small' }, 'No field changed');
  return h('table', { class: `diff ${extra}` }, h('tbody', null,
    changes.map((change, i) => {
      const isLong = value(change.old).length + value(change.new).length > 26;
      if (!isLong) {
        return h('tr', { key: i }, h('td', { class: 'cut', title: change.path }, change.path),
          h('td', null, diffValue(change.old, 'old'), h('span', { class: 'arr', 'aria-label': 'to' }, '→'), diffValue(change.new, 'new')));
      }
      return h('tr', { key: i, class: 'long' }, h('td', { colspan: 2 }, h('div', { class: 'path', title: change.path }, change.path),
        change.old === undefined ? null : h('div', { class: 'val old cut', title: value(change.old) }, `− ${value(change.old)}`),
        change.new === undefined ? null : h('div', { class: 'val new cut', title: value(change.new) }, `+ ${value(change.new)}`)));
    }),
    more ? h('tr', { key: 'more' }, h('td', { colspan: 2, class: 't3' }, `${more} more fields`)) : null));
}

/** The result of a reconcile. @param {number} seq */
export function resultTag(reconcile, seq) {
  if (!reconcile.result || reconcile.endSeq > seq) return h('span', { class: 'tag acc' }, icon('loop', 12), 'running');
  if (reconcile.result === 'error') return h('span', { class: 'tag error' }, icon('error', 12), 'error');
  if (reconcile.result === 'requeue') return h('span', { class: 'tag warn' }, icon('loop', 12), 'conflict, requeued');
  return h('span', { class: 'tag ok' }, icon('check', 12), reconcile.result === 'requeue_after' ? 'requeue after' : 'success');
}

const HEALTH = { ok: ['ok', 'check'], progressing: ['warn', 'clock'], failed: ['error', 'error'], none: ['', ''] };

/** The state of an object, as icon and word. */
export function health(digest) {
  if (!digest || !digest.status) return null;
  const [tone_, name] = (HEALTH)[digest.health] || HEALTH.none;
  return h('span', { class: `state ${tone_}` }, name ? icon(name, 14) : null, digest.status);
}

/** A command to copy. @param {string} text */
export function commandLine(text) {
  return h('span', { class: 'cmdline' }, h('code', null, text.split(' ').map((word) => [h('span', null, word), ' '])), copyButton(text));
}

export function copyButton(text) {
  return h('button', {
    class: 'btn icon ghost', 'aria-label': `Copy ${text}`,
    onclick: (event) => {
      navigator.clipboard?.writeText(text);
      event.currentTarget.classList.add('copied');
    },
  }, icon('copy', 14));
}

/** @param {string} heading @param {string} text @param {...any} rest */
export function empty(heading, text, ...rest) {
  return h('div', { class: 'center' }, h('h2', null, heading), h('p', null, text), rest);
}

/** Facts as a list: name, text, class of the text. @param {any[]} list entries; empty ones are left out */
export const factList = (list, kind = 'facts') => h('dl', { class: kind }, list.filter(Boolean).map(([name, text, tone]) => h('div', { key: name }, h('dt', null, name), h('dd', { class: tone, title: kind === 'strip4' ? text : undefined }, String(text)))));

/** The head of a table; columns of numbers begin with `#`. @param {...string} names */
export const heads = (...names) => h('thead', null, h('tr', null, names.map((name) => h('th', { key: name, class: name[0] === '#' ? 'num' : undefined }, name.replace('#', '')))));

/** A cell with a number. */
export const number = (...content) => h('td', { class: 'num' }, content);

/** What follows a heading. */
export const note = (...content) => h('span', { class: 'n' }, content);

/** A section of a panel: the parts of its heading, and its content. */
export const section = (heading, ...content) => h('div', { class: 'p-sec' }, h('h3', { class: 'h' }, heading), content);

/** What a row does, by click and by Enter. @param {() => void} action */
export const activated = (action) => ({ tabindex: 0, onclick: action, onkeydown: (event) => { if (event.key === 'Enter') action(); } });
