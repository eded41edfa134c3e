// Names, colours and words for controllers, writes and reconciles.

import { field, full, past, short, value } from './format.js';

const TONES = { deployment: 1, replicaset: 2, endpointslice: 3, scheduler: 4, kubelets: 5, icecream: 6, hero: 7, bellerophon: 7 };

/** The title of a controller: its name without what all have. @param {string} controller */
export function title(controller) {
  if (controller === 'default-scheduler') return 'scheduler';
  if (controller === 'kubelet') return 'kubelets';
  return controller.replace(/-controller$/, '');
}

/** The number of the colour and shape of a controller; 8 for all others. @param {string} controller */
export function tone(controller, model) {
  const known = (TONES)[title(controller)];
  if (known) return known;
  // Without the built-in controllers, the first seven have a colour of their own.
  const isCluster = ['deployment-controller', 'replicaset-controller'].some((name) => model.controllers.has(name));
  const number = model.controllers.get(controller);
  return !isCluster && number !== undefined && number < 7 ? number + 1 : 8;
}

/** Fields that rarely say what happened. */
const NOISE = /(lastTransitionTime|lastUpdateTime|lastHeartbeatTime|lastProbeTime|renewTime|startedAt|\.message|\.reason|observedGeneration|last-applied-configuration|deployment\.kubernetes\.io|metadata\.labels)/;
const STRONG = /^(spec\.|status\.(readyReplicas|availableReplicas|replicas|phase)|status\.conditions\[(Ready|Available|Complete)\]\.status)/;

/** The change that says most about a write. */
export function mainChange(write) {
  let best = null;
  let bestScore = -1;
  for (const change of write.changes) {
    const isPlain = (typeof change.new !== 'object' || change.new === null) && !/^[[{]./.test(String(change.new));
    const score = (STRONG.test(change.path) ? 4 : 0) + (NOISE.test(change.path) ? 0 : 2) + (isPlain ? 1 : 0);
    if (score > bestScore) {
      best = change;
      bestScore = score;
    }
  }
  return best;
}

/** What a write changed, in a line. */
export function changeText(write) {
  if (!write.known) return 'written outside of this process';
  if (write.deletion) return 'removed';
  if (write.previous === undefined) return write.digest && write.digest.status ? `created, ${write.digest.status}` : 'created';
  const change = /** @type {any} */ (mainChange(write));
  if (!change) return write.digest && write.digest.deleted ? 'Terminating' : 'no field changed';
  const path = field(change.path);
  // Long lists and objects come as shortened text.
  const isLong = (v) => (v !== null && typeof v === 'object') || (typeof v === 'string' && /^[[{]./.test(v));
  if (isLong(change.new) || isLong(change.old)) {
    return `${path} ${change.old === undefined ? 'added' : change.new === undefined ? 'removed' : 'changed'}`;
  }
  if (change.old === undefined) return `${path} ${value(change.new)}`;
  if (change.new === undefined) return `${path} removed`;
  return `${path} ${value(change.old)} → ${value(change.new)}`;
}

/** `+`, `~` or `−`. */
export const sign = (write) => (write.deletion ? '−' : write.known && write.previous === undefined ? '+' : '~');

const SIGNS = { '+': 'added', '~': 'updated', '−': 'deleted' };

export const signWord = (write) => (SIGNS)[sign(write)];

/** The verb of a write in a block. */
export function verb(write) {
  if (write.sub === 'binding') return 'bind';
  if (write.sub === 'eviction') return 'evict';
  return write.verb || 'write';
}

/** Who wrote a version. */
export function writerName(write) {
  if (write.writer) return title(write.writer.controller);
  if (!write.known) return 'outside';
  return write.manager || write.user || 'apiserver';
}

/** A node in a sentence. */
export function sentence(node) {
  if (node.type === 'write') return `${short(node.kind)} ${node.name} ${signWord(node)}`;
  return `${title(node.controller)} reconciled ${node.name}`;
}

/** A command in a sentence: `kubectl patched scale`. */
export function commandSentence(write) {
  const what = write.sub ? `${past(write.verb)} ${write.sub}` : past(write.verb || 'wrote');
  return `${write.manager || write.user || 'a client'} ${what}`;
}

/** The accessible name of a reconcile. */
export function reconcileLabel(reconcile, duration) {
  const causes = reconcile.causes.length + reconcile.omitted;
  const took = reconcile.took === undefined ? 'running' : `${reconcile.result}, ${duration(reconcile.took)}`;
  return `${title(reconcile.controller)} reconciled ${full(reconcile)}, ${took}, ${causes} ${causes === 1 ? 'cause' : 'causes'}, ${reconcile.writes.length} ${reconcile.writes.length === 1 ? 'write' : 'writes'}`;
}
