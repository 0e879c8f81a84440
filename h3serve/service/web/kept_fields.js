// Fields of a request that is used again which the form has no place for: they are sent as they were until dropped.

const NAMES = ["flow_shift", "audio_flow_shift", "sigmas", "imgvid_cond_noise_aug_for_inference",
  "audio_cond_noise_aug_for_inference", "reference_resize_mode", "quality"];
const box = document.getElementById("kept"), words = box.querySelector("span");
const DEFAULTS = { imgvid_cond_noise_aug_for_inference: 0.999, audio_cond_noise_aug_for_inference: 1, reference_resize_mode: "diffusers" };
let held = {};

export function start(onChange) {
  box.querySelector("button").addEventListener("click", () => { load({}); onChange(); });
}

export const fields = () => held;

export function load(request) {
  const given = NAMES.filter((name) => request[name] != null && request[name] !== DEFAULTS[name]);
  held = Object.fromEntries(given.map((name) => [name, request[name]]));
  box.hidden = !given.length;
  words.textContent = `As in the video used again: ${given.map((name) => `${name} ${shown(request[name])}`).join(", ")}`;
}

const shown = (value) => typeof value === "object" ? `of ${value.video.length - 1} evaluations` : value;
