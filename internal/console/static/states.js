// What a cell's state byte means, and the shape that says so. Shapes differ in form,
// not only in colour, and are drawn at nine pixels at least, however small cells are.
import { svg } from './dom.js';

// path is drawn in a square from -1 to 1.
export const STATES = [
  { kind: 'well', name: 'well', grade: '' },
  { kind: 'draining', name: 'draining', grade: 'warn', say: 'gets no new requests', path: 'M-.8-.5L.8-.5L0 .8Z' },
  { kind: 'gap', name: 'gap', grade: 'bad', say: 'events are missing', path: 'M-.95-.75h.7v1.5h-.7Z M.25-.75h.7v1.5h-.7Z' },
  { kind: 'recovering', name: 'recovering', grade: 'warn', say: 'what is missing is being asked for', line: true, path: 'M.62-.5A.8.8 0 1 0 .8.1 M.75-.95V-.4H.2' },
  { kind: 'truncated', name: 'truncated', grade: 'bad', say: 'holds more than is known', path: 'M-.85-.85H.2L.85-.2V.85H-.85Z' },
  { kind: 'mismatch', name: 'mismatch', grade: 'bad', say: 'its hashes never match', line: true, path: 'M-.8-.35H.8 M-.8.35H.8 M.5-.95L-.5.95' },
  { kind: 'silent', name: 'silent', grade: 'bad', say: 'no heartbeat, no event', line: true, path: 'M-.8 0A.8.8 0 1 0 .8 0A.8.8 0 1 0-.8 0' },
  { kind: 'conflict', name: 'conflict', grade: 'bad', say: 'two processes publish as it', path: 'M-.95-.95L.1 0L-.95.95Z M.95-.95L-.1 0L.95.95Z' },
  { kind: 'stale', name: 'stale', grade: 'warn', say: 'may hold other than is shown', path: 'M0-.95L.85 0L0 .95L-.85 0Z' },
  { kind: 'dead', name: 'dead', grade: 'bad', say: 'has left or does not answer', line: true, path: 'M-.75-.75L.75.75M.75-.75L-.75.75' },
];

/** stateOf finds a state by its byte or its kind; a newer server may know more of them. */
export function stateOf(s) {
  return (typeof s === 'number' ? STATES[s] : STATES.find((x) => x.kind === s)) ?? { kind: String(s), name: String(s), grade: 'warn', path: STATES[8].path };
}

/** old reports whether what is shown of a rank in that state may be long over: nobody has told of it since. */
export const old = (s, metric) => ({ dead: metric !== 'age', silent: metric === 'held' || metric === 'lag', stale: metric === 'held' })[stateOf(s).kind] ?? false;

/** glyph draws a state's shape as part of a text. */
export function glyph(s) {
  const state = stateOf(s);
  return svg('svg', { class: `glyph ${state.grade}${state.line ? ' stroke' : ''}`, viewBox: '-1.2 -1.2 2.4 2.4', 'aria-hidden': 'true' }, state.path && svg('path', { d: state.path }));
}

const paths = new Map();

/** mark draws a state's shape into a canvas, with a rim that sets it off from the cell. */
export function mark(ctx, s, x, y, radius, paint) {
  const state = stateOf(s);
  if (!state.path) return;
  if (!paths.has(state)) paths.set(state, new Path2D(state.path));
  ctx.save();
  ctx.translate(x, y);
  ctx.scale(radius, radius);
  ctx.lineJoin = ctx.lineCap = 'round';
  ctx.strokeStyle = paint.bg;
  ctx.lineWidth = state.line ? 1.05 : 0.7;
  ctx.stroke(paths.get(state));
  ctx.strokeStyle = ctx.fillStyle = paint[state.grade];
  if (state.line) {
    ctx.lineWidth = 0.46;
    ctx.stroke(paths.get(state));
  } else ctx.fill(paths.get(state));
  ctx.restore();
}
