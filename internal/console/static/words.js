// Words as they are shown. Names come from the fleet, and whoever names a model could have the words
// beside it read otherwise: what cannot be seen is shown as an escape, and what is written from right
// to left turns nothing around but itself.

/* Controls, formats (with U+202E, which turns words around) and whatever else has no picture. */
const UNSEEN = /(?![\n\t])[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}\p{Default_Ignorable_Code_Point}]/gu;

/* From the first to the last letter that is written from right to left, between what divides words of ours. */
const R = '\\u0590-\\u08ff\\ufb1d-\\ufdff\\ufe70-\\ufefc\\u{10800}-\\u{10fff}\\u{1e800}-\\u{1efff}';
const TURNED = new RegExp(`[${R}](?:[^·:,;()\\n]*[${R}])?`, 'gu');

/** ends returns a name, of a long one its ends. */
export const ends = (name) => (name.length > 100 ? `${name.slice(0, 60)} … ${name.slice(-30)}` : name);

/** plain returns words as they may stand beside others. */
export function plain(words) {
  return String(words)
    .replace(UNSEEN, (c) => `\\u{${c.codePointAt(0).toString(16)}}`)
    .replace(TURNED, '\u2068$&\u2069');
}
