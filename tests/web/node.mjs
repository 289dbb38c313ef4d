/** Cases in Node: `node node.mjs FOLDER`, where the folder holds cases.json and the bundles. Writes a line of JSON a case. */

import { readFileSync, writeSync } from "node:fs";
import { create } from "webgpu";
import { check } from "../../src/torch_webgpu/web/static/pages/check.js";
import { load } from "../../src/torch_webgpu/web/static/runtime/index.js";
import { runCases } from "./cases.mjs";

const folder = `${process.argv[2]}/`;
const gpu = create([]);
if (!(await gpu.requestAdapter())) process.exit(3);
const cases = JSON.parse(readFileSync(`${folder}cases.json`, "utf8"));
await runCases(cases, { load, base: folder, gpu, check }, (name, results, ms) => {
  writeSync(1, `${JSON.stringify([name, results, ms])}\n`);
});
process.exit(0); // the device would keep it going
