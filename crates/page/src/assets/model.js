// The records of a trace, linked: writes, reconciles, and what caused what.
//
// In: records in the trace format. Out: writes by version, reconciles, objects, edges.
// Guarantees: each record is read once (the index is incremental); memory is bounded by
// RECORDS_MAX, the oldest are forgotten.

const RECORDS_MAX = 40000;
/** Fewer records are not worth a call of splice. */
const FORGET_MIN = 500;
const STATES_MAX = 600;
/** A delete or a subresource is linked to a write of the same object within this time. */
const MATCH_US = 2e6;
/** Longer requeues are schedules, not part of a chain. */
export const TIMER_CHAIN_US = 30e6;

/**
 * An accepted write: one version of an object.
 * @typedef {object} Write
 * @property {'write'} type @property {string} id @property {number} seq @property {number} time
 * @property {number} version @property {string} kind @property {string} [ns] @property {string} name
 * @property {string} verb @property {string} manager @property {string} user @property {string} sub
 * @property {number} [previous] @property {boolean} deletion @property {boolean} inProcess
 * @property {any[]} changes @property {number} more @property {any} digest
 * @property {Reconcile | null} writer @property {Reconcile[]} effects @property {boolean} known
 * @property {boolean} [forgotten] its record and its causes are no longer kept
 */

/**
 * One reconcile.
 * @typedef {object} Reconcile
 * @property {'reconcile'} type @property {string} id @property {number} seq @property {number} time
 * @property {string} controller @property {string} [ns] @property {string} name
 * @property {number} attempt @property {number} [wait] @property {any[]} causes @property {number} omitted
 * @property {Array<{write: Write, seq: number, time: number}>} links @property {Reconcile | null} timer
 * @property {Write[]} writes @property {Array<{seq: number, text: string, kind: string, ns?: string, name: string}>} calls
 * @property {string} [result] @property {number} [took] @property {number} [requeue] @property {string} [error]
 * @property {number} endSeq @property {number} endTime @property {Reconcile | null} next
 */

export class Model {
  constructor() {
    this.records = [];
    this.writes = new Map();
    this.reconciles = [];
    /** Known writes in the order of their records. @type {Write[]} */ this.writeList = [];
    /** @type {Map<string, {id: string, kind: string, ns?: string, name: string, versions: Write[], base: any}>} */
    this.objects = new Map();
    this.pending = new Map();
    this.running = new Map();
    this.latest = new Map();
    this.controllers = new Map();
    this.states = [];
    this.gaps = [];
    this.lists = new Map();
    this.last = 0;
    this.first = 0;
    this.lastTime = 0;
    this.firstTime = 0;
    this.total = 0;
    this.changed = 0;
    this.hasAccepted = false;
  }

  add(records) {
    for (const record of records) this.read(record);
    this.forget();
    this.changed += 1;
  }

  /** The objects that existed before the first record. @param {any[]} list */
  addExisting(list) {
    for (const item of list) {
      const object = this.object(item.kind, item.object.namespace, item.object.name);
      object.base = { version: item.version, digest: item.digest };
    }
    this.changed += 1;
  }

  addGap(after, missed) {
    this.gaps.push({ after, missed, seq: after + 1, time: this.lastTime });
    // A reconcile whose end was overwritten would run for ever.
    this.running.clear();
    this.pending.clear();
    this.last = Math.max(this.last, after + missed);
  }

  read(r) {
    if (r.type === 'gap') {
      this.addGap(r.seq - 1, r.missed);
      return;
    }
    if (r.type === 'state') {
      this.states.push(r);
      if (this.states.length > STATES_MAX) this.states.shift();
      this.lastTime = Math.max(this.lastTime, r.time_us);
      if (!this.firstTime) this.firstTime = r.time_us;
      return;
    }
    if (r.type === 'end') {
      this.last = Math.max(this.last, r.seq);
      return;
    }
    if (r.seq <= this.last) return;
    if (!this.first) {
      this.first = r.seq;
      this.firstTime = r.time_us;
    }
    this.last = r.seq;
    this.lastTime = Math.max(this.lastTime, r.time_us);
    this.total += 1;
    this.records.push(r);
    switch (r.type) {
      case 'accepted': this.readAccepted(r); break;
      case 'enqueued': this.readEnqueued(r); break;
      case 'started': this.readStarted(r); break;
      case 'wrote': this.readWrote(r); break;
      case 'finished': this.readFinished(r); break;
      case 'listed': this.lists.set(r.kind, r); break;
    }
  }

  /** @param {string} kind @param {string | undefined} ns @param {string} name */
  object(kind, ns, name) {
    const id = `${kind}|${ns || ''}|${name}`;
    let object = this.objects.get(id);
    if (!object) {
      object = { id, kind, ns, name, versions: [], base: null };
      this.objects.set(id, object);
    }
    return object;
  }

