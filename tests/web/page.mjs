/** Cases in a browser: results are posted one by one, then a last word. */

import { check } from "./pages/check.js";
import { load } from "./runtime/index.js";
import { runCases } from "./cases.mjs";

const tell = (body) => fetch("result", { method: "POST", body: JSON.stringify(body) });

addEventListener("unhandledrejection", ({ reason }) => tell(["failed", String(reason?.stack ?? reason)]));
try {
  const cases = await (await fetch("cases.json")).json();
  const base = new URL(".", location.href).href;
  await runCases(cases, { load, base, check }, (name, results, ms) => tell([name, results, ms]));
  await tell(["done"]);
} catch (error) {
  await tell(["failed", String(error.stack ?? error)]);
}
