// The connection to the server: one stream per browser, shared by its tabs.
//
// Every tab reads the stored records once. Then the tab that holds a Web Lock reads the stream and
// sends its frames to the others: a stream keeps one of the six connections of a browser. If that tab is closed, the next one continues by sequence.

const LOCK = 'bellerophon-stream';
const RETRY_MIN_MS = 500;
const RETRY_MAX_MS = 8000;
const TAIL = 20000;

export class Connection {
  /**
   * @param {string} token
   * @param {string} filter parameters of the server's filter; tabs with the same share a stream
   * @param {{frame: (type: string, data: any) => void, status: (status: any) => void, last: () => number}} handlers
   */
  constructor(token, filter, handlers) {
    this.token = token;
    this.filter = filter;
    this.handlers = handlers;
    this.name = filter ? `${LOCK}?${filter}` : LOCK;
    this.channel = 'BroadcastChannel' in window ? new BroadcastChannel(this.name) : null;
    this.abort = new AbortController();
    this.retry = RETRY_MIN_MS;
    /** @type {(() => void) | null} */
    this.wake = null;
  }

  /** @param {string} path @param {RequestInit} [options] */
  fetch(path, options = {}) {
    return fetch(path, { ...options, signal: this.abort.signal, headers: { ...options.headers, authorization: `Bearer ${this.token}` }, cache: 'no-store' });
  }

  async json(path) {
    const response = await this.fetch(path);
    const data = await response.json().catch(() => null);
    return { status: response.status, data };
  }

  /** Ends the stream and leaves it to the next tab. */
  close() {
    this.abort.abort();
    this.channel?.close();
    this.wake?.();
  }

  async start() {
    await this.catchUp();
    if (this.channel) this.channel.onmessage = (event) => this.received(event.data);
    if (navigator.locks) {
      // Aborted while it waits for the lock, or while it holds it.
      navigator.locks.request(this.name, { signal: this.abort.signal }, () => this.follow()).catch(() => undefined);
      this.handlers.status({ connected: true });
    } else this.follow();
  }

  /** Reads the records that are stored now. */
  async catchUp() {
    const last = this.handlers.last();
    const response = await this.fetch(`/api/trace?${last ? `since=${last}` : `tail=${TAIL}`}&${this.filter}`);
    if (response.status === 401) {
      this.handlers.status({ unauthorized: true });
      throw new Error('unauthorized');
    }
    const reader = (/** @type {any} */ (response.body)).pipeThrough(new TextDecoderStream()).getReader();
    let rest = '';
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      const lines = (rest + value).split('\n');
      rest = lines.pop() || '';
      const records = lines.filter(Boolean).map((line) => JSON.parse(line));
      if (records.length) this.handlers.frame('records', { from: 0, records });
    }
    this.handlers.frame('ready', null);
  }

  /** A frame of the tab that reads the stream. */
  received(message) {
    if (message.type === 'status') {
      this.handlers.status(message.data);
      return;
    }
    const data = JSON.parse(message.text);
    if (message.type === 'records' && data.from > this.handlers.last()) {
      // This tab was opened between two frames.
      this.catchUp().catch(() => undefined);
      return;
    }
    this.handlers.frame(message.type, data);
  }

  /** Reads the stream for all tabs, for ever. */
  async follow() {
    while (!this.abort.signal.aborted) {
      try {
        const response = await this.fetch(`/api/stream?since=${this.handlers.last()}&${this.filter}`);
        if (response.status === 401) {
          this.status({ unauthorized: true });
          return;
        }
        if (!response.ok || !response.body) throw new Error(String(response.status));
        this.retry = RETRY_MIN_MS;
        this.status({ connected: true });
        await this.read(response.body);
      } catch {
        // The server is gone or restarts: the data stays, and the next try follows.
      }
      if (this.abort.signal.aborted) return;
      this.status({ connected: false, since: Date.now(), retry: this.retry });
      await new Promise((resolve) => {
        const timer = setTimeout(resolve, this.retry);
        this.wake = () => { clearTimeout(timer); resolve(undefined); };
      });
      this.retry = Math.min(RETRY_MAX_MS, this.retry * 2);
    }
  }

  /** @param {ReadableStream} body */
  async read(body) {
    const reader = body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = '';
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const events = (rest + value).split('\n\n');
      rest = events.pop() || '';
      for (const event of events) this.event(event);
    }
  }

  event(text) {
    let type = '';
    let data = '';
    for (const line of text.split('\n')) {
      if (line.startsWith('event: ')) type = line.slice(7);
      else if (line.startsWith('data: ')) data = line.slice(6);
    }
    if (!type) return;
    const parsed = JSON.parse(data);
    this.handlers.frame(type, parsed);
    // As text: a copy of a string costs less than one of its objects.
    this.channel?.postMessage({ type, text: data });
  }

  status(status) {
    this.handlers.status(status);
    this.channel?.postMessage({ type: 'status', data: status });
  }
}