  controller(name) {
    let number = this.controllers.get(name);
    if (number === undefined) {
      number = this.controllers.size;
      this.controllers.set(name, number);
    }
    return number;
  }

  /**
   * The write of a version. It is a placeholder until its record arrives, and for ever if the API
   * server runs in another process.
   * @param {number} version @param {string} kind @param {any} record @returns {Write}
   */
  write(version, kind, object, record) {
    let write = this.writes.get(version);
    if (!write) {
      write = {
        type: 'write', id: `w${version}`, seq: record.seq, time: record.time_us, version, kind,
        ns: object.namespace, name: object.name, verb: '', manager: '', user: '', sub: '',
        deletion: false, inProcess: false, changes: [], more: 0, digest: null, writer: null, effects: [], known: false,
      };
      this.writes.set(version, write);
      if (!this.hasAccepted) this.writeList.push(write);
    }
    return write;
  }

  readAccepted(r) {
    if (!this.hasAccepted) {
      this.hasAccepted = true;
      this.writeList = [];
    }
    const write = this.write(r.version, r.kind, r.object, r);
    Object.assign(write, {
      known: true, seq: r.seq, time: r.time_us, verb: r.verb, manager: r.manager, user: r.user,
      sub: r.subresource || '', previous: r.previous, deletion: !!r.deletion, inProcess: !!r.in_process,
      changes: r.changes || [], more: r.more || 0, digest: r.digest || null,
    });
    const { versions } = this.object(r.kind, r.object.namespace, r.object.name);
    let place = versions.length;
    while (place > 0 && versions[place - 1].version > r.version) place -= 1;
    versions.splice(place, 0, write);
    this.writeList.push(write);
  }

  queueId(controller, key) {
    return `${controller}|${key.namespace || ''}|${key.name}`;
  }

  readEnqueued(r) {
    const id = this.queueId(r.controller, r.key);
    const list = this.pending.get(id) || [];
    const { cause } = r;
    const version = Number(cause.version);
    if (version) {
      const write = this.write(version, cause.kind, cause.object, r);
      if (!list.some((link) => link.write === write)) list.push({ write, seq: r.seq, time: r.time_us });
    }
    if (list.length) this.pending.set(id, list);
  }

  readStarted(r) {
    this.controller(r.controller);
    const id = this.queueId(r.controller, r.key);
    const previous = this.latest.get(id) || null;
    const isTimer = r.causes.some((cause) => cause.event === 'retry');
    /** @type {Reconcile} */
    const reconcile = {
      type: 'reconcile', id: `r${r.seq}`, seq: r.seq, time: r.time_us, controller: r.controller,
      ns: r.key.namespace, name: r.key.name, attempt: r.attempt, wait: r.wait_us, causes: r.causes,
      omitted: r.omitted || 0, links: this.pending.get(id) || [], timer: isTimer ? previous : null,
      writes: [], calls: [], endSeq: 0, endTime: 0, next: null,
    };
    this.pending.delete(id);
    for (const { write } of reconcile.links) write.effects.push(reconcile);
    if (reconcile.timer) reconcile.timer.next = reconcile;
    this.running.set(id, reconcile);
    this.latest.set(id, reconcile);
    this.reconciles.push(reconcile);
  }

  readWrote(r) {
    const id = this.queueId(r.controller, r.key);
    let reconcile = this.running.get(id);
    if (!reconcile) {
      // A controller without work queue, such as the garbage collector, records its writes only.
      this.controller(r.controller);
      reconcile = {
        type: 'reconcile', id: `r${r.seq}`, seq: r.seq, time: r.time_us, controller: r.controller,
        ns: r.key.namespace, name: r.key.name, attempt: 1, causes: [], omitted: 0, links: this.pending.get(id) || [],
        timer: null, writes: [], calls: [], result: 'success', endSeq: r.seq, endTime: r.time_us, next: null,
      };
      this.pending.delete(id);
      for (const { write } of reconcile.links) write.effects.push(reconcile);
      this.reconciles.push(reconcile);
      this.latest.set(id, reconcile);
    }
    const version = Number(r.version);
    const write = version ? this.write(version, r.kind, r.object, r) : this.match(r);
    if (write && !write.writer) {
      write.writer = reconcile;
      reconcile.writes.push(write);
    } else if (!write) {
      reconcile.calls.push({ seq: r.seq, text: r.subresource || 'delete', kind: r.kind, ns: r.object.namespace, name: r.object.name });
    }
  }

