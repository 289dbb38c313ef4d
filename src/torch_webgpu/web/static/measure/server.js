/** What the server that has started this page says, and what it is told. */

import { environment } from "./browser.js";
import { timerStep } from "./clock.js";

export const plan = await (await fetch("plan.json")).json();
export const browser = {
  ...(await environment()),
  timer_step: timerStep(),
  visible: document.visibilityState === "visible",
};
document.addEventListener("visibilitychange", () => (browser.visible &&= document.visibilityState === "visible"));

/** Tells the server. A page without one goes on. */
export async function tell(name, body) {
  if (!plan.post) return;
  const answer = await fetch(name, { method: "POST", body: typeof body === "string" ? body : JSON.stringify(body) });
  const said = await answer.text();
  if (!answer.ok) throw new Error(`the server did not take it: ${said}`);
}

/** What a reader has to know of figures that are measured here. */
export function circumstances(facts) {
  const notes = [];
  if (facts.software) notes.push("the adapter computes on the processor: no figure here is a GPU's");
  if (!browser.isolated) notes.push("the page was not cross-origin isolated, so the browser coarsened its clock");
  if (!browser.visible) notes.push("the page was in the background for a while, where browsers slow it down");
  return notes;
}
