// View: panels of the operators: reboot roll, secret fan-out, members of stores, Icecream, leases.

import { h, icon } from './dom.js';
import { ago, clock, count, full, plural, short } from './format.js';
import { bars } from './charts.js';
import { empty, factList, heads, health, note, number } from './parts.js';

export function operators(app) {
  const { seq, time } = app.at();
  const existing = app.existing(seq);
  const of = (kind) => existing.filter((item) => short(item.object.kind) === kind && item.object.kind !== kind || (item.object.kind === kind));
  const left = [rebootRoll(of('Node'), of('RebootPolicy'), time), secretMatrix(existing, of('SecSynch')), leases(of('Lease'), time)].filter(Boolean);
  const right = [...of('Bellerophon').map((item) => store(app, item, existing)), backups(of('Backup')), icecreams(of('Icecream'), existing)].filter(Boolean);
  if (!left.length && !right.length) {
    return h('div', { class: 'scroll' }, empty('No operator objects', 'Panels appear for RebootPolicies, SecSynches, Bellerophons and Icecreams.'));
  }
  return h('div', { class: 'scroll' }, h('div', { class: 'panels' }, h('div', { class: 'col' }, left), h('div', { class: 'col' }, right)));
}

function annotation(digest, name) {
  for (const key in digest?.details || {}) if (key.endsWith(`/${name}`)) return digest.details[key];
  return undefined;
}

/** A member of a value such as `reason=NoSlot since=…`. */
const member = (text, name) => new RegExp(`(?:^| )${name}=(\\S+)`).exec(String(text))?.[1] || '';

/** `NoSlot`, `No slot`. */
const spaced = (word) => word.replace(/(?<=[a-z])[A-Z]/g, (letter) => ` ${letter.toLowerCase()}`);

/** The state of the reboot of a node: class, text, icon. */
export function rebootState({ digest }, time) {
  const since = (text, name = 'since') => (text && member(text, name) ? `, ${ago(time - Date.parse(member(text, name)) * 1000).replace(' ago', '')}` : '');
  const now = annotation(digest, 'reboot-in-progress');
  const waiting = annotation(digest, 'reboot-waiting');
  const last = annotation(digest, 'last-reboot');
  if (now !== undefined) return ['act', `${member(now, 'stage') || 'Rebooting'}${since(now)}`, 'loop'];
  if (annotation(digest, 'reboot-now') !== undefined) return ['act', 'Granted', 'loop'];
  if (digest?.health === 'failed') return ['bad', 'Not ready', 'error'];
  if (annotation(digest, 'reboot-paused') !== undefined) return ['', 'Paused', 'clock'];
  if (annotation(digest, 'reboot-needed') !== undefined) return ['', waiting ? `${spaced(member(waiting, 'reason')) || 'Waits'}${since(waiting)}` : 'Waits', 'clock'];
  if (last === undefined) return ['idle', 'No request', ''];
  return member(last, 'result') === 'Done' ? ['done', `Rebooted ${clock(Date.parse(member(last, 'at')) * 1000).slice(0, 5)}`, 'check'] : ['bad', `${spaced(member(last, 'result')) || 'Failed'}${since(last, 'at')}`, 'error'];
}

function rebootRoll(nodes, policies, time) {
  if (!policies.length && !nodes.some((node) => Object.keys(node.digest?.details || {}).length)) return null;
  const policy = policies[0];
  const status = policy?.digest?.details || {};
  const states = nodes.map((node) => ({ node, state: rebootState(node, time) }));
  const done = states.filter(({ state }) => state[0] === 'done').length;
  const sorted = states.sort((a, b) => a.node.object.name.localeCompare(b.node.object.name, undefined, { numeric: true }));
  const names = { done: ['Rebooted', 'check'], act: ['Holds a slot', 'loop'], bad: ['Failed or not ready', 'error'], '': ['Waiting', 'clock'], idle: ['No request', ''] };
  return h('section', { key: 'reboot', class: 'box' }, h('h2', { class: 'h' }, 'Reboot roll', note(`${policy ? `RebootPolicy ${policy.object.name}, ` : ''}${plural(nodes.length, 'node')}`), h('span', { class: 'grow' }), policy ? health(policy.digest) : null),
    factList([['Slots used', status.limit === undefined ? 'unknown' : `${status.granted ?? 0} of ${status.limit}`], ['Rebooted', `${done} of ${nodes.length}`], ['Need a reboot', String(status.needed ?? 0)], ['Unavailable', String(status.unavailable ?? 0)]], 'strip4'),
    h('div', { class: 'bd' }, h('ul', { class: 'nodes' }, sorted.slice(0, 120).map(({ node, state }) => h('li', { key: node.object.name, class: `node ${state[0]}`, title: `${node.object.name}: ${state[1]}, ${node.write ? ago(time - node.write.time) : ''}` }, h('b', null, h('span', { class: 'cut' }, node.object.name), state[2] ? icon(state[2], 12) : null), h('span', { class: 'cut' }, state[1])))),
      h('div', { class: 'legend' }, Object.entries(names).map(([kind, [name, symbol]]) => h('span', { key: kind }, symbol ? icon(symbol, 12) : null, `${name} ${states.filter(({ state }) => state[0] === kind).length}`)))));
}

