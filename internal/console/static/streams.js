// Streams: where events come from, how far they are read, and what became of what was missing.
import { el, fill } from './dom.js';
import { ask } from './source.js';
import { bytes, clock, group, ms, span } from './format.js';
import { lead, problem, workerLink } from './parts.js';
import { glyph } from './states.js';
import { ends } from './words.js';
import { table } from './table.js';

/** polled is a view that asks a route every so often while it is shown. */
export function polled(app, route, every, draw, node, body) {
  let on = false, timer = 0, mine = 0;
  async function load() {
    clearTimeout(timer);
    const my = ++mine;
    try {
      const answer = await ask(route);
      if (on && my === mine) draw(answer);
    } catch (err) {
      if (on && my === mine) fill(body, problem(err, load));
    }
    if (on && my === mine) timer = setTimeout(tick, every);
  }
  function tick() {
    if (document.hidden || app.source.paused) timer = setTimeout(tick, every);
    else load();
  }
  return {
    node,
    show() { on = true; load(); },
    hide() { on = false; clearTimeout(timer); },
  };
}

const spaceOf = (x) => `${ends(x.space.model)} · ${x.space.block_size}${x.space.group ? ` · ${x.space.group}` : ''}`;
const ago = (t, now) => (t ? `${span(Math.max(0, now - t) / 1000)} ago` : '–');
const state = (grade, words) => el('span', { class: 'state' }, glyph(grade), words);

