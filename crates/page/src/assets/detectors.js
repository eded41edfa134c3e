// Detectors: what is wrong in the records up to a moment. Pure: no document.
//
// A finding has an object or controller, a field, the writers, and what to do.

import { full, long, plural, short, value } from './format.js';
import { title, writerName } from './names.js';

const WINDOW_US = 60e6;
/** Changes of one field to and fro that are a loop. */
const FLIPS_MIN = 6;
const STREAK_MIN = 3;
const STUCK_US = 60e6;
const LAG_US = 5e6;
const IDLE_WRITES_MIN = 5;
/** More are not read by anyone, and every finding is drawn. */
const FINDINGS_MAX = 50;

const NAMES = { 'hot-loop': 'Hot loop', fight: 'Field conflict', idle: 'Write without change', finalizer: 'Stuck finalizer', permission: 'Missing permission', streak: 'Error streak', lag: 'Cache lag' };
export const DETECTORS = Object.entries(NAMES);

/** @param {number} seq @param {number} time @returns {any[]} */
export function detect(model, seq, time) {
  const from = time - WINDOW_US;
  const recent = [];
  for (let i = model.reconciles.length - 1; i >= 0 && recent.length < 20000; i -= 1) {
    const reconcile = model.reconciles[i];
    if (reconcile.seq > seq) continue;
    if (reconcile.time < from * 1 && reconcile.time < time - 600e6) break;
    recent.push(reconcile);
  }
  const findings = [...flips(model, seq, from), ...failures(recent, seq), ...idleWrites(recent, from), ...finalizers(model, seq, time), ...lag(model, seq)];
  return findings.sort((a, b) => b.severity - a.severity || b.time - a.time).slice(0, FINDINGS_MAX);
}

/** Fields that change to a former value again and again. @param {number} seq @param {number} from */
function flips(model, seq, from) {
  const findings = [];
  for (const object of model.objects.values()) {
    const writes = object.versions.filter((write) => write.seq <= seq && write.time >= from);
    if (writes.length < FLIPS_MIN) continue;
    const fields = new Map();
    for (const write of writes) {
      for (const change of write.changes) {
        if (/lastTransitionTime|lastUpdateTime|renewTime|lastHeartbeatTime|heartbeat/i.test(change.path)) continue;
        if (!fields.has(change.path)) fields.set(change.path, []);
        fields.get(change.path).push({ write, old: change.old, new: change.new });
      }
    }
    /** @type {any} */ let worst = null;
    for (const [path, changes] of fields) {
      const back = changes.filter((change, i) => i > 0 && value(change.new) === value(changes[i - 1].old));
      // A status follows the spec, so the spec is what to look at.
      const weight = back.length + (path.startsWith('spec.') ? 1e6 : 0);
      if (back.length + 1 >= FLIPS_MIN && (!worst || weight > worst.weight)) worst = { path, changes, weight };
    }
    if (!worst) continue;
    const writers = [...new Set(worst.changes.map((change) => writerName(change.write)))];
    const last = worst.changes[worst.changes.length - 1].write;
    const first = worst.changes[0].write;
    const type = writers.length > 1 ? (worst.changes.some((change) => change.write.writer) ? 'hot-loop' : 'fight') : 'hot-loop';
    findings.push({
      id: `${type}:${object.id}:${worst.path}`, type, severity: 3, title: (NAMES)[type], object, time: last.time, since: first.time, path: worst.path, changes: worst.changes, writers,
      heading: writers.length > 1 ? `${writers.length === 2 ? 'Two' : writers.length} writers flip ${worst.path}` : `${writers[0]} flips ${worst.path}`,
      text: `${worst.path} flipped ${worst.changes.length} times in ${long((last.time - first.time) / 1e6)}. ${writers.length > 1 ? 'Writers' : 'Writer'}: ${writers.join(', ')}.`,
      lead: `${short(object.kind)} ${full(object)} changed ${worst.changes.length} times in ${long((last.time - first.time) / 1e6)}. ${writers.length > 1 ? 'Each write of one manager causes the other to write the previous value again.' : 'Each write of the controller enqueues it again, and the next reconcile writes the previous value.'}`,
      advice: writers.length > 1 ? `Let one of ${writers.join(' and ')} manage ${worst.path}: remove the field from what the others apply.` : `Make ${writers[0]} compute ${worst.path} from state that its own write does not change.`,
      command: `kubectl get ${short(object.kind).toLowerCase()} ${object.name}${object.ns ? ` -n ${object.ns}` : ''} -o yaml --show-managed-fields`,
      severityName: 'error',
    });
  }
  // What an object owns flips with it.
  const uids = new Set(findings.map(({ object }) => object.versions.at(-1)?.digest?.uid).filter(Boolean));
  return findings.filter(({ object }) => !uids.has(object.versions.at(-1)?.digest?.owners?.[0]));
}

