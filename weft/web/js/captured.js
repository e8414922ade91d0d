// The camera or the microphone, where the browser gives it to the page.

import { WeftError } from "./weft.js";

/**
 * @param {"camera" | "microphone"} name @param {MediaStreamConstraints} wanted
 * @param {string} instead what else may be chosen @returns {Promise<MediaStream>}
 */
export async function captured(name, wanted, instead) {
  if (!navigator.mediaDevices) {
    throw new WeftError(`the browser gives no ${name} to this page: open it by https`);
  }
  return navigator.mediaDevices.getUserMedia(wanted).catch((error) => {
    throw new WeftError(error.name === "NotAllowedError"
      ? `this page may not use the ${name}: allow it, then try again`
      : `no ${name} was found (${error.message}): plug one in, or choose ${instead}`,
    { cause: error });
  });
}
