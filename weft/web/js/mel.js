// Whisper's features: the log of a mel spectrogram, as weft/audio/mel.py up to the rounding of
// float32.

export const RATE = 16000; // samples per second
export const HOP = 160; // samples from a frame to the next
const FFT = 400;
const FACTORS = [5, 5, 4, 4]; // of FFT
const FLOOR = 1e-10; // least power, before the log
const RANGE = 8; // decades below the loudest that are kept

const COS = Float64Array.from({ length: FFT }, (_, n) => Math.cos((2 * Math.PI * n) / FFT));
const SIN = Float64Array.from({ length: FFT }, (_, n) => Math.sin((2 * Math.PI * n) / FFT));
const HANN = COS.map((cos) => 0.5 - 0.5 * cos);

/** The features of a sound; one shorter than a window of `frames` is filled with silence. */
export class Features {
  /** @param {Float32Array} samples at RATE @param {number} mels @param {number} frames */
  constructor(samples, mels, frames) {
    this.mels = mels;
    this.size = frames;
    this.duration = samples.length / RATE;
    const filled = new Float32Array(Math.max(samples.length, frames * HOP));
    filled.set(samples);
    this.frames = Math.floor(filled.length / HOP);
    this.rows = logMel(filled, this.frames, mels);
    this.top = this.rows.reduce((a, b) => Math.max(a, b), -Infinity);
  }

  /**
   * A window's features, [frames, mels], from frame `start` on; zeros after `most` frames.
   * @param {number} start @param {number} most
   */
  window(start, most) {
    const out = new Float32Array(this.size * this.mels);
    const rows = this.rows.subarray(start * this.mels, (start + most) * this.mels);
    const least = Math.fround(this.top - RANGE);
    rows.forEach((value, n) => (out[n] = Math.fround(Math.max(value, least) + 4) / 4));
    return out;
  }
}

/** @param {Float32Array} samples @param {number} frames @param {number} mels */
function logMel(samples, frames, mels) {
  const bank = filters(mels);
  const out = new Float32Array(frames * mels);
  const [re, im] = [new Float64Array(FFT), new Float64Array(FFT)];
  const sample = (/** @type {number} */ at) => // the ends are mirrored
    samples[at < 0 ? -at : at < samples.length ? at : 2 * samples.length - 2 - at];
  for (let frame = 0; frame < frames; frame += 2) { // two real frames are one complex one
    const first = frame * HOP - FFT / 2;
    const two = frame + 1 < frames;
    for (let n = 0; n < FFT; n++) {
      re[n] = sample(first + n) * HANN[n];
      im[n] = two ? sample(first + HOP + n) * HANN[n] : 0;
    }
    const [one, other] = powers(...fft(re, im));
    weigh(one, bank, out.subarray(frame * mels, (frame + 1) * mels));
    if (two) weigh(other, bank, out.subarray((frame + 1) * mels, (frame + 2) * mels));
  }
  return out;
}

/**
 * The Fourier transform (Stockham's order), which may lie in the given arrays.
 * @param {Float64Array} re @param {Float64Array} im @returns {[Float64Array, Float64Array]}
 */
function fft(re, im) {
  /** @type {Float64Array[]} */
  let [toRe, toIm] = [new Float64Array(FFT), new Float64Array(FFT)];
  let done = 1; // the length of the transforms so far
  for (const factor of FACTORS) {
    const before = FFT / done;
    const after = before / factor;
    for (let k = 0; k < done * factor; k++) {
      const to = k * after;
      toRe.fill(0, to, to + after);
      toIm.fill(0, to, to + after);
      for (let q = 0; q < factor; q++) {
        const turn = (q * k * after) % FFT;
        const [cos, sin] = [COS[turn], SIN[turn]];
        const from = (k % done) * before + q * after;
        for (let j = 0; j < after; j++) {
          toRe[to + j] += re[from + j] * cos + im[from + j] * sin;
          toIm[to + j] += im[from + j] * cos - re[from + j] * sin;
        }
      }
    }
    done *= factor;
    [re, im, toRe, toIm] = [toRe, toIm, re, im];
  }
  return [re, im];
}

/**
 * The powers of the two real signals in a transform.
 * @param {Float64Array} re @param {Float64Array} im
 */
function powers(re, im) {
  const bins = FFT / 2 + 1;
  const [one, other] = [new Float64Array(bins), new Float64Array(bins)];
  for (let k = 0; k < bins; k++) {
    const mirror = (FFT - k) % FFT;
    one[k] = ((re[k] + re[mirror]) ** 2 + (im[k] - im[mirror]) ** 2) / 4;
    other[k] = ((im[k] + im[mirror]) ** 2 + (re[mirror] - re[k]) ** 2) / 4;
  }
  return [one, other];
}

/** @param {Float64Array} power @param {Filter[]} bank @param {Float32Array} out */
function weigh(power, bank, out) {
  bank.forEach(({ first, weights }, m) => {
    let sum = 0;
    for (let k = 0; k < weights.length; k++) sum += power[first + k] * weights[k];
    out[m] = Math.log10(Math.max(FLOOR, sum));
  });
}

/** @typedef {{first: number, weights: Float64Array}} Filter a triangle, from a bin on */

const PER_LOG = 27 / Math.log(6.4);
const TOP = 15 + Math.log(8) * PER_LOG; // 8000 Hz in mels: Slaney's scale

/** Triangles of equal area. @param {number} mels @returns {Filter[]} */
function filters(mels) {
  const edges = Array.from({ length: mels + 2 }, (_, n) => {
    const mel = (TOP * n) / (mels + 1);
    return mel < 15 ? (200 * mel) / 3 : 1000 * Math.exp((mel - 15) / PER_LOG);
  });
  const width = RATE / FFT; // of a bin in Hz
  return Array.from({ length: mels }, (_, m) => {
    const [low, middle, high] = edges.slice(m, m + 3);
    const first = Math.floor(low / width) + 1;
    const count = Math.max(0, Math.ceil(high / width) - first);
    const weights = Float64Array.from({ length: count }, (_, k) => {
      const hz = (first + k) * width;
      const part = Math.min((hz - low) / (middle - low), (high - hz) / (high - middle));
      return (Math.max(0, part) * 2) / (high - low);
    });
    return { first, weights };
  });
}
