import js from "@eslint/js";
import globals from "globals";

const gpu = ["GPUBufferUsage", "GPUMapMode"];

export default [
  js.configs.recommended,
  {
    languageOptions: {
      globals: { ...globals.browser, ...Object.fromEntries(gpu.map((name) => [name, "readonly"])) },
    },
    rules: { eqeqeq: "error", "no-var": "error", "prefer-const": "error", "no-console": "error" },
  },
];
