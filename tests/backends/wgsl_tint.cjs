// Tint (Dawn's null backend) as a service: each line of stdin is the WGSL of a module as a JSON
// string; each line of stdout what it says against it, or null.
const readline = require("readline");

(async () => {
  const { create } = await import(require.resolve("webgpu"));
  globalThis.gpu = create(["backend=null"]); // once collected, nothing that was asked is answered
  const adapter = await gpu.requestAdapter();
  const requiredFeatures = ["shader-f16", "subgroups"].filter((f) => adapter.features.has(f));
  const names = ["maxStorageBuffersPerShaderStage", "maxComputeInvocationsPerWorkgroup",
    "maxComputeWorkgroupSizeX", "maxComputeWorkgroupStorageSize"];
  const requiredLimits = Object.fromEntries(names.map((n) => [n, adapter.limits[n]]));
  const device = await adapter.requestDevice({ requiredFeatures, requiredLimits });
  for await (const line of readline.createInterface({ input: process.stdin })) {
    device.pushErrorScope("validation");
    const code = JSON.parse(line);
    const module = device.createShaderModule({ code });
    const buffers = code.split("var<storage").length - 1;
    if (buffers <= device.limits.maxStorageBuffersPerShaderStage) // else of a roomier adapter
      device.createComputePipeline({ layout: "auto", compute: { module, entryPoint: "main" } });
    const error = await device.popErrorScope();
    console.log(JSON.stringify(error ? error.message : null));
  }
  process.exit(0);
})();
