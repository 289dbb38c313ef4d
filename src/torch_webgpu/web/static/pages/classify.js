/** What the image classifier of this folder sees in a picture, or in what the camera shows. */

import { $, duration, make, openModel } from "./gate.js";
import { normalised, scaled } from "./picture.js";

const BEST = 5;
const canvas = $("canvas");
canvas.width = canvas.height = 768;
const shown = canvas.getContext("2d");
shown.imageSmoothingQuality = "high";
/** @type {MediaStream | null} */
let stream = null;
let isBusy = false;

const model = await openModel();
const image = model.bundle.image;
const labels = await (await fetch(image.labels)).json();

/** Shows the middle of a picture, and returns all of it as the model's input. */
function look(picture, width, height) {
  const side = Math.min(width, height);
  shown.drawImage(picture, (width - side) / 2, (height - side) / 2, side, side, 0, 0, canvas.width, canvas.height);
  const whole = new OffscreenCanvas(width, height).getContext("2d", { willReadFrequently: true });
  whole.drawImage(picture, 0, 0);
  const pixels = scaled(whole.getImageData(0, 0, width, height), image.resize, image.size);
  return normalised(pixels, image.mean, image.deviation);
}

/** The likeliest classes with their probabilities. */
function best(scores) {
  const top = Math.max(...scores);
  const weights = Array.from(scores, (score) => Math.exp(score - top));
  const sum = weights.reduce((a, b) => a + b, 0);
  const order = weights.map((weight, i) => ({ name: labels[i] ?? `class ${i}`, share: weight / sum }));
  return order.sort((a, b) => b.share - a.share).slice(0, BEST);
}

function show(found) {
  const list = $("classes");
  while (list.children.length < found.length) {
    const line = make("div", { className: "line" }, make("span"), make("span", { className: "number" }));
    list.append(make("li", {}, line, make("div", { className: "track" }, make("div", { className: "fill" }))));
  }
  found.forEach(({ name, share }, i) => {
    const [line, track] = list.children[i].children;
    line.children[0].textContent = name;
    line.children[1].textContent = `${(100 * share).toFixed(share < 0.1 ? 1 : 0)} %`;
    track.children[0].style.width = `${100 * share}%`;
  });
}

async function classify(picture, width, height) {
  if (isBusy) return;
  isBusy = true;
  $("frame").classList.remove("empty");
  $("hint").hidden = true;
  const start = performance.now();
  try {
    const { [image.output]: scores } = await model.run({ [image.input]: look(picture, width, height) });
    show(best(scores.data));
    $("status").textContent = `${duration(performance.now() - start)} from picture to result`;
  } catch (error) {
    $("status").textContent = error.message;
  }
  isBusy = false;
}

async function openFile(file) {
  if (!file) return;
  stopCamera();
  $("status").textContent = "Looking…";
  try {
    const picture = await createImageBitmap(file);
    await classify(picture, picture.width, picture.height);
    picture.close();
  } catch {
    $("status").textContent = `${file.name || "This"} is no picture that the browser can read.`;
  }
}

function stopCamera() {
  stream?.getTracks().forEach((track) => track.stop());
  stream = null;
  $("camera").textContent = "Use the camera";
}

async function startCamera() {
  try {
    stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" } });
  } catch (error) {
    const why = error.name === "NotAllowedError" ? "The camera was not allowed." : "There is no camera here.";
    $("status").textContent = `${why} Choose a picture instead.`;
    return;
  }
  $("camera").textContent = "Stop the camera";
  const video = document.createElement("video");
  video.muted = video.playsInline = true;
  video.srcObject = stream;
  await video.play();
  const mine = stream;
  while (stream === mine && mine.active) {
    await classify(video, video.videoWidth, video.videoHeight);
    await new Promise(requestAnimationFrame);
  }
}

$("choose").addEventListener("click", () => $("file").click());
$("file").addEventListener("change", () => openFile($("file").files[0]));
$("camera").addEventListener("click", () => (stream ? stopCamera() : startCamera()));
addEventListener("paste", (event) => openFile(event.clipboardData?.files[0]));
addEventListener("dragover", (event) => {
  event.preventDefault();
  $("frame").classList.add("over");
});
addEventListener("dragleave", () => $("frame").classList.remove("over"));
addEventListener("drop", (event) => {
  event.preventDefault();
  $("frame").classList.remove("over");
  openFile(event.dataTransfer?.files[0]);
});
addEventListener("pagehide", () => {
  stopCamera();
  model.dispose();
});

$("where").textContent = `in this browser · ${labels.length} classes`;
if (!navigator.mediaDevices?.getUserMedia) $("camera").hidden = true;
$("work").hidden = false;
