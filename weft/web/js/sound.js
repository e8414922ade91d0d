// Sound as a model of speech takes it, from a file or the microphone: one channel at 16 kHz.

import { captured } from "./captured.js";
import { WeftError } from "./weft.js";

export const RATE = 16000;
const BYTES = 200 * 2 ** 20; // of a file
const SECONDS = 3600; // of a sound: an hour takes 0.4 GB of memory

/**
 * The samples of a file, whatever the browser plays.
 * @param {File} file @returns {Promise<Float32Array>}
 */
export async function decoded(file) {
  const { name, size } = file;
  if (!size) throw new WeftError(`${name} is empty: choose a file with sound`);
  if (size > BYTES) throw new WeftError(`${name} has ${size >> 20} MiB; expected 200 at most`);
  const context = new OfflineAudioContext(1, 1, RATE);
  const buffer = await context.decodeAudioData(await file.arrayBuffer()).catch((error) => {
    throw new WeftError(`the browser finds no sound in ${name}: choose a WAV, MP3, M4A, OGG or `
      + "FLAC file", { cause: error });
  });
  if (!buffer.length) throw new WeftError(`${name} has no samples: choose a file with sound`);
  if (buffer.duration > SECONDS) {
    throw new WeftError(`${name} lasts ${(buffer.duration / 60).toFixed(0)} minutes: cut it into `
      + `parts of ${SECONDS / 60} minutes at most`);
  }
  return mean(buffer);
}

/** The mean of the channels. @param {AudioBuffer} buffer */
function mean(buffer) {
  const out = buffer.getChannelData(0);
  const count = buffer.numberOfChannels;
  for (let c = 1; c < count; c++) {
    buffer.getChannelData(c).forEach((value, n) => (out[n] += value));
  }
  return count > 1 ? out.map((value) => value / count) : out;
}

/**
 * Samples of another rate at 16 kHz.
 * @param {Float32Array<ArrayBuffer>} samples @param {number} rate
 */
async function resampled(samples, rate) {
  if (rate === RATE) return samples;
  const size = Math.ceil((samples.length * RATE) / rate);
  const context = new OfflineAudioContext(1, size, RATE);
  const buffer = context.createBuffer(1, samples.length, rate);
  buffer.copyToChannel(samples, 0);
  const source = new AudioBufferSourceNode(context, { buffer });
  source.connect(context.destination);
  source.start();
  return (await context.startRendering()).getChannelData(0);
}

/** A recording of the microphone. */
export class Recording {
  /**
   * Asks for the microphone, and starts.
   * @param {(level: number) => void} heard gets the loudness of each block, 0 to 1
   */
  static async begin(heard) {
    const stream = await captured("microphone", { audio: true }, "a file");
    const context = new AudioContext();
    await context.audioWorklet.addModule(new URL("./recorder.js", import.meta.url));
    return new Recording(stream, context, heard);
  }

  /**
   * @param {MediaStream} stream @param {AudioContext} context
   * @param {(level: number) => void} heard
   */
  constructor(stream, context, heard) {
    this.stream = stream;
    this.context = context;
    /** @type {Float32Array[]} what has come, from second `first` on */
    this.blocks = [];
    this.first = 0;
    this.node = new AudioWorkletNode(context, "recorder", { numberOfOutputs: 0 });
    context.createMediaStreamSource(stream).connect(this.node);
    let ended = () => {};
    /** @type {Promise<void>} when the last samples have come */
    this.over = new Promise((done) => (ended = done));
    this.node.port.onmessage = ({ data }) => {
      if (!data) {
        for (const track of stream.getTracks()) track.stop();
        context.close();
        return ended();
      }
      this.blocks.push(data);
      heard(Math.sqrt(data.reduce((/** @type {number} */ a, /** @type {number} */ x) =>
        a + x * x, 0) / Math.max(data.length, 1)));
    };
  }

  /** Seconds that have not been taken. */
  get waiting() {
    return this.blocks.reduce((sum, { length }) => sum + length, 0) / this.context.sampleRate;
  }

  /** What has not been taken, at 16 kHz; null if there is nothing. */
  async samples() {
    const all = this.joined();
    return all.length ? resampled(all, this.context.sampleRate) : null;
  }

  /** Drops what a model has heard. @param {number} seconds from the first one on */
  taken(seconds) {
    this.blocks = [this.joined().slice(Math.round(seconds * this.context.sampleRate))];
    this.first += seconds;
  }

  joined() {
    const all = new Float32Array(this.blocks.reduce((sum, { length }) => sum + length, 0));
    let at = 0;
    for (const block of this.blocks) {
      all.set(block, at);
      at += block.length;
    }
    return all;
  }

  /** Ends it. */
  stop() {
    this.node.port.postMessage("stop");
  }
}
