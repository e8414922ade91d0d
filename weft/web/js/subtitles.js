// Transcripts as SRT, WebVTT and plain lines (weft/audio/subtitles.py).

/** @typedef {{start: number, end: number, text: string}} Timed times in seconds */

/** A time as hh:mm:ss.mmm. @param {number} seconds @param {string} [point] */
export function clock(seconds, point = ".") {
  const whole = Math.round(seconds * 1000);
  const two = (/** @type {number} */ n) => String(Math.floor(n)).padStart(2, "0");
  const parts = [whole / 3_600_000, (whole / 60_000) % 60, (whole / 1000) % 60].map(two);
  return `${parts.join(":")}${point}${String(whole % 1000).padStart(3, "0")}`;
}

/** A text that cannot be taken for the arrow of a cue or its end. @param {string} text */
const plain = (text) => text.split(/\s+/).filter(Boolean).join(" ").replaceAll("-->", "->");

/** @type {Record<string, (pieces: Timed[]) => string>} the text of a file, by its ending */
export const FORMS = {
  txt: (pieces) => pieces.map(({ text }) => `${text.trim()}\n`).join(""),
  srt: (pieces) => pieces.map(({ start, end, text }, n) =>
    `${n + 1}\n${clock(start, ",")} --> ${clock(end, ",")}\n${plain(text)}\n`).join("\n"),
  vtt: (pieces) => `WEBVTT\n${pieces.map(({ start, end, text }) =>
    `\n${clock(start)} --> ${clock(end)}\n${plain(text)}\n`).join("")}`,
};
