// One decision: what of the prompt was to be found, and what each candidate would have cost.
import { el, fill, svg } from './dom.js';
import { ask } from './source.js';
import { clock, group, ms, percent } from './format.js';
import { nested, problem, workerLink } from './parts.js';
import { table } from './table.js';
import { REASONS, same } from './decisions.js';

// Parts of a cost in ms, in the order in which they pass.
export const PARTS = [
  ['wait', 'waiting'], ['compute', 'computing'], ['load', 'loading'],
  ['displaced', 'displaced'], ['decoding', 'decoding'], ['others', 'other routers'],
];

const WORDS = [['wait', /([\d.]+) waiting/], ['first', /([\d.]+) to the first token/], ['load', /([\d.]+) loading/], ['displaced', /([\d.]+) displaced/], ['decoding', /([\d.]+) decoding/], ['others', /([\d.]+) for other routers/]];

/** partsOf takes a candidate's cost apart, as the policy words it; null if it goes by no time. */
export function partsOf(c) {
  const parts = {};
  if (!/ ms = /.test(c.formula ?? '')) return null;
  for (const [key, pattern] of WORDS) {
    const m = pattern.exec(c.formula);
    if (m && Number(m[1]) > 0) parts[key] = Number(m[1]);
  }
  // Waiting and loading are parts of the time to the first token; the rest is computing.
  const { first = 0, ...rest } = parts;
  return { ...rest, compute: Math.max(0, first - (parts.wait ?? 0) - (parts.load ?? 0)) };
}

