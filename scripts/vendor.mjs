// Bundles the tokenizer's libraries, with their licences, into one module that pages and exported models take along.

import { readFile } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const root = fileURLToPath(new URL("..", import.meta.url));
const packages = ["@huggingface/tokenizers", "@huggingface/jinja"];

const licences = await Promise.all(
  packages.map(async (name) => {
    const { version } = JSON.parse(await readFile(`${root}node_modules/${name}/package.json`, "utf8"));
    return `${name} ${version}\n\n${await readFile(`${root}node_modules/${name}/LICENSE`, "utf8")}`;
  }),
);

await build({
  stdin: {
    contents: 'export { Tokenizer } from "@huggingface/tokenizers"; export { Template } from "@huggingface/jinja";',
    resolveDir: root,
  },
  bundle: true,
  format: "esm",
  target: "es2022",
  minify: true,
  banner: { js: `/*!\n${licences.join("\n\n").replaceAll("*/", "* /")}\n*/` },
  outfile: `${root}src/torch_webgpu/web/static/vendor/tokenizer.js`,
});
