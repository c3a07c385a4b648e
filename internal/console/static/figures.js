// The figures above the fleet: the number of now, and the last three minutes of it.
import { el, text } from './dom.js';
import { bytes, clock, ms, percent, short } from './format.js';
import { Spark, span } from './spark.js';
import { behind, table } from './table.js';

const PLAIN = [
  { name: 'Requests', unit: 'a second', of: ['requests_per_s'], say: short },
  { name: 'Hit rate', of: ['actual', 'selected', 'reachable'], say: percent, max: 1, hit: true },
  { name: 'First token', of: ['first_token_p50_ms', 'first_token_p99_ms'], say: ms, also: 'p99' },
  { name: 'Look-ups', unit: 'a second', of: ['lookups_per_s'], say: short },
  { name: 'Events', unit: 'a second', of: ['events_per_s'], say: short, heard: true },
  { name: 'Lag', unit: 'messages behind', of: ['lag_messages'], say: short, heard: true },
  { name: 'Blocks', unit: 'held', of: ['blocks'], say: short, heard: true },
  { name: 'Memory', unit: 'of the process', of: ['rss_bytes'], say: bytes },
];

/** figures makes the row of them. What the program has not is left out. */
export function figures(source) {
  const none = { at: () => NaN, length: 0 };
  const of = (name) => source.series.get(name) ?? none;
  const tiles = PLAIN.map((f) => {
    const value = el('dd', { class: 'value' }), more = el('dd', { class: 'more' });
    const canvas = el('canvas', { class: 'spark', 'aria-hidden': 'true' });
    const node = el('div', { class: 'figure' + (f.hit ? ' hit' : '') + (f.heard ? ' heard' : '') }, el('dt', null, f.name), value, more, el('dd', { class: 'drawn' }, canvas));
    return { f, node, value, more, spark: new Spark(canvas, { colours: ['accent', 'muted', 'faint'], max: f.max ?? null }) };
  });
  const ticks = behind('The last minutes as a table', () => {
    const t = table('Figures of the last ten minutes', [
      { name: 'Time', cell: (ago) => clock(source.heardAt - 1000 * ago) },
      ...PLAIN.flatMap((f) => f.of.map((s) => ({ name: s.replaceAll('_', ' ').replace(' per s', ' /s'), number: true, cell: (ago) => f.say(of(s).at(ago)) }))),
    ], { page: 20, empty: 'No figures yet.' });
    return { node: t.node, refresh: () => t.show(Array.from({ length: of('blocks').length }, (_, i) => i)) };
  });
  const spanned = el('p', { class: 'spanned' });
  const node = el('section', { class: 'figures', 'aria-label': 'Figures' }, el('dl', null, tiles.map((t) => t.node)), spanned, ticks.node);

  return {
    node,
    draw() {
      const totals = source.overview?.totals;
      for (const { f, node, value, more, spark } of tiles) {
        const [first, second, third] = f.of.map((s) => totals?.[s] ?? null);
        const has = f.of.some((s) => totals?.[s] !== null && totals?.[s] !== undefined);
        node.hidden = Boolean(totals) && !has && !f.of.some((s) => some(of(s)));
        if (node.hidden) continue;
        text(value, f.say(first));
        text(more, f.hit ? `selected ${percent(second)}, reachable ${percent(third)}` : f.also ? `median; ${f.also} ${f.say(second)}` : f.unit ?? '');
        spark.draw(f.of.map(of));
      }
      const drawn = span(of('blocks').length);
      text(spanned, `Lines: the last ${drawn < 120 ? `${drawn} s` : `${drawn / 60} minutes`}`);
      ticks.refresh();
    },
  };
}

/** some reports whether anything was known in the time that is drawn. */
function some(series) {
  for (let i = 0; i < Math.min(series.length, span(series.length)); i++) if (!Number.isNaN(series.at(i))) return true;
  return false;
}