  /** The write of a delete or of a subresource, whose response has no version. */
  match(r) {
    const object = this.objects.get(`${r.kind}|${r.object.namespace || ''}|${r.object.name}`);
    if (!object) return null;
    const sub = r.subresource ? r.subresource.split(' ', 1)[0] : '';
    for (let i = object.versions.length - 1; i >= 0; i -= 1) {
      const write = object.versions[i];
      if (r.time_us - write.time > MATCH_US) return null;
      const fits = sub ? write.sub === sub : write.verb.startsWith('delete') || write.deletion;
      if (fits && !write.writer) return write;
    }
    return null;
  }

  readFinished(r) {
    const id = this.queueId(r.controller, r.key);
    const reconcile = this.running.get(id);
    if (!reconcile) return;
    this.running.delete(id);
    Object.assign(reconcile, {
      result: r.result, took: r.took_us, requeue: r.requeue_us, error: r.error, endSeq: r.seq, endTime: r.time_us,
    });
  }

  /** Forgets the oldest records, a few at a time, so that no call takes long. */
  forget() {
    const dropped = this.records.length - RECORDS_MAX;
    if (dropped < FORGET_MIN) return;
    this.records.splice(0, dropped);
    const oldest = this.records[0].seq;
    this.first = oldest;
    this.firstTime = this.records[0].time_us;
    /** @param {{seq: number}} item */
    const isOld = (item) => item.seq < oldest;
    for (const old of this.reconciles.splice(0, countWhile(this.reconciles, isOld))) this.forgetReconcile(old);
    for (const old of this.writeList.splice(0, countWhile(this.writeList, isOld))) this.forgetWrite(old);
    // A map keeps the order of insertion, which is that of the records, except for placeholders.
    for (const [version, write] of this.writes) {
      if (write.seq >= oldest) break;
      this.writes.delete(version);
    }
    this.gaps = this.gaps.filter((gap) => gap.seq >= oldest);
  }

  /** Cuts its links: what is kept must not keep all its causes. @param {Reconcile} reconcile */
  forgetReconcile(reconcile) {
    if (reconcile.timer) reconcile.timer.next = null;
    if (reconcile.next) reconcile.next.timer = null;
    Object.assign(reconcile, { links: [], timer: null, next: null });
    const id = this.queueId(reconcile.controller, { namespace: reconcile.ns, name: reconcile.name });
    if (this.latest.get(id) === reconcile) this.latest.delete(id);
  }

  /** @param {Write} write */
  forgetWrite(write) {
    this.writes.delete(write.version);
    Object.assign(write, { writer: null, effects: [], forgotten: true });
    const object = this.objects.get(`${write.kind}|${write.ns || ''}|${write.name}`);
    if (!object) return;
    const place = object.versions.indexOf(write);
    if (place < 0) return;
    for (const before of object.versions.splice(0, place + 1)) if (before.digest) object.base = { version: before.version, digest: before.digest };
    if (!object.versions.length && write.deletion) this.objects.delete(object.id);
  }

  /** The newest state of queues and caches at a sequence number. @param {number} seq */
  stateAt(seq) {
    const count = countWhile(this.states, (state) => state.seq <= seq);
    return this.states[Math.max(count - 1, 0)] || null;
  }

  /** The time of a sequence number. @param {number} seq */
  timeAt(seq) {
    const count = countWhile(this.records, (record) => record.seq <= seq);
    return count ? this.records[count - 1].time_us : this.firstTime;
  }

  /** The sequence number at a time. @param {number} time */
  seqAt(time) {
    const count = countWhile(this.records, (record) => record.time_us <= time);
    return count ? this.records[count - 1].seq : this.first;
  }

  /**
   * The objects that exist at a sequence number, each with its newest write or digest.
   * @param {number} seq
   */
  existingAt(seq) {
    const found = [];
    // Threads record writes out of order.
    const newest = this.writeList.reduce((most, write) => (write.seq <= seq ? Math.max(most, write.version) : most), 0);
    for (const object of this.objects.values()) {
      const { versions, base } = object;
      const write = versions.findLast(({ version }) => version <= newest) || null;
      if (write) {
        if (!write.deletion) found.push({ object, write, digest: write.digest });
      } else if (versions.length ? versions[0].previous !== undefined : base) {
        // It was there before the first record.
        found.push({ object, write: null, digest: base && (!versions.length || base.version < versions[0].version) ? base.digest : null });
      }
    }
    return found;
  }
}

/** Whether a write is of a client, and not of a component of the cluster. @param {Write} write */
export function isClient(write) {
  if (write.writer || !write.known) return false;
  return !write.inProcess || (write.user !== '' && !/^(system:|bellerophon:)/.test(write.user));
}

/**
 * The number of items at the beginning that meet a condition, which no later one meets.
 * @template T @param {T[]} items @param {(item: T) => boolean} holds
 */
export function countWhile(items, holds) {
  let low = 0;
  let high = items.length;
  while (low < high) {
    const half = (low + high) >> 1;
    if (holds(items[half])) low = half + 1;
    else high = half;
  }
  return low;
}
