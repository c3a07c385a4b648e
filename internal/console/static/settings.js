// Settings: what is in force and where from, the version, and what health checks say.
import { el, fill } from './dom.js';
import { glyph } from './states.js';
import { facts } from './facts.js';
import { polled } from './streams.js';
import { table } from './table.js';

/** known leaves out what a build without version control does not know of itself. */
const known = ({ revision, time, modified, ...rest }) => (revision ? { ...rest, revision, time, modified } : rest);

const quoted = (v) => (v === '' ? '""' : String(v ?? '–'));

export function settings(app) {
  let list = [], words = '';
  const search = el('input', { type: 'search', id: 'search', autocomplete: 'off', oninput: () => { words = search.value.toLowerCase(); show(); } });
  const onlySet = el('input', { type: 'checkbox', id: 'only-set', onchange: () => show() });
  const t = table('Settings in force', [
    { name: 'Setting', cell: (s) => el('code', null, s.name), sort: (s) => s.name },
    { name: 'Value', cell: (s) => el('code', { class: 'setting', title: `default: ${quoted(s.default)}` }, quoted(s.value), s.masked && el('span', { class: 'quiet' }, ' (masked)')), class: 'words' },
    { name: 'From', cell: (s) => s.source, sort: (s) => s.source },
    { name: 'Of', cell: (s) => s.group, sort: (s) => s.group },
    { name: 'What it is', cell: (s) => s.help, class: 'help' },
  ], { page: 40, empty: 'None of that name.', rowClass: (s) => (s.source === 'default' ? null : 'own') });
  const head = el('div'), body = el('div', null, el('p', { class: 'quiet' }, 'Asking…'));
  const unseen = el('p', { class: 'quiet' });
  const controls = el('div', { class: 'controls' }, el('label', { for: 'search' }, 'Look for'), search, el('label', { class: 'check', for: 'only-set' }, onlySet, 'not the default'));
  const inForce = el('section', null, el('h2', null, 'In force'), unseen, controls, t.node);
  const node = el('div', { class: 'settings' }, el('h1', null, 'Settings'), body);

  const show = () => t.show(list.filter((s) => (!words || `${s.name} ${s.value} ${s.group}`.toLowerCase().includes(words)) && (!onlySet.checked || s.source !== 'default')));

  function draw(answer) {
    list = answer.settings ?? [];
    fill(unseen, answer.say);
    controls.hidden = t.node.hidden = !answer.settings;
    const checks = answer.checks ?? [];
    fill(head,
      el('section', null, el('h2', null, 'Health'), el('ul', { class: 'checks' }, checks.map((c) => el('li', { class: c.ok ? 'good' : 'bad' },
        c.ok ? el('i', { 'aria-hidden': 'true' }, '✓') : glyph('dead'), el('b', null, c.name), el('span', { class: 'quiet' }, c.ok ? 'well' : ' '), c.reason ?? '', c.note && !c.ok ? el('span', { class: 'quiet' }, '(does not keep it from being ready)') : '')))),
      el('section', null, el('h2', null, 'Program'), facts({ program: answer.program, ...known(answer.version ?? {}), started_at_ms: answer.started_ms })));
    if (!inForce.isConnected) fill(body, head, inForce);
    show();
  }

  return polled(app, 'settings', 5000, draw, node, body);
}
