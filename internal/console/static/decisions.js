// Decisions: the live list, and one of them with all its candidates.
import { el, fill, text } from './dom.js';
import { ask, query } from './source.js';
import { clock, group, ms, percent } from './format.js';
import { lead, nested, problem, workerLink } from './parts.js';
import { decision } from './decision.js';
import { behind, table } from './table.js';

const SHOWN = 60;
const LEADS = {
  '': 'Which rank each request went to, and how much of its prompt was cached there, as they happen. Open one for what every candidate would have cost.',
  last: 'The last choices that were sampled. Open one for what every candidate would have cost.',
  slowest: 'The request of each minute that waited longest for its first token; of the last 60 minutes that had any.',
  worst_predicted: 'The request of each minute whose first token was furthest from when it was predicted; of the last 60 minutes that had any.',
};
export const REASONS = {
  load: 'load', session: 'session', stale: 'stale', busy: 'busy', no_room: 'no room', excluded: 'excluded',
  evicted: 'evicted', event_late: 'event late', stored: 'stored meanwhile', tokens_differ: 'tokens differ', unknown: 'unknown',
};

/** newest sorts by when the choice was made: they are told of when their requests are over. */
const newest = (list) => list.sort((a, b) => b.at - a.at);

/** same makes one thing of a decision of the stream and one of the route. */
export function same(d) {
  const first = (...names) => names.map((n) => d[n]).find((v) => v !== undefined) ?? null;
  return {
    id: String(d.id), at: first('time_ms') ?? Date.parse(d.time), model: first('model', 'model_name') ?? '', worker: String(first('worker', 'worker_id') ?? ''), rank: first('rank', 'dp_rank'),
    prompt: first('prompt', 'prompt_tokens'), reachable: first('reachable', 'reachable_tokens'), selected: first('selected', 'selected_tokens'), actual: first('actual', 'actual_tokens'),
    reasons: [d.not_selected, d.not_found, ...(Array.isArray(d.reason) ? d.reason : [d.reason])].filter(Boolean), trace: d.trace_id || '',
    predicted: first('predicted_ms'), first: first('first_ms'), total: first('total_ms'), kept: d.kept ?? [], phase: d.phase ?? '', failed: Boolean(d.failed),
  };
}