function secretMatrix(existing, synches) {
  if (!synches.length) return null;
  const copies = existing.filter((item) => item.object.kind === 'Secret');
  const rows = synches.map((item) => {
    const failures = new Map((item.digest?.details?.failures || []).map((failure) => [failure.namespace || failure.destination || '', failure]));
    const name = item.object.name;
    const spaces = new Set(copies.filter((copy) => copy.object.name === name && copy.object.ns !== item.object.ns).map((copy) => copy.object.ns));
    return { item, name, failures, spaces };
  });
  const columns = [...new Set(rows.flatMap((row) => [...row.spaces, ...row.failures.keys()]))].filter(Boolean).sort();
  const refused = rows.reduce((sum, row) => sum + row.failures.size, 0);
  return h('section', { key: 'secrets', class: 'box' }, h('h2', { class: 'h' }, 'Secret fan-out', note(`SecSynch, ${plural(rows.length, 'secret')} to ${plural(columns.length, 'namespace')}, key names only`), h('span', { class: 'grow' }), refused ? h('span', { class: 'tag error' }, icon('error', 12), `${refused} refused`) : null),
    h('div', { class: 'bd' }, columns.length ? h('table', { class: 'matrix' }, heads('Secret', ...columns),
      h('tbody', null, rows.map((row) => h('tr', { key: row.item.object.id }, h('th', { scope: 'row' }, row.name), columns.map((name) => {
        if (row.failures.has(name)) return h('td', { key: name, class: 'bad', title: row.failures.get(name).reason || '' }, 'refused');
        return row.spaces.has(name) ? h('td', { key: name, class: 'good' }, h('span', { role: 'img', 'aria-label': 'copied' }, icon('check', 14))) : h('td', { key: name, class: 't3' }, 'not selected');
      }))))) : h('p', { class: 't3' }, `${rows[0].item.digest?.details?.synced ?? 0} of ${rows[0].item.digest?.details?.total ?? 0} copies`)));
}

function leases(list, time) {
  const held = list.filter((item) => item.object.ns !== 'kube-node-lease' && item.digest?.details?.holder);
  if (!held.length) return null;
  return h('section', { key: 'leases', class: 'box' }, h('h2', { class: 'h' }, 'Leader election', note('leases')), h('table', { class: 'grid' },
    heads('Lease', 'Holder', 'Renewed', '#Transitions'),
    h('tbody', null, held.map((item) => h('tr', { key: item.object.id }, h('td', { class: 'cut lease' }, full(item.object)), h('td', { class: 'cut lease' }, item.digest.details.holder), h('td', { class: 't2' }, item.digest.details.renewed ? ago(time - Date.parse(item.digest.details.renewed) * 1000) : 'never'), number(String(item.digest.details.transitions ?? 0)))))));
}

const LAG_PARTS = 24;
const WINDOW_US = 600e6;

/** The largest lag of a member in each part of the last ten minutes. */
function lags(versions, name, seq, time) {
  const parts = new Array(LAG_PARTS).fill(0);
  for (const write of versions) {
    const part = Math.floor(((write.time - time) / WINDOW_US + 1) * LAG_PARTS);
    const lag = write.seq <= seq && write.digest?.details?.members?.find((one) => one.name === name)?.lag;
    if (lag && part >= 0) parts[Math.min(LAG_PARTS - 1, part)] = Math.max(lag, parts[Math.min(LAG_PARTS - 1, part)]);
  }
  return parts;
}

