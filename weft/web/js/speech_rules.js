// The rules of a window's tokens: which may follow, and how they are cut into segments
// (weft/models/run/speech_rules.py, transcript.py).

const STEP = 0.02; // seconds between timestamps

/**
 * @typedef {{family: string, vocab: number, heads: number, mels: number, source: number,
 *   positions: number, start: number, end: number, no_times: number, longest: number,
 *   languages: Record<string, number>, tasks: Record<string, number>, suppressed: number[],
 *   suppressed_first: number[], latest_first: number | null}} SpeechModel
 */

/** The first id of a timestamp. @param {SpeechModel} model */
export const timesOf = ({ no_times: none }) => none + 1;

/**
 * Logits with -Infinity for tokens that may not follow `made`, the tokens so far of this window.
 * @param {SpeechModel} model @param {Float32Array} logits @param {number[]} made
 * @param {boolean} timed
 */
export function following(model, logits, made, timed) {
  const x = logits.slice();
  const times = timesOf(model);
  const never = (/** @type {number} */ first, /** @type {number} */ end) =>
    x.fill(-Infinity, first, Math.max(first, end));
  for (const id of made.length ? [] : model.suppressed_first) x[id] = -Infinity;
  for (const id of model.suppressed) x[id] = -Infinity;
  if (!timed) return x;
  x[model.no_times] = -Infinity;
  paired(model, never, made);
  if (!made.length) {
    never(0, times);
    if (model.latest_first !== null) never(times + model.latest_first + 1, x.length);
  }
  // a timestamp follows where all of them together are likelier than any other token
  const most = (/** @type {Float32Array} */ part) =>
    part.reduce((a, b) => Math.max(a, b), -Infinity);
  const [text, stamps] = [most(x.subarray(0, times)), x.subarray(times)];
  const best = Math.max(text, most(stamps));
  if (Number.isFinite(best)) {
    const together = stamps.reduce((sum, value) => sum + Math.exp(value - best), 0);
    if (Math.log(together) > text - best) never(0, times);
  }
  return x;
}

/**
 * Timestamps come in pairs that never go back, or one before the end.
 * @param {SpeechModel} model @param {(first: number, end: number) => void} never
 * @param {number[]} made
 */
function paired(model, never, made) {
  const times = timesOf(model);
  const last = made.length >= 1 && made[made.length - 1] >= times;
  const before = made.length < 2 || made[made.length - 2] >= times;
  if (last && before) never(times, model.vocab);
  else if (last) never(0, model.end);
  const stamps = made.filter((id) => id >= times);
  if (stamps.length) never(times, stamps[stamps.length - 1] + (last && !before ? 0 : 1));
}

/**
 * Cuts the tokens of a window of `frames` at pairs of timestamps. `passed` are the frames after
 * which the next window begins: it hears what follows the last pair again.
 * @param {SpeechModel} model @param {number[]} tokens @param {number} frames
 * @returns {{found: {start: number, end: number, tokens: number[]}[], passed: number}}
 */
export function pieces(model, tokens, frames) {
  const times = timesOf(model);
  const timed = tokens.map((id) => id >= times);
  const cuts = tokens.flatMap((_, n) => (timed[n] && timed[n + 1] ? [n + 1] : []));
  const alone = timed.length > 1 && timed[timed.length - 1] && !timed[timed.length - 2];
  if (!cuts.length) {
    const stamps = tokens.filter((id) => id >= times);
    const last = stamps.length ? stamps[stamps.length - 1] - times : 0;
    const end = (last || Math.floor((frames * 0.01) / STEP)) * STEP;
    return { found: [{ start: 0, end, tokens }], passed: frames };
  }
  if (alone) cuts.push(tokens.length);
  else cuts[cuts.length - 1]++;
  let first = 0;
  const found = cuts.map((cut, n) => {
    const part = tokens.slice(first, cut);
    first = cut;
    const end = part[part.length - (n < cuts.length - 1 || alone ? 1 : 2)];
    return { start: (part[0] - times) * STEP, end: (end - times) * STEP, tokens: part };
  });
  return { found, passed: alone ? frames : (tokens[first - 2] - times) * 2 };
}
