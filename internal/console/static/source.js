// The one stream of events that all pages live on, and requests for details.
//
// The stream is read with fetch, not with EventSource: so it can carry a token, says
// why it was refused, and is counted. What was seen stays bounded: one snapshot of
// each kind, ten minutes of each series, and the last decisions.

const SILENCE = 3500; // ms without a word, after which what is shown is called stale
const ANEW = 10000; // ms after which a connection on which all comes late is given up for another one
const LONGEST = 32 << 20; // characters of one event
const KEPT = 600; // seconds of each series
const DECISIONS = 200;

/** json reads an answer; whole numbers that JavaScript cannot hold become texts. */
export function json(words) {
  return JSON.parse(words, (key, value, context) =>
    typeof value === 'number' && Number.isInteger(value) && !Number.isSafeInteger(value) && context?.source && /^-?\d+$/.test(context.source) ? context.source : value);
}

/** Refused is an answer other than 2xx. */
export class Refused extends Error {
  constructor(status, words) {
    super(words);
    this.status = status;
  }
}

async function refusal(response) {
  let words = '';
  try {
    const body = await response.text();
    words = body.slice(0, 300);
    const { error } = json(body);
    words = typeof error === 'string' ? error : error?.message ? `${error.field ? error.field + ': ' : ''}${error.message}` : words;
  } catch { /* the text says it */ }
  return new Refused(response.status, words || response.statusText || `status ${response.status}`);
}

/** token is a reader's, kept for this tab alone. */
export const token = {
  get: () => { try { return sessionStorage.getItem('kvatlas-token') ?? ''; } catch { return ''; } },
  set: (t) => { try { t ? sessionStorage.setItem('kvatlas-token', t) : sessionStorage.removeItem('kvatlas-token'); } catch { /* not kept */ } },
};

function headers(more) {
  const t = token.get();
  return t ? { ...more, Authorization: `Bearer ${t}` } : { ...more };
}

/** ask gets a route of the console's API, or posts a body to it. */
export async function ask(route, { body, signal } = {}) {
  const response = await fetch('api/' + route, {
    method: body === undefined ? 'GET' : 'POST', signal, cache: 'no-store', referrerPolicy: 'no-referrer',
    headers: headers(body === undefined ? { Accept: 'application/json' } : { Accept: 'application/json', 'Content-Type': 'application/json' }),
    body: body === undefined ? undefined : typeof body === 'string' ? body : JSON.stringify(body),
  });
  if (!response.ok) throw await refusal(response);
  return json(await response.text());
}

/** query writes the arguments of a route that are there. */
export function query(route, args) {
  const q = new URLSearchParams();
  for (const [k, v] of Object.entries(args)) if (v !== undefined && v !== null) q.set(k, String(v));
  const s = String(q);
  return s ? `${route}?${s}` : route;
}

/** Series is the last ten minutes of one number, a value a second; NaN where none was known. */
export class Series {
  #values = new Float64Array(KEPT).fill(NaN);
  #next = 0;
  length = 0;

  push(v) {
    this.#values[this.#next] = typeof v === 'number' ? v : NaN;
    this.#next = (this.#next + 1) % KEPT;
    this.length = Math.min(this.length + 1, KEPT);
  }

  /** at returns the value of so many seconds ago. */
  at(ago) { return ago < this.length ? this.#values[(this.#next - 1 - ago + 2 * KEPT) % KEPT] : NaN; }
}

/** Source is the stream. It tells 'overview', 'members', 'cells', 'decision' and 'state'. */
export class Source extends EventTarget {
  overview = null;
  members = null;
  groups = new Map(); // of cells, by key
  epoch = null;
  scale = { metric: '', unit: '', max: 0 };
  decisions = [];
  series = new Map();
  heard = 0; // when the last overview came, by the clock of performance
  heardAt = 0; // the same by the wall's
  read = 0; // bytes, as sent
  state = { kind: 'connecting', why: '' };
  paused = false; // by the reader

  #metric = 'held';
  #abort = null;
  #failures = 0;
  #timer = 0;
  #begun = 0; // when the connection was asked for
  #nearest = Infinity; // the least that an overview of this connection was behind its making, by two clocks that differ