export function decision(app) {
  let shown = null;
  const body = el('div');
  const node = el('article', { class: 'decision', hidden: true, 'aria-live': 'off' }, body);

  async function load(id) {
    fill(body, back(), el('p', { class: 'quiet' }, 'Asking…'));
    try {
      const d = await ask(`decisions/${encodeURIComponent(id)}`);
      if (shown === id) draw(d);
    } catch (err) {
      if (shown === id) fill(body, back(), el('h2', null, 'Decision ', el('code', null, id)), err.status === 404 ? el('p', { class: 'problem' }, 'It is not kept any more. Of all requests the last ones are, and of each minute the slowest and the worst predicted.') : problem(err, () => load(id)));
    }
  }

  const back = () => el('p', null, el('a', { href: '#/decisions', class: 'back' }, '← All decisions'));

  function draw(raw) {
    const d = same(raw);
    const worst = raw.reachable_worker_id !== null && raw.reachable_worker_id !== undefined && typeof d.selected === 'number' && d.selected < d.reachable;
    const list = [...(raw.candidates ?? [])].sort((a, b) => (a.left_out ? 1 : 0) - (b.left_out ? 1 : 0) || (a.cost ?? Infinity) - (b.cost ?? Infinity));
    fill(body, back(),
      el('header', null, el('h2', { tabIndex: -1 }, 'Decision ', el('code', null, d.id)),
        el('p', { class: 'quiet' }, [clock(d.at), d.model, raw.routing_group && raw.routing_group !== 'default' && `group ${raw.routing_group}`, raw.phase && raw.phase !== 'aggregated' && raw.phase, raw.mode && `policy ${raw.mode}`].filter(Boolean).join(' · '))),
      el('p', { class: 'verdict' }, verdict(d, raw, worst)),
      el('section', { class: 'tokens', 'aria-label': 'Tokens of the prompt' }, nested(d),
        el('dl', null, [['Prompt', d.prompt], ['Reachable', d.reachable], ['Selected', d.selected], ['Actual', d.actual]].map(([name, v]) =>
          el('div', null, el('dt', null, name), el('dd', null, group(v), name !== 'Prompt' && d.prompt && typeof v === 'number' ? el('span', { class: 'quiet' }, ' ' + percent(v / d.prompt)) : ''))))),
      el('section', { class: 'times' }, el('dl', null, [['Predicted to the first token', ms(d.predicted)], ['It came after', ms(d.first)], ['In all', ms(d.total)], ['Request', raw.request_id ?? '–'], ['Trace', d.trace || '–']].map(([k, v]) => el('div', null, el('dt', null, k), el('dd', null, v))))),
      list.length ? [picture(list, raw), listing(list)] : el('p', { class: 'quiet' }, 'No table of candidates was written for this one: only so many rows are written a second.'));
  }

  function verdict(d, raw, worst) {
    const chosen = el('b', null, 'Worker ', workerLink(d.worker, d.rank));
    const words = [chosen, d.failed ? ' was chosen, and did not serve it. ' : ' was chosen. '];
    if (worst) words.push('Worker ', workerLink(raw.reachable_worker_id, raw.reachable_dp_rank), ` had ${group(d.reachable - d.selected)} tokens more: `, el('em', { class: 'warn' }, REASONS[raw.not_selected] ?? raw.not_selected ?? 'not chosen'), '. ');
    else if (typeof d.reachable === 'number') words.push('No rank that could be asked had more of the prompt. ');
    if (raw.not_found) words.push('Its engine found another number of tokens than it should have: ', el('em', { class: 'warn' }, REASONS[raw.not_found] ?? raw.not_found), '.');
    return words;
  }

  /** picture draws candidates as bars in ms, cheapest first; or plain costs, if the policy goes by no time. */
  function picture(list, raw) {
    const rows = list.map((c) => ({ c, parts: c.left_out ? null : partsOf(c) }));
    const timed = rows.some((r) => r.parts);
    const most = Math.max(...rows.map((r) => (r.parts ? sum(r.parts) : typeof r.c.cost === 'number' ? r.c.cost : 0)), 1e-9);
    const used = new Set(rows.flatMap((r) => Object.keys(r.parts ?? {})));
    const best = Math.max(0, ...list.map((c) => c.cached_tokens ?? 0));
    const ticks = scale(most);
    const bars = rows.slice(0, 40).map(({ c, parts }) => {
      let x = 0;
      const pieces = parts ? PARTS.filter(([k]) => parts[k]).map(([k]) => {
        const w = (1000 * parts[k]) / ticks.top;
        const piece = svg('rect', { class: 'part-' + k, x, y: 0, width: w, height: 14 });
        x += w;
        return piece;
      }) : typeof c.cost === 'number' && !c.left_out ? [svg('rect', { class: 'part-compute', width: (1000 * Math.max(c.cost, 0)) / ticks.top, height: 14 })] : [];
      const reach = c.worker_id === raw.reachable_worker_id && (c.dp_rank ?? 0) === (raw.reachable_dp_rank ?? 0);
      return el('li', { class: [c.chosen && 'chosen', c.left_out && 'left'].filter(Boolean).join(' ') },
        el('span', { class: 'who' }, c.chosen && el('i', { 'aria-hidden': 'true' }, '▸'), `${c.worker_id}:${c.dp_rank}`),
        c.left_out ? el('span', { class: 'out' }, `left out: ${String(c.left_out).replaceAll('_', ' ')}`) : svg('svg', { class: 'cost', viewBox: '0 0 1000 14', preserveAspectRatio: 'none', 'aria-hidden': 'true' }, pieces),
        el('span', { class: 'n' }, c.left_out ? '' : timed ? ms(c.cost) : group(c.cost)),
        el('span', { class: 'cached' + (best && c.cached_tokens === best ? ' best' : '') }, `${group(c.cached_tokens)} cached`, reach ? ' ◂ reachable' : '', c.stale ? ' · stale' : '', c.unknown ? ' · unknown' : ''));
    });
    return el('section', { class: 'costs', 'aria-label': 'Candidates by cost; the table below has the same' }, el('h3', null, timed ? 'What each candidate would have cost, in ms' : 'What each candidate would have cost'),
      timed && el('ul', { class: 'key' }, PARTS.filter(([k]) => used.has(k)).map(([k, name]) => el('li', null, el('i', { class: 'part-' + k }), name))),
      el('div', { class: 'ticks', 'aria-hidden': 'true' }, ticks.at.map((t) => el('span', { vars: { '--at': String(t / ticks.top) } }, timed ? ms(t) : group(t)))),
      el('ol', null, bars), rows.length > 40 && el('p', { class: 'quiet' }, `and ${group(rows.length - 40)} more in the table`));
  }

  function listing(list) {
    const timed = list.some((c) => partsOf(c));
    const used = PARTS.filter(([k]) => list.some((c) => partsOf(c)?.[k]));
    const t = table('Candidates', [
      { name: 'Worker', cell: (c) => workerLink(c.worker_id, c.dp_rank), sort: (c) => String(c.worker_id).padStart(24) },
      { name: 'Fate', cell: (c) => (c.chosen ? 'chosen' : c.left_out ? `left out: ${String(c.left_out).replaceAll('_', ' ')}` : '') || '–', sort: (c) => (c.chosen ? 2 : c.left_out ? 0 : 1) },
      { name: 'Cost', number: true, cell: (c) => (timed ? ms(c.cost) : group(c.cost)), sort: (c) => c.cost },
      ...used.map(([k, name]) => ({ name: name[0].toUpperCase() + name.slice(1), number: true, cell: (c) => ms(partsOf(c)?.[k] ?? 0), sort: (c) => partsOf(c)?.[k] ?? 0 })),
      { name: 'Cached', number: true, cell: (c) => group(c.cached_tokens), sort: (c) => c.cached_tokens },
      { name: 'New', number: true, cell: (c) => group(c.new_tokens), sort: (c) => c.new_tokens },
      { name: 'To prefill', number: true, cell: (c) => group(c.prefill_tokens), sort: (c) => c.prefill_tokens },
      { name: 'Blocks in use', number: true, cell: (c) => group(c.decode_blocks), sort: (c) => c.decode_blocks },
      { name: 'Requests', number: true, cell: (c) => group(c.active_requests), sort: (c) => c.active_requests },
      { name: 'Prefilling', number: true, cell: (c) => group(c.prefilling_requests), sort: (c) => c.prefilling_requests },
      { name: 'In the policy’s words', cell: (c) => c.formula || '–', class: 'words' },
    ], { page: 40, rowClass: (c) => (c.chosen ? 'chosen' : null) });
    t.show(list);
    return el('section', { class: 'table' }, el('h3', null, 'Candidates'), t.node);
  }

  return {
    node,
    show(id) {
      node.hidden = !id;
      if (id && id !== shown) load(id);
      shown = id;
    },
  };
}

const sum = (o) => Object.values(o).reduce((a, b) => a + b, 0);

/** scale has round ticks up to the most there is. */
function scale(most) {
  const size = 10 ** Math.floor(Math.log10(most / 4));
  const step = [1, 2, 2.5, 5, 10].map((k) => k * size).find((s) => s * 4 >= most) ?? 10 * size;
  const at = [];
  for (let t = 0; t <= most + step * 0.999 && at.length < 7; t += step) at.push(t);
  return { top: at.at(-1) || 1, at };
}
