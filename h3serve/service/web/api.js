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

// Seeds go beyond 2^53, where a JavaScript number is rounded: long ones travel as text. Inside a string of the JSON
// the quotes would have backslashes, so only the fields are met.
export const parse = (text) => JSON.parse(text.replace(/"seed":\s*(\d{16,})/g, '"seed":"$1"'));
export const write = (value) => JSON.stringify(value).replace(/"seed":"(\d{16,})"/g, '"seed":$1');

const read = async (reply) => parse(await (await reply).text());
export const getJson = (path) => read(send(path));
export const post = (path, body, signal) => read(send(path, { method: "POST", body, signal }));
export const postJson = (path, value) => read(send(path, {
  method: "POST", body: write(value), headers: { "Content-Type": "application/json" } }));
export const remove = (path) => read(send(path, { method: "DELETE" }));
export const objectUrl = async (path) => URL.createObjectURL(await (await send(path)).blob());
