// The tree of what the fleet holds, from the root, widest first; and who has how much of a prompt.
//
// A node is a run of blocks without a branch. It is drawn as a bar that begins at the
// depth where the run does, so that a chain reads as one line from left to right.
import { el, fill, svg, text } from './dom.js';
import { ask, query } from './source.js';
import { count, group, short } from './format.js';
import { problem, workerLink } from './parts.js';
import { table } from './table.js';
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
    fill(select, spaces.map((s, i) => el('option', { value: i }, `${s.model} · blocks of ${s.block_size}${s.group && s.group !== 'default' ? ` · ${s.group}` : ''}`)));
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
      fill(tree, branch(answer, 1, 0));
      if (!answer.children?.length) fill(tree, el('li', { class: 'quiet hollow', role: 'none' }, 'Nothing is held here.'));
      rove(tree.querySelector('[role=treeitem]'));
      ruler();
      // Follow the widest chain a few steps, so that there is something to see at once.
      for (let item = tree.querySelector('[role=treeitem]'), n = 0; item && n < 3; n++) {
        await expand(item);
        item = item.querySelector(':scope > ul > [role=treeitem]');
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
    const list = answer.children ?? [];
    const widest = Math.max(1, ...list.map((c) => c.holders));
    const items = list.map((c, i) => item(c, level, i, list.length, widest));
    if (answer.more) items.push(el('li', { class: 'quiet more', role: 'none' }, `and ${typeof answer.more === 'number' ? group(answer.more) + ' ' : ''}narrower ones`));
    return items;
  }

  /** item is a node: depth is that of its last block, from the root. */
  function item(c, level, i, of) {
    const end = c.depth, begin = Math.max(0, end - c.blocks);
    deepest = Math.max(deepest, end);
    const workers = Math.max(1, source.overview?.totals?.ranks ?? source.overview?.totals?.workers ?? c.holders);
    const weight = Math.min(1, Math.sqrt(c.holders / workers));
    const kids = typeof c.children === 'number' ? c.children : c.children ? 1 : 0;
    const run = svg('rect', { class: 'run', y: 8 - 1.5 - 4.5 * weight, height: 3 + 9 * weight, rx: 1 });
    run.dataset.from = begin;
    run.dataset.blocks = c.blocks;
    return el('li', {
      role: 'treeitem', tabIndex: -1, 'aria-level': level, 'aria-posinset': i + 1, 'aria-setsize': of, 'aria-expanded': kids ? 'false' : null, 'aria-selected': 'false',
      'aria-label': `${c.id}: ${count(c.blocks, 'block')} down to depth ${group(end)}, ${count(c.holders, 'holder')}, ${count(c.hits ?? 0, 'hit')}`,
      'data-node': c.id, vars: { '--level': String(level - 1) },
    }, el('div', { class: 'row', onclick: (e) => { e.stopPropagation(); const li = e.currentTarget.parentNode; rove(li, true); const was = li.getAttribute('aria-selected') === 'true'; choose(li); if (kids && (was || e.target.closest('.twig'))) toggle(li); else if (kids) expand(li); } },
      el('span', { class: 'name' }, el('i', { class: kids ? 'twig' : 'leaf' }), el('code', null, c.id)),
      svg('svg', { class: 'line', viewBox: '0 0 1000 16', preserveAspectRatio: 'none', 'aria-hidden': 'true' }, run),
      el('span', { class: 'n blocks' }, group(c.blocks)), el('span', { class: 'n held' }, group(c.holders)), el('span', { class: 'n hits' }, group(c.hits ?? 0))));
  }

  async function expand(li) {
    if (li.getAttribute('aria-expanded') !== 'false') return;
    li.setAttribute('aria-expanded', 'true');
    const old = li.querySelector(':scope > ul');
    if (old) { old.hidden = false; return; }
    const list = el('ul', { role: 'group' }, el('li', { class: 'quiet', role: 'none' }, 'Asking…'));
    li.append(list);
    try {
      fill(list, branch(await children(li.dataset.node), Number(li.getAttribute('aria-level')) + 1));
      ruler();
    } catch (err) {
      fill(list, el('li', { role: 'none' }, problem(err, () => { list.remove(); li.setAttribute('aria-expanded', 'false'); expand(li); })));
    }
  }

  function collapse(li) {
    li.setAttribute('aria-expanded', 'false');
    const list = li.querySelector(':scope > ul');
    if (list) list.hidden = true;
  }

  const toggle = (li) => (li.getAttribute('aria-expanded') === 'true' ? collapse(li) : expand(li));

  function rove(li, focus) {
    if (!li) return;
    for (const other of tree.querySelectorAll('[tabindex="0"]')) other.tabIndex = -1;
    li.tabIndex = 0;
    if (focus) li.focus();
  }

  function key(e) {
    const li = e.target.closest('[role=treeitem]');
    if (!li || e.altKey || e.ctrlKey || e.metaKey) return;
    const all = [...tree.querySelectorAll('[role=treeitem]')].filter((x) => !x.closest('ul[hidden]'));
    const at = all.indexOf(li), isOpen = li.getAttribute('aria-expanded');
    switch (e.key) {
      case 'ArrowDown': rove(all[at + 1], true); break;
      case 'ArrowUp': rove(all[at - 1], true); break;
      case 'Home': rove(all[0], true); break;
      case 'End': rove(all.at(-1), true); break;
      case 'ArrowRight': if (isOpen === 'false') expand(li); else if (isOpen === 'true') rove(li.querySelector('[role=treeitem]'), true); break;
      case 'ArrowLeft': if (isOpen === 'true') collapse(li); else rove(li.parentNode.closest('[role=treeitem]'), true); break;
      case 'Enter': case ' ': choose(li); break;
      default: return;
    }
    e.preventDefault();
  }

  async function choose(li) {
    for (const other of tree.querySelectorAll('[aria-selected=true]')) other.setAttribute('aria-selected', 'false');
    li.setAttribute('aria-selected', 'true');
    chosen = li.dataset.node;
    await hold(chosen);
  }

  async function hold(id) {
    holders.hidden = false;
    const close = () => { holders.hidden = true; chosen = null; tree.querySelector('[tabindex="0"]')?.focus(); };
    const head = el('div', { class: 'head' }, el('h2', null, 'Holders of ', el('code', null, id)), el('button', { type: 'button', class: 'icon', 'aria-label': 'Close', onclick: close }, '✕'));
    fill(holders, head, el('p', { class: 'quiet' }, 'Asking…'));
    try {
      const answer = await ask(query('prefixes/holders', { node: id }));
      if (chosen !== id) return;
      const list = answer.holders ?? [];
      const t = table(`Holders of ${id}`, [
        { name: 'Worker', cell: (h) => workerLink(h.worker ?? h.worker_id, h.rank ?? h.dp_rank), sort: (h) => String(h.worker ?? h.worker_id).padStart(24) },
        { name: 'Tier', cell: (h) => String(h.tier ?? '–').replace('_pinned', ''), sort: (h) => h.tier },
        { name: 'Blocks of it', number: true, cell: (h) => group(h.depth), sort: (h) => h.depth },
      ], { page: 25, empty: 'Nobody, by now.' });
      t.show(list);
      fill(holders, head, el('p', { class: 'quiet' }, count(list.length, 'copy', 'copies') + (answer.more ? ', and more' : '')), t.node);
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
    text(said, '');
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
