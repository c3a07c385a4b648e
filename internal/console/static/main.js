// The page: which view is shown, how the stream stands, light and dark.
import { el, fill, text } from './dom.js';
import { plain } from './words.js';
import { clock, span } from './format.js';
import { Source, token } from './source.js';
import { fleet } from './fleet.js';
import { prefixes } from './prefixes.js';
import { decisions } from './decisions.js';
import { streams } from './streams.js';
import { settings } from './settings.js';

const VIEWS = { fleet: ['Fleet', fleet], prefixes: ['Prefixes', prefixes], decisions: ['Decisions', decisions], streams: ['Streams', streams], settings: ['Settings', settings] };
const $ = (id) => document.getElementById(id);

const source = new Source();
const app = { source, go, dark: () => dark() };
const made = new Map();
let shown = null;

/** go shows a place: #/view/rest?arguments. Replacing leaves no step to go back to. */
function go(path, args = {}, { replace = false } = {}) {
  const q = new URLSearchParams();
  for (const [k, v] of Object.entries(args)) if (v !== null && v !== undefined && v !== '') q.set(k, v);
  const hash = '#/' + path + (String(q) ? '?' + q : '');
  if (hash === location.hash) return;
  if (replace) {
    history.replaceState(null, '', hash);
    route();
  } else location.hash = hash;
}

function place() {
  const [path, args] = location.hash.replace(/^#\/?/, '').split('?');
  const [view, ...rest] = path.split('/').map((p) => { try { return decodeURIComponent(p); } catch { return p; } });
  return { view: Object.hasOwn(VIEWS, view) ? view : 'fleet', rest, args: Object.fromEntries(new URLSearchParams(args ?? '')) };
}

function route(event) {
  const { view, rest, args } = place();
  if (!made.has(view)) {
    const v = VIEWS[view][1](app);
    v.node.classList.add('view');
    made.set(view, v);
  }
  const next = made.get(view);
  if (next !== shown) {
    shown?.hide?.();
    fill($('main'), next.node);
    shown = next;
    for (const a of $('views').children) {
      if (a.getAttribute('href') === '#/' + view) a.setAttribute('aria-current', 'page');
      else a.removeAttribute('aria-current');
    }
    if (event?.type === 'hashchange') scrollTo(0, 0);
  }
  document.title = [rest[0], VIEWS[view][0], 'kvatlas'].filter(Boolean).map(plain).join(' · ');
  next.show(rest, args);
}

addEventListener('hashchange', route);
$('skip').addEventListener('click', (e) => {
  e.preventDefault();
  $('main').focus();
});

// Light and dark: as the system has it, or as the reader says.
const system = matchMedia('(prefers-color-scheme: dark)');
const THEMES = { '': 'as the system has them', light: 'light', dark: 'dark' };
let theme = '';
try { theme = localStorage.getItem('kvatlas-theme') ?? ''; } catch { /* as the system */ }

function dark() { return theme ? theme === 'dark' : system.matches; }

function themed() {
  if (!(theme in THEMES)) theme = '';
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
  $('theme').setAttribute('aria-label', `Colours: ${THEMES[theme]}`);
  $('theme').title = `Colours: ${THEMES[theme]}`;
  for (const v of made.values()) v.themed?.();
}

$('theme').addEventListener('click', () => {
  const order = system.matches ? ['', 'light', 'dark'] : ['', 'dark', 'light'];
  theme = order[(order.indexOf(theme) + 1) % 3];
  try { theme ? localStorage.setItem('kvatlas-theme', theme) : localStorage.removeItem('kvatlas-theme'); } catch { /* for this page only */ }
  themed();
});
system.addEventListener('change', themed);

// How the stream stands. What is old is said to be old, and looks it.
const WORDS = { connecting: 'connecting', live: 'live', stale: 'stale', gone: 'no connection', paused: 'paused', denied: 'no access' };

function stands() {
  const { kind, why } = source.state;
  const age = source.heard ? (performance.now() - source.heard) / 1000 : NaN;
  const o = source.overview, old = kind === 'live' ? o?.events_as_of_ms : null; // NATS is gone, this server is not
  document.documentElement.dataset.stream = kind;
  document.documentElement.toggleAttribute('data-old', Boolean(old));
  $('pulse').dataset.state = old ? 'stale' : kind;
  const words = old ? `no NATS ${span((o.now_ms - old) / 1000)}` : kind === 'stale' || kind === 'gone' ? `${WORDS[kind]} ${Number.isNaN(age) ? '' : span(age)}` : WORDS[kind];
  text($('pulse-text'), words);
  $('pause').setAttribute('aria-pressed', String(source.paused));
  $('pause').setAttribute('aria-label', source.paused ? 'Go on' : 'Pause');
  $('pause').title = source.paused ? 'Go on' : 'Pause';
  const seen = source.heardAt ? ` What you see is of ${clock(source.heardAt)}.` : '';
  notice({
    live: old ? `NATS is not heard. What workers hold, and how their events are read, is of ${clock(old)}.` : '',
    stale: `${why === 'late' ? 'What comes from the server is late.' : 'Nothing has come from the server for more than three seconds.'}${seen}`,
    gone: `The connection is gone: ${why}. Trying again.${seen}`,
    paused: source.paused ? `Paused.${seen}` : '',
    denied: `denied:${token.get() ? 'This token does not open it. Give a reader’s.' : 'This console is for readers.'}`,
  }[kind] ?? '');
}

let said = null;
function notice(words) {
  if (words === said) return;
  said = words;
  const box = $('notice');
  if (!words.startsWith('denied:')) {
    fill(box, words && el('p', null, words));
    return;
  }
  const input = el('input', { type: 'password', id: 'token', autocomplete: 'off', spellcheck: 'false', required: true });
  fill(box, el('form', {
    onsubmit: (e) => {
      e.preventDefault();
      token.set(input.value.trim());
      input.value = '';
      source.again();
      shown?.show(place().rest, place().args);
    },
  }, el('p', null, words.slice(7)), el('label', { for: 'token' }, 'Token'), input, el('button', { type: 'submit' }, 'Open')));
}

source.addEventListener('state', () => { stands(); shown?.stands?.(); });
setInterval(() => { if (source.state.kind !== 'live' && !document.hidden) stands(); }, 1000);
$('pause').addEventListener('click', () => source.pause(!source.paused));

source.addEventListener('overview', () => {
  stands();
  const o = source.overview;
  const skew = Math.abs(Date.now() - o.now_ms) > 5000 ? ` · its clock differs from yours by ${span(Math.abs(Date.now() - o.now_ms) / 1000)}` : '';
  text($('foot'), `${o.program} ${o.version}${o.replica ? ' · replica ' + o.replica : ''} · up ${span((o.now_ms - o.started_ms) / 1000)}${skew}`);
});

themed();
if (!location.hash) history.replaceState(null, '', '#/fleet');
source.metric = new URLSearchParams(location.hash.split('?')[1] ?? '').get('metric') ?? 'held';
route();
stands();
source.start();

/** For tests and measurements: what a page has read, and how it stands. */
globalThis.kvatlas = { get read() { return source.read; }, get state() { return source.state.kind; } };
