// The tree of what the fleet holds, from the root, widest first; and who has how much of a prompt.
//
// A node is a run of blocks without a branch. It is drawn as a bar that begins at the
// depth where the run does, so that a chain reads as one line from left to right.
import { el, fill, svg, text } from './dom.js';
import { ask, query } from './source.js';
import { count, group, short } from './format.js';
import { lead, problem, workerLink } from './parts.js';
import { table } from './table.js';
import { ends } from './words.js';
import { find } from './find.js';

const PAGE = 50;

export function prefixes(app) {
  const { source } = app;
  let spaces = [], space = null, chosen = null, loaded = '';
  const select = el('select', { id: 'space', onchange: () => app.go('prefixes', argsOf(spaces[select.value])) });
  const tree = el('ul', { class: 'tree', role: 'tree', 'aria-label': 'Prefixes', onkeydown: key });
  const ticks = el('span', { class: 'at' });
  const axis = el('div', { class: 'axis', 'aria-hidden': 'true' }, el('span', null, 'prefix, from depth'), ticks, [['blocks', 'blocks'], ['held', 'holders'], ['hits', 'hits']].map(([c, n]) => el('span', { class: `n ${c}` }, n)));
  const said = el('p', { class: 'quiet' });
  const holders = el('aside', { class: 'holders', 'aria-label': 'Holders', hidden: true });
  const finder = find(() => space);
  const node = el('div', { class: 'prefixes' },
    el('h1', null, 'Prefixes'),
    lead('What prompts begin with, as engines have it cached. A row is a run of blocks that no prompt leaves in between: its bar stands at its depth in the prompt, and is the thicker the more ranks hold it. Its name is an id of this process; no text is known. Choose a row for its holders.'),
    el('div', { class: 'controls' }, el('label', { for: 'space' }, 'Space'), select,
      el('button', { type: 'button', class: 'plain', onclick: () => { loaded = ''; open(); } }, 'Read anew'), said),
    finder.node,
    el('section', { class: 'held-tree', 'aria-labelledby': 'tree-title' }, el('h2', { id: 'tree-title' }, 'What the fleet holds'),
      el('div', { class: 'stage' }, el('div', { class: 'wood' }, axis, tree), holders)));

  const argsOf = (s) => ({ model: s.model, block_size: s.block_size, group: s.group });
  const keyOf = (s) => s && JSON.stringify([s.model, s.block_size, s.group ?? '']);

  function members() {
    const seen = new Map();
    for (const g of source.members?.groups ?? []) seen.set(keyOf(g), { model: g.model, block_size: g.block_size, group: g.group ?? '' });
    const next = [...seen.values()];
    if (JSON.stringify(next) === JSON.stringify(spaces) && next.length) return;
    spaces = next;
    fill(select, spaces.map((s, i) => el('option', { value: i }, `${ends(s.model)} · blocks of ${s.block_size}${s.group && s.group !== 'default' ? ` · ${s.group}` : ''}`)));
    select.disabled = !spaces.length;
    if (wantedArgs) show([], wantedArgs);
  }

  async function children(of) {
    return ask(query('prefixes', { ...argsOf(space), node: of || undefined, limit: PAGE }));
  }

  async function open() {
    if (!space || loaded === keyOf(space)) return;
    loaded = keyOf(space);
    fill(tree, el('li', { class: 'quiet' }, 'Asking…'));
    try {
      const answer = await children();
      if (loaded !== keyOf(space)) return;
      deepest = 0;
      fill(tree, branch(answer, 1));
      if (!answer.children.length) fill(tree, el('li', { class: 'quiet hollow', role: 'none' }, 'Nothing is held here.'));
      rove(tree.querySelector('.row'));
      ruler();
      // Follow the widest chain a few steps, so that there is something to see at once.
      for (let row = tree.querySelector('.row'), n = 0; row && n < 3; n++) {
        await expand(row);
        row = list(row)?.querySelector('.row');
      }
    } catch (err) {
      loaded = '';
      fill(tree, el('li', { role: 'none' }, problem(err, open)));
    }
  }

  let deepest = 0;
  function ruler() {
    tree.style.setProperty('--deepest', String(Math.max(deepest, 1)));
    ticks.replaceChildren();
    const step = nice(deepest / 5);
    for (let at = 0; at <= deepest; at += step) ticks.append(el('span', { vars: { '--at': String(at / Math.max(deepest, 1)) } }, at === 0 ? '0' : short(at)));
    for (const bar of tree.querySelectorAll('rect.run')) {
      bar.setAttribute('x', String(1000 * bar.dataset.from / deepest));
      bar.setAttribute('width', String(Math.max(3, 1000 * bar.dataset.blocks / deepest)));
    }
  }

  function branch(answer, level) {
    const nodes = answer.children;
    const items = nodes.map((c, i) => item(c, level, i, nodes.length));
    if (answer.more) items.push(el('li', { class: 'quiet more', role: 'none' }, `and ${group(answer.more)} narrower ones`));
    if (answer.whole === false) items.push(el('li', { class: 'quiet more', role: 'none' }, 'There are more than were looked at; wider ones may be among them.'));
    if (level === 1) text(said, typeof answer.sampled === 'number' ? `Hits are of the last ${count(answer.sampled, 'sampled prompt')}.` : '');
    return items;
  }

  /** item is a node: depth is that of its last block, from the root. */
  function item(c, level, i, of) {
    const end = c.depth, begin = Math.max(0, end - c.blocks);
    deepest = Math.max(deepest, end);
    const workers = Math.max(1, source.overview?.totals?.ranks ?? source.overview?.totals?.workers ?? c.holders);
    const weight = Math.min(1, Math.sqrt(c.holders / workers));
    const kids = c.children === null ? 1 : c.children; // null: too many to count
    const run = svg('rect', { class: 'run', y: 8 - 1.5 - 4.5 * weight, height: 3 + 9 * weight, rx: 1 });
    run.dataset.from = begin;
    run.dataset.blocks = c.blocks;
    const row = el('div', {
      class: 'row', role: 'treeitem', tabIndex: -1, 'aria-level': level, 'aria-posinset': i + 1, 'aria-setsize': of, 'aria-expanded': kids ? 'false' : null, 'aria-selected': 'false',
      'data-node': c.id, vars: { '--level': String(level - 1) }, onclick: (e) => click(e, row),
    }, el('span', { class: 'name' }, el('i', { class: kids ? 'twig' : 'leaf' }), el('code', { title: c.id }, brief(c.id))),
    svg('svg', { class: 'line', viewBox: '0 0 1000 16', preserveAspectRatio: 'none', 'aria-hidden': 'true' }, run),
    number('blocks', c.blocks, `blocks down to depth ${group(end)},`), number('held', c.holders, 'holders,'), number('hits', c.hits, 'hits'));
    return el('li', { role: 'none' }, row);
  }

  const brief = (id) => id.slice(0, 10);
  const number = (name, n, words) => el('span', { class: `n ${name}` }, group(n), el('span', { class: 'sr' }, ` ${words} `));
  const list = (row) => row.nextElementSibling;

  function click(e, row) {
    const again = row.getAttribute('aria-selected') === 'true' || e.target.closest('.twig');
    rove(row, true);
    choose(row);
    again ? toggle(row) : expand(row);
  }

  async function expand(row) {
    if (row.getAttribute('aria-expanded') !== 'false') return;
    row.setAttribute('aria-expanded', 'true');
    if (list(row)) { list(row).hidden = false; return; }
    const below = el('ul', { role: 'none' }, el('li', { class: 'quiet', role: 'none' }, 'Asking…'));
    row.after(below);
    try {
      fill(below, branch(await children(row.dataset.node), Number(row.getAttribute('aria-level')) + 1));
      ruler();
    } catch (err) {
      fill(below, el('li', { role: 'none' }, problem(err, () => { below.remove(); row.setAttribute('aria-expanded', 'false'); expand(row); })));
    }
  }

  function toggle(row) {
    if (row.getAttribute('aria-expanded') !== 'true') { expand(row); return; }
    row.setAttribute('aria-expanded', 'false');
    list(row).hidden = true;
  }

  function rove(row, focus) {
    if (!row) return;
    for (const other of tree.querySelectorAll('[tabindex="0"]')) other.tabIndex = -1;
    row.tabIndex = 0;
    if (focus) row.focus();
  }

  function key(e) {
    const row = e.target.closest('.row');
    if (!row || e.altKey || e.ctrlKey || e.metaKey) return;
    const all = [...tree.querySelectorAll('.row')].filter((x) => !x.closest('ul[hidden]'));
    const at = all.indexOf(row), isOpen = row.getAttribute('aria-expanded');
    switch (e.key) {
      case 'ArrowDown': rove(all[at + 1], true); break;
      case 'ArrowUp': rove(all[at - 1], true); break;
      case 'Home': rove(all[0], true); break;
      case 'End': rove(all.at(-1), true); break;
      case 'ArrowRight': if (isOpen === 'false') expand(row); else if (isOpen === 'true') rove(list(row).querySelector('.row'), true); break;
      case 'ArrowLeft': if (isOpen === 'true') toggle(row); else rove(row.parentNode.parentNode.closest('li')?.querySelector('.row'), true); break;
      case 'Enter': case ' ': choose(row); break;
      default: return;
    }
    e.preventDefault();
  }

  async function choose(row) {
    for (const other of tree.querySelectorAll('[aria-selected=true]')) other.setAttribute('aria-selected', 'false');
    row.setAttribute('aria-selected', 'true');
    chosen = row.dataset.node;
    await hold(chosen);
  }

  async function hold(id) {
    holders.hidden = false;
    const close = () => { holders.hidden = true; chosen = null; tree.querySelector('[tabindex="0"]')?.focus(); };
    const head = el('div', { class: 'head' }, el('h2', null, 'Holders of ', el('code', { title: id }, brief(id))), el('button', { type: 'button', class: 'icon', 'aria-label': 'Close', onclick: close }, '✕'));
    fill(holders, head, el('p', { class: 'quiet' }, 'Asking…'));
    try {
      const answer = await ask(query('prefixes/holders', { node: id }));
      if (chosen !== id) return;
      const copies = answer.holders ?? [], pools = answer.pools ?? [];
      const t = table(`Holders of ${id}`, [
        { name: 'Worker', cell: (h) => workerLink(h.worker ?? h.worker_id, h.rank ?? h.dp_rank), sort: (h) => String(h.worker ?? h.worker_id).padStart(24) },
        { name: 'Tier', cell: (h) => String(h.tier ?? '–').replace('_pinned', ''), sort: (h) => h.tier },
        { name: 'Blocks of it', number: true, cell: (h) => group(h.depth), sort: (h) => h.depth },
      ], { page: 25, empty: 'Nobody, by now.' });
      t.show(copies);
      fill(holders, head, el('p', { class: 'quiet' }, count(copies.length, 'copy', 'copies') + (answer.more ? `, and ${group(answer.more)} more` : '')),
        pools.length ? el('p', { class: 'quiet' }, pools.map((p) => `Pool ${p.pool} has ${count(p.depth, 'block', 'blocks')} of it`).join('; ') + '.') : null, t.node);
    } catch (err) {
      fill(holders, head, problem(err, () => hold(id)));
    }
  }

  let wantedArgs = null;
  function show(rest, args) {
    wantedArgs = args;
    if (!spaces.length) { text(said, source.members ? 'Nothing is indexed yet.' : ''); return; }
    const i = Math.max(0, spaces.findIndex((s) => s.model === args.model && String(s.block_size) === String(args.block_size) && s.group === (args.group ?? '')));
    select.value = String(i);
    if (keyOf(space) !== keyOf(spaces[i])) {
      space = spaces[i];
      chosen = null;
      holders.hidden = true;
      finder.space();
    }
    open();
  }

  source.addEventListener('members', members);
  members();
  return { node, show };
}

function nice(step) {
  const size = 10 ** Math.floor(Math.log10(Math.max(step, 1)));
  return [1, 2, 5, 10].map((k) => k * size).find((s) => s >= step) || 1;
}
