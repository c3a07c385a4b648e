// Small parts that several views have.
import { el, svg } from './dom.js';
import { percent } from './format.js';

/** lead says below a view’s name what there is to see. */
export const lead = (words) => el('p', { class: 'quiet lead' }, words);

/** meter is a bar from nothing to all. */
export function meter(ratio, label) {
  const known = typeof ratio === 'number' && Number.isFinite(ratio);
  const r = known ? Math.min(Math.max(ratio, 0), 1) : 0;
  return svg('svg', { class: 'meter', viewBox: '0 0 100 6', preserveAspectRatio: 'none', role: 'img', 'aria-label': known ? `${percent(ratio)} ${label}` : `unknown ${label}` },
    svg('rect', { class: 'all', width: 100, height: 6 }), svg('rect', { class: 'part', width: 100 * r, height: 6 }));
}

/** problem says what went wrong, and offers to try again. */
export function problem(err, again) {
  return el('div', { class: 'problem', role: 'alert' }, el('p', null, err.status === 404 ? `Not there (any more): ${err.message}` : err.status ? err.message : `The server does not answer: ${err.message}`),
    again && el('button', { type: 'button', class: 'plain', onclick: again }, 'Try again'));
}

/** workerLink leads to a worker among the fleet. */
export const workerLink = (id, rank) => el('a', { href: `#/fleet?${new URLSearchParams({ worker: id })}` }, rank === undefined || rank === null ? String(id) : `${id}:${rank}`);

/** nested draws what of a prompt was reachable, selected and actual: one bar in the other. */
export function nested({ prompt, reachable, selected, actual }) {
  const part = (v) => (prompt > 0 && typeof v === 'number' ? 100 * Math.min(v / prompt, 1) : 0);
  const has = (v) => typeof v === 'number';
  return svg('svg', { class: 'nested', viewBox: '0 0 100 12', preserveAspectRatio: 'none', 'aria-hidden': 'true' },
    svg('rect', { class: 'prompt', y: 1, width: 100, height: 10 }),
    has(reachable) && svg('rect', { class: 'reachable', y: 1, width: part(reachable), height: 10 }),
    has(selected) && svg('rect', { class: 'selected', y: 3, width: part(selected), height: 6 }),
    has(actual) && svg('path', { class: 'actual', d: `M${part(actual)} 0V12` }));
}
