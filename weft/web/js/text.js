// New tokens as text: whole characters only, up to a stop string (weft/models/run/generate.py).

const BROKEN = "\ufffd";
const HELD = 3; // signs of incomplete bytes that may still become a character

/** Text of tokens as they come; what is incomplete waits. */
export class StreamDecoder {
  /** @param {(ids: number[]) => string} decode */
  constructor(decode) {
    this.decode = decode;
    /** @type {number[]} */
    this.ids = [];
    this.context = 0; // ids from here are decoded together
    this.done = 0; // ids before here end in whole characters, all sent
    this.sent = 0; // characters of the decoded part that have been sent
    this.before = 0; // characters that were sent before the decoded part
    this.pending = ""; // the decoded part before the last token, if its end is incomplete
    this.start = 0; // where the last token's text begins in the whole
  }

  /** @param {number} token @returns {string} the text that the token completes */
  push(token) {
    this.ids.push(token);
    const now = this.decode(this.ids.slice(this.context));
    const whole = trimmed(now).length;
    this.start = this.before + this.begun(now, whole);
    this.pending = whole < now.length ? now : "";
    if (whole === now.length) {
      const fresh = this.take(now, whole);
      if (fresh) {
        const total = this.before + this.sent;
        [this.context, this.done] = [this.done, this.ids.length];
        this.sent = this.decode(this.ids.slice(this.context)).length;
        this.before = total - this.sent;
      }
      return fresh;
    }
    const pending = this.decode(this.ids.slice(this.done));
    const broken = pending.length - trimmed(pending).length > HELD;
    return this.take(now, broken ? now.length - HELD : whole);
  }

  /**
   * Where the last token's text begins in the decoded part: after incomplete characters that it
   * shows to be broken.
   * @param {string} now @param {number} whole
   */
  begun(now, whole) {
    const { pending, sent } = this;
    if (whole < now.length || !pending) return sent;
    let same = 0;
    while (same < pending.length && pending[same] === now[same]) same++;
    return Math.max(same, sent);
  }

  /** @returns {string} what is left at the end */
  flush() {
    const now = this.decode(this.ids.slice(this.context));
    return this.take(now, now.length);
  }

  /** @param {string} now @param {number} stop */
  take(now, stop) {
    const fresh = now.slice(this.sent, stop);
    this.sent = Math.max(this.sent, stop);
    return fresh;
  }
}

/** @param {string} text */
const trimmed = (text) => text.replace(new RegExp(`${BROKEN}+$`), "");

/** Holds back what could be the beginning of a stop string, and ends at one. */
export class Stops {
  /** @param {string[]} stops */
  constructor(stops) {
    this.stops = stops;
    this.held = "";
    this.stopped = false;
  }

  /** @param {string} fresh @param {boolean} [last] @returns {string} what may be shown */
  push(fresh, last = false) {
    if (this.stopped) return "";
    const whole = this.held + fresh;
    const found = this.stops.map((s) => whole.indexOf(s)).filter((at) => at >= 0);
    if (found.length) {
      this.stopped = true;
      this.held = "";
      return whole.slice(0, Math.min(...found));
    }
    const keep = last ? 0 : this.overlap(whole);
    this.held = whole.slice(whole.length - keep);
    return whole.slice(0, whole.length - keep);
  }

  /** @param {string} whole how many characters at its end a stop string could begin with */
  overlap(whole) {
    const most = Math.max(0, ...this.stops.map((s) => s.length - 1));
    for (let n = Math.min(most, whole.length); n > 0; n--) {
      if (this.stops.some((s) => s.startsWith(whole.slice(-n)))) return n;
    }
    return 0;
  }
}
