// The adapters of a request: a row each, with its strength. The list is the server's folder.

import { getJson } from "./api.js";

const box = document.getElementById("adapters"), rows = document.getElementById("adapter-list");
const adder = document.getElementById("add-adapter"), template = document.getElementById("adapter-row");
let changed = () => {}, there = [];

export function start(onChange) {
  changed = onChange;
  adder.addEventListener("change", () => {
    if (!adder.value) return;
    add({ name: adder.value, strength: 1 }).querySelector("input").focus();
    changed();
  });
}

export async function refresh() {
  there = (await getJson("/v1/adapters")).data.map((adapter) => adapter.id);
  box.hidden = !there.length;
  offer();
}

// The request's field, without strengths that are not numbers.
export const adapters = () =>
  [...rows.children].map((row) => ({ name: row.dataset.name, strength: Number(row.querySelector(".exact").value) }));

export function load(chosen) {
  rows.replaceChildren();
  for (const adapter of chosen) add(adapter);
  offer();
}

export const summary = (chosen) => (chosen || []).map((a) => `${a.name} at ${a.strength}`).join(", ");

function add({ name, strength }) {
  const row = template.content.firstElementChild.cloneNode(true);
  row.dataset.name = name;
  row.querySelector(".name").textContent = name;
  const [slider, exact] = row.querySelectorAll("input");
  slider.ariaLabel = exact.ariaLabel = `Strength of ${name}`;
  slider.value = exact.value = strength;
  slider.addEventListener("input", () => { exact.value = slider.value; });
  exact.addEventListener("input", () => { slider.value = exact.value; });
  const remove = row.querySelector("button");
  remove.ariaLabel = `Remove ${name}`;
  remove.addEventListener("click", () => { row.remove(); offer(); changed(); adder.focus(); });
  rows.append(row);
  offer();
  return row;
}

function offer() {
  const taken = new Set(adapters().map((adapter) => adapter.name));
  const free = there.filter((name) => !taken.has(name));
  adder.replaceChildren(new Option("Add an adapter…", ""), ...free.map((name) => new Option(name)));
  adder.disabled = !free.length;
}
