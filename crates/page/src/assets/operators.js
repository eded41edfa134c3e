// View: panels of the operators: reboot roll, secret fan-out, members of stores, Icecream, leases.

import { h, icon } from './dom.js';
import { ago, count, full, plural, short } from './format.js';
import { empty, health } from './parts.js';

export function operators(app) {
  const { seq, time } = app.at();
  const existing = app.existing(seq);
  const of = (kind) => existing.filter((item) => short(item.object.kind) === kind && item.object.kind !== kind || (item.object.kind === kind));
  const left = [rebootRoll(of('Node'), of('RebootPolicy'), time), secretMatrix(existing, of('SecSynch')), leases(of('Lease'), time)].filter(Boolean);
  const right = [...of('Bellerophon').map((item) => store(item)), backups(of('Backup')), icecreams(of('Icecream'), existing)].filter(Boolean);
  if (!left.length && !right.length) {
    return h('div', { class: 'scroll' }, empty('No operator objects', 'Panels appear for RebootPolicies, SecSynches, Bellerophons and Icecreams.'));
  }
  return h('div', { class: 'scroll' }, h('div', { class: 'panels' }, h('div', { class: 'col' }, left), h('div', { class: 'col' }, right)));
}

function annotation(digest, name) {
  for (const key in digest?.details || {}) if (key.endsWith(`/${name}`)) return digest.details[key];
  return undefined;
}

/** The state of the reboot of a node. */
export function rebootState(item) {
  const { digest } = item;
  const waiting = annotation(digest, 'reboot-waiting');
  if (annotation(digest, 'reboot-in-progress') !== undefined) return ['act', 'Rebooting', 'loop'];
  if (annotation(digest, 'reboot-now') !== undefined) return ['act', 'Granted, draining', 'loop'];
  if (digest?.health === 'failed') return ['bad', 'Not ready', 'error'];
  if (annotation(digest, 'reboot-paused') !== undefined) return ['', 'Paused', 'clock'];
  if (annotation(digest, 'reboot-needed') !== undefined) return ['', waiting ? `Waits: ${String(waiting).split(/[ ,;]/, 1)[0]}` : 'Waits', 'clock'];
  if (annotation(digest, 'last-reboot') !== undefined) return ['done', 'Rebooted', 'check'];
  return ['idle', 'No request', ''];
}

function rebootRoll(nodes, policies, time) {
  if (!policies.length && !nodes.some((node) => Object.keys(node.digest?.details || {}).length)) return null;
  const policy = policies[0];
  const status = policy?.digest?.details || {};
  const states = nodes.map((node) => ({ node, state: rebootState(node) }));
  const done = states.filter(({ state }) => state[0] === 'done').length;
  const sorted = states.sort((a, b) => a.node.object.name.localeCompare(b.node.object.name, undefined, { numeric: true }));
  const names = { done: 'Rebooted', act: 'Holds a slot', bad: 'Not ready', '': 'Waiting', idle: 'No request' };
  return h('section', { key: 'reboot', class: 'box' }, h('h2', { class: 'h' }, 'Reboot roll', h('span', { class: 'n' }, `${policy ? `RebootPolicy ${policy.object.name}, ` : ''}${plural(nodes.length, 'node')}`), h('span', { class: 'grow' }), policy ? health(policy.digest) : null),
    h('dl', { class: 'strip4' }, [['Slots used', status.limit === undefined ? 'unknown' : `${status.granted ?? 0} of ${status.limit}`], ['Rebooted', `${done} of ${nodes.length}`], ['Need a reboot', String(status.needed ?? 0)], ['Unavailable', String(status.unavailable ?? 0)]].map(([name, text]) => h('div', { key: name }, h('dt', null, name), h('dd', null, text)))),
    h('div', { class: 'bd' }, h('ul', { class: 'nodes' }, sorted.slice(0, 120).map(({ node, state }) => h('li', { key: node.object.name, class: `node ${state[0]}`, title: `${node.object.name}: ${state[1]}, ${node.write ? ago(time - node.write.time) : ''}` }, h('b', null, h('span', { class: 'cut' }, node.object.name), state[2] ? icon(state[2], 12) : null), h('span', { class: 'cut' }, state[1])))),
      h('div', { class: 'legend' }, Object.entries(names).map(([kind, name]) => h('span', { key: kind }, `${name} ${states.filter(({ state }) => state[0] === kind).length}`)))));
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
  return h('section', { key: 'secrets', class: 'box' }, h('h2', { class: 'h' }, 'Secret fan-out', h('span', { class: 'n' }, `SecSynch, ${plural(rows.length, 'secret')} to ${plural(columns.length, 'namespace')}, key names only`), h('span', { class: 'grow' }), refused ? h('span', { class: 'tag error' }, icon('error', 12), `${refused} refused`) : null),
    h('div', { class: 'bd' }, columns.length ? h('table', { class: 'matrix' }, h('thead', null, h('tr', null, h('th', null, 'Secret'), columns.map((name) => h('th', { key: name }, name)))),
      h('tbody', null, rows.map((row) => h('tr', { key: row.item.object.id }, h('th', { scope: 'row' }, row.name), columns.map((name) => {
        if (row.failures.has(name)) return h('td', { key: name, class: 'bad', title: row.failures.get(name).reason || '' }, 'refused');
        return row.spaces.has(name) ? h('td', { key: name, class: 'good' }, h('span', { role: 'img', 'aria-label': 'copied' }, icon('check', 14))) : h('td', { key: name, class: 't3' }, 'not selected');
      }))))) : h('p', { class: 't3' }, `${rows[0].item.digest?.details?.synced ?? 0} of ${rows[0].item.digest?.details?.total ?? 0} copies`)));
}

