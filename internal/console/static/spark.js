// Sparklines: the last minutes of one or a few series, drawn once a second.
import { paints } from './scale.js';

const SPANS = [30, 60, 180]; // seconds

/** span is how many of the last seconds are drawn of so many that are known: the page begins with none. */
export const span = (known) => SPANS.find((s) => known <= s) ?? SPANS.at(-1);

/** Spark draws series into a canvas: lines of one scale, the newest value as a dot. */
export class Spark {
  constructor(canvas, { colours = ['accent'], max = null, fill = true } = {}) {
    this.canvas = canvas;
    this.colours = colours;
    this.max = max;
    this.fill = fill;
  }

  draw(series) {
    const { canvas } = this;
    const wide = canvas.clientWidth, high = canvas.clientHeight;
    if (!wide || !high) return;
    const dpr = devicePixelRatio;
    if (canvas.width !== Math.round(wide * dpr) || canvas.height !== Math.round(high * dpr)) {
      canvas.width = Math.round(wide * dpr);
      canvas.height = Math.round(high * dpr);
    }
    const ctx = canvas.getContext('2d');
    const paint = paints();
    ctx.setTransform(dpr, 0, 0, dpr, 0, 0);
    ctx.clearRect(0, 0, wide, high);
    const shown = span(Math.max(0, ...series.map((s) => s.length)));
    let top = this.max ?? 0;
    if (this.max === null) for (const s of series) for (let i = 0; i < shown; i++) top = Math.max(top, s.at(i) || 0);
    const r = 2.5, step = (wide - r) / (shown - 1);
    const x = (ago) => wide - r - ago * step;
    const y = (v) => high - r - (top > 0 ? Math.min(v / top, 1) : 0) * (high - 2 * r);
    ctx.strokeStyle = paint.line;
    ctx.lineWidth = 1;
    ctx.beginPath();
    ctx.moveTo(0, high - r + 0.5);
    ctx.lineTo(wide, high - r + 0.5);
    ctx.stroke();
    series.forEach((s, n) => this.#line(ctx, s, paint[this.colours[n]] ?? paint.ink, x, y, high - r, this.fill && n === 0, shown));
  }

  #line(ctx, s, colour, x, y, floor, filled, shown) {
    ctx.strokeStyle = ctx.fillStyle = colour;
    ctx.lineWidth = 1.5;
    ctx.lineJoin = 'round';
    let begun = NaN;
    const area = new Path2D(), line = new Path2D();
    const end = (ago) => {
      if (Number.isNaN(begun)) return;
      area.lineTo(x(ago), floor);
      area.lineTo(x(begun), floor);
      area.closePath();
      begun = NaN;
    };
    const n = Math.min(shown, s.length);
    for (let ago = n - 1; ago >= 0; ago--) {
      const v = s.at(ago);
      if (Number.isNaN(v)) { end(ago + 1); continue; }
      for (const p of [area, line]) Number.isNaN(begun) ? p.moveTo(x(ago), y(v)) : p.lineTo(x(ago), y(v));
      if (Number.isNaN(begun)) begun = ago;
    }
    end(0);
    if (filled) {
      ctx.globalAlpha = 0.12;
      ctx.fill(area);
      ctx.globalAlpha = 1;
    }
    ctx.stroke(line);
    if (!Number.isNaN(s.at(0))) {
      ctx.beginPath();
      ctx.arc(x(0), y(s.at(0)), 2.5, 0, 7);
      ctx.fill();
    }
  }
}
