// Export: the records as a Perfetto trace (Chrome JSON), with one flow per edge.

import { edgesOf } from './chain.js';
import { full, short } from './format.js';
import { changeText, title, writerName } from './names.js';

export function perfetto(model) {
  const events = [];
  const threads = new Map();
  const thread = (name) => {
    let id = threads.get(name);
    if (!id) {
      id = threads.size + 1;
      threads.set(name, id);
      events.push({ ph: 'M', name: 'thread_name', pid: 1, tid: id, args: { name } });
    }
    return id;
  };
  events.push({ ph: 'M', name: 'process_name', pid: 1, args: { name: 'bellerophon' } });
  const api = thread('API server');
  const clients = thread('clients');
  const writes = model.writeList.filter((write) => write.known);
  for (const write of writes) {
    events.push({ ph: 'X', name: `${short(write.kind)} ${full(write)}`, cat: 'write', pid: 1, tid: api, ts: write.time, dur: 1, args: { version: write.version, writer: writerName(write), user: write.user, change: changeText(write) } });
  }
  for (const reconcile of model.reconciles) {
    events.push({ ph: 'X', name: full(reconcile), cat: 'reconcile', pid: 1, tid: thread(title(reconcile.controller)), ts: reconcile.time, dur: Math.max(1, reconcile.took || 1), args: { sequence: reconcile.seq, attempt: reconcile.attempt, result: reconcile.result, error: reconcile.error } });
  }
  const known = new Set(writes);
  const edges = edgesOf(writes, model.reconciles).filter((edge) => edge.type !== 'event' || known.has((edge.from)));
  edges.forEach((edge, i) => {
    const from = edge.from ? (edge.from.type === 'write' ? api : thread(title(edge.from.controller))) : clients;
    const to = edge.to.type === 'write' ? api : thread(title(edge.to.controller));
    if (!edge.from) events.push({ ph: 'X', name: writerName(edge.to), cat: 'command', pid: 1, tid: clients, ts: edge.to.time - 1, dur: 1 });
    events.push({ ph: 's', name: edge.type, cat: 'flow', id: i + 1, pid: 1, tid: from, ts: edge.from ? edge.from.time : edge.to.time - 1 });
    events.push({ ph: 'f', bp: 'e', name: edge.type, cat: 'flow', id: i + 1, pid: 1, tid: to, ts: edge.to.time });
  });
  return { file: { traceEvents: events, displayTimeUnit: 'ms' }, flows: edges.length };
}

/** Offers a text as a file. @param {string} name @param {string} text */
export function download(name, text) {
  const url = URL.createObjectURL(new Blob([text], { type: 'application/json' }));
  const link = document.createElement('a');
  link.href = url;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}
