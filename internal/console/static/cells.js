// The picture of one group of ranks: a cell each, coloured by a byte, marked by a state.
//
// Three layers, so that ten thousand cells cost a screen's refresh nothing that is not
// new: `heat` has one pixel a cell and is enlarged by the browser; `grid` cuts cells out
// of it, one small picture repeated; `over` has marks, words and the cursor, and is
// drawn when one of them changes.
import { el, text, unique, still } from './dom.js';
import { ramp, bright, paints } from './scale.js';
import { STATES, stateOf, glyph, mark, old } from './states.js';

const FADE = 420; // ms from one value to the next
const RIM = 4; // CSS pixels around the cells, for what surrounds one at the edge

const HEADING = 80; // CSS pixels of a group's

/** sizeFor is the size of a cell, in CSS pixels, with which groups of so many fill about an area. */
export function sizeFor(counts, wide, high, ranks = 1) {
  const dpr = devicePixelRatio;
  const cells = counts.reduce((sum, n) => sum + n, 0), most = Math.max(...counts);
  const side = Math.sqrt((wide * high) / Math.max(cells, 1));
  if (side >= 96) { // room for words: a tile, that grows with the room there is
    const room = Math.min(Math.max(64, 0.5 * side), 220);
    let across = Math.max(1, Math.floor((wide + 6) / (168 * Math.sqrt(room / 64))));
    across = Math.ceil(most / Math.ceil(most / across)); // rows of about one length
    if (across > ranks) across = ranks * Math.round(across / ranks);
    for (let n = across; n <= 1.4 * across; n += ranks) if (most % n === 0) { across = n; break; } // or quite of one
    const rows = counts.reduce((sum, n) => sum + Math.ceil(n / across), 0), all = high - HEADING * (counts.length - 1);
    const tall = Math.round(Math.min(room, Math.max(64, (0.75 * all) / rows))), times = tall / 64;
    return { wide: Math.floor((Math.min((wide + 6) / across, 240 * times) * dpr)) / dpr, high: tall, gap: 6, round: 4 + times, tile: true };
  }
  if (side >= 58) return { wide: 96, high: 46, gap: 4, round: 4, tile: true };
  const pitch = Math.max(6, Math.min(40, Math.floor(side * 0.97)));
  const gap = pitch >= 24 ? 3 : pitch >= 12 ? 2 : 1;
  const px = Math.round(pitch * dpr) / dpr;
  return { wide: px, high: px, gap, round: pitch >= 12 ? Math.min(4, pitch / 6) : pitch >= 8 ? 1 : 0, tile: false };
}

export class Cells {
  /** group is of the stream's members, bytes of its cells; hooks say what the reader points at. */
  constructor(group, bytes, hooks) {
    this.group = group;
    this.bytes = bytes;
    this.hooks = hooks;
    const n = group.cells.length;
    this.from = new Uint8Array(n).fill(255);
    this.now = new Uint8Array(n).fill(255); // what is painted
    this.to = new Uint8Array(n).fill(255);
    this.states = new Uint8Array(n);
    this.begun = 0;
    this.moving = false;
    this.cursor = -1;
    this.hover = -1;
    this.chosen = -1;
    this.ranks = ranksEach(group.cells);

    this.heat = el('canvas', { class: 'heat', 'aria-hidden': 'true' });
    this.grid = el('div', { class: 'grid', 'aria-hidden': 'true' });
    this.over = el('canvas', { class: 'over', 'aria-hidden': 'true' });
    const id = unique('cell');
    this.option = el('div', { id, role: 'option', class: 'sr', 'aria-selected': 'false' }, 'none chosen');
    this.node = el('div', {
      class: 'cells', role: 'listbox', tabIndex: 0, 'aria-activedescendant': id,
      'aria-label': `Ranks of ${group.model}, ${group.role || 'any role'}: arrow keys move, Enter shows details, N goes to the next that needs attention`,
      onpointermove: (e) => this.point(this.indexAt(e)), onpointerleave: () => this.point(-1),
      onclick: (e) => this.choose(this.indexAt(e)), onkeydown: (e) => this.key(e),
      onfocus: () => this.move(this.cursor < 0 ? 0 : this.cursor), onblur: () => { this.point(-1); this.draw(); },
    }, this.heat, this.grid, this.over, this.option);
  }

