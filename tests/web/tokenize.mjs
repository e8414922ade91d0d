// The player's tokenizer on cases from stdin: {js, files: [{json, how, texts, ids}]} -> answers.
import { readFileSync } from "node:fs";

const { js, files } = JSON.parse(readFileSync(0, "utf8"));
const { Tokenizer } = await import(`${js}/tokenizer.js`);
const { StreamDecoder } = await import(`${js}/text.js`);

const streamed = (tokenizer, ids) => {
  const stream = new StreamDecoder((part) => tokenizer.decode(part));
  return [...ids.map((id) => stream.push(id)), stream.flush()];
};

console.log(JSON.stringify(files.map(({ json, how, texts, ids }) => {
  const tokenizer = new Tokenizer(JSON.parse(json), how);
  return {
    encoded: texts.map((text) => tokenizer.encode(text)),
    decoded: ids.map((each) => [true, false].map((skip) => tokenizer.decode(each, skip))),
    streamed: ids.map((each) => streamed(tokenizer, each)),
  };
})));
