// The content of files that tasks have made: read in parts, decoded, and downloaded.
import { get } from "./api.js";

const MOST_DOWNLOAD = 512 * 1024 * 1024; // the browser keeps it in memory to compare its hash
const MOST_ROWS = 50;
const MOST_COLUMNS = 20;
const LONGEST_CELL = 200;

// At most `limit` bytes of a file from `offset` on, in Base64.
export async function readPart(plan, { task, output, path }, offset, limit) {
  return (await get(["plans", plan, "files", "part"], { task, output, path, offset, limit })).data;
}

export const fileBytes = (base64) => Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));

// The beginning of a text in UTF-8, which may be cut within a letter; null if it is no text.
export function textOf(bytes) {
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(bytes, { stream: true });
    return text.includes("\0") ? null : text;
  } catch {
    return null;
  }
}

// The first rows of a table, each with as many cells as the first, and whether there is more. The last row of a text
// that was cut is left out, since it may be a part of one.
export function csvRows(text, separator, cut) {
  const rows = [[]];
  const cells = new RegExp(`(?:"((?:[^"]|"")*)"?|([^${separator}\\r\\n]*))(${separator}|\\r?\\n|\\r|$)`, "gy");
  for (const [, quoted, plain, end] of text.matchAll(cells)) {
    rows.at(-1).push((quoted?.replaceAll('""', '"') ?? plain).slice(0, LONGEST_CELL));
    if (end === "" || rows.length > MOST_ROWS + 1) break;
    if (end !== separator) rows.push([]);
  }
  if (rows.length > 1 && (cut || rows.at(-1).join("") === "")) rows.pop();
  const width = Math.min(rows[0].length, MOST_COLUMNS);
  const more = cut || rows.length > MOST_ROWS + 1 || rows.some((row) => row.length > width);
  return { rows: rows.slice(0, MOST_ROWS + 1).map((row) => Array.from({ length: width }, (_, index) => row[index] ?? "")), more };
}

// Save a file as an attachment, whatever its type. `pieces` has the parts that an earlier call has read.
export async function download(plan, file, pieces, progress) {
  if (file.size > MOST_DOWNLOAD) {
    throw new Error(`It is too large for a browser. In a terminal: asterism plan get ${plan} ${file.task} ${file.output} -o FOLDER`);
  }
  let size = pieces.reduce((sum, piece) => sum + piece.size, 0);
  while (size < file.size) {
    progress(size);
    const piece = new Blob([fileBytes(await readPart(plan, file, size))]);
    if (piece.size === 0) break;
    pieces.push(piece);
    size += piece.size;
  }
  const whole = new Blob(pieces.splice(0), { type: "application/octet-stream" });
  if (await sha256(whole) !== file.sha256) throw new Error("The file is damaged: it does not match its hash, and was not saved.");
  const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(whole), download: file.path.split("/").at(-1) });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

async function sha256(blob) {
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", await blob.arrayBuffer()));
  return Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
