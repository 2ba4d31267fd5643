// The files that a task has made. They may be hostile: nothing of them becomes markup. A picture is drawn by <img> from
// a data: address, which runs no script; everything else is shown as text, or not at all.
import { get } from "./api.js";
import { csvRows, download, fileBytes, readPart, textOf } from "./file_content.js";
import { Action, Failure, table, useList } from "./parts.js";
import { html, useEffect, useRef, useState } from "./ui.js";
import { fileSize, plural } from "./words.js";

const MOST_FILES = 200;
const MOST_TEXT = 64 * 1024;
const MOST_PICTURE = 4 * 1024 * 1024; // what the server gives in one part
const PICTURES = { png: "image/png", jpg: "image/jpeg", jpeg: "image/jpeg", gif: "image/gif", webp: "image/webp" };

export function TaskFiles({ plan, id }) {
  const { items, problem, read } = useList(async () => (await get(["plans", plan, "files"], { task: id })).items, [plan, id]);
  const [opened, setOpened] = useState(null);
  const key = (file) => `${file.output}\u0000${file.path}`;
  if (problem) return html`<section><h3>Files</h3><${Failure} problem=${problem} retry=${read} /></section>`;
  if (!items?.length) return null;
  return html`<section><h3>Files</h3>
    ${items.length > MOST_FILES && html`<p class="note">The first ${MOST_FILES} files. This lists all of them: asterism plan files</p>`}
    <ul class="files">${items.slice(0, MOST_FILES).map((file) => html`<li key=${key(file)}>
      <button class="link" aria-expanded=${opened === key(file) ? "true" : "false"} onClick=${() => setOpened(opened === key(file) ? null : key(file))}>${file.path}</button>
      <small>${file.output}, ${fileSize(file.size)}</small><${Download} plan=${plan} file=${file} />
      ${opened === key(file) && html`<${Preview} plan=${plan} file=${file} />`}</li>`)}</ul></section>`;
}

// A download that failed goes on where it stopped.
function Download({ plan, file }) {
  const pieces = useRef([]);
  const [done, setDone] = useState(null);
  const act = async () => {
    try {
      await download(plan, file, pieces.current, setDone);
    } finally {
      setDone(null);
    }
  };
  return html`<${Action} act=${act} title=${`Download ${file.path}`}>${done === null ? "Download" : `${Math.floor((100 * done) / file.size)} %`}<//>`;
}

function Preview({ plan, file }) {
  const [content, setContent] = useState(null);
  useEffect(() => {
    let current = true;
    preview(plan, file).then((found) => current && setContent(found), (problem) => current && setContent({ note: problem.message }));
    return () => { current = false; };
  }, []);
  if (!content) return html`<p class="note">Loading…</p>`;
  const broken = () => setContent({ note: "The picture cannot be shown: it is damaged, or no picture." });
  return html`<div class="preview">
    ${content.picture && html`<img src=${content.picture} alt=${file.path} onError=${broken} />`}
    ${content.rows && table(file.path, content.rows[0], content.rows.slice(1).map((cells, key) => ({ key, cells })))}
    ${content.text && html`<pre class="output" tabindex="0" role="region" aria-label=${file.path}>${content.text}</pre>`}
    ${content.note && html`<p class="note">${content.note}</p>`}</div>`;
}

// What is shown of a file: {picture}, {rows} or {text}, each perhaps with a {note}.
async function preview(plan, file) {
  const kind = file.path.split(".").at(-1).toLowerCase();
  if (file.size === 0) return { note: "The file is empty." };
  if (PICTURES[kind]) {
    if (file.size > MOST_PICTURE) return { note: `The picture is larger than ${fileSize(MOST_PICTURE)}: download it.` };
    return { picture: `data:${PICTURES[kind]};base64,${await readPart(plan, file, 0, MOST_PICTURE)}` };
  }
  const text = textOf(fileBytes(await readPart(plan, file, 0, MOST_TEXT)));
  if (text === null) return { note: "This is neither text nor a picture that is shown here: download it." };
  const cut = file.size > MOST_TEXT;
  if (kind !== "csv" && kind !== "tsv") return { text, note: cut && `The first ${fileSize(MOST_TEXT)}.` };
  const { rows, more } = csvRows(text, kind === "csv" ? "," : "\t", cut);
  return { rows, note: more && `A part of the table: ${plural(rows.length - 1, "row")}, ${plural(rows[0].length, "column")}.` };
}
