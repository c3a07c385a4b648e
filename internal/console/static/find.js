// Who has how much of a prompt, and why not more: of pasted tokens, hashes or text.
import { el, fill, svg } from './dom.js';
import { ask } from './source.js';
import { count, group } from './format.js';
import { problem, workerLink } from './parts.js';
import { table } from './table.js';

const WHY = {
  whole_request: 'has all of it', others_hold_the_next_block: 'others have the next block', nobody_holds_the_next_block: 'nobody has the next block',
  does_not_hold_the_first_block: 'not even the first block', holds_nothing: 'holds nothing', other_hash_scheme: 'hashes otherwise', no_complete_block: 'less than a block',
};
const TIERS = ['device', 'host_pinned', 'disk', 'external'];

/** read tells what was pasted, and takes it apart. */
export function read(words, as) {
  const trimmed = words.trim();
  const list = trimmed.replace(/^\[|\]$/g, '').split(/[\s,;]+/).filter(Boolean).map((n) => n.replace(/^["']|["']$/g, ''));
  const numbers = list.length > 0 && list.every((n) => /^-?(\d+|0x[0-9a-f]+)$/i.test(n));
  const kind = as !== 'auto' ? as : !numbers ? 'text' : list.some((n) => n.length > 10 || /^-|x/i.test(n) || Number(n) > 0xffffffff) ? 'block_hashes' : 'token_ids';
  if (kind === 'text') return { kind, body: { text: words } };
  if (!numbers) throw new Error('these are not numbers: separate them by commas or spaces');
  if (kind === 'token_ids') return { kind, body: { token_ids: list.map(Number) } };
  return { kind, body: { block_hashes: list.map((n) => BigInt.asUintN(64, n.startsWith('-') ? -BigInt(n.slice(1)) : BigInt(n)).toString()) } };
}

export function find(space) {
  const box = el('textarea', { id: 'find-what', rows: 3, spellcheck: 'false', autocomplete: 'off', placeholder: '1, 15043, 3186, …', 'aria-describedby': 'find-help', maxlength: 4 << 20 });
  const kinds = [['auto', 'whatever it is'], ['token_ids', 'token ids'], ['block_hashes', 'block hashes'], ['text', 'text']];
  const as = el('select', { id: 'find-as' }, kinds.map(([v, name]) => el('option', { value: v }, name)));
  const result = el('div', { class: 'found', 'aria-live': 'polite' });
  const form = el('form', {
    class: 'finder',
    onsubmit: (e) => { e.preventDefault(); run(); },
  }, el('label', { for: 'find-what' }, 'Token ids, block hashes or text of a prompt'), box,
  el('p', { class: 'quiet', id: 'find-help' }, 'It is sent to this server alone, and kept nowhere.'),
  el('div', { class: 'row' }, el('label', { for: 'find-as' }, 'as'), as, el('button', { type: 'submit' }, 'Find')), result);

  async function run() {
    const s = space();
    fill(result);
    if (!s) return;
    try {
      const { kind, body } = read(box.value, as.value);
      if (!box.value.trim()) throw new Error('nothing to find: paste a prompt first');
      const answer = await ask('find', { body: { model: s.model, block_size: s.block_size, group: s.group, ...body } });
      draw(answer, kind);
    } catch (err) {
      fill(result, err.status || err instanceof TypeError ? problem(err) : el('p', { class: 'problem', role: 'alert' }, err.message));
    }
  }

  function draw(answer, kind) {
    const shown = answer.spaces?.[0];
    if (!shown) { fill(result, el('p', null, answer.missing ? 'The indexers that answer have no such space; others do not answer.' : 'There is no such space any more.')); return; }
    const ranks = [...shown.ranks].sort((a, b) => b.external - a.external || b.device - a.device);
    const t = table('Ranks by depth', [
      { name: 'Worker', cell: (r) => workerLink(r.worker_id, r.dp_rank), sort: (r) => String(r.worker_id).padStart(24) },
      { name: 'Of the prompt', cell: (r) => depth(r, shown.blocks), class: 'wide' },
      { name: 'Blocks', number: true, cell: (r) => group(r.external), sort: (r) => r.external },
      { name: 'On the device', number: true, cell: (r) => group(r.device), sort: (r) => r.device },
      { name: 'Why it ends', cell: (r) => el('span', null, el('b', null, WHY[r.reason] ?? r.reason), el('span', { class: 'quiet' }, ` ${r.detail ?? ''}`)), class: 'why', sort: (r) => r.reason },
    ], { page: 20, empty: 'No rank to ask.' });
    t.show(ranks);
    const name = { token_ids: 'Token ids', block_hashes: 'Block hashes', text: 'Text' }[kind];
    fill(result, el('h3', null, `${name}: ${count(shown.blocks, 'block')}, of which the best has ${group(shown.longest)}`), t.node,
      answer.missing && el('p', { class: 'problem', role: 'status' }, `Not known: ${count(answer.missing.workers.length, 'worker')} of ${answer.missing.shares.map((s) => `share ${s.share} (${s.reason})`).join(', ')}.`),
      (answer.other_spaces ?? []).map((o) => el('p', { class: 'quiet' }, `Not asked: blocks of ${o.block_size}${o.group ? ', group ' + o.group : ''}: ${o.why}`)));
  }

  const node = el('details', { class: 'find fold' }, el('summary', null, 'Who has this prompt?'), form);
  return { node, space: () => fill(result) };
}

/** depth draws how far each tier reaches. */
function depth(r, blocks) {
  const at = (tier) => (blocks ? 100 * r[tier] / blocks : 0);
  return svg('svg', { class: 'depth', viewBox: '0 0 100 8', preserveAspectRatio: 'none', role: 'img', 'aria-label': `${r.device} of ${blocks} blocks on the device, ${r.external} with all tiers` },
    svg('rect', { class: 'all', width: 100, height: 8 }), [...TIERS].reverse().map((t) => svg('rect', { class: t, width: at(t), height: 8 })));
}
