// The page: the form, its plan, and what ties them to the list of videos.

import { getJson, getKey, post, setKey, write } from "./api.js";
import * as adapters from "./adapters.js";
import * as carried from "./carried.js";
import * as cards from "./video_cards.js";
import * as kept from "./kept_fields.js";
import { listen } from "./live.js";
import * as media from "./media.js";
import * as prompt from "./prompt.js";

const at = (id) => document.getElementById(id);
const form = at("form"), problem = at("problem"), plan = at("plan");
const PLAN_UPLOAD_BYTES = 20e6; // more is only sent when asked to
const FIELDS = { prompt: "Prompt", aspect_ratio: "Shape", duration_seconds: "Seconds", seed: "Seed", short_edge: "Short edge",
  num_inference_steps: "Steps", solver: "Solver" }; // the id of a field, which is H3's name, and its label
let planning = null, timer = 0;

const task = () => form.elements.task.value;
const number = (id) => (at(id).value.trim() === "" ? null : Number(at(id).value));

const seed = () => (/^\d{16,}$/.test(at("seed").value.trim()) ? at("seed").value.trim() : number("seed") ?? 42);

function body() {
  const data = new FormData();
  const target = { short_edge: number("short_edge"), aspect_ratio: at("aspect_ratio").value };
  if (number("duration_seconds") !== null) target.duration_seconds = number("duration_seconds");
  const request = { task: task(), prompt: at("prompt").value, target, seed: seed(), num_inference_steps: number("num_inference_steps") ?? 50,
    solver: at("solver").value, ...kept.fields() };
  if (request.sigmas) delete request.num_inference_steps; // they count the evaluations
  if (adapters.adapters().length) request.adapters = adapters.adapters();
  const conditions = media.conditions(task(), data);
  if (conditions.length) request.conditions = conditions;
  data.append("request", write(request));
  return data;
}

function tell(error) {
  for (const id of Object.keys(FIELDS)) at(id).removeAttribute("aria-invalid");
  problem.hidden = !error;
  if (!error) return;
  if (error.status === 401) at("key-box").hidden = false;
  const id = (error.param || "").split(".").pop();
  const named = FIELDS[id] && error.message.startsWith(`${error.param}:`);
  problem.textContent = named ? error.message.replace(error.param, FIELDS[id]) : error.message;
  if (!FIELDS[id]) return;
  at(id).setAttribute("aria-invalid", "true");
  at(id).setAttribute("aria-describedby", "problem");
}

async function check() {
  planning?.abort();
  planning = new AbortController();
  try {
    const p = await post("/v1/plan", body(), planning.signal);
    const time = p.estimated_seconds == null ? "no finished video of this size yet to judge the time by" : `about ${cards.time(p.estimated_seconds)}`;
    plan.textContent = `${p.width}×${p.height}, ${p.frames} frames (${p.seconds.toFixed(2)} s), ${p.steps} steps; ${time}; ${p.peak_gib} GiB of memory`;
    tell(null);
  } catch (error) {
    if (error.name === "AbortError") return;
    plan.textContent = "";
    tell(error);
  }
}

function changed() {
  clearTimeout(timer);
  plan.textContent = "";
  tell(null);
  const isUnfinished = !at("prompt").value.trim() || (task() !== "t2va" && !media.conditions(task(), new FormData()).length);
  prompt.changed(isUnfinished);
  if (isUnfinished || media.uploadBytes() > PLAN_UPLOAD_BYTES) return;
  timer = setTimeout(check, 500);
}

function showTask() {
  at("frames").hidden = task() !== "fl2va";
  at("references").hidden = task() !== "ref2va";
  changed();
}

async function submit(event) {
  event.preventDefault();
  clearTimeout(timer);
  at("send").disabled = true;
  at("send").textContent = "Sending…";
  try {
    const card = cards.show(await post("/v1/videos", body()));
    tell(null);
    card.scrollIntoView({ block: "nearest", behavior: "smooth" });
  } catch (error) {
    tell(error);
    problem.scrollIntoView({ block: "nearest" });
  } finally {
    at("send").disabled = false;
    at("send").textContent = "Generate";
  }
}

function edit(request) {
  form.elements.task.value = request.task;
  at("prompt").value = request.prompt;
  for (const name of ["short_edge", "aspect_ratio", "duration_seconds"]) {
    const value = request.target[name] ?? "";
    if (name === "aspect_ratio" && ![...at(name).options].some((o) => o.value === value)) at(name).add(new Option(value));
    at(name).value = value;
  }
  at("seed").value = request.seed;
  at("num_inference_steps").value = request.num_inference_steps;
  at("solver").value = request.solver ?? "euler"; // a job of an older server has none
  media.load(request.conditions || []);
  adapters.load(request.adapters || []);
  kept.load(request);
  showTask();
  form.scrollIntoView({ block: "start" });
  at("prompt").focus();
}

async function greet() {
  const model = (await getJson("/v1/models")).data[0];
  prompt.offer(model);
  for (const input of form.elements.task) {
    input.disabled = !model.tasks.includes(input.value);
    input.parentElement.title = input.disabled ? "This server has not loaded the weights for this task" : "";
  }
  if (!model.tasks.includes(task())) form.elements.task.value = model.tasks[0];
  showTask();
  return model.id;
}

async function connect() {
  try {
    const name = await greet();
    await adapters.refresh();
    listen(cards.heard);
    await cards.refresh();
    cards.showNone();
    const { ready, draining } = await (await fetch("/ready")).json();
    at("server").textContent = draining ? `${name}: stopping` : ready ? `${name}: ready` : `${name}: loading the model`;
    setTimeout(beat, 5000, name);
  } catch (error) {
    at("server").textContent = "not connected";
    tell(error);
    if (error.status !== 401) setTimeout(connect, 5000);
  }
}

async function beat(name) {
  try {
    const { ready, draining } = await (await fetch("/ready")).json();
    at("server").textContent = draining ? `${name}: stopping` : ready ? `${name}: ready` : `${name}: loading the model`;
    await cards.refresh();
  } catch {
    at("server").textContent = "the server cannot be reached";
  }
  setTimeout(beat, 5000, name);
}

cards.start({ onProblem: tell, onEdit: edit });
media.start(changed);
prompt.start({ makeBody: body, onProblem: tell, onText: changed });
adapters.start(changed);
kept.start(changed);
carried.start({ onRequest: (request, note) => { edit(request); at("carried-note").textContent = note; }, onProblem: tell });
form.addEventListener("submit", submit);
form.addEventListener("keydown", (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit(); });
form.addEventListener("input", (event) => (event.target.name === "task" ? showTask() : changed()));
at("check").addEventListener("click", check);
at("dice").addEventListener("click", () => { at("seed").value = Math.floor(Math.random() * 2 ** 32); changed(); });
at("key").value = getKey();
at("key").addEventListener("change", () => { setKey(at("key").value.trim()); connect(); });
connect();
