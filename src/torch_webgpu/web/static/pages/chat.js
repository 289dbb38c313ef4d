/** A chat with the language model of this folder. */

import { check } from "./check.js";
import { $, duration, fault, make, openModel } from "./gate.js";

const IDEAS = ["Explain gravity to a child.", "Write a short poem about the sea.", "What is the capital of France?"];

const CHECK_MS = 3000; // a person waits for it

const log = $("log");
/** @type {{role: string, content: string}[]} */
let messages = [];
/** @type {AbortController | null} */
let running = null;
let isFollowing = true;
let isChecking = false;

const model = await openModel();

/** A turn of the conversation, shown. */
function turn(role, text) {
  const content = make("div", { className: "text", text });
  const made = make("article", { className: `turn ${role}`, "aria-label": role === "user" ? "You" : "Model" }, content);
  log.append(made);
  $("hello").hidden = true;
  isFollowing = true;
  follow();
  return { made, content };
}

function follow() {
  if (isFollowing) log.scrollTop = log.scrollHeight;
}

function number(id) {
  const value = $(id).valueAsNumber;
  return Number.isFinite(value) ? value : undefined;
}

/** How the person wants tokens to be chosen. */
function options() {
  const chosen = { maxNewTokens: number("most") ?? 512, temperature: number("temperature"), topP: number("top-p") };
  const { defaults, top_k: most } = model.language;
  const topK = defaults.top_k && Math.min(defaults.top_k, most);
  return { ...chosen, seed: number("seed"), topK, reuse: true };
}

function prompt() {
  if (!model.tokenizer.chats) return messages.map((m) => m.content).join("\n");
  const system = $("system").value.trim();
  return system ? [{ role: "system", content: system }, ...messages] : messages;
}

function measured({ tokens, tokensPerSecond, firstMs, end }) {
  const rate = tokens > 1 ? ` · ${tokensPerSecond.toFixed(1)} tokens/s` : "";
  const ends = { full: " · the context is full", length: " · as long as asked for", stopped: " · stopped", token: "" };
  return `${tokens} ${tokens === 1 ? "token" : "tokens"}${rate} · first after ${duration(firstMs)}${ends[end]}`;
}

async function answer() {
  const { made, content } = turn("assistant", "");
  made.setAttribute("aria-busy", "true");
  running = new AbortController();
  show();
  try {
    for await (const { text } of model.generate(prompt(), { ...options(), signal: running.signal })) {
      content.append(text);
      const { tokens, tokensPerSecond } = model.statistics;
      $("rate").textContent = tokens > 1 ? `${tokensPerSecond.toFixed(1)} tokens/s` : "";
      follow();
    }
  } catch (error) {
    if (error.name !== "AbortError") made.append(make("div", { className: "card warn" }, ...fault(error).slice(1)));
  }
  if (model.statistics?.tokens) made.append(make("p", { className: "measured", text: measured(model.statistics) }));
  made.removeAttribute("aria-busy");
  messages.push({ role: "assistant", content: content.textContent });
  running = null;
  show();
  follow();
}

function send() {
  const text = $("prompt").value.trim();
  if (!text || running || isChecking) return;
  $("prompt").value = "";
  messages.push({ role: "user", content: text });
  turn("user", text);
  answer();
}

/** The buttons as they are now. */
function show() {
  $("send").textContent = running ? "Stop" : "Send";
  $("send").classList.toggle("quiet", Boolean(running));
  $("send").disabled = isChecking || (!running && !$("prompt").value.trim());
  $("check").disabled = isChecking || Boolean(running);
  $("fresh").hidden = !messages.length;
}

$("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  if (running) running.abort();
  else send();
});
$("prompt").addEventListener("input", show);
$("prompt").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  send();
});
addEventListener("keydown", (event) => {
  if (event.key === "Escape") running?.abort();
});
log.addEventListener("scroll", () => (isFollowing = log.scrollHeight - log.scrollTop - log.clientHeight < 40));
$("fresh").addEventListener("click", () => {
  running?.abort();
  messages = [];
  log.replaceChildren();
  $("hello").hidden = false;
  show();
  $("prompt").focus();
});
$("options").addEventListener("click", () => {
  $("settings").hidden = !$("settings").hidden;
  $("options").setAttribute("aria-expanded", String(!$("settings").hidden));
});
$("settings").addEventListener("submit", (event) => event.preventDefault());
addEventListener("pagehide", () => model.dispose());

const { defaults, length } = model.language;
$("temperature").value = String(defaults.temperature ?? 0.2);
$("top-p").value = String(defaults.top_p ?? 0.9);
$("where").textContent = `in this browser · ${length} tokens of context`;
for (const text of IDEAS) {
  const button = make("button", { type: "button", className: "quiet", text });
  button.addEventListener("click", () => {
    $("prompt").value = text;
    send();
  });
  $("ideas").append(make("li", {}, button));
}
/** Says whether this browser computes what PyTorch computed. */
async function tellChecked(limit) {
  isChecking = true;
  show();
  $("checked").textContent = "Comparing …";
  try {
    const { verdict, at, of } = await check(model, limit);
    $("check").hidden = verdict !== "slow";
    $("checked").textContent = { right: `✓ ${of} tokens as in PyTorch`, wrong: "computes wrongly" }[verdict] ?? "";
    if (verdict === "wrong") {
      const { adapter, backend, variant } = model.info;
      const text = `Token ${at} of ${of} is not the one that PyTorch computed, so answers here will be wrong.`;
      const report = `Please report it with: ${[adapter, backend, variant].filter(Boolean).join(", ")}; ${navigator.userAgent}`;
      const told = [
        make("h2", { text: "This browser computes wrongly." }),
        make("p", { text }),
        make("p", { text: report }),
      ];
      log.before(make("section", { className: "card wrong", role: "alert" }, ...told));
    }
  } catch (error) {
    $("checked").textContent = error.message;
  }
  isChecking = false;
  show();
}

$("check").addEventListener("click", () => tellChecked());
if (!model.language.check) $("check").hidden = true;
else if (!model.info.software) await tellChecked(CHECK_MS);

for (const id of ["composer", "hello", "options"]) $(id).hidden = false;
show();
$("prompt").focus();
