// What happens to the videos, as it happens. A browser without shared workers sees it when the page looks again.

import { getKey } from "./api.js";

let port = null;

// Call `on(name, data)` at each event, from now on and with the key of now.
export function listen(on) {
  if (!self.SharedWorker) return;
  if (!port) {
    port = new SharedWorker("/web/stream.js", { type: "module", name: "h3serve" }).port;
    port.onmessage = ({ data: [name, data] }) => on(name, data);
    addEventListener("pagehide", () => port.postMessage({ key: null }));
    addEventListener("pageshow", ({ persisted }) => persisted && port.postMessage({ key: getKey() }));
  }
  port.postMessage({ key: getKey() });
}
