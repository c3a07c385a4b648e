// Numbers and times as they are read: few digits, one width, a dash where nothing is known.

export const DASH = '–';
const THIN = '\u202f'; // between a number and its unit

const known = (n) => typeof n === 'number' && Number.isFinite(n);

/** short writes a number with three digits: 12, 1.24 k, 3.6 M. */
export function short(n) {
  if (!known(n)) return DASH;
  const a = Math.abs(n);
  for (const [unit, size] of [['G', 1e9], ['M', 1e6], ['k', 1e4]]) {
    if (a >= size) {
      const by = unit === 'k' ? 1e3 : size;
      return digits(n / by) + THIN + unit;
    }
  }
  return a >= 1000 ? group(Math.round(n)) : digits(n);
}

function digits(n) {
  const a = Math.abs(n);
  if (Number.isInteger(n) || a >= 100) return String(Math.round(n));
  return n.toFixed(a >= 10 ? 1 : 2).replace(/\.?0+$/, '');
}

/** group writes a whole number with its thousands apart. */
export function group(n) {
  return known(n) ? String(Math.round(n)).replace(/\B(?=(\d{3})+(?!\d))/g, THIN) : DASH;
}

/** percent writes a ratio. */
export function percent(r) {
  if (!known(r)) return DASH;
  const p = 100 * r;
  if (p >= 99.5 && p < 100) return (p < 99.95 ? p.toFixed(1) : '>99.9') + THIN + '%'; // not yet all
  return (p > 0 && p < 10 ? p.toFixed(1).replace(/\.0$/, '') : p.toFixed(0)) + THIN + '%';
}

/** bytes writes an amount of memory. */
export function bytes(n) {
  if (!known(n)) return DASH;
  let unit = 0;
  while (n >= 1024 && unit < 4) { n /= 1024; unit++; }
  return digits(n) + THIN + ['B', 'KiB', 'MiB', 'GiB', 'TiB'][unit];
}

/** ms writes a time given in ms. */
export function ms(n) {
  if (!known(n)) return DASH;
  const a = Math.abs(n);
  if (a >= 60e3) return span(n / 1e3);
  if (a >= 1e4) return (n / 1e3).toFixed(1) + THIN + 's';
  if (a >= 1e3) return (n / 1e3).toFixed(2) + THIN + 's';
  return (a >= 100 ? n.toFixed(0) : a >= 10 ? n.toFixed(1) : digits(n)) + THIN + 'ms';
}

/** span writes how long something is, or is ago, given in seconds. */
export function span(s) {
  if (!known(s)) return DASH;
  const a = Math.abs(s);
  if (a < 10) return digits(Math.round(s * 10) / 10) + THIN + 's';
  if (a < 120) return Math.round(s) + THIN + 's';
  if (a < 7200) return Math.round(s / 60) + THIN + 'min';
  if (a < 172800) return Math.round(s / 3600) + THIN + 'h';
  return Math.round(s / 86400) + THIN + 'd';
}

/** clock writes a moment of today by its time, and an older one with its day. */
export function clock(t) {
  const d = new Date(t);
  if (Number.isNaN(d.getTime())) return DASH;
  const two = (n) => String(n).padStart(2, '0');
  const time = `${two(d.getHours())}:${two(d.getMinutes())}:${two(d.getSeconds())}`;
  const days = Math.abs(Date.now() - d.getTime()) > 20 * 3600e3;
  return days ? `${d.getFullYear()}-${two(d.getMonth() + 1)}-${two(d.getDate())} ${time}` : time;
}

/** count writes so many things: one worker, 3 workers. */
export const count = (n, one, many = one + 's') => `${group(n)} ${n === 1 ? one : many}`;

/** byUnit writes a value of the fleet's picture. */
export function byUnit(value, unit) {
  if (!known(value)) return DASH;
  switch (unit) {
    case 'of capacity': case 'of prompt tokens': return percent(value);
    case 'seconds': return span(value);
    default: return short(value) + (unit ? ' ' + unit : '');
  }
}
