import { load } from "./weft.js";
const q = new URLSearchParams(location.search);
const out = document.getElementById("out");
const t = performance.now();
const model = await load("./", { target: q.get("target") ?? "auto", progress: (p) => { out.dataset.p = JSON.stringify(p); } });
out.dataset.about = JSON.stringify(model.about) + (performance.now() - t);
for await (const p of model.generate(q.get("prompt") ?? "def fibonacci(n):", { maxNewTokens: 24 })) out.textContent += p.text;
out.dataset.done = "1";
