// Causes and effects: the chain of a write or reconcile, its root, and all edges.

import { isClient, TIMER_CHAIN_US } from './model.js';

/** The nodes of a chain are bounded, so that a hot loop cannot stop the page. */
const CHAIN_MAX = 1500;

/** @typedef {import('./model.js').Write} Write @typedef {import('./model.js').Reconcile} Reconcile */

/** @param {Reconcile} reconcile */
function followsTimer(reconcile) {
  const { timer } = reconcile;
  return timer && reconcile.time - timer.time < TIMER_CHAIN_US ? timer : null;
}

/** The causes of a node. @param {any} node @returns {any[]} */
export function causesOf(node) {
  if (node.type === 'write') return node.writer ? [node.writer] : [];
  const causes = node.links.map((link) => link.write);
  const timer = followsTimer(node);
  return timer ? [...causes, timer] : causes;
}

/** The effects of a node. @param {any} node @returns {any[]} */
export function effectsOf(node) {
  if (node.type === 'write') return node.effects;
  const next = node.next && followsTimer(node.next) ? [node.next] : [];
  return [...node.writes, ...next];
}

/** @param {any[]} start @param {(node: any) => any[]} step @param {number} max */
function reach(start, step, max) {
  const found = new Set(start);
  const pending = [...start];
  while (pending.length && found.size < max) {
    for (const next of step(pending.pop())) {
      if (!found.has(next)) {
        found.add(next);
        pending.push(next);
      }
    }
  }
  return found;
}

/** The path from a node to its root, the node first: the earliest cause of each. */
export function pathToRoot(node) {
  const path = [node];
  const seen = new Set(path);
  for (let at = node; path.length < 64;) {
    const causes = causesOf(at).filter((cause) => !seen.has(cause));
    if (!causes.length) break;
    at = causes.reduce((first, cause) => (cause.seq < first.seq ? cause : first));
    seen.add(at);
    path.push(at);
  }
  return path;
}

/**
 * What a root is: `command`, `timer`, `start` (the first records of a process), `component` (a
 * write of the cluster without a reconcile), or `unknown` (not recorded).
 * @param {any} model
 */
export function rootType(node, model) {
  const root = pathToRoot(node).at(-1);
  if (root.type === 'write') {
    if (root.forgotten) return 'unknown';
    if (isClient(root)) return 'command';
    // Add-ons are applied when the cluster starts.
    if (root.known) return root.user === '' || root.user === 'bellerophon:add-on' ? 'start' : 'component';
    return root.version && model.hasAccepted ? 'start' : 'command';
  }
  if (root.timer || root.causes.some((cause) => ['retry', 'resync', 'generic'].includes(cause.event))) return 'timer';
  if (root.causes.some((cause) => cause.event === 'added')) return 'start';
  return root.causes.length ? 'unknown' : 'timer';
}

/**
 * The chain of a node: everything that led to it, and everything that followed from its root.
 * @param {any} node
 */
export function chainOf(node) {
  const path = pathToRoot(node);
  const root = path.at(-1);
  const up = reach([node], causesOf, CHAIN_MAX);
  const fromRoot = reach([root], effectsOf, CHAIN_MAX);
  const down = fromRoot.size < CHAIN_MAX ? fromRoot : reach([node], effectsOf, CHAIN_MAX);
  const members = new Set([...up, ...down]);
  return { root, path, onPath: new Set(path), members, isCut: fromRoot.size >= CHAIN_MAX };
}

/**
 * All edges of some nodes: `command`, `write`, `event` and `timer`.
 * @param {Iterable<Write>} writes @param {Iterable<Reconcile>} reconciles
 */
export function edgesOf(writes, reconciles) {
  const edges = [];
  for (const write of writes) {
    if (write.writer) edges.push({ id: `${write.writer.id}-${write.id}`, type: 'write', from: write.writer, to: write });
    else if (isClient(write)) edges.push({ id: `c-${write.id}`, type: 'command', from: null, to: write });
  }
  for (const reconcile of reconciles) {
    for (const { write } of reconcile.links) {
      edges.push({ id: `${write.id}-${reconcile.id}`, type: 'event', from: write, to: reconcile });
    }
    if (reconcile.timer) edges.push({ id: `${reconcile.timer.id}-${reconcile.id}`, type: 'timer', from: reconcile.timer, to: reconcile });
  }
  return edges;
}
