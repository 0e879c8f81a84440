// A video file that carries its request fills the form: dropped anywhere but on a place for media, or chosen.
// The file is read here, in the browser, and not sent.

import { parse } from "./api.js";

const MOST = 64e6; // bytes of a file's list of boxes: those with samples are not read
const PATH = ["moov", "udta", "meta", "ilst", "\u00a9cmt", "data"];

// `onRequest(request, note)` is given what was found, `onProblem` why there is nothing.
export function start({ onRequest, onProblem }) {
  const take = (file) => read(file).then((request) => onRequest(without(request), note(file, request))).catch(onProblem);
  const input = document.getElementById("carried");
  input.addEventListener("change", () => { if (input.files[0]) take(input.files[0]); input.value = ""; });
  for (const event of ["dragover", "drop"])
    document.addEventListener(event, (e) => {
      if (e.target.closest?.(".drop") || !e.dataTransfer?.types.includes("Files")) return;
      e.preventDefault(); // else the browser would open the file instead of the page
      if (event === "drop" && e.dataTransfer.files[0]) take(e.dataTransfer.files[0]);
    });
}

// The request of an MP4 as h3serve writes it; throws for any other file.
export async function read(file) {
  const none = new Error(`${file.name} carries no request: h3serve writes one into its MP4 files, unless told not to.`);
  try {
    const record = parse(new TextDecoder().decode(await comment(file)));
    if (!("h3serve" in record) || typeof record.request.prompt !== "string" || !record.request.target) throw none;
    return record.request;
  } catch {
    throw none;
  }
}

// An MP4 is boxes of boxes: 4 bytes of length and 4 of name each; the way to the comment is PATH.
async function comment(file) {
  let [from, end] = [0, file.size];
  for (const name of PATH) {
    [from, end] = await box(file, from, end, name);
    if (name === "meta") from += 4; // its version and flags
    if (name === "data") from += 8; // its kind and language
    if (name === "moov" && end - from > MOST) throw new RangeError("too large");
  }
  return file.slice(from, end).arrayBuffer();
}

async function box(file, from, end, wanted) {
  while (from + 8 <= end) {
    const head = new DataView(await file.slice(from, from + 16).arrayBuffer());
    const name = String.fromCharCode(...[4, 5, 6, 7].map((i) => head.getUint8(i)));
    const short = head.getUint32(0);
    const size = short === 1 ? Number(head.getBigUint64(8)) : short || end - from;
    if (size < 8 || from + size > end) break;
    if (name === wanted) return [from + (short === 1 ? 16 : 8), from + size];
    from += size;
  }
  throw new RangeError(`no ${wanted}`);
}

// Media are not in the file: the form has to be given them again.
const without = ({ conditions, ...request }) => request;

function note(file, { conditions = [] }) {
  const kinds = conditions.map((c) => (c.role === "keyframe" ? `its ${c.frame_index === 0 ? "first" : "last"} image` : `a reference ${c.type === "video_audio" ? "video" : c.type}`));
  return `Filled in from ${file.name}.${kinds.length ? ` It does not hold ${kinds.join(", ")}: put them in again.` : ""}`;
}
