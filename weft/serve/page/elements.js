// Small parts that pages are made of.

const SAID_SECONDS = 1.5; // for which a button says what it did

/** @param {string} kind @param {(Node | string)[]} inside @returns {HTMLElement} */
export function element(kind, ...inside) {
  const made = document.createElement(kind);
  made.append(...inside);
  return made;
}

/** A button that copies a text and says so. @param {string} text */
export function copier(text) {
  const made = element("button", "Copy");
  made.addEventListener("click", async () => {
    made.textContent = await copied(text) ? "Copied" : "Not copied";
    setTimeout(() => (made.textContent = "Copy"), SAID_SECONDS * 1000);
  });
  return made;
}

/** @param {string} text */
async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch { // no clipboard without TLS, or it is denied: the old way
    const field = /** @type {HTMLTextAreaElement} */ (element("textarea"));
    field.value = text;
    document.body.append(field);
    field.select();
    const done = document.execCommand("copy");
    field.remove();
    return done;
  }
}
