// One worker beside the fleet: its ranks, what each holds, how its events are read.
import { el, fill, keepingFocus } from './dom.js';
import { ask, query } from './source.js';
import { group, percent, span } from './format.js';
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
    const open = new Set([...body.querySelectorAll('details[open]')].map((d) => d.dataset.key));
    const top = body.scrollTop;
    const spaces = answer.spaces ?? [answer];
    fill(body, spaces.map((s) => {
      const workers = s.workers ?? [s.worker ?? s];
      return workers.map((w) => one(s, w, open));
    }), rest(answer, open));
    body.scrollTop = top;
  }

  function one(space, w, open) {
    const total = w.registration?.total_blocks ?? w.total_blocks;
    const ranks = w.ranks ?? [];
    return el('section', null,
      el('p', { class: 'where' }, el('b', null, space.model ?? w.model ?? ''), el('span', { class: 'quiet' }, [w.registration?.role, space.block_size && `blocks of ${space.block_size}`, space.group && `group ${space.group}`].filter(Boolean).join(' · '))),
      el('p', { class: 'state' }, w.state && w.state !== 'live' && glyph(w.state === 'suspect' || w.state === 'lost' ? 'silent' : w.state === 'gone' ? 'dead' : 'stale'), el('b', null, w.state ?? ''), w.drained && [' ', glyph('draining'), 'drained'], w.conflict && [' ', glyph('conflict'), 'conflict']),
      ranks.map((r) => rank(r, total, open)),
      w.registration && fold(`registration ${w.worker_id}`, 'Registration', facts(w.registration), open));
  }

  function rank(r, total, open) {
    const held = TIERS.map(([key, name]) => [name, r[key] ?? 0]);
    const all = held.reduce((n, [, v]) => n + v, 0);
    const state = r.stream?.state;
    const bad = kindOf(state, r.stale);
    return el('div', { class: 'rank' },
      el('h3', null, `Rank ${r.dp_rank ?? r.rank ?? 0}`, bad && el('span', { class: 'state' }, glyph(bad), state ?? stateOf(bad).name)),
      el('p', { class: 'held' }, meter(total ? (r.device ?? all) / total : null, 'of the device cache'), el('span', null, `${group(all)} blocks`, total ? ` · ${percent((r.device ?? all) / total)} of the cache` : '')),
      el('p', { class: 'quiet' }, held.filter(([, v], i) => v || i === 0).map(([name, v]) => `${group(v)} ${name}`).join(' · ')),
      r.load && facts(r.load), r.rates && facts(r.rates),
      r.stream && fold(`stream ${w(r)}`, `Events: ${state ?? ''}${r.stream.lag_seconds ? `, ${span(r.stream.lag_seconds)} behind` : ''}`, facts(r.stream, { without: ['state'] }), open),
      facts(r, { without: ['dp_rank', 'rank', 'stream', 'load', 'rates', 'stale', ...TIERS.map(([k]) => k)] }));
  }

  const w = (r) => r.dp_rank ?? r.rank ?? 0;

  function rest(answer, open) {
    const known = ['spaces', 'worker_id', 'id', 'worker', 'model', 'group', 'block_size', 'ranks', 'registration', 'state', 'drained', 'conflict', 'blocks'];
    const more = Object.keys(answer).filter((k) => !known.includes(k));
    return more.length > 0 && fold('more', 'Load and rates', facts(answer, { without: known }), open, true);
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

/** kindOf is the mark for how a rank's events are read. */
function kindOf(state, stale) {
  return { recovering: 'recovering', incomplete: 'gap', truncated: 'truncated', contested: 'conflict', departed: 'dead' }[state] ?? (stale ? 'stale' : null);
}

function fold(key, name, content, open, start = false) {
  return el('details', { 'data-key': key, open: open.size ? open.has(key) : start, class: 'fold' }, el('summary', null, name), content);
}
