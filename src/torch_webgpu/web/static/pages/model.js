/** Any other model of this folder: what it takes and returns, and how to use it. */

import { $, make, openModel } from "./gate.js";

const model = await openModel();
const tensor = ({ name, dtype, shape }) => `${name}: ${dtype} [${shape.join(", ")}]`;
const rows = Object.entries(model.plans).map(([name, { inputs, outputs, dispatches }]) =>
  make(
    "tr",
    {},
    make("th", { scope: "row", text: name }),
    ...[inputs, outputs].map((all) => make("td", {}, ...all.map((t) => make("div", { text: tensor(t) })))),
    make("td", { className: "number", text: String(dispatches.length) }),
  ),
);
$("plans").replaceChildren(...rows);
const [{ inputs, outputs }] = Object.values(model.plans);
const given = inputs.map(({ name, shape }) => `${name}: { data: ${name}, shape: [${shape.join(", ")}] }`).join(", ");
$("code").textContent = `import { load } from "./runtime/index.js";

const model = await load("./");
const outputs = await model.run({ ${given} });
console.log(outputs["${outputs[0]?.name}"].data);`;
addEventListener("pagehide", () => model.dispose());
$("work").hidden = false;
