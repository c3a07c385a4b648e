// Streams: where events come from, how far they are read, and what became of what was missing.
import { el, fill } from './dom.js';
import { ask } from './source.js';
import { facts, named, words } from './facts.js';
import { problem, workerLink } from './parts.js';
import { table } from './table.js';

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

export function streams(app) {
  const body = el('div', null, el('p', { class: 'quiet' }, 'Asking…'));
  const node = el('div', { class: 'streams' }, el('h1', null, 'Streams'), body);
  const made = new Map();

  function draw(answer) {
    const sections = [];
    for (const [name, v] of Object.entries(answer)) sections.push(section(name, v));
    if (sections.some((s) => !s.isConnected) || body.children.length !== sections.length) fill(body, sections);
  }

  /** section is a list of the answer as a table, whose columns are what its things have. */
  function section(name, v) {
    if (!made.has(name)) made.set(name, { node: el('section', null) });
    const m = made.get(name);
    if (!Array.isArray(v)) { fill(m.node, el('h2', null, named(name)), v && typeof v === 'object' ? facts(v) : el('p', null, words(name, v))); return m.node; }
    const fields = [...new Set(v.flatMap((x) => Object.keys(x ?? {})))];
    if (m.fields !== fields.join()) {
      m.fields = fields.join();
      m.table = table(named(name), fields.map((f) => ({
        name: named(f), number: typeof v.find((x) => x[f] !== null && x[f] !== undefined)?.[f] === 'number',
        cell: (x) => (/^worker(_id)?$/.test(f) && x[f] ? workerLink(x[f]) : x[f] && typeof x[f] === 'object' ? facts(x[f]) : words(f, x[f])), sort: (x) => x[f],
      })), { page: 20, empty: 'None.' });
      fill(m.node, el('h2', null, named(name)), m.table.node);
    }
    m.table.show(v);
    return m.node;
  }

  return polled(app, 'streams', 2000, draw, node, body);
}
