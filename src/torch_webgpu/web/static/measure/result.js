/** The result file: what schema.py of torch_webgpu/bench checks, with the digest that it compares. */

/**
 * @param {object} plan
 * @param {object} browser of the environment
 * @param {object} target
 * @param {object[]} measurements
 * @param {string[]} notes
 */
export async function resultOf(plan, browser, target, measurements, notes) {
  const run = {
    schema_version: plan.schema_version,
    run: crypto.randomUUID().replaceAll("-", ""),
    created: new Date().toISOString(),
    command: plan.command,
    origin: "measured",
    complete: true,
    environment: {
      system: browser.system,
      cpu: "not told by the browser",
      cores: navigator.hardwareConcurrency ?? null,
      memory: null,
      versions: { torch_webgpu: plan.version, [browser.name]: browser.version },
      load: null,
      governor: null,
      variables: {},
      browser,
    },
    targets: [target],
    measurements,
    notes,
  };
  return { ...run, digest: await digest(run) };
}

async function digest(content) {
  const bytes = new TextEncoder().encode(canonical(content));
  const hash = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
  return Array.from(hash, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** JSON as Python's json.dumps writes it: keys in order, no spaces, ASCII alone. */
export function canonical(value) {
  if (Array.isArray(value)) return `[${value.map(canonical).join(",")}]`;
  if (typeof value === "number") return number(value);
  if (typeof value === "string") return text(value);
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  const members = Object.keys(value).sort();
  return `{${members.map((key) => `${text(key)}:${canonical(value[key])}`).join(",")}}`;
}

const text = (string) =>
  JSON.stringify(string).replace(/[\u007f-\uffff]/g, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`);

/** Python turns to exponents earlier, and writes them with two digits. */
function number(value) {
  const size = Math.abs(value);
  if (Number.isInteger(value) ? size < 1e21 : size >= 1e-4) return JSON.stringify(value);
  return value.toExponential().replace(/e([+-])(\d)$/, "e$10$2");
}
