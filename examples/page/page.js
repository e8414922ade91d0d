// A page of one's own around an exported model: the API is that of the package (docs/browser.md).
import { load } from "./model/weft.js";

const names = ["text", "go", "stop", "says"];
const [text, go, stop, says] = names.map((id) => document.getElementById(id));
const megabytes = (bytes) => (bytes / 1e6).toFixed(1);
let model, abort;

async function write() {
  abort = new AbortController();
  go.disabled = true;
  stop.disabled = false;
  const begun = performance.now();
  let count = 0;
  try {
    const pieces = model.generate(text.value, { maxNewTokens: 60, signal: abort.signal });
    for await (const { text: more, ids } of pieces) {
      text.value += more;
      count += ids.length;
    }
    const seconds = ((performance.now() - begun) / 1000).toFixed(1);
    says.textContent = `${count} tokens in ${seconds} s on ${model.about.target}`;
  } catch (error) {
    says.textContent = error.message;
  }
  go.disabled = false;
  stop.disabled = true;
}

go.addEventListener("click", write);
stop.addEventListener("click", () => abort.abort());
try {
  model = await load("./model", {
    progress: ({ loaded, total }) => {
      says.textContent = `${megabytes(loaded)} of ${megabytes(total)} MB`;
    },
  });
  says.textContent = `Ready on ${model.about.target}.`;
  go.disabled = false;
} catch (error) {
  says.textContent = error.message;
}