  layout(wide, size) {
    this.size = size;
    this.node.classList.toggle('tiles', size.tile);
    const n = this.group.cells.length;
    let columns = Math.max(1, Math.floor((wide + size.gap) / size.wide));
    const r = this.ranks;
    if (r > 1 && columns >= r) columns -= columns % r; // ranks of a worker stay beside each other
    this.columns = Math.min(columns, n);
    this.rows = Math.ceil(n / this.columns);
    const w = this.columns * size.wide, h = this.rows * size.high;
    this.node.style.setProperty('width', `${w}px`);
    this.node.style.setProperty('height', `${h}px`);
    const dpr = devicePixelRatio;
    this.over.width = Math.round((w + 2 * RIM) * dpr);
    this.over.height = Math.round((h + 2 * RIM) * dpr);
    this.heat.width = this.columns;
    this.heat.height = this.rows;
    this.image = this.heat.getContext('2d').createImageData(this.columns, this.rows);
    this.pixels = new Uint32Array(this.image.data.buffer);
    this.cut();
  }

  /** cut makes the picture that is repeated over the cells: a frame with holes. */
  cut() {
    const { size } = this, dpr = devicePixelRatio;
    this.paint = paints();
    const joined = this.ranks > 1 && this.columns % this.ranks === 0 ? this.ranks : 1;
    const w = Math.round(size.wide * dpr), h = Math.round(size.high * dpr), gap = Math.max(1, Math.round(size.gap * dpr));
    const tile = el('canvas');
    tile.width = w * joined;
    tile.height = h;
    const ctx = tile.getContext('2d');
    ctx.fillStyle = this.paint.bg;
    ctx.fillRect(0, 0, tile.width, h);
    ctx.globalCompositeOperation = 'destination-out';
    const r = size.round * dpr, seam = Math.max(1, Math.round(gap / 3));
    for (let i = 0; i < joined; i++) {
      const left = i === 0, right = i === joined - 1;
      ctx.beginPath();
      ctx.roundRect(i * w, 0, w - (right ? gap : seam), h - gap, [left ? r : 0, right ? r : 0, right ? r : 0, left ? r : 0]);
      ctx.fill();
    }
    this.grid.style.setProperty('background-image', `url(${tile.toDataURL()})`);
    this.grid.style.setProperty('background-size', `${size.wide * joined}px ${size.high}px`);
    this.sprites = new Map();
  }

  /** colour sets the ramp, as by another metric or theme, and paints all. */
  colour(metric, dark) {
    this.metric = metric;
    this.colours = ramp(metric, dark);
    this.faded = new Uint32Array(faded(this.colours).buffer);
    const words = new Uint32Array(this.colours.buffer.slice(0));
    words[255] = 0; // unknown: hollow, whatever the scale
    this.lut = words;
    this.paintHeat();
    this.draw();
  }

  /** update takes the newest bytes; cells that changed fade to what they are. */
  update(time) {
    let moved = false, marked = false, blank = false;
    const { value, state } = this.bytes;
    for (let i = 0; i < value.length; i++) {
      if (value[i] !== this.to[i]) {
        moved = true;
        if (value[i] === 255 || this.to[i] === 255) blank = true;
      }
      if (state[i] !== this.states[i]) marked = true;
    }
    if (moved) {
      this.from.set(this.now);
      this.to.set(value);
      this.begun = time;
      this.moving = true;
    }
    if (marked) {
      this.states.set(state);
      this.paintHeat();
    }
    if (marked || blank || (moved && (this.size?.tile || this.hover >= 0))) this.draw();
    return moved || marked;
  }

  /** frame paints one step of what fades, and reports whether there is another. */
  frame(time) {
    if (!this.moving || !this.lut) return false;
    const t = still() ? 1 : Math.min(1, (time - this.begun) / FADE);
    const k = Math.round(256 * t * (2 - t));
    const { from, to, now } = this;
    for (let i = 0; i < to.length; i++) {
      const a = from[i], b = to[i];
      now[i] = a === b || a === 255 || b === 255 ? b : a + (((b - a) * k) >> 8);
    }
    if (t >= 1) {
      now.set(to);
      this.moving = false;
      if (this.size.tile) this.draw(); // words on the last colour
    }
    this.paintHeat();
    return this.moving;
  }

  paintHeat() {
    if (!this.pixels || !this.lut) return;
    const { pixels, lut, now } = this;
    for (let i = 0; i < now.length; i++) pixels[i] = this.old(i) && now[i] !== 255 ? this.faded[now[i]] : lut[now[i]];
    this.heat.getContext('2d').putImageData(this.image, 0, 0);
  }

  old(i) { return this.states[i] !== 0 && old(this.states[i], this.metric); }

  box(i) {
    const { wide, high, gap } = this.size;
    return [(i % this.columns) * wide, Math.floor(i / this.columns) * high, wide - gap, high - gap];
  }

