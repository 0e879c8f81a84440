// The cards of the videos: live progress, play, cancel, repeat, delete.

import { summary } from "./adapters.js";
import { getJson, objectUrl, postJson, remove } from "./api.js";

const list = document.getElementById("videos"), template = document.getElementById("video-card");
const more = document.getElementById("more"), none = document.getElementById("none");
const WORDS = { queued: "Waiting", in_progress: "Running", completed: "Done", failed: "Failed", cancelled: "Cancelled", expired: "Expired" };
const STAGES = { start: "starting", denoise: "denoising", save: "saving" };
const isWaiting = (video) => ["queued", "in_progress"].includes(video.status);
let tell = () => {}, edit = () => {};

export function start({ onProblem, onEdit }) {
  tell = onProblem;
  edit = onEdit;
  more.addEventListener("click", () => page(list.lastElementChild?.dataset.id));
}

export async function refresh() {
  const { data, has_more } = await getJson("/v1/videos?limit=20");
  for (const video of data.slice().reverse()) show(video);
  if (list.children.length <= data.length) more.hidden = !has_more;
}

async function page(after) {
  const { data, has_more } = await getJson(`/v1/videos?limit=20&after=${after}`).catch(fail);
  for (const video of data) show(video, true);
  more.hidden = !has_more;
}

// Draw a video: in its place if it is there, else by its age (or at the end, for a page of older ones).
export function show(video, atEnd = false) {
  let card = list.querySelector(`[data-id="${video.id}"]`);
  if (!card) {
    card = template.content.firstElementChild.cloneNode(true);
    card.dataset.id = video.id;
    list.insertBefore(card, atEnd ? null : [...list.children].find((c) => c.video.created_at <= video.created_at) || null);
    bind(card);
  }
  none.hidden = true;
  if (card.video && !isWaiting(card.video) && isWaiting(video)) return card; // a list from before its end
  card.video = video;
  draw(card);
  return card;
}

export const showNone = () => { none.hidden = list.children.length > 0; };

function bind(card) {
  const on = (name, act) => card.querySelector(name).addEventListener("click", () => act(card).catch(fail));
  on(".cancel", async () => show(await postJson(`/v1/videos/${card.dataset.id}/cancel`, {})));
  on(".again", async () => {
    const seed = Math.floor(Math.random() * 2 ** 32);
    show(await postJson("/v1/videos", { ...card.video.request, seed })).focus();
  });
  on(".edit", async () => edit(card.video.request));
  on(".delete", async () => {
    if (!confirm("Delete this video and its files?")) return;
    await remove(`/v1/videos/${card.dataset.id}`);
    drop(card);
  });
}

function drop(card) {
  card.remove();
  showNone();
}

function fail(problem) {
  tell(problem);
}

function draw(card) {
  const v = card.video, running = isWaiting(v);
  card.dataset.state = v.status;
  card.querySelector(".state").textContent = v.cancel_requested && running ? "Cancelling" : WORDS[v.status] || v.status;
  card.querySelector(".detail").textContent = detail(v);
  const bar = card.querySelector("progress");
  bar.hidden = !running;
  bar.value = v.progress;
  bar.ariaLabel = `${v.progress} percent`;
  card.querySelector(".words").textContent = v.prompt;
  card.querySelector(".words").title = v.prompt;
  card.querySelector(".size").textContent = `${v.size}, ${v.duration_seconds.toFixed(2)} s, seed ${v.request.seed}${v.request.adapters?.length ? `, ${summary(v.request.adapters)}` : ""}, ${new Date(v.created_at * 1000).toLocaleString()}`;
  card.querySelector(".cancel").hidden = !running || v.cancel_requested;
  card.querySelector(".again").hidden = card.querySelector(".edit").hidden = v.status === "expired" && Boolean(v.request.conditions);
  const link = card.querySelector(".download");
  link.hidden = v.status !== "completed";
  if (v.status === "completed" && card.shown !== v.id) {
    card.shown = v.id;
    showThumbnail(card).catch(() => {});
  }
}

function detail(v) {
  if (v.error) return v.error.message;
  if (v.status !== "in_progress" || !v.stage) return "";
  const step = v.stage === "denoise" && v.steps ? ` step ${v.step} of ${v.steps}` : "";
  const left = v.seconds_left == null ? "" : `, about ${time(v.seconds_left)} left`;
  return (STAGES[v.stage] || v.stage) + step + left;
}

export function time(seconds) {
  if (seconds < 90) return `${Math.ceil(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return `${(seconds / 3600).toFixed(1)} h`;
}

async function showThumbnail(card) {
  const url = `/v1/videos/${card.dataset.id}/content`;
  const button = Object.assign(document.createElement("button"), { type: "button", ariaLabel: "Play" });
  const image = Object.assign(document.createElement("img"), { alt: "" });
  image.src = await objectUrl(`${url}?variant=thumbnail`);
  button.append(image);
  button.addEventListener("click", () => play(card, url).catch(fail));
  card.querySelector(".screen").replaceChildren(button);
  const link = card.querySelector(".download");
  link.href = url;
  link.download = `${card.dataset.id}.mp4`;
  link.addEventListener("click", async (event) => {
    if (link.href.startsWith("blob:")) return;
    event.preventDefault();
    link.href = await objectUrl(url).catch(fail);
    link.click();
  });
}

async function play(card, url) {
  const video = document.createElement("video");
  Object.assign(video, { controls: true, autoplay: true, loop: true, playsInline: true, src: await objectUrl(url) });
  card.classList.add("playing");
  card.querySelector(".screen").replaceChildren(video);
  video.focus();
}

// What the server tells of any of this key's videos, those on pages that are not loaded included.
export function heard(name, data) {
  if (name === "open") return refresh().catch(() => {});
  const card = list.querySelector(`[data-id="${data.id}"]`);
  if (name === "deleted") {
    if (card) drop(card);
  } else if (name === "progress") {
    if (card) show({ ...card.video, ...data });
  } else if (card || more.hidden || !(data.created_at < list.lastElementChild?.video.created_at)) show(data);
}
