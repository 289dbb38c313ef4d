import js from "@eslint/js";
import globals from "globals";

const gpu = ["GPUBufferUsage", "GPUMapMode"];

export default [
  { ignores: ["src/torch_webgpu/web/static/vendor"] },
  js.configs.recommended,
  {
    languageOptions: {
      globals: { ...globals.browser, ...Object.fromEntries(gpu.map((name) => [name, "readonly"])) },
    },
    rules: { eqeqeq: "error", "no-var": "error", "prefer-const": "error", "no-console": "error" },
  },
  {
    files: ["src/torch_webgpu/web/static/runtime/*.js", "scripts/*.mjs", "tests/**/*.mjs"],
    languageOptions: { globals: globals.node },
  },
];
