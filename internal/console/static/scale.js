// Colours of the pictures. Steps of a scale are even in lightness, in the OKLCH
// space, so that equal differences of a value look equal; each metric has its hue.

/** oklch returns the sRGB bytes of a colour, with as much of its chroma as a screen has. */
export function oklch(l, c, h) {
  for (let chroma = c; ; chroma -= 0.005) {
    const rgb = linear(l, Math.max(chroma, 0), h);
    if (chroma <= 0 || rgb.every((v) => v >= -0.0005 && v <= 1.0005)) return rgb.map(byte);
  }
}

function linear(l, c, h) {
  const a = c * Math.cos((h * Math.PI) / 180), b = c * Math.sin((h * Math.PI) / 180);
  const x = (l + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const y = (l - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const z = (l - 0.0894841775 * a - 1.291485548 * b) ** 3;
  return [
    4.0767416621 * x - 3.3077115913 * y + 0.2309699292 * z,
    -1.2684380046 * x + 2.6097574011 * y - 0.3413193965 * z,
    -0.0041960863 * x - 0.7034186147 * y + 1.707614701 * z,
  ];
}

function byte(v) {
  v = Math.min(Math.max(v, 0), 1);
  return Math.round(255 * (v <= 0.0031308 ? 12.92 * v : 1.055 * v ** (1 / 2.4) - 0.055));
}

/** The metrics that a fleet is coloured by: hue at the low and at the high end, and chroma there. */
export const METRICS = {
  held: { name: 'Held', say: 'blocks held, of the cache’s capacity', hue: [205, 258], chroma: 0.135 },
  load: { name: 'Load', say: 'requests at work, beside the busiest', hue: [320, 292], chroma: 0.17 },
  hit: { name: 'Hit rate', say: 'prompt tokens found cached, of the last seconds', hue: [190, 158], chroma: 0.13 },
  lag: { name: 'Lag', say: 'how far the index is behind', hue: [85, 35], chroma: 0.16 },
  age: { name: 'Age', say: 'time since the last event', hue: [250, 255], chroma: 0.045 },
};

const cache = new Map();

/** ramp returns the 255 colours of a metric as bytes R, G, B, A; on dark, more is lighter. */
export function ramp(metric, dark) {
  const key = metric + dark;
  if (cache.has(key)) return cache.get(key);
  const { hue, chroma } = METRICS[metric] ?? METRICS.held;
  const colours = new Uint8ClampedArray(256 * 4);
  const [from, to] = dark ? [0.275, 0.72] : [0.945, 0.42];
  for (let i = 0; i < 255; i++) {
    const t = i / 254;
    const c = chroma * (0.14 + 0.86 * Math.sin(Math.min(1, t * 1.15) * Math.PI / 2)) * 0.95;
    colours.set([...oklch(from + (to - from) * t, c, hue[0] + (hue[1] - hue[0]) * t), 255], 4 * i);
  }
  cache.set(key, colours);
  return colours;
}

/** css returns one step of a ramp as CSS has it. */
export const css = (colours, i) => `rgb(${colours[4 * i]} ${colours[4 * i + 1]} ${colours[4 * i + 2]})`;

/** bright reports whether dark words are read best on a step: they have more contrast from this luminance on. */
export function bright(colours, i) {
  const [r, g, b] = [0, 1, 2].map((k) => (colours[4 * i + k] / 255) ** 2.2);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.2;
}

/** paints are the colours of the style sheet that pictures use, as they are just now. */
export function paints() {
  const style = getComputedStyle(document.documentElement);
  const named = {};
  for (const name of ['bg', 'raised', 'ink', 'muted', 'faint', 'line', 'accent', 'warn', 'bad', 'good']) named[name] = style.getPropertyValue('--' + name).trim();
  return named;
}