  draw() {
    if (!this.size || !this.colours) return;
    const dpr = devicePixelRatio, ctx = this.over.getContext('2d');
    ctx.setTransform(dpr, 0, 0, dpr, RIM * dpr, RIM * dpr);
    ctx.clearRect(-RIM, -RIM, this.over.width, this.over.height);
    const { size, states, to } = this;
    const radius = size.tile ? 5 + size.high / 64 : Math.max(4.5, Math.min(8, size.wide * 0.24));
    for (let i = 0; i < states.length; i++) {
      const [x, y, w, h] = size.tile || states[i] ? this.box(i) : [0, 0, 0, 0];
      if (states[i] && to[i] !== 255 && size.wide >= 14 && this.old(i)) this.hatch(ctx, x, y, w, h);
      if (size.tile) this.words(ctx, i, x, y, w, h);
      else if (to[i] === 255) this.blank(ctx, ...this.box(i));
      if (states[i]) this.stamp(ctx, states[i], size.tile ? x + w - 2.4 * radius : x + w / 2, size.tile ? y + 2.4 * radius : y + h / 2, radius, dpr);
    }
    const at = document.activeElement === this.node ? this.cursor : -1;
    if (this.chosen >= 0) this.ring(ctx, this.chosen, this.paint.accent, 2);
    if (this.hover >= 0) this.ring(ctx, this.hover, this.paint.ink, 1.5);
    if (at >= 0) this.ring(ctx, at, this.paint.accent, 2.5);
  }

  words(ctx, i, x, y, w, h) {
    const v = this.to[i];
    if (v === 255) this.blank(ctx, x, y, w, h);
    if (v === 255) ctx.fillStyle = this.paint.muted;
    else if (this.old(i)) ctx.fillStyle = this.paint.ink;
    else ctx.fillStyle = bright(this.colours, v) ? '#15181b' : '#fbfcfc';
    ctx.textBaseline = 'alphabetic';
    const cell = this.group.cells[i], tall = h >= 50, times = tall ? (h + 6) / 64 : 1;
    const small = tall ? 9 + 3 * times : 11, large = tall ? Math.round(17 * times) : 12, edge = tall ? 4 + 4 * times : 8;
    if (this.states[i]) this.outline(ctx, i, x, y, w, h);
    ctx.font = `500 ${small}px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace`;
    ctx.fillText(fit(ctx, this.ranks > 1 ? cell.id : cell.worker, w - (this.states[i] ? 32 : 16)), x + edge, y + (tall ? small + 7 * times : 16), w - 16);
    ctx.font = `600 ${large}px Inter, system-ui, "Segoe UI", Roboto, sans-serif`;
    ctx.fillText(fit(ctx, this.hooks.value(this, i), w - 16), x + edge, y + h - (tall ? 11 * times : 8), w - 16);
  }

  /** outline frames a tile that needs attention in the colour of its mark. */
  outline(ctx, i, x, y, w, h) {
    for (const [colour, width, inset] of [[this.paint.bg, 1.5, 3.25], [this.paint[stateOf(this.states[i]).grade] ?? this.paint.warn, 2.5, 1.25]]) {
      ctx.strokeStyle = colour;
      ctx.lineWidth = width;
      ctx.beginPath();
      ctx.roundRect(x + inset, y + inset, w - 2 * inset, h - 2 * inset, Math.max(0, this.size.round - inset));
      ctx.stroke();
    }
  }

  /** blank marks a cell of which nothing is known: a dot, or a tile's outline. */
  blank(ctx, x, y, w, h) {
    if (!this.size.tile) {
      const r = this.size.wide >= 14 ? 2 : 1;
      ctx.fillStyle = this.paint.faint;
      ctx.fillRect(Math.round(x + w / 2 - r), Math.round(y + h / 2 - r), 2 * r, 2 * r);
      return;
    }
    ctx.strokeStyle = this.paint.faint;
    ctx.lineWidth = 1;
    ctx.setLineDash([3, 3]);
    ctx.beginPath();
    ctx.roundRect(x + 0.5, y + 0.5, w - 1, h - 1, this.size.round);
    ctx.stroke();
    ctx.setLineDash([]);
  }

  /** hatch strikes a cell through whose colour is old. */
  hatch(ctx, x, y, w, h) {
    const step = Math.max(5, Math.min(9, h / 6));
    ctx.save();
    ctx.beginPath();
    ctx.roundRect(x, y, w, h, this.size.round);
    ctx.clip();
    ctx.strokeStyle = this.paint.bg;
    ctx.globalAlpha = 0.55;
    ctx.lineWidth = step / 5;
    ctx.beginPath();
    for (let at = step - h; at < w; at += step) {
      ctx.moveTo(x + at, y + h);
      ctx.lineTo(x + at + h, y);
    }
    ctx.stroke();
    ctx.restore();
  }

