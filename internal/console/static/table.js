// Tables: of what is listed, and behind each picture. Long ones come a page at a time.
import { el, fill, keepingFocus, text } from './dom.js';
import { group } from './format.js';

const PAGE = 50;

/**
 * table makes one. Columns are {name, cell(row) → text or node, number, sort(row)}.
 * The result has show(rows), and its node.
 */
export function table(caption, columns, { page = PAGE, empty = 'Nothing.', rowClass } = {}) {
  let rows = [], at = 0, by = -1, down = true;
  const heads = columns.map((c, i) => {
    const name = c.sort ? el('button', { type: 'button', class: 'sort', onclick: () => order(i) }, c.name) : c.name;
    return el('th', { scope: 'col', class: c.number ? 'number' : null }, name);
  });
  const body = el('tbody');
  const said = el('span', { class: 'quiet' });
  const back = el('button', { type: 'button', class: 'plain', onclick: () => turn(-page) }, '← Before');
  const on = el('button', { type: 'button', class: 'plain', onclick: () => turn(page) }, 'After →');
  const pager = el('div', { class: 'pager', hidden: true }, back, said, on);
  const nothing = el('p', { class: 'quiet', hidden: true }, empty);
  const grid = el('table', null, el('caption', { class: 'sr' }, caption), el('thead', null, el('tr', null, heads)), body);
  const scroll = el('div', { class: 'scroll', tabIndex: 0, role: 'region', 'aria-label': caption }, grid);
  const node = el('div', { class: 'tabled' }, scroll, nothing, pager);

  function order(i) {
    down = by === i ? !down : true;
    by = i;
    heads.forEach((h, n) => (n === i ? h.setAttribute('aria-sort', down ? 'descending' : 'ascending') : h.removeAttribute('aria-sort')));
    at = 0;
    draw();
  }

  function turn(n) {
    at = Math.min(Math.max(at + n, 0), Math.max(rows.length - 1, 0));
    at -= at % page;
    draw();
  }

  function draw() {
    let list = rows;
    if (by >= 0) {
      const f = columns[by].sort;
      list = [...rows].sort((a, b) => (down ? -1 : 1) * compare(f(a), f(b)));
    }
    if (at >= list.length) at = 0;
    const shown = list.slice(at, at + page);
    fill(body, shown.map((row) => el('tr', { class: rowClass?.(row) }, columns.map((c, i) => {
      const content = c.cell(row);
      return i === 0 && c.head !== false ? el('th', { scope: 'row', class: c.class }, content ?? '–') : el('td', { class: c.number ? 'number' : c.class }, content ?? '–');
    }))));
    scroll.hidden = list.length === 0;
    nothing.hidden = list.length > 0;
    pager.hidden = list.length <= page;
    text(said, `${group(at + 1)}–${group(at + shown.length)} of ${group(list.length)}`);
    back.disabled = at === 0;
    on.disabled = at + page >= list.length;
  }

  return { node, show(list) { rows = list; keepingFocus(body, draw); } };
}

function compare(a, b) {
  if (a === b) return 0;
  if (a === null || a === undefined) return -1;
  if (b === null || b === undefined) return 1;
  return a < b ? -1 : 1;
}

/** behind puts a table behind a picture: made only when it is asked for. */
export function behind(name, make) {
  let made = null;
  const node = el('details', { class: 'behind', ontoggle: () => refresh() }, el('summary', null, name));
  function refresh() {
    if (!node.open) return;
    if (!made) {
      made = make();
      node.append(made.node);
    }
    made.refresh();
  }
  return { node, refresh };
}
