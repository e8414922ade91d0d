// Compiles every WGSL file of a folder with Tint (Dawn's null backend) and prints what it says.
const fs = require("fs"), path = require("path");
const folder = process.argv[2];

(async () => {
  const { create } = await import(require.resolve("webgpu"));
  globalThis.gpu = create(["backend=null"]); // once collected, nothing that was asked is answered
  const adapter = await gpu.requestAdapter();
  const requiredFeatures = ["shader-f16", "subgroups"].filter((f) => adapter.features.has(f));
  const names = ["maxStorageBuffersPerShaderStage", "maxComputeInvocationsPerWorkgroup",
    "maxComputeWorkgroupSizeX", "maxComputeWorkgroupStorageSize"];
  const requiredLimits = Object.fromEntries(names.map((n) => [n, adapter.limits[n]]));
  const device = await adapter.requestDevice({ requiredFeatures, requiredLimits });
  for (const file of fs.readdirSync(folder)) {
    const code = fs.readFileSync(path.join(folder, file), "utf8");
    device.pushErrorScope("validation");
    const module = device.createShaderModule({ code });
    device.createComputePipeline({ layout: "auto", compute: { module, entryPoint: "main" } });
    const error = await device.popErrorScope();
    if (error) console.log(`${file}: ${error.message.replaceAll("\n", " | ")}`);
  }
  console.log("done");
  process.exit(0);
})();
