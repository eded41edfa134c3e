// Times, durations, counts and names as text.

const THIN = '\u202f';

/** A duration in microseconds: `2.4 ms`, `1.017 s`, `9 min 50 s`. @param {number} us */
export function duration(us) {
  if (us === undefined || us === null || Number.isNaN(us)) return 'unknown';
  const ms = us / 1000;
  if (ms < 0.1) return '0.1 ms';
  if (ms < 10) return `${ms.toFixed(1)} ms`;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const s = ms / 1000;
  if (s < 10) return `${s.toFixed(3)} s`;
  if (s < 60) return `${s.toFixed(1)} s`;
  return long(s);
}

/** A duration in seconds without fractions. @param {number} s */
export function long(s) {
  const seconds = Math.round(s);
  if (seconds < 60) return `${seconds} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return seconds % 60 ? `${minutes} min ${seconds % 60} s` : `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return minutes % 60 ? `${hours} h ${minutes % 60} min` : `${hours} h`;
  return `${Math.floor(hours / 24)} d`;
}

/** How long ago: `10 s ago`, `2 ms ago`. @param {number} us */
export function ago(us) {
  if (us < 0) return 'now';
  if (us < 1e6) return `${Math.max(1, Math.round(us / 1000))} ms ago`;
  if (us < 10e6) return `${(us / 1e6).toFixed(1)} s ago`;
  const s = us / 1e6;
  if (s < 60) return `${Math.round(s)} s ago`;
  if (s < 3600) return `${Math.floor(s / 60)} min ago`;
  if (s < 172800) return `${Math.floor(s / 3600)} h ago`;
  return `${Math.floor(s / 86400)} d ago`;
}

const pad = (n, digits) => String(n).padStart(digits, '0');

/** `14:02:31`. @param {number} us */
export function clock(us) {
  const t = new Date(us / 1000);
  return `${pad(t.getHours(), 2)}:${pad(t.getMinutes(), 2)}:${pad(t.getSeconds(), 2)}`;
}

/** `.205`. @param {number} us */
export const millis = (us) => `.${pad(Math.floor(us / 1000) % 1000, 3)}`;

/** `14:02:31.205`. @param {number} us */
export const precise = (us) => clock(us) + millis(us);

/** `31.205`. @param {number} us */
export const seconds = (us) => clock(us).slice(6) + millis(us);

/** A grouped count. @param {number} n */
export function count(n) {
  const text = String(Math.round(n));
  return text.length < 5 ? text : text.replace(/\B(?=(\d{3})+$)/g, THIN);
}

/** `1 cause`, `3 causes`. @param {number} n @param {string} one @param {string} [many] */
export const plural = (n, one, many = `${one}s`) => `${count(n)} ${n === 1 ? one : many}`;

/** A name cut in its middle, with its suffix. @param {string} name @param {number} max */
export function middle(name, max) {
  if (name.length <= max) return name;
  const suffix = Math.min(8, Math.max(4, Math.floor(max / 2)));
  return `${name.slice(0, Math.max(0, max - suffix - 1))}…${name.slice(-suffix)}`;
}

/** A path cut at its beginning, so that its last name stays. @param {string} path @param {number} max */
export function pathEnd(path, max) {
  if (path.length <= max) return path;
  const end = path.slice(1 - max);
  const dot = end.indexOf('.');
  return `…${dot >= 0 && end.length - dot > 4 ? end.slice(dot + 1) : end}`;
}

/** A value of a field as text. */
export function value(value) {
  if (value === undefined) return 'unset';
  if (value === null) return 'null';
  if (typeof value === 'string') return value === '' ? '""' : value;
  return JSON.stringify(value);
}

/** `Deployment` of `Deployment.apps`. @param {string} kind */
export const short = (kind) => kind.split('.', 1)[0];

/** `default/stable`. @param {{ns?: string, name: string}} object */
export const full = (object) => (object.ns ? `${object.ns}/${object.name}` : object.name);

/** The path of a field without what is the same everywhere. @param {string} path */
export function field(path) {
  return path
    .replace(/^status\.conditions\[(\w+)\]\.status$/, '$1')
    .replace(/^status\.(observedGeneration|readyReplicas|availableReplicas|phase)$/, '$1');
}

const PAST = { create: 'created', update: 'updated', patch: 'patched', apply: 'applied', delete: 'deleted', deletecollection: 'deleted' };

export const past = (verb) => (PAST)[verb] || verb;

/** The quantile of sorted numbers. @param {number[]} sorted @param {number} q */
export function quantile(sorted, q) {
  if (!sorted.length) return undefined;
  return sorted[Math.min(sorted.length - 1, Math.floor(q * sorted.length))];
}
