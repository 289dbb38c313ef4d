/** The models that the server gives out. */

import { $, make, megabytes } from "./gate.js";

const KINDS = { chat: "Chat", classify: "Image classification", model: "Model" };

const models = await (await fetch("models.json")).json();
const card = ({ folder, name, kind, size }) =>
  make(
    "li",
    {},
    make(
      "a",
      { className: "card", href: `${folder}/` },
      make("strong", { text: name }),
      make("span", { text: KINDS[kind] }),
      make("span", { className: "quiet-text", text: `${megabytes(size)} on disk` }),
    ),
  );
$("models").replaceChildren(...models.map(card));
