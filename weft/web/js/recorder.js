// The microphone's samples on the audio thread, sent to the page in blocks.

/** @type {any} what only an audio thread has */
const { AudioWorkletProcessor: Processor, registerProcessor: register } = globalThis;
const BLOCK = 4096;

class Recorder extends Processor {
  constructor() {
    super();
    this.block = new Float32Array(BLOCK);
    this.count = 0;
    this.ended = false;
    this.port.onmessage = () => {
      this.ended = true;
      this.send();
      this.port.postMessage(null);
    };
  }

  send() {
    this.port.postMessage(this.block.slice(0, this.count));
    this.count = 0;
  }

  /** @param {Float32Array[][]} inputs its one input, channel by channel */
  process([channels]) {
    const length = channels[0]?.length ?? 0;
    for (let n = 0; n < length; n++) {
      const sum = channels.reduce((all, channel) => all + channel[n], 0);
      this.block[this.count++] = sum / channels.length;
      if (this.count === BLOCK) this.send();
    }
    return !this.ended;
  }
}

register("recorder", Recorder);
