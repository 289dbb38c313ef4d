/** Which browser this is, on which system, by what it tells of itself. */

const BRANDS = { "Google Chrome": "chrome", "Microsoft Edge": "edge", Opera: "opera", Brave: "brave" };
const AGENTS = [
  ["edge", /Edg(?:A|iOS)?\/([\d.]+)/],
  ["opera", /OPR\/([\d.]+)/],
  ["firefox", /(?:Firefox|FxiOS)\/([\d.]+)/],
  ["chrome", /(?:Chrome|CriOS)\/([\d.]+)/],
  ["safari", /Version\/([\d.]+).*Safari/],
];

let known;

/** Name and version. */
export function identify() {
  return known ?? guess();
}

function guess() {
  const brands = navigator.userAgentData?.brands ?? [];
  const brand = brands.find((b) => b.brand in BRANDS) ?? brands.find((b) => b.brand === "Chromium");
  if (brand) return { name: BRANDS[brand.brand] ?? "chromium", version: brand.version };
  for (const [name, pattern] of AGENTS) {
    const match = pattern.exec(navigator.userAgent);
    if (match) return { name, version: match[1] };
  }
  return { name: "unknown browser", version: "" };
}

/** Everything for the result file but what is measured. */
export async function environment() {
  let system = /\(([^)]*)\)/.exec(navigator.userAgent)?.[1] ?? navigator.platform;
  known = guess();
  try {
    const asked = ["fullVersionList", "platformVersion", "model"];
    const told = await navigator.userAgentData?.getHighEntropyValues(asked);
    if (told) {
      const full = told.fullVersionList?.find((b) => (BRANDS[b.brand] ?? b.brand.toLowerCase()) === known.name);
      if (full) known.version = full.version;
      system = [told.platform, told.platformVersion, told.model].filter(Boolean).join(" ");
    }
  } catch {
    // the browser keeps it to itself
  }
  return {
    ...known,
    user_agent: navigator.userAgent,
    system,
    mobile: navigator.userAgentData?.mobile ?? /Mobile|Android|iPhone|iPad/.test(navigator.userAgent),
    isolated: globalThis.crossOriginIsolated === true,
  };
}
