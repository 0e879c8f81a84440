// A shared worker: one stream of events per API key for all tabs, since a browser opens six connections to a host.

import { parse } from "./api.js";

const PAUSE_MS = 2000;
const OPEN = ["open", {}]; // from here on nothing is missed: a page looks at its list once more
const streams = new Map(); // key -> {ports, stop, isOpen}

self.onconnect = ({ ports: [port] }) => {
  port.onmessage = ({ data: { key } }) => {
    leave(port);
    if (key !== null) join(port, key);
  };
};

function join(port, key) {
  const stream = streams.get(key) || { ports: new Set(), stop: new AbortController(), isOpen: false };
  stream.ports.add(port);
  if (stream.isOpen) port.postMessage(OPEN);
  if (streams.has(key)) return;
  streams.set(key, stream);
  follow(key, stream);
}

function leave(port) {
  for (const [key, { ports, stop }] of streams) {
    if (!ports.delete(port) || ports.size) continue;
    streams.delete(key);
    stop.abort();
  }
}

async function follow(key, stream) {
  while (!stream.stop.signal.aborted) {
    try {
      for await (const event of events(key, stream.stop.signal)) {
        stream.isOpen = true;
        for (const port of stream.ports) port.postMessage(event);
      }
    } catch { /* the server went away, or the key is wrong: the page's own calls say which */ }
    stream.isOpen = false;
    await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
  }
}

// EventSource cannot carry a key, so the stream is read by hand; yields [event, data].
async function* events(key, signal) {
  const reply = await fetch("/v1/videos/events", { signal, headers: key ? { Authorization: `Bearer ${key}` } : {} });
  if (!reply.ok) return;
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "", isOpen = false;
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    if (!isOpen) yield OPEN;
    isOpen = true;
    text += value;
    const blocks = text.split("\n\n");
    text = blocks.pop();
    for (const block of blocks) {
      const event = /^event: (.*)$/m.exec(block), data = /^data: (.*)$/m.exec(block);
      if (event && data) yield [event[1], parse(data[1])];
    }
  }
}