export function streams(app) {
  let now = 0;
  const body = el('div');
  const node = el('div', { class: 'streams' }, el('h1', null, 'Streams'),
    lead('Where the events come from that tell what engines hold, how far they are read, and what became of events that were missing: a gap is repaired by asking the rank’s publisher (a recovery).'), body);
  const by = el('p', { class: 'quiet' });

  const read = table('Streams', [
    { name: 'Space', cell: spaceOf, sort: spaceOf, class: 'space' },
    { name: 'State', cell: (s) => (s.error ? state('dead', s.error) : s.stalled ? state('gap', s.stalled) : s.caught_up ? 'caught up' : state('recovering', 'catching up')), class: 'words' },
    { name: 'Applied to', number: true, cell: (s) => group(Number(s.position)) },
    { name: 'Of', number: true, cell: (s) => group(Number(s.last)) },
    { name: 'Lag', number: true, cell: (s) => group(s.lag_messages), sort: (s) => s.lag_messages },
    { name: 'Lag in time', number: true, cell: (s) => ms(s.lag_ms), sort: (s) => s.lag_ms },
    { name: 'In flight', number: true, cell: (s) => `${group(s.in_flight)}, ${bytes(s.in_flight_bytes)}`, sort: (s) => s.in_flight },
    { name: 'As of', cell: (s) => (s.error || now - s.heard_ms > 15000 ? state('stale', ago(s.heard_ms, now)) : 'now'), sort: (s) => s.heard_ms },
    { name: 'Made', cell: (s) => clock(s.created_ms), sort: (s) => s.created_ms },
    { name: 'Stream', cell: (s) => el('code', null, s.stream), class: 'words' },
  ], { page: 20, empty: 'No JetStream stream is read.' });

  const recoveries = table('Recoveries', [
    { name: 'Began', cell: (r) => clock(r.began_ms), sort: (r) => r.began_ms },
    { name: 'Worker', cell: (r) => workerLink(r.worker, r.rank), sort: (r) => r.worker.padStart(24) },
    { name: 'Space', cell: spaceOf, sort: spaceOf, class: 'space' },
    { name: 'Why', cell: (r) => r.cause.replaceAll('_', ' '), class: 'words', sort: (r) => r.cause },
    { name: 'Took', number: true, cell: (r) => ms(r.took_ms), sort: (r) => r.took_ms },
    { name: 'Became', cell: (r) => ({ events: 'the events came', dump: 'all that it holds was read' }[r.became] ?? state('gap', `failed${r.error ? ': ' + r.error : ''}`)), class: 'words', sort: (r) => r.became },
  ], { page: 20, empty: 'None since this process began.' });

  const snapshots = table('Snapshots', [
    { name: 'Space', cell: spaceOf, sort: spaceOf, class: 'space' },
    { name: 'Newest', cell: (s) => (s.error ? state('gap', s.error) : s.name ?? 'none yet'), class: 'words' },
    { name: 'Age', number: true, cell: (s) => ago(s.written_ms, now), sort: (s) => s.written_ms },
    { name: 'Size', number: true, cell: (s) => bytes(s.bytes), sort: (s) => s.bytes },
    { name: 'Blocks', number: true, cell: (s) => group(s.blocks), sort: (s) => s.blocks },
    { name: 'Up to message', number: true, cell: (s) => (s.seq === null ? '–' : group(Number(s.seq))) },
    { name: 'Written by', cell: (s) => s.writer ?? '–', sort: (s) => s.writer },
  ], { page: 20, empty: 'None are taken.' });

  const replicas = table('Replicas', [
    { name: 'Replica', cell: (r) => el('span', null, r.replica, r.this && el('span', { class: 'quiet' }, ' (this one)')), sort: (r) => r.replica, class: 'words' },
    { name: 'Heard', cell: (r) => (r.beat_ago_ms === null ? 'never' : r.beat_ago_ms > 15000 ? state('silent', `${span(r.beat_ago_ms / 1000)} ago`) : 'now'), sort: (r) => r.beat_ago_ms, class: 'words' },
    { name: 'Wrote the newest snapshot of', cell: (r) => r.writes.map(spaceOf).join(', ') || '–', sort: (r) => r.writes.length, class: 'words' },
  ], { page: 20, empty: 'None is heard of.' });

  const sources = table('Ranks by how their events are read', [
    { name: 'Worker', cell: (s) => workerLink(s.worker, s.rank), sort: (s) => s.worker.padStart(24) },
    { name: 'Space', cell: spaceOf, sort: spaceOf, class: 'space' },
    { name: 'By', cell: (s) => (s.by === 'zmq' ? 'its engine’s socket' : 'NATS'), sort: (s) => s.by },
    { name: 'State', cell: (s) => (s.state === 'following' && !s.stale ? 'following' : state(s.state === 'recovering' ? 'recovering' : s.stale ? 'stale' : 'gap', `${s.state}${s.why ? ': ' + s.why : ''}`)), class: 'words', sort: (s) => s.state },
    { name: 'Last event', cell: (s) => ago(s.last_event_ms, now), sort: (s) => s.last_event_ms },
    { name: 'Id', number: true, cell: (s) => group(Number(s.last_id)) },
    { name: 'Events', number: true, cell: (s) => group(s.events), sort: (s) => s.events },
    { name: 'Gaps', number: true, cell: (s) => group(s.gaps), sort: (s) => s.gaps },
    { name: 'Missed', number: true, cell: (s) => group(s.missed_events), sort: (s) => s.missed_events },
    { name: 'Recoveries', number: true, cell: (s) => (s.recoveries_failed ? `${group(s.recoveries)}, ${group(s.recoveries_failed)} failed` : group(s.recoveries)), sort: (s) => s.recoveries },
  ], { page: 40, empty: 'No rank’s events are read.' });
  const more = el('p', { class: 'quiet' });

  const sections = [['JetStream', by, read.node], ['Recoveries', recoveries.node], ['Snapshots', snapshots.node], ['Replicas', replicas.node], ['Ranks', sources.node, more]]
    .map(([name, ...content]) => el('section', null, el('h2', null, name), content));

  function draw(answer) {
    now = answer.at_ms;
    const ways = Object.entries(answer.transports).filter(([, n]) => n).map(([name, n]) => `${group(n)} by ${name}`);
    fill(by, `Read by this replica, ${answer.replica}. ${ways.length ? `Workers: ${ways.join(', ')}.` : ''}`);
    read.show(answer.streams);
    recoveries.show(answer.recoveries);
    snapshots.show(answer.snapshots);
    replicas.show(answer.replicas);
    sections[3].hidden = answer.replicas.length === 0; // for a tenant
    sources.show(answer.sources);
    fill(more, answer.more ? `and ${group(answer.more)} more, that nothing is wrong with` : '');
    if (!sections[0].isConnected) fill(body, sections);
  }

  return polled(app, 'streams', 2000, draw, node, body);
}
