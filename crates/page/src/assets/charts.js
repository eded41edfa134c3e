// Small charts, each hidden from screen readers: the numbers stand beside them.

import { h } from './dom.js';

/** Bars. @param {number[]} values @param {{w?: number, h?: number, tone?: string}} [options] */
export function bars(values, { w = 88, h: height = 22, tone = '' } = {}) {
  const max = Math.max(1, ...values);
  const step = w / values.length;
  return h('svg', { class: `bars ${tone}`, width: w, height, viewBox: `0 0 ${w} ${height}`, 'aria-hidden': 'true' },
    h('path', { class: 'axis', d: `M0 ${height - 0.5}H${w}` }),
    h('path', {
      class: 'bar', d: values.map((value, i) => {
        if (!value) return '';
        const tall = Math.max(2, (value / max) * (height - 4));
        return `M${(i * step).toFixed(1)} ${(height - 1 - tall).toFixed(1)}h${Math.max(1, step - 1.2).toFixed(1)}v${tall.toFixed(1)}h-${Math.max(1, step - 1.2).toFixed(1)}z`;
      }).join(''),
    }));
}

/** Two lines: p99 and p50. @param {Array<number | undefined>} p50 @param {Array<number | undefined>} p99 */
export function spark(p50, p99, { w = 96, h: height = 30 } = {}) {
  const values = p99.filter((value) => value !== undefined);
  const max = Math.max(1, ...values) * 1.05;
  const y = (value) => (height - 3 - (value / max) * (height - 7)).toFixed(1);
  const line = (list) => {
    let path = '';
    let last;
    list.forEach((value, i) => {
      const known = value === undefined ? last : value;
      if (known === undefined) return;
      path += `${path ? 'L' : 'M'}${((i * (w - 5)) / (list.length - 1)).toFixed(1)} ${y(known)}`;
      last = known;
    });
    return { path, last };
  };
  const high = line(p99);
  const low = line(p50);
  return h('svg', { class: 'spark', width: w, height, viewBox: `0 0 ${w} ${height}`, 'aria-hidden': 'true' },
    h('path', { class: 'axis', d: `M0 ${height - 1.5}H${w - 3}` }),
    h('path', { class: 'p99', d: high.path }), h('path', { class: 'p50', d: low.path }),
    high.last === undefined ? null : h('circle', { class: 'p99', cx: w - 5, cy: y(high.last), r: 2 }),
    low.last === undefined ? null : h('circle', { class: 'p50 dot', cx: w - 5, cy: y(low.last), r: 2 }));
}

/** Counts of times in equal parts of a window. @param {number[]} times @param {number} from @param {number} to @param {number} parts */
export function histogram(times, from, to, parts) {
  const counts = new Array(parts).fill(0);
  const width = Math.max(1, to - from);
  for (const time of times) {
    if (time >= from && time <= to) counts[Math.min(parts - 1, Math.floor(((time - from) / width) * parts))] += 1;
  }
  return counts;
}
