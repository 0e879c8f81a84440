// The media of a request: keyframes in two slots, references in an ordered list.
// An item is {file, uri, type, start}: a file of this page, or an input of an earlier job by its uri.

const frames = { 0: null, "-1": null };
let references = [];
let changed = () => {};
const NAMES = { 0: "First image", "-1": "Last image" };
const LABELS = { image: "Picture", video: "Video", video_audio: "Video", audio: "Audio" };

export function start(onChange) {
  changed = onChange;
  for (const slot of document.querySelectorAll(".slot")) drawSlot(slot);
  const adder = document.getElementById("add-reference");
  receive(adder, (files) => { references.push(...files.map(itemOf)); drawReferences(); changed(); });
}

export function load(conditions) {
  frames[0] = frames["-1"] = null;
  references = [];
  for (const c of conditions) {
    const item = { uri: c.uri, type: c.type, start: c.start_time_seconds };
    if (c.role === "keyframe") frames[c.frame_index] = item;
    else references.push(item);
  }
  for (const slot of document.querySelectorAll(".slot")) drawSlot(slot);
  drawReferences();
}

// The conditions of a task; files are added to `form` under the names that the conditions use.
export function conditions(task, form) {
  const found = [];
  const add = (item, more) => {
    const uri = item.uri || `upload:file${found.length}`;
    if (item.file) form.append(`file${found.length}`, item.file);
    found.push({ type: item.type, uri, ...more });
  };
  if (task === "fl2va")
    for (const index of [0, -1])
      if (frames[index]) add(frames[index], { role: "keyframe", frame_index: index });
  if (task === "ref2va")
    for (const item of references)
      add(item, { role: "reference", ...(item.start > 0 && item.type.startsWith("video") ? { start_time_seconds: item.start } : {}) });
  return found;
}

export const uploadBytes = () =>
  [frames[0], frames["-1"], ...references].reduce((sum, item) => sum + (item?.file?.size || 0), 0);

const itemOf = (file) => ({ file, type: file.type.split("/")[0] in LABELS ? file.type.split("/")[0] : "image", start: 0 });
const nameOf = (item) => item.file ? item.file.name : `from an earlier video (${item.uri.split("/").pop()})`;

function receive(drop, take) {
  const input = drop.querySelector("input");
  input.addEventListener("change", () => { take([...input.files]); input.value = ""; });
  for (const [event, over] of [["dragover", true], ["dragleave", false], ["drop", false]])
    drop.addEventListener(event, (e) => { e.preventDefault(); drop.classList.toggle("over", over); });
  drop.addEventListener("drop", (e) => take([...e.dataTransfer.files]));
}

function element(tag, text, set = {}) {
  return Object.assign(document.createElement(tag), { textContent: text ?? "", ...set });
}

function drawSlot(slot) {
  const index = slot.dataset.index, item = frames[index];
  const put = (value) => { frames[index] = value; drawSlot(slot); changed(); };
  slot.replaceChildren();
  if (item) {
    if (item.file) {
      const image = element("img", "", { alt: `${NAMES[index]}: ${nameOf(item)}`, src: URL.createObjectURL(item.file) });
      image.onload = () => URL.revokeObjectURL(image.src);
      slot.append(image);
    } else slot.append(element("p", nameOf(item), { className: "hint" }));
    slot.append(element("button", `Remove ${NAMES[index].toLowerCase()}`, { type: "button", onclick: () => { put(null); slot.querySelector("input").focus(); } }));
    return;
  }
  const drop = element("label", "", { className: "drop" });
  drop.append(element("input", "", { type: "file", accept: "image/*", ariaLabel: NAMES[index] }), element("span", `${NAMES[index]}: drop it here or choose a file`));
  receive(drop, (files) => files[0] && put(itemOf(files[0])));
  slot.append(drop);
}

// <Picture 1>, <Video 1>, <Audio 2>: a video's soundtrack takes an audio number too; the prompt's own words.
function labels() {
  const count = { Picture: 0, Video: 0, Audio: 0 };
  return references.map((item) => {
    const kind = LABELS[item.type];
    const label = `<${kind} ${++count[kind]}>`;
    if (item.type === "video_audio") return `${label} with <Audio ${++count.Audio}>`;
    return label;
  });
}

function drawReferences() {
  const list = document.getElementById("reference-list"), names = labels();
  list.replaceChildren(...references.map((item, i) => {
    const row = element("li"), name = element("span", "", { className: "name", title: nameOf(item) }), tools = element("div", "", { className: "tools" });
    name.append(element("span", names[i], { className: "label" }), nameOf(item));
    const update = () => { drawReferences(); changed(); };
    const move = (by) => { references.splice(i + by, 0, ...references.splice(i, 1)); update(); list.children[i + by].querySelector("button").focus(); };
    if (item.type.startsWith("video")) {
      const kind = element("select", "", { onchange: () => { item.type = kind.value; update(); } });
      kind.append(new Option("video, audio if any", "video"), new Option("video and audio", "video_audio"));
      kind.value = item.type;
      const from = element("input", "", { type: "number", min: 0, step: 0.1, value: item.start || 0, onchange: () => { item.start = Number(from.value); changed(); } });
      const uses = element("label", "Uses"), begin = element("label", "From second");
      uses.append(kind);
      begin.append(from);
      tools.append(uses, begin);
    }
    const what = nameOf(item);
    tools.append(
      element("button", "↑", { type: "button", ariaLabel: `Move ${what} up`, disabled: i === 0, onclick: () => move(-1) }),
      element("button", "↓", { type: "button", ariaLabel: `Move ${what} down`, disabled: i === references.length - 1, onclick: () => move(1) }),
      element("button", "✕", { type: "button", ariaLabel: `Remove ${what}`, onclick: () => { references.splice(i, 1); update(); } }));
    row.append(name, tools);
    return row;
  }));
}