  constructor() {
    super();
    document.addEventListener('visibilitychange', () => this.#turn());
    addEventListener('pagehide', () => this.#stop());
    addEventListener('pageshow', () => this.#turn());
    setInterval(() => this.#watch(), 500);
  }

  get metric() { return this.#metric; }
  set metric(m) {
    if (m === this.#metric) return;
    this.#metric = m;
    this.#stop();
    this.#turn();
  }

  start() { this.#turn(); }

  /** pause stops or resumes at the reader's wish. */
  pause(wanted) {
    this.paused = wanted;
    this.#turn();
  }

  /** again connects at once, as with another token. */
  again() {
    this.#stop();
    this.#failures = 0;
    this.#turn();
  }

  #turn() {
    if (this.paused || document.hidden) {
      this.#stop();
      this.#say('paused', this.paused ? 'by you' : 'while the page is hidden');
    } else if (!this.#abort) this.#run();
  }

  #stop() {
    clearTimeout(this.#timer);
    this.#abort?.abort();
    this.#abort = null;
  }

  #say(kind, why = '') {
    if (kind === this.state.kind && why === this.state.why) return;
    this.state = { kind, why };
    this.dispatchEvent(new Event('state'));
  }

  #watch() {
    if (this.state.kind === 'live' && performance.now() - this.heard > SILENCE) this.#say('stale', 'nothing has come');
  }

  async #run() {
    const abort = this.#abort = new AbortController();
    clearTimeout(this.#timer);
    this.#begun = performance.now();
    this.#nearest = Infinity;
    if (this.state.kind === 'paused') this.#say('connecting');
    let why = 'it ended the stream';
    try {
      const response = await fetch(query('api/events', { metric: this.#metric }), { headers: headers({ Accept: 'text/event-stream' }), signal: abort.signal, cache: 'no-store' });
      if (!response.ok) throw await refusal(response);
      await this.#follow(response.body.getReader(), abort);
    } catch (err) {
      if (abort.signal.aborted) return;
      if (err instanceof Refused && (err.status === 401 || err.status === 403)) {
        this.#abort = null;
        this.#say('denied', err.message);
        return;
      }
      why = err instanceof Refused ? err.message : 'the server does not answer';
    }
    if (abort.signal.aborted || this.#abort !== abort) return;
    this.#say('gone', why);
    const wait = Math.min(500 * 2 ** this.#failures++, 8000) * (0.75 + Math.random() / 2);
    this.#timer = setTimeout(() => { this.#abort = null; this.#turn(); }, wait);
  }

  async #follow(reader, abort) {
    const decoder = new TextDecoder();
    let rest = '';
    for (;;) {
      const { done, value } = await reader.read();
      if (done || abort.signal.aborted) return;
      this.read += value.byteLength;
      rest += decoder.decode(value, { stream: true });
      let from = 0;
      for (let end; (end = rest.indexOf('\n\n', from)) >= 0; from = end + 2) {
        this.#event(rest.slice(from, end));
        if (abort.signal.aborted) return; // what is left of it is later still
      }
      rest = rest.slice(from);
      if (rest.length > LONGEST) throw new Error('an event without an end');
    }
  }

  #event(block) {
    let name = 'message', data = '';
    for (const line of block.split('\n')) {
      if (line.startsWith('event:')) name = line.slice(6).trim();
      else if (line.startsWith('data:')) data += (data && '\n') + line.slice(5).trimStart();
    }
    this.#failures = 0;
    if (!data) return;
    const value = json(data);
    switch (name) {
      case 'overview':
        this.#overview(value);
        break;
      case 'members':
        this.members = value;
        this.epoch = value.epoch;
        this.groups = new Map(value.groups.map((g) => [g.key, { state: new Uint8Array(g.cells.length), value: new Uint8Array(g.cells.length).fill(255) }]));
        break;
      case 'cells':
        if (value.epoch !== this.epoch) return; // of other members than are known
        this.scale = { metric: value.metric, unit: value.unit, max: value.max };
        value.groups.forEach((g) => this.#cells(g));
        break;
      case 'history':
        this.#history(value);
        break;
      case 'decision':
        this.decisions.unshift(value);
        this.decisions.length = Math.min(this.decisions.length, DECISIONS);
        break;
    }
    this.dispatchEvent(new CustomEvent(name, { detail: value }));
  }

  #cells({ key, state, value }) {
    const group = this.groups.get(key);
    if (!group) return;
    decode(state, group.state);
    decode(value, group.value);
  }

  /** late is for how long an overview was on its way, beyond the fastest: what is between may keep megabytes for a slow reader. */
  #late(o) {
    const behind = performance.now() - o.now_ms;
    this.#nearest = Math.min(this.#nearest, behind);
    return behind - this.#nearest;
  }

  #overview(o) {
    const late = this.#late(o);
    this.heard = performance.now() - late;
    this.heardAt = Date.now() - late;
    this.overview = o;
    this.#push(o.totals, 1);
    if (late > SILENCE) {
      this.#say('stale', 'late');
      if (performance.now() - this.#begun > ANEW) { // the next one begins with what is newest
        this.#stop();
        this.#turn();
      }
    } else if (o.now_ms - o.sampled_ms > SILENCE) this.#say('stale', 'the server has not looked at the fleet');
    else this.#say('live');
  }

  /** history is what was seen before this page was: it takes the place of what there is. */
  #history({ step_ms, points }) {
    this.series.clear();
    const seconds = Math.max(1, Math.round(step_ms / 1000));
    points.slice(-KEPT / seconds).forEach((p) => this.#push(p.totals, seconds));
  }

  #push(totals, times) {
    for (const [name, v] of Object.entries(totals ?? {})) {
      if (!this.series.has(name)) this.series.set(name, new Series());
      for (let i = 0; i < times; i++) this.series.get(name).push(v);
    }
  }
}

/** decode writes bytes in base64 to where they belong, as many as have room. */
function decode(words, into) {
  if (typeof words !== 'string') return;
  const raw = atob(words);
  for (let i = Math.min(raw.length, into.length) - 1; i >= 0; i--) into[i] = raw.charCodeAt(i);
}