export function decisions(app) {
  const { source } = app;
  let on = false, one = null, kept = '', held = false, list = [], has = null;

  const rows = el('ol', { class: 'choices', 'aria-label': 'Decisions, newest first' });
  const said = el('p', { class: 'quiet' });
  const hold = el('button', { type: 'button', class: 'plain', 'aria-pressed': 'false', onclick: () => { held = !held; hold.setAttribute('aria-pressed', String(held)); text(hold, held ? 'Let it run' : 'Hold the list'); if (!held) draw(); } }, 'Hold the list');
  const kinds = [['', 'Live'], ['last', 'Last'], ['slowest', 'Slowest'], ['worst_predicted', 'Worst predicted']];
  const radios = kinds.map(([v, name]) => el('label', null, el('input', { type: 'radio', name: 'kept', value: v, onchange: () => app.go('decisions', { kept: v }) }), el('span', null, name)));
  const asTable = behind('The same as a table', () => {
    const t = table('Decisions', [
      { name: 'Id', cell: (d) => el('a', { href: hrefOf(d) }, d.id) },
      { name: 'Time', cell: (d) => clock(d.at), sort: (d) => d.at },
      { name: 'Model', cell: (d) => d.model, sort: (d) => d.model },
      { name: 'Worker', cell: (d) => workerLink(d.worker, d.rank), sort: (d) => d.worker.padStart(24) },
      ...['prompt', 'reachable', 'selected', 'actual'].map((k) => ({ name: k[0].toUpperCase() + k.slice(1), number: true, cell: (d) => group(d[k]), sort: (d) => d[k] })),
      { name: 'Reason', cell: (d) => d.reasons.map((r) => REASONS[r] ?? r).join(', ') || '–', sort: (d) => d.reasons[0] },
    ], { page: 25, empty: 'None yet.' });
    return { node: t.node, refresh: () => t.show(list) };
  });
  const key = el('ul', { class: 'key', 'aria-hidden': 'true' }, [['prompt', 'the prompt'], ['reachable', 'reachable: the best rank had it'], ['selected', 'selected: the chosen one should have it'], ['actual', 'actual: its engine found it']].map(([c, words]) => el('li', null, el('i', { class: c }), words)));
  const head = el('div', { class: 'choices-head', 'aria-hidden': 'true' }, ['Time', 'Model', 'Worker', 'Of the prompt, cached', 'Tokens', 'Found', 'Why less'].map((name) => el('span', null, name)));
  const told = lead('');
  const listing = el('section', { class: 'listing' }, told, el('div', { class: 'controls' }, el('fieldset', { class: 'metrics' }, el('legend', { class: 'sr' }, 'Which'), radios), hold, said), key, head, rows, asTable.node);
  const single = decision(app);
  const node = el('div', { class: 'decisions' }, el('h1', null, 'Decisions'), listing, single.node);

  const hrefOf = (d) => `#/decisions/${encodeURIComponent(d.id)}`;
  const parts = new Map(); // of the list, by id: rows stay as they are while they move down

  function row(d) {
    if (parts.has(d.id)) return parts.get(d.id);
    const least = typeof d.selected === 'number' && typeof d.reachable === 'number' && d.selected < d.reachable;
    const node = el('li', null, el('a', { href: hrefOf(d) },
      el('time', null, clock(d.at)), el('span', { class: 'model' }, d.model), el('span', { class: 'to' }, '→ ', el('b', null, d.rank === null ? d.worker : `${d.worker}:${d.rank}`)),
      nested(d), el('span', { class: 'n' }, group(d.prompt), el('span', { class: 'sr' }, ` tokens, reachable ${group(d.reachable)}, selected ${group(d.selected)}, actual ${group(d.actual)}, `)),
      el('span', { class: 'rate' }, typeof d.actual === 'number' && d.prompt ? percent(d.actual / d.prompt) : typeof d.selected === 'number' && d.prompt ? `≈ ${percent(d.selected / d.prompt)}` : '–'),
      el('span', { class: 'why' }, d.reasons.map((r) => el('em', { class: least ? 'warn' : '' }, REASONS[r] ?? r)), d.failed && el('em', { class: 'bad' }, 'failed'), kept && d.first !== null && el('em', null, `${ms(d.first)}, predicted ${ms(d.predicted)}`))));
    parts.set(d.id, node);
    return node;
  }

  function draw() {
    if (!on || one) return;
    const shown = list.slice(0, SHOWN);
    const ids = new Set(shown.map((d) => d.id));
    for (const id of parts.keys()) if (!ids.has(id)) parts.delete(id);
    const nodes = shown.map(row);
    // Rows that stay keep their place in the document, and the keyboard's with it.
    for (const old of [...rows.children]) if (!nodes.includes(old)) old.remove();
    nodes.forEach((n, i) => { if (rows.children[i] !== n) rows.insertBefore(n, rows.children[i] ?? null); });
    text(said, list.length ? '' : has === false ? 'No decisions are made or kept here: a router’s console has them.' : 'None yet: they show here as requests are routed.');
    key.hidden = head.hidden = rows.hidden = !list.length;
    asTable.node.hidden = !list.length;
    asTable.refresh();
  }

  async function first() {
    try {
      const answer = await ask(query('decisions', { limit: 100, kept: kept || undefined }));
      has = answer.decisions !== null;
      const old = (answer.decisions ?? []).map(same);
      const live = kept ? [] : source.decisions.map(same);
      const ids = new Set(live.map((d) => d.id));
      list = newest([...live, ...old.filter((d) => !ids.has(d.id))]);
      parts.clear();
    } catch (err) {
      if (err.status === 404 || err.status === 501) has = false;
      else fill(said, problem(err, first));
    }
    draw();
  }

  let asked = 0;
  source.addEventListener('decision', (e) => {
    has = true;
    if (kept || !on) return;
    const d = same(e.detail);
    // One that is told again has what its engine found by now.
    list = newest([d, ...list.filter((x) => x.id !== d.id)]).slice(0, 300);
    parts.delete(d.id);
    if (!held && !asked) asked = setTimeout(() => { asked = 0; draw(); }, 250);
  });

  return {
    node,
    show([id], args) {
      on = true;
      one = id ?? null;
      listing.hidden = Boolean(one);
      single.show(one);
      if (one) return;
      kept = args.kept ?? '';
      for (const r of radios) r.firstChild.checked = r.firstChild.value === kept;
      hold.hidden = kept !== '';
      text(told, LEADS[kept] ?? LEADS.last);
      list = kept ? [] : list;
      first();
    },
    hide() { on = false; },
  };
}