/** Errors in a row, and permissions that are missing. @param {any[]} recent @param {number} seq */
function failures(recent, seq) {
  const findings = [];
  const keys = new Map();
  for (const reconcile of recent) {
    if (!reconcile.endSeq || reconcile.endSeq > seq) continue;
    const key = `${reconcile.controller}|${reconcile.ns || ''}|${reconcile.name}`;
    if (!keys.has(key)) keys.set(key, []);
    keys.get(key).push(reconcile);
  }
  const forbidden = new Map();
  for (const list of keys.values()) {
    let streak = 0;
    while (streak < list.length && list[streak].result === 'error') streak += 1;
    if (!streak) continue;
    const [last] = list;
    const first = list[streak - 1];
    const match = /cannot (\w+) resource "([^"]+)"(?: in API group "([^"]*)")?(?:.*in the namespace "([^"]+)")?/.exec(last.error || '');
    if (match || /forbidden/i.test(last.error || '')) {
      const what = match ? `${match[1]} ${match[2]}` : 'a request';
      const id = `permission:${last.controller}:${what}:${match?.[4] || ''}`;
      const known = forbidden.get(id);
      if (known) {
        known.count += streak;
        known.text = `${what} was forbidden ${known.count} times.`;
        continue;
      }
      const finding = {
        id, type: 'permission', severity: 3, title: NAMES.permission, controller: last.controller, reconcile: last, time: last.time, since: first.time, count: streak,
        subject: `${title(last.controller)} in ${match?.[4] || last.ns || 'the cluster'}`, heading: `${title(last.controller)} may not ${what}`, text: `${what} was forbidden ${plural(streak, 'time')}.`, lead: last.error || '',
        advice: `Grant ${match ? `the verb ${match[1]} on ${match[2]}${match[3] ? ` of the API group ${match[3]}` : ''}` : 'the permission'} to the user of ${title(last.controller)}.`,
        command: match ? `kubectl create clusterrole ${last.controller}-extra --verb=${match[1]} --resource=${match[2]}${match[3] ? `.${match[3]}` : ''}` : '', severityName: 'error',
      };
      forbidden.set(id, finding);
      findings.push(finding);
    } else if (streak >= STREAK_MIN) {
      findings.push({
        id: `streak:${last.controller}:${full(last)}`, type: 'streak', severity: 2, title: NAMES.streak, controller: last.controller, reconcile: last, time: last.time, since: first.time, count: streak,
        subject: `${title(last.controller)} ${full(last)}`, heading: `${title(last.controller)} failed ${plural(streak, 'time')} in a row`, text: `${title(last.controller)} failed ${plural(streak, 'time')} in a row. Last error: ${last.error || 'unknown'}`, lead: last.error || '',
        advice: 'Read the error and the newest versions of the objects that the reconcile reads. The key stays in back-off until a reconcile succeeds.', command: `bellerophon trace ${last.name}${last.ns ? ` -n ${last.ns}` : ''}`, severityName: 'error',
      });
    }
  }
  return findings;
}

/** Writes that changed nothing but bookkeeping. @param {any[]} recent @param {number} from */
function idleWrites(recent, from) {
  const keys = new Map();
  for (const reconcile of recent) {
    if (reconcile.time < from) continue;
    for (const write of reconcile.writes) {
      if (!write.known || write.previous === undefined || write.deletion || write.changes.length || write.digest?.deleted) continue;
      const id = `idle:${reconcile.controller}:${write.kind}:${full(write)}`;
      const known = keys.get(id) || { id, type: 'idle', severity: 1, title: NAMES.idle, controller: reconcile.controller, reconcile, object: null, time: write.time, since: write.time, count: 0, write };
      known.count += 1;
      known.since = Math.min(known.since, write.time);
      keys.set(id, known);
    }
  }
  return [...keys.values()].filter((finding) => finding.count >= IDLE_WRITES_MIN).map((finding) => ({
    ...finding, subject: `${short(finding.write.kind)} ${full(finding.write)}`, heading: `${title(finding.controller)} writes without a change`, text: `${title(finding.controller)} wrote ${short(finding.write.kind)} ${full(finding.write)} ${finding.count} times in 60 s without changing a field.`,
    lead: 'Each write has a new resource version, which enqueues every controller that watches the object.', advice: 'Compare with the cached object before writing: create_or_update, patch_from and apply_status of ReconcileClient do.', command: '', severityName: 'warn',
  }));
}

function finalizers(model, seq, time) {
  const findings = [];
  for (const { object, write, digest } of model.existingAt(seq)) {
    if (!digest?.deleted || !digest.finalizers?.length) continue;
    const since = Date.parse(digest.deleted) * 1000;
    const touched = write ? Math.max(write.time, since) : since;
    if (time - touched < STUCK_US) continue;
    findings.push({
      id: `finalizer:${object.id}`, type: 'finalizer', severity: 2, title: NAMES.finalizer, object, time: since, since, heading: `${short(object.kind)} ${full(object)} does not end`,
      text: `Terminating for ${long((time - since) / 1e6)}. No controller has written it for ${long((time - touched) / 1e6)}.`, lead: `Finalizers: ${digest.finalizers.join(', ')}.`,
      advice: 'Start the controller that owns the finalizer. Remove the finalizer by hand only if that controller is gone for good.', command: `kubectl get ${short(object.kind).toLowerCase()} ${object.name}${object.ns ? ` -n ${object.ns}` : ''} -o jsonpath='{.metadata.finalizers}'`, severityName: 'warn',
    });
  }
  return findings;
}

function lag(model, seq) {
  const state = model.stateAt(seq);
  if (!state) return [];
  return state.caches.filter((cache) => cache.backlog > 0 && cache.lag_us > LAG_US).map((cache) => ({
    id: `lag:${cache.kind}`, type: 'lag', severity: 2, title: NAMES.lag, time: state.time_us, since: state.time_us - cache.lag_us, subject: `cache of ${cache.kind}`, heading: `The cache of ${cache.kind} is behind`,
    text: `${plural(cache.backlog, 'change')} not delivered for ${long(cache.lag_us / 1e6)}.`, lead: 'Event handlers receive the changes of a cache later than they arrive.', advice: 'Do no work in event handlers: enqueue the key only.', command: '', severityName: 'warn',
  }));
}
