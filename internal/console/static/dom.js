// Elements without markup. What comes from the fleet (names of models, ids of
// workers, words of errors) is only ever text here: nothing of it is parsed, and nothing
// of it turns other words around (words.js).
import { plain } from './words.js';

/** el makes an element; attributes that are null or false are left out. */
export function el(tag, attributes, ...children) {
  const node = document.createElement(tag);
  set(node, attributes);
  node.append(...flat(children));
  return node;
}

const SVG = 'http://www.w3.org/2000/svg';

/** svg makes an element of a drawing. */
export function svg(tag, attributes, ...children) {
  const node = document.createElementNS(SVG, tag);
  set(node, attributes);
  node.append(...flat(children));
  return node;
}

function set(node, attributes) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith('on')) node.addEventListener(name.slice(2), value);
    else if (name === 'vars') for (const [k, v] of Object.entries(value)) node.style.setProperty(k, v);
    else if (name in properties) node[name] = value;
    else node.setAttribute(name, value === true ? '' : spoken.test(name) ? plain(value) : value);
  }
}

const spoken = /^(aria-label|title|placeholder)$/;
const properties = { value: 1, checked: 1, disabled: 1, hidden: 1, open: 1, tabIndex: 1 };

function flat(children) {
  return children.flat(3).filter((c) => c !== null && c !== undefined && c !== false).map((c) => (c instanceof Node ? c : plain(c)));
}

/** text sets a node's text where it differs, so that nothing is laid out for nothing. */
export function text(node, words) {
  words = plain(words);
  if (node.textContent !== words) node.textContent = words;
}

/** fill gives a node other children. */
export function fill(node, ...children) {
  node.replaceChildren(...flat(children));
  return node;
}

/** keepingFocus draws what a node contains anew, and gives the keyboard back to the same link or fold. */
export function keepingFocus(node, draw) {
  const active = document.activeElement;
  const of = (x) => x.getAttribute('href') ?? x.closest('[data-key]')?.dataset.key;
  const key = active !== node && node.contains(active) ? of(active) : undefined;
  draw();
  if (key === undefined || node.contains(document.activeElement)) return;
  [...node.querySelectorAll('a, summary')].find((x) => of(x) === key)?.focus({ preventScroll: true });
}

let last = 0;
/** unique makes an id for what a label or a description points to. */
export const unique = (prefix) => `${prefix}-${++last}`;

/** once calls f at most once a frame, however often it is asked. */
export function once(f) {
  let asked = 0;
  return () => {
    if (!asked) asked = requestAnimationFrame((t) => { asked = 0; f(t); });
  };
}

/** still reports whether the reader wants nothing to move. */
const motion = matchMedia('(prefers-reduced-motion: reduce)');
export const still = () => motion.matches;
