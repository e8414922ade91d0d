// The declarations say what the sources do: each export of the sources fits what is declared.
import type * as declaredNode from "./types/node.js";
import type * as declaredPipeline from "./types/pipeline.js";
import type * as declared from "./types/weft.js";
import * as node from "./node.js";
import * as piped from "./pipeline.js";
import * as page from "./weft.js";

type Same<A, B> = keyof A extends keyof B ? (keyof B extends keyof A ? true : false) : false;

export const load: typeof declared.load = page.load;
export const describe: typeof declared.describe = page.describe;
export const selftest: typeof declared.selftest = page.selftest;
export const ranked: typeof declared.ranked = page.ranked as typeof declared.ranked;
export const loadInNode: typeof declaredNode.load = node.load as typeof declaredNode.load;
export const described: typeof declaredNode.describe = node.describe;
export const tested: typeof declaredNode.selftest = node.selftest as typeof declaredNode.selftest;
export const trainer: typeof declaredNode.trainer = node.trainer as unknown as typeof declaredNode.trainer;
export const inNode: Same<typeof declaredNode, typeof node> = true;
export const pipeline: typeof declaredPipeline.pipeline = piped.pipeline;
export const error: declared.WeftError = new page.WeftError("no");
export const names: Same<typeof declared, Omit<typeof page, "PageModel">> = true;
export const generate: Same<declared.GenerateOptions, import("./model.js").GenerateOptions> = true;
export const train: Same<declared.TrainOptions, import("./trainer.js").TrainOptions> = true;
export const piece: Same<declared.Piece, import("./model.js").Piece> = true;
export const step: Same<declared.Step, import("./trainer.js").Step> = true;
export const answer: Same<declared.Answer, import("./seen.js").Answer> = true;
export const hear: Same<declared.HearOptions, import("./speech.js").HearOptions> = true;
export const hearing: Same<declared.Hearing, import("./speech.js").Hearing> = true;
export const segment: Same<declared.Segment, import("./speech.js").Segment> = true;