function store(app, item, existing) {
  const { seq, time } = app.at();
  const details = item.digest?.details || {};
  const members = details.members || [];
  const voters = members.filter((one) => one.role === 'Voter');
  const pods = new Map(existing.filter((other) => other.object.kind === 'Pod' && other.object.ns === item.object.ns).map((pod) => [pod.object.name, pod.digest?.node]));
  const role = (one) => (details.leader === one.name ? 'Leader' : one.role === 'Voter' ? 'Follower' : one.role || 'unknown');
  const isSteady = details.phase === 'Running';
  const facts = [['Quorum', `${voters.filter((one) => one.healthy).length} of ${voters.length} voters`], ['Leader', details.leader || 'none'], ['Version', details.version || 'unknown'], ['Format', details.formatLevel === undefined ? 'unknown' : `level ${details.formatLevel}`]];
  return h('section', { key: item.object.id, class: 'box' }, h('h2', { class: 'h' }, `Bellerophon ${item.object.name}`, note(item.object.ns || ''), h('span', { class: 'grow' }), details.phase ? h('span', { class: `tag${isSteady ? '' : ' acc'}` }, icon(isSteady ? 'check' : 'loop', 12), spaced(details.phase)) : null),
    factList(facts, 'strip4'),
    members.length ? h('table', { class: 'grid members' }, heads('Member', 'Role', '#Lag, entries', 'Lag, 10 min', 'Node', 'Health'),
      h('tbody', null, members.map((one) => h('tr', { key: one.name }, h('td', { class: 'cut' }, h('b', { class: 'strong' }, one.name)), h('td', null, h('span', { class: `tag${details.leader === one.name ? ' acc' : ''}` }, role(one))), h('td', { class: `num${one.lag ? '' : ' t3'}` }, one.lag === undefined || one.lag === null ? 'unknown' : count(one.lag)), h('td', null, bars(lags(item.object.versions, one.name, seq, time), { w: 72 })), h('td', { class: 't2' }, pods.get(one.name) || 'none'),
        h('td', null, h('span', { class: `state ${one.healthy ? 'ok' : 'warn'}` }, icon(one.healthy ? 'check' : 'clock', 14), one.healthy ? (one.phase === 'Active' || !one.phase ? 'healthy' : spaced(one.phase)) : 'not healthy')))))) : h('div', { class: 'bd' }, h('p', { class: 't3' }, 'No members yet')));
}

function backups(list) {
  if (!list.length) return null;
  return h('section', { key: 'backups', class: 'box' }, h('h2', { class: 'h' }, 'Backups'), h('table', { class: 'grid' }, heads('Backup', 'Phase', '#Revision', 'Checksum'),
    h('tbody', null, list.slice(-8).map((item) => h('tr', { key: item.object.id }, h('td', null, full(item.object)), h('td', null, item.digest?.details?.phase || ''), number(String(item.digest?.details?.revision ?? '')), h('td', null, item.digest?.details?.checksum ? h('span', { class: 'state ok' }, icon('check', 14), 'recorded') : h('span', { class: 't3' }, 'none')))))));
}

function icecreams(list, existing) {
  if (!list.length) return null;
  const pods = existing.filter((item) => item.object.kind === 'Pod' && item.digest?.node);
  const owned = (item) => pods.filter((pod) => pod.object.ns === item.object.ns && pod.object.name.startsWith(`${item.object.name}-`));
  const nodes = [...new Set(list.flatMap((item) => [...owned(item).map((pod) => pod.digest.node), ...(item.digest?.details?.nodes || [])]))].sort();
  return h('section', { key: 'icecreams', class: 'box' }, h('h2', { class: 'h' }, 'Icecream', note('pods by node')), h('div', { class: 'bd' }, h('table', { class: 'matrix' },
    heads('Icecream', ...nodes, 'Available'),
    h('tbody', null, list.map((item) => h('tr', { key: item.object.id }, h('th', { scope: 'row' }, item.object.name), nodes.map((name) => {
      const n = owned(item).filter((pod) => pod.digest.node === name).length;
      return h('td', { key: name, class: n ? 'some' : '' }, n ? String(n) : '');
    }), h('td', { class: 'plain' }, health(item.digest))))))));
}
