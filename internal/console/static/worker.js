// One worker beside the fleet: its ranks, what each holds, how its events are read.
import { el, fill, keepingFocus } from './dom.js';
import { ask, query } from './source.js';
import { count, group, percent, span } from './format.js';
import { glyph, stateOf } from './states.js';
import { facts } from './facts.js';
import { meter, problem } from './parts.js';

const TIERS = [['device', 'device'], ['host_pinned', 'host'], ['disk', 'disk'], ['external', 'external']];

export function worker(app, close) {
  const { source } = app;
  let id = null, timer = 0, abort = null, back = null;
  const title = el('h2', { tabIndex: -1 });
  const body = el('div', { class: 'body' });
  const node = el('aside', { class: 'details', hidden: true, 'aria-label': 'Worker', onkeydown: (e) => { if (e.key === 'Escape') close(); } },
    el('div', { class: 'head' }, title, el('button', { type: 'button', class: 'icon', 'aria-label': 'Close', onclick: close }, '✕')), body);

  async function load() {
    clearTimeout(timer);
    abort?.abort();
    const mine = abort = new AbortController(), of = id;
    try {
      const answer = await ask(query('worker', { id: of }), { signal: mine.signal });
      if (of === id) keepingFocus(body, () => draw(answer));
    } catch (err) {
      if (!mine.signal.aborted && of === id) fill(body, problem(err, load));
      if (err.status === 404) return; // until the reader asks again
    }
    if (of === id && id !== null) timer = setTimeout(() => (document.hidden || source.paused ? (timer = setTimeout(load, 2000)) : load()), 2000);
  }

  function draw(answer) {
    const open = new Map([...body.querySelectorAll('details')].map((d) => [d.dataset.key, d.open]));
    const top = body.scrollTop;
    fill(body, answer.spaces.map((s) => space(s, open)));
    body.scrollTop = top;
  }

  function space(s, open) {
    const key = `${s.model} ${s.block_size} ${s.group}`, r = s.registration;
    return el('section', null,
      el('p', { class: 'where' }, el('b', null, s.model), el('span', { class: 'quiet' }, [r?.role, `blocks of ${s.block_size}`, s.group && `group ${s.group}`].filter(Boolean).join(' · '))),
      standing(r), s.ranks.map((k) => rank(k, r, open, key)),
      r && fold(`${key} registration`, 'Registration', facts(r), open));
  }

  /** standing says in a line whether the worker is to be counted on. */
  function standing(r) {
    if (!r) return el('p', { class: 'state' }, 'not registered: it only publishes');
    const marks = [r.state === 'suspect' || r.state === 'lost' ? 'silent' : r.state === 'gone' ? 'dead' : null, r.drained && 'draining', r.conflict && 'conflict', r.mismatch && 'mismatch'].filter(Boolean);
    return [el('p', { class: 'state' }, el('b', null, r.state), marks.map((m) => [glyph(m), stateOf(m).name])),
      [r.mismatch, r.conflict, r.drained_by && `drained by ${r.drained_by}`, r.left_by && `left: ${r.left_by}`].filter(Boolean).map((words) => el('p', { class: 'quiet' }, words))];
  }

  function rank(r, registration, open, key) {
    const capacity = registration?.capacity_blocks, unheard = (registration && registration.state !== 'live') || (r.stream ?? r.direct)?.stale;
    const all = TIERS.reduce((n, [t]) => n + r[t], 0), source = r.stream ?? r.direct, bad = source && markOf(source);
    return el('div', { class: 'rank' },
      el('h3', null, `Rank ${r.rank}`, bad && el('span', { class: 'state' }, glyph(bad), source.state)),
      el('p', { class: 'held' }, meter(capacity ? r.device / capacity : null, 'of the device cache'), el('span', null, `${group(all)} blocks`, capacity ? ` · ${percent(r.device / capacity)} of the cache` : '', unheard && el('span', { class: 'quiet' }, ' when last heard'))),
      el('p', { class: 'quiet' }, [...TIERS.filter(([t], i) => r[t] || i === 0).map(([t, name]) => `${group(r[t])} ${name}`), r.inferred && `${group(r.inferred)} inferred`].filter(Boolean).join(' · ')),
      source?.why && el('p', { class: 'quiet' }, source.why),
      r.load && fold(`${key} ${r.rank} load`, `Load: ${count(r.load.requests, 'request')}${r.load.left_out ? `, left out: ${r.load.left_out.replaceAll('_', ' ')}` : ''}`, facts(r.load), open),
      source && fold(`${key} ${r.rank} events`, `Events: ${source.state}${source.last_event_ms ? `, the last ${span((Date.now() - source.last_event_ms) / 1000)} ago` : ''}`, facts(source, { without: ['space', 'worker', 'rank', 'state', 'why'] }), open));
  }

  return {
    node,
    show(next) {
      if (next === id) return;
      const fresh = id === null;
      id = next;
      node.hidden = id === null;
      if (id === null) {
        clearTimeout(timer);
        abort?.abort();
        if (back?.isConnected) back.focus({ preventScroll: true });
        return;
      }
      if (fresh) back = document.activeElement;
      fill(title, 'Worker ', el('span', { class: 'id' }, id));
      fill(body, el('p', { class: 'quiet' }, 'Asking…'));
      load();
      title.focus({ preventScroll: true });
    },
  };
}

/** markOf is the mark for how a rank's events are read; null where they are read well. */
function markOf({ state, stale }) {
  return { waiting: 'gap', lossy: 'gap', incomplete: 'gap', recovering: 'recovering', truncated: 'truncated', away: 'silent', contested: 'conflict', departed: 'dead' }[state] ?? (stale ? 'stale' : null);
}

function fold(key, name, content, open) {
  return el('details', { 'data-key': key, open: open.get(key) ?? false, class: 'fold' }, el('summary', null, name), content);
}
