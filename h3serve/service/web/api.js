// Talking to the server: every call carries the API key, every refusal becomes a Problem.

export class Problem extends Error {
  constructor(message, { status = 0, param = null } = {}) {
    super(message);
    this.status = status;
    this.param = param;
  }
}

const KEY = "h3serve-key";
export const getKey = () => localStorage.getItem(KEY) || "";
export const setKey = (key) => localStorage.setItem(KEY, key);

async function send(path, options = {}) {
  const headers = { ...options.headers };
  if (getKey()) headers.Authorization = `Bearer ${getKey()}`;
  let reply;
  try {
    reply = await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem("The server cannot be reached. Is it still running?");
  }
  if (reply.ok) return reply;
  const body = await reply.json().catch(() => ({}));
  const wait = reply.headers.get("Retry-After");
  const again = wait && reply.status !== 409 ? ` Try again in ${wait} s.` : "";
  const message = body.error?.message || `The server answered ${reply.status}.`;
  throw new Problem(message + again, { status: reply.status, param: body.error?.param });
}

export const getJson = async (path) => (await send(path)).json();
export const post = async (path, body, signal) => (await send(path, { method: "POST", body, signal })).json();
export const postJson = async (path, value) => (await send(path, {
  method: "POST", body: JSON.stringify(value), headers: { "Content-Type": "application/json" } })).json();
export const remove = async (path) => (await send(path, { method: "DELETE" })).json();
export const objectUrl = async (path) => URL.createObjectURL(await (await send(path)).blob());

// EventSource cannot carry a key, so the stream is read by hand; yields [event, data].
export async function* events(path, signal) {
  const reader = (await send(path, { signal })).body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value;
    const blocks = text.split("\n\n");
    text = blocks.pop();
    for (const block of blocks) {
      const event = /^event: (.*)$/m.exec(block), data = /^data: (.*)$/m.exec(block);
      if (event && data) yield [event[1], JSON.parse(data[1])];
    }
  }
}
