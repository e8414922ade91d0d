// ?selftest: what this device makes of every kernel, as a table and as JSON to copy.

import { copy, element, home } from "./fetching.js";
import { selftest } from "./weft.js";

const HEADS = ["Kernel", "Largest error", "Allowed", "ms", "Right"];

/**
 * @param {HTMLElement} section @param {"auto" | "webgpu" | "wasm"} target
 * @param {(loaded: number, total: number) => void} counted
 */
export async function testPage(section, target, counted) {
  const begun = performance.now();
  const report = await selftest(home, { target, progress: (p) => counted(p.loaded, p.total) });
  const all = {
    ...report, seconds: (performance.now() - begun) / 1000, browser: navigator.userAgent,
  };
  const wrong = report.kernels.filter((/** @type {any} */ k) => !k.ok).length;
  const where = report.target === "webgpu" ? "WebGPU" : "WebAssembly";
  const verdict = wrong
    ? `${wrong} of ${report.kernels.length} kernels are wrong on ${where} here.`
    : `All ${report.kernels.length} kernels are right on ${where}.`;
  const button = element("button", { type: "button" }, "Copy as JSON");
  const said = element("span", { role: "status" });
  button.onclick = () => copy(JSON.stringify(all, null, 2), said);
  const rows = report.kernels.map((/** @type {any} */ k) => element("tr", {},
    element("th", { scope: "row", title: k.kernel },
      (k.label || k.kernel).replaceAll("+", "+\u200b")),
    element("td", {}, k.message ?? k.error.toExponential(1)),
    element("td", {}, k.allowed.toExponential(1)),
    element("td", {}, k.ms.toFixed(1)),
    element("td", { className: k.ok ? "" : "bad" }, k.ok ? "yes" : "no")));
  section.replaceChildren(
    element("h2", { className: wrong ? "bad" : "" }, verdict),
    element("p", {}, `Chosen because: ${report.why}. Each kernel ran once, on a few of its groups, `
      + "beside what weft's interpreter gave when the page was written."),
    element("div", { className: "row" }, button, said,
      element("a", { href: "./" }, "Back to the model")),
    element("div", { className: "wide", tabIndex: 0 },
      element("table", {},
        element("thead", {}, element("tr", {}, ...HEADS.map((text) =>
          element("th", { scope: "col" }, text)))),
        element("tbody", {}, ...rows))),
    element("details", {}, element("summary", {}, "The report"),
      element("pre", { tabIndex: 0 }, JSON.stringify(all, null, 2))));
  section.hidden = false;
  document.body.dataset.state = wrong ? "wrong" : "tested";
}