function leases(list, time) {
  const held = list.filter((item) => item.object.ns !== 'kube-node-lease' && item.digest?.details?.holder);
  if (!held.length) return null;
  return h('section', { key: 'leases', class: 'box' }, h('h2', { class: 'h' }, 'Leader election', h('span', { class: 'n' }, 'leases')), h('table', { class: 'grid' },
    h('thead', null, h('tr', null, h('th', null, 'Lease'), h('th', null, 'Holder'), h('th', null, 'Renewed'), h('th', { class: 'num' }, 'Transitions'))),
    h('tbody', null, held.map((item) => h('tr', { key: item.object.id }, h('td', { class: 'cut lease' }, full(item.object)), h('td', { class: 'cut lease' }, item.digest.details.holder), h('td', { class: 't2' }, item.digest.details.renewed ? ago(time - Date.parse(item.digest.details.renewed) * 1000) : 'never'), h('td', { class: 'num' }, String(item.digest.details.transitions ?? 0)))))));
}

function store(item) {
  const details = item.digest?.details || {};
  const members = details.members || [];
  const voters = members.filter((member) => /voter|leader|follower/i.test(`${member.role} ${member.state || ''}`));
  return h('section', { key: item.object.id, class: 'box' }, h('h2', { class: 'h' }, `Bellerophon ${item.object.name}`, h('span', { class: 'n' }, item.object.ns || ''), h('span', { class: 'grow' }), details.phase ? h('span', { class: 'tag acc' }, details.phase) : null),
    h('dl', { class: 'strip4' }, [['Voters', `${voters.filter((member) => member.healthy).length} of ${voters.length || members.length}`], ['Leader', details.leader || 'none'], ['Replicas', String(details.replicas ?? 0)], ['State', item.digest?.status || 'unknown']].map(([name, text]) => h('div', { key: name }, h('dt', null, name), h('dd', { class: 'cut' }, text)))),
    members.length ? h('table', { class: 'grid' }, h('thead', null, h('tr', null, h('th', null, 'Member'), h('th', null, 'Role'), h('th', null, 'Phase'), h('th', { class: 'num' }, 'Lag, entries'), h('th', null, 'Health'))),
      h('tbody', null, members.map((member) => h('tr', { key: member.name }, h('td', null, h('b', { class: 'strong' }, member.name)), h('td', null, h('span', { class: `tag${details.leader === member.name ? ' acc' : ''}` }, details.leader === member.name ? 'Leader' : member.role || 'unknown')), h('td', { class: 't2' }, member.phase || ''), h('td', { class: 'num' }, member.lag === undefined || member.lag === null ? 'unknown' : count(member.lag)), h('td', null, h('span', { class: `state ${member.healthy ? 'ok' : 'warn'}` }, icon(member.healthy ? 'check' : 'clock', 14), member.healthy ? 'healthy' : 'not healthy')))))) : h('div', { class: 'bd' }, h('p', { class: 't3' }, 'No members yet')));
}

function backups(list) {
  if (!list.length) return null;
  return h('section', { key: 'backups', class: 'box' }, h('h2', { class: 'h' }, 'Backups'), h('table', { class: 'grid' }, h('thead', null, h('tr', null, h('th', null, 'Backup'), h('th', null, 'Phase'), h('th', { class: 'num' }, 'Revision'), h('th', null, 'Checksum'))),
    h('tbody', null, list.slice(-8).map((item) => h('tr', { key: item.object.id }, h('td', null, full(item.object)), h('td', null, item.digest?.details?.phase || ''), h('td', { class: 'num' }, String(item.digest?.details?.revision ?? '')), h('td', null, item.digest?.details?.checksum ? h('span', { class: 'state ok' }, icon('check', 14), 'recorded') : h('span', { class: 't3' }, 'none')))))));
}

function icecreams(list, existing) {
  if (!list.length) return null;
  const pods = existing.filter((item) => item.object.kind === 'Pod' && item.digest?.node);
  const owned = (item) => pods.filter((pod) => pod.object.ns === item.object.ns && pod.object.name.startsWith(`${item.object.name}-`));
  const nodes = [...new Set(list.flatMap((item) => [...owned(item).map((pod) => pod.digest.node), ...(item.digest?.details?.nodes || [])]))].sort();
  return h('section', { key: 'icecreams', class: 'box' }, h('h2', { class: 'h' }, 'Icecream', h('span', { class: 'n' }, 'pods by node')), h('div', { class: 'bd' }, h('table', { class: 'matrix' },
    h('thead', null, h('tr', null, h('th', null, 'Icecream'), nodes.map((name) => h('th', { key: name }, name)), h('th', null, 'Available'))),
    h('tbody', null, list.map((item) => h('tr', { key: item.object.id }, h('th', { scope: 'row' }, item.object.name), nodes.map((name) => {
      const n = owned(item).filter((pod) => pod.digest.node === name).length;
      return h('td', { key: name, class: n ? 'some' : '' }, n ? String(n) : '');
    }), h('td', { class: 'plain' }, health(item.digest))))))));
}
