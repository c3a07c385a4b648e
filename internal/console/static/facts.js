// Whatever the server knows of a thing, as words: for details whose fields grow over time.
import { el } from './dom.js';
import { bytes, clock, group, ms, span } from './format.js';

const TIME = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d/;

/** words writes one value by its name. */
export function words(name, v) {
  if (v === null || v === undefined || v === '') return '–';
  if (v === true) return 'yes';
  if (v === false) return 'no';
  if (typeof v === 'number') {
    if (/_ms$/.test(name)) return v > 1e12 ? clock(v) : ms(v); // moments are of this century
    if (/seconds$/.test(name)) return span(v);
    if (/bytes/.test(name)) return bytes(v);
    if (/(^|_)id$|^port$|epoch/.test(name)) return String(v);
    return Number.isInteger(v) ? group(v) : String(Math.round(v * 1000) / 1000);
  }
  if (typeof v === 'string' && TIME.test(v)) return v.startsWith('0001-') ? '–' : clock(v);
  return String(v);
}

/** named writes a field's name. */
export const named = (name) => name.replace(/_(ms|seconds)$/, '').replaceAll('_', ' ').replace(/^./, (c) => c.toUpperCase());

/** facts lists an object's fields; those named in without are left out. */
export function facts(object, { without = [] } = {}) {
  const rows = [];
  for (const [name, v] of Object.entries(object ?? {})) {
    if (without.includes(name) || v === undefined) continue;
    rows.push(el('div', null, el('dt', null, named(name)), el('dd', null, value(name, v))));
  }
  return el('dl', { class: 'facts' }, rows);
}

function value(name, v) {
  if (Array.isArray(v)) {
    if (!v.length) return '–';
    if (v.every((x) => typeof x !== 'object')) return v.slice(0, 40).map((x) => words(name, x)).join(', ') + (v.length > 40 ? `, and ${v.length - 40} more` : '');
    return v.slice(0, 40).map((x) => (x && typeof x === 'object' ? facts(x) : words(name, x)));
  }
  return v && typeof v === 'object' ? facts(v) : words(name, v);
}
