// Actions: only with `up --page-may-act`. Each item names its object; deletions ask once.

import { h, icon } from './dom.js';
import { full, middle } from './format.js';

function items(app) {
  const { samples, nodes, watched } = app.info.act;
  const { seq } = app.at();
  const node = app.node(app.selected);
  const existing = app.existing(seq);
  const deployment = existing.find((item) => item.object.kind === 'Deployment.apps' && (!node || item.object.name === node.name)) || existing.find((item) => item.object.kind === 'Deployment.apps');
  const pod = (node && node.kind === 'Pod' ? node : null) || existing.find((item) => item.object.kind === 'Pod')?.object;
  const list = samples.map((sample) => ({ name: 'Apply a sample', object: sample, body: { action: 'apply-sample', sample } }));
  if (deployment) {
    const now = Number(/of (\d+)/.exec(deployment.digest?.status || '')?.[1] || 2);
    const replicas = now >= 4 ? 2 : 4;
    list.push({ name: 'Scale', object: `Deployment ${full(deployment.object)}, ${replicas}`, body: { action: 'scale', namespace: deployment.object.ns, name: deployment.object.name, replicas } });
  }
  if (pod) list.push({ name: 'Delete', object: `Pod ${middle(pod.name, 26)}`, body: { action: 'delete-pod', namespace: pod.ns, name: pod.name }, confirm: true });
  if (nodes.length) list.push({ name: 'Power off', object: `Node ${nodes[nodes.length - 1]}`, body: { action: 'power-off', node: nodes[nodes.length - 1] }, confirm: true });
  const resource = watchedOf(node && node.kind ? node.kind : 'Pod', watched);
  if (resource) list.push({ name: 'Cut the watch', object: `Caches of ${resource}`, body: { action: 'cut-watch', resource } });
  return list;
}

/** The watched resource of a kind: `deployments.apps` of `Deployment.apps`. @param {string} kind @param {string[]} watched */
function watchedOf(kind, watched) {
  const [name, ...group] = kind.toLowerCase().split('.');
  const end = group.length ? `.${group.join('.')}` : '';
  const names = [`${name}s`, `${name}es`, `${name.slice(0, -1)}ies`].map((plural) => plural + end);
  return watched.find((resource) => names.includes(resource)) || watched.find((resource) => resource === 'pods') || watched[0];
}

export function actMenu(app) {
  if (!app.info.act) return null;
  return h('div', { class: 'act only-wide' }, h('button', { class: 'btn', 'aria-haspopup': 'menu', 'aria-expanded': app.actOpen ? 'true' : 'false', 'aria-pressed': app.actOpen ? 'true' : 'false', onclick: () => app.toggleAct() }, h('b', null, 'Act'), icon('down', 12)),
    app.actOpen ? h('div', { class: 'menu', role: 'menu', 'aria-label': 'Actions' }, h('div', { class: 'lab', role: 'presentation' }, app.actMessage || 'This page may write, as the administrator'),
      items(app).map((item) => h('button', { key: item.object, role: 'menuitem', onclick: () => start(app, item) }, h('span', null, app.confirming === item.object ? `Confirm: ${item.name.toLowerCase()}` : item.name), h('span', { class: 't3 cut' }, item.object)))) : null);
}

function start(app, item) {
  if (item.confirm && app.confirming !== item.object) {
    app.confirm(item.object);
    return;
  }
  app.confirm(null);
  app.act(item.body);
}
