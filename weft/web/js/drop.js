// A place for a file: dropped, chosen or pasted.

import { element } from "./fetching.js";

/**
 * Makes the place in a panel; `take` gets each file.
 * @param {HTMLElement} panel where a file may be dropped
 * @param {{id: string, accept: string, title: string, hint: string}} about
 * @param {(file: File) => void} take @returns {HTMLElement}
 */
export function dropPlace(panel, { id, accept, title, hint }, take) {
  const input = element("input", { id, type: "file", accept });
  const place = element("label", { className: "drop", htmlFor: id },
    element("strong", { textContent: title }), element("span", { textContent: hint }), input);
  input.addEventListener("change", () => {
    const [file] = input.files;
    input.value = ""; // the same file may be chosen again
    if (file) take(file);
  });
  for (const kind of ["dragover", "dragleave", "drop"]) {
    panel.addEventListener(kind, (event) => {
      event.preventDefault();
      place.classList.toggle("over", kind === "dragover");
    });
  }
  const first = (/** @type {DataTransfer | null} */ data) => data?.files[0] && take(data.files[0]);
  panel.addEventListener("drop", ({ dataTransfer }) => first(dataTransfer));
  panel.addEventListener("paste", ({ clipboardData }) => first(clipboardData));
  return place;
}