  stamp(ctx, s, x, y, radius, dpr) {
    if (!this.sprites.has(s)) {
      const side = Math.ceil(3.6 * radius * dpr), sprite = el('canvas');
      sprite.width = sprite.height = side;
      const c = sprite.getContext('2d');
      mark(c, s, side / 2, side / 2, radius * dpr, this.paint);
      this.sprites.set(s, sprite);
    }
    const sprite = this.sprites.get(s), half = sprite.width / dpr / 2;
    ctx.drawImage(sprite, x - half, y - half, 2 * half, 2 * half);
  }

  ring(ctx, i, colour, width) {
    if (i >= this.states.length) return;
    const [x, y, w, h] = this.box(i);
    for (const [c, l, out] of [[this.paint.bg, width + 2, 1], [colour, width, 1]]) {
      ctx.strokeStyle = c;
      ctx.lineWidth = l;
      ctx.beginPath();
      ctx.roundRect(x - out, y - out, w + 2 * out, h + 2 * out, this.size.round + 1);
      ctx.stroke();
    }
  }

  indexAt(e) {
    const box = this.node.getBoundingClientRect();
    const column = Math.floor((e.clientX - box.left) / this.size.wide), row = Math.floor((e.clientY - box.top) / this.size.high);
    const i = row * this.columns + column;
    return column < 0 || column >= this.columns || row < 0 || i >= this.group.cells.length ? -1 : i;
  }

  point(i) {
    if (i === this.hover) return;
    this.hover = i;
    this.draw();
    this.hooks.point(this, i);
  }

  move(i) {
    this.cursor = Math.min(Math.max(i, 0), this.group.cells.length - 1);
    this.option.setAttribute('aria-posinset', this.cursor + 1);
    this.option.setAttribute('aria-setsize', this.group.cells.length);
    text(this.option, this.say(this.cursor));
    this.draw();
    this.hooks.point(this, this.cursor);
    const [, y, , h] = this.box(this.cursor), top = this.node.getBoundingClientRect().top + y;
    if (top < 120 || top + h > innerHeight - 20) scrollBy({ top: top - innerHeight / 2, behavior: 'instant' });
  }

  say(i) {
    const cell = this.group.cells[i], state = stateOf(this.bytes.state[i]);
    return `worker ${cell.worker}, rank ${cell.rank}: ${this.hooks.value(this, i)}, ${state.name}`;
  }

  choose(i) {
    if (i < 0) return;
    this.cursor = i;
    this.hooks.choose(this, i);
  }

  /** show marks which of the cells are of the worker that is looked at. */
  show(worker) {
    const i = worker === null ? -1 : this.group.cells.findIndex((c) => c.worker === worker);
    this.option.setAttribute('aria-selected', String(i >= 0));
    if (i === this.chosen) return;
    this.chosen = i;
    this.draw();
  }

  key(e) {
    const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: this.columns, ArrowUp: -this.columns, PageDown: 10 * this.columns, PageUp: -10 * this.columns };
    if (e.altKey || e.ctrlKey || e.metaKey) return;
    if (e.key in steps) {
      const i = this.cursor + steps[e.key];
      if (i >= 0 && i < this.group.cells.length) this.move(i);
    } else if (e.key === 'Home') this.move(0);
    else if (e.key === 'End') this.move(this.group.cells.length - 1);
    else if (e.key === 'n' || e.key === 'N') this.next();
    else if (e.key === 'Enter' || e.key === ' ') this.choose(this.cursor);
    else return;
    e.preventDefault();
  }

  next() {
    const n = this.bytes.state.length;
    for (let k = 1; k <= n; k++) {
      const i = (this.cursor + k) % n;
      if (this.bytes.state[i]) { this.move(i); return; }
    }
  }
}

/** faded are a ramp's colours without their hue, let through. */
function faded(colours) {
  const grey = colours.slice();
  for (let i = 0; i < grey.length; i += 4) grey.set([...new Array(3).fill(0.3 * grey[i] + 0.59 * grey[i + 1] + 0.11 * grey[i + 2]), 110], i);
  return grey;
}

function fit(ctx, words, wide) {
  words = String(words);
  if (ctx.measureText(words).width <= wide) return words;
  let n = words.length;
  while (n > 1 && ctx.measureText(words.slice(0, n) + '…').width > wide) n--;
  return words.slice(0, n) + '…';
}

/** ranksEach is how many ranks each worker of the list has, or 1 where they differ. */
function ranksEach(cells) {
  let n = 0;
  while (n < cells.length && cells[n].worker === cells[0].worker) n++;
  if (n < 2 || n > 64 || cells.length % n) return 1;
  for (let i = 0; i < cells.length; i++) if (cells[i].worker !== cells[i - (i % n)].worker) return 1;
  return n;
}

/** shapes lists the marks with what they mean. */
export function shapes() {
  return el('ul', { class: 'shapes', 'aria-label': 'Marks in the picture' }, STATES.slice(1).map((s) => el('li', { title: s.say }, glyph(s.kind), s.name)));
}
