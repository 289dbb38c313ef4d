/** Why WebGPU is missing, and what to switch on, browser by browser. */

const CHROMIUM_FLAGS = [
  "Update the browser: 113 and later have WebGPU on Windows, macOS and ChromeOS, 121 and later on Android 12 and later.",
  "On Linux, open chrome://flags, enable “Unsafe WebGPU Support” and “Vulkan”, and restart the browser.",
  "In its settings, under System, “Use graphics acceleration when available” has to be on. chrome://gpu shows what is in the way.",
];

const STEPS = {
  chrome: CHROMIUM_FLAGS,
  chromium: CHROMIUM_FLAGS,
  brave: CHROMIUM_FLAGS,
  opera: CHROMIUM_FLAGS,
  edge: CHROMIUM_FLAGS.map((step) => step.replaceAll("chrome://", "edge://")),
  firefox: [
    "Update the browser: 141 and later have WebGPU on Windows, 145 and later on macOS with Apple silicon.",
    "Elsewhere, open about:config, set dom.webgpu.enabled to true, and restart the browser.",
    "Where it then finds no adapter, set gfx.webgpu.ignore-blocklist to true as well. about:support shows what is in the way.",
  ],
  safari: [
    "Safari 26 has WebGPU on macOS 26, iOS 26 and iPadOS 26: update the system.",
    "Before that: on a Mac, Settings › Advanced › Show features for web developers, then Feature Flags › WebGPU; on iPhone and iPad, Settings › Apps › Safari › Advanced › Feature Flags › WebGPU.",
  ],
};

const ANY = ["Use a current Chrome, Edge, Firefox or Safari."];

const REASONS = {
  insecure: {
    title: "This address is not secure, so the browser hides WebGPU.",
    text: "WebGPU needs https, or an address on this very machine such as http://127.0.0.1.",
    steps: ["Open the https address that torch-webgpu bench browser --lan has printed."],
  },
  disabled: {
    title: "This browser has no WebGPU switched on.",
    text: "It is too old, or WebGPU is still behind a switch on this system.",
  },
  "no adapter": {
    title: "The browser finds no GPU for WebGPU.",
    text: "WebGPU is there, but no adapter: the GPU or its driver is blocked or missing, or the page runs without graphics.",
  },
  "no device": {
    title: "The GPU could not be opened.",
    text: "The browser found an adapter, but gave no device.",
    steps: ["Close other pages that use the GPU, reload this one, or restart the browser."],
  },
};

/**
 * @param {keyof REASONS} reason
 * @param {string} browser its name as in browser.js
 * @param {string} detail what the browser said
 */
export function help(reason, browser, detail = "") {
  const { title, text, steps } = REASONS[reason];
  return { title, text: [text, detail].filter(Boolean).join(" "), steps: steps ?? STEPS[browser] ?? ANY };
}
