// Help with the prompt: what is not in the official form, while one types; the form to fill in; a prompt rewritten.

import { parse, post, postJson } from "./api.js";

const at = (id) => document.getElementById(id);
const text = at("prompt"), list = at("complaints"), undo = at("prompt-undo"), rewrite = at("prompt-enhance");
const SHOWN = 6;
let body = () => {}, tell = () => {}, changedBy = () => {}, timer = 0, asked = 0, before = null;

// `makeBody` gives the form as it would be sent; `onText` is told of a text that was put in.
export function start({ makeBody, onProblem, onText }) {
  [body, tell, changedBy] = [makeBody, onProblem, onText];
  at("prompt-layout").addEventListener("click", () => put(layOut).catch(tell));
  rewrite.addEventListener("click", () => put(enhance).catch(tell));
  undo.addEventListener("click", () => set(before, null));
}

export const offer = (model) => { rewrite.hidden = !model.enhances_prompts; };

// The request is another one now; of an empty or unfinished one nothing is said.
export function changed(isUnfinished) {
  clearTimeout(timer);
  asked += 1;
  list.replaceChildren();
  if (!isUnfinished) timer = setTimeout(check, 400);
}

const request = () => parse(body().get("request"));

async function check() {
  const mine = asked;
  const { complaints } = await postJson("/v1/prompt/check", request()).catch(() => ({ complaints: [] }));
  if (mine !== asked) return; // the text has changed meanwhile
  list.replaceChildren(...complaints.slice(0, SHOWN).map(row));
  if (complaints.length > SHOWN) list.append(Object.assign(document.createElement("li"), { textContent: `and ${complaints.length - SHOWN} more` }));
}

function row(complaint) {
  const item = document.createElement("li"), button = document.createElement("button");
  Object.assign(button, { type: "button", textContent: complaint.message, title: "Show where" });
  button.dataset.kind = complaint.kind;
  button.addEventListener("click", () => {
    const units = (end) => [...text.value].slice(0, end).join("").length; // the server counts characters
    text.focus();
    text.setSelectionRange(units(complaint.start), units(complaint.end));
  });
  item.append(button);
  return item;
}

async function layOut() {
  return (await postJson("/v1/prompt/template", request())).prompt;
}

async function enhance() {
  rewrite.disabled = true;
  try {
    return (await post("/v1/prompt/enhance", body())).prompt;
  } finally {
    rewrite.disabled = false;
  }
}

async function put(make) {
  const old = text.value;
  set(await make(), old);
}

function set(value, old) {
  text.value = value;
  before = old;
  undo.hidden = !old;
  changedBy();
  text.focus();
}
