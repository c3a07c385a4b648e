// The fleet: every rank a cell, by model and role, with what needs attention before it.
import { el, fill, text, once } from './dom.js';
import { byUnit, count, group as thousands } from './format.js';
import { METRICS, css, ramp } from './scale.js';
import { glyph, old, stateOf } from './states.js';
import { Cells, shapes, sizeFor } from './cells.js';
import { figures } from './figures.js';
import { worker } from './worker.js';
import { behind, table } from './table.js';

export function fleet(app) {
  const { source } = app;
  const pictures = new Map(); // by a group's key
  let on = false, size = null, chosen = null, args = {}, wanted = 'held';

  const numbers = figures(source);
  const attention = el('div', { class: 'attention' });
  const groups = el('div', { class: 'groups' });
  const tip = el('div', { class: 'tip', hidden: true, 'aria-hidden': 'true' });
  const details = worker(app, () => pick(null));
  const scaleName = el('span', { class: 'scale-say' }), low = el('span'), high = el('span');
  const bar = el('canvas', { class: 'ramp', 'aria-hidden': 'true' });
  const radios = Object.entries(METRICS).map(([key, m]) => el('label', { title: m.say },
    el('input', { type: 'radio', name: 'metric', value: key, onchange: () => app.go('fleet', { ...args, metric: key === 'held' ? '' : key }, { replace: true }) }), el('span', null, m.name)));
  const cellTable = behind('The same as a table', () => {
    const t = table('Ranks of the fleet', [
      { name: 'Worker', cell: (r) => el('a', { href: link(r.cell.worker) }, r.cell.id), sort: (r) => order(r.cell) },
      { name: 'Model', cell: (r) => r.group.model, sort: (r) => r.group.model },
      { name: 'Role', cell: (r) => r.group.role || '–', sort: (r) => r.group.role },
      { name: 'State', cell: (r) => (r.state ? el('span', { class: 'state' }, glyph(r.state), stateOf(r.state).name) : 'well'), sort: (r) => r.state },
      { name: 'Value', number: true, cell: (r) => valueOf(r.value, r.state), sort: (r) => (r.value === 255 ? -1 : r.value) },
    ], { empty: 'No ranks.' });
    return {
      node: t.node,
      refresh: () => t.show([...pictures.values()].flatMap((p) => p.group.cells.map((cell, i) => ({ group: p.group, cell, state: p.bytes.state[i], value: p.bytes.value[i] })))),
    };
  });
  const empty = el('p', { class: 'quiet hollow', hidden: true }, 'No workers yet. They show here as soon as they announce themselves or publish.');
  const legend = el('div', { class: 'legend' }, el('p', null, 'A cell is a rank: the cache of one engine. Choose one for its worker. Grey is what was known of it before it fell silent. A mark says that it needs attention:'), shapes());
  const picture = el('section', { class: 'picture', 'aria-label': 'All ranks' },
    el('div', { class: 'controls' },
      el('fieldset', { class: 'metrics' }, el('legend', { class: 'sr' }, 'Colour by'), radios),
      el('div', { class: 'scale' }, low, bar, high, scaleName)),
    empty, groups, legend, cellTable.node);
  const node = el('div', { class: 'fleet' },
    el('h1', { class: 'sr' }, 'Fleet'), numbers.node, attention, el('div', { class: 'stage' }, picture, details.node), tip);

  const link = (w) => `#/fleet?${new URLSearchParams({ ...args, worker: w })}`;
  const order = (c) => `${c.worker.padStart(24)}:${String(c.rank).padStart(6)}`;
  const valueOf = (v, state) => {
    if (v === 255 || source.scale.metric !== wanted) return '–';
    if (v === 0 && stateOf(state).kind === 'dead') return '–'; // it is gone, and so is what it had
    return (old(state, wanted) ? 'was ' : '') + byUnit((v / 254) * source.scale.max, source.scale.unit);
  };

  const hooks = {
    value: (p, i) => valueOf(p.bytes.value[i], p.bytes.state[i]),
    choose: (p, i) => pick(p.group.cells[i].worker),
    point(p, i) {
      tip.hidden = i < 0;
      if (i < 0) return;
      const cell = p.group.cells[i], state = stateOf(p.bytes.state[i]);
      fill(tip, el('b', null, cell.id), el('span', null, `${METRICS[wanted].name} ${valueOf(p.bytes.value[i], p.bytes.state[i])}`),
        state.kind !== 'well' && el('span', { class: 'state' }, glyph(p.bytes.state[i]), state.name));
      const box = p.node.getBoundingClientRect(), [x, y, w, h] = p.box(i);
      const left = Math.min(Math.max(box.left + x + w / 2, 90), innerWidth - 90);
      const above = box.top + y > 90;
      tip.style.setProperty('left', `${left}px`);
      tip.style.setProperty('top', `${above ? box.top + y - 8 : box.top + y + h + 8}px`);
      tip.classList.toggle('below', !above);
    },
  };

  function pick(w) { app.go('fleet', { ...args, worker: w }); }

  // members: groups keep their picture where their cells are the same.
  function members() {
    const m = source.members;
    const before = new Map(pictures);
    pictures.clear();
    const nodes = m.groups.map((g) => {
      const old = before.get(g.key);
      const same = old && old.group.cells.length === g.cells.length && old.group.cells.every((c, i) => c.id === g.cells[i].id);
      const p = same ? old : new Cells(g, source.groups.get(g.key), hooks);
      if (same) { p.group = g; p.bytes = source.groups.get(g.key); }
      pictures.set(g.key, p);
      p.section ??= el('section', { class: 'group' });
      const workers = new Set(g.cells.map((c) => c.worker)).size;
      fill(p.section, el('h2', null, el('span', { class: 'model' }, g.model), g.role && g.role !== 'aggregated' && el('span', { class: 'role' }, g.role)),
        el('p', { class: 'quiet' }, [count(workers, 'worker'), workers !== g.cells.length && count(g.cells.length, 'rank'), `blocks of ${g.block_size}`, g.group && g.group !== 'default' && `group ${g.group}`].filter(Boolean).join(' · ')),
        p.node);
      return p.section;
    });
    fill(groups, nodes);
    empty.hidden = pictures.size > 0;
    legend.hidden = !empty.hidden;
    size = null;
    layout();
    mark();
  }

  const layout = once(() => {
    if (!on || !pictures.size) return;
    const wide = groups.clientWidth;
    if (!wide) return;
    const all = [...pictures.values()];
    size = sizeFor(all.map((p) => p.group.cells.length), wide, Math.max(360, innerHeight - 23 * parseFloat(getComputedStyle(document.documentElement).fontSize)), Math.max(...all.map((p) => p.ranks)));
    for (const p of pictures.values()) {
      p.layout(wide, size);
      p.colour(wanted, app.dark());
      p.update(performance.now());
    }
    scale();
    run();
  });

  function scale() {
    const c = ramp(wanted, app.dark());
    if (bar.width !== 255) { bar.width = 255; bar.height = 1; }
    const ctx = bar.getContext('2d');
    for (let i = 0; i < 255; i++) {
      ctx.fillStyle = css(c, i);
      ctx.fillRect(i, 0, 1, 1);
    }
    const fits = source.scale.metric === wanted;
    text(low, fits ? byUnit(0, source.scale.unit) : '');
    text(high, fits ? byUnit(source.scale.max, source.scale.unit) : '');
    const nothing = fits && [...pictures.values()].every((p) => p.bytes.value.every((v) => v === 255));
    text(scaleName, nothing ? 'not known here' : wanted === 'held' && source.scale.unit === 'blocks' ? 'blocks held' : METRICS[wanted].say);
  }

  let running = false;
  function run() {
    if (running || !on) return;
    running = true;
    requestAnimationFrame(step);
  }
  function step(time) {
    running = false;
    if (!on) return;
    let more = false;
    for (const p of pictures.values()) if (p.size && p.frame(time)) more = true;
    if (more) run();
  }

  function cells() {
    if (!on) return;
    const now = performance.now();
    let moved = false;
    for (const p of pictures.values()) if (p.size && p.update(now)) moved = true;
    scale();
    if (moved) run();
  }

  function mark() {
    for (const p of pictures.values()) p.show(chosen);
  }

  let saidAttention = '';
  function attend() {
    const list = source.overview?.attention ?? [];
    const o = source.overview;
    const key = JSON.stringify([list, o?.ready, o?.not_ready]);
    if (key === saidAttention) return;
    saidAttention = key;
    fill(attention,
      o && !o.ready && el('p', { class: 'unready' }, glyph('silent'), el('b', null, 'Not ready'), ' ', (o.not_ready ?? []).join('; ')),
      list.length ? el('ul', { 'aria-label': 'Needs attention' }, list.map((a) => el('li', { class: stateOf(a.kind).grade }, glyph(a.kind),
        el('span', { class: 'line' }, el('b', null, `${count(a.count, 'rank')} ${stateOf(a.kind).name}`),
          el('span', { class: 'who' }, (a.workers ?? []).map((w) => el('a', { href: link(w) }, w)), a.more > 0 && el('span', { class: 'quiet' }, `+${thousands(a.more)}`))),
        el('span', { class: 'say' }, a.say || stateOf(a.kind).say || ''))))
        : o && el('p', { class: 'fine' }, el('i', { 'aria-hidden': 'true' }), 'Nothing needs attention.'));
  }

  source.addEventListener('members', members);
  source.addEventListener('cells', cells);
  source.addEventListener('overview', () => {
    if (!on) return;
    numbers.draw();
    attend();
  });
  const resized = new ResizeObserver(() => layout());
  resized.observe(groups);
  setInterval(() => { if (on && !document.hidden) cellTable.refresh(); }, 2000);

  return {
    node,
    show(_, given) {
      on = true;
      args = given;
      const metric = given.metric in METRICS ? given.metric : 'held';
      if (metric !== wanted || source.metric !== metric) {
        wanted = metric;
        source.metric = metric;
        layout();
      }
      for (const r of radios) r.firstChild.checked = r.firstChild.value === wanted;
      chosen = given.worker ?? null;
      details.show(chosen);
      node.classList.toggle('with-details', chosen !== null);
      mark();
      numbers.draw();
      attend();
      layout();
      cells();
    },
    hide() {
      on = false;
      tip.hidden = true;
      details.show(null);
    },
    themed() {
      numbers.draw();
      layout();
    },
  };
}
