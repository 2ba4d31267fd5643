// The address after "#": the view and its filters, such as #/plans/release/graph?status=failed.
import "./page_key.js"; // it takes its key out of the address first
import { signal } from "./ui.js";

export function parseAddress(hash) {
  const [path, query = ""] = hash.replace(/^#/, "").split("?");
  const parts = path.split("/").filter(Boolean).map(decode);
  return { parts, query: Object.fromEntries(new URLSearchParams(query)) };
}

function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

export function addressOf(parts, query = {}) {
  const search = new URLSearchParams(Object.entries(query).filter(([, value]) => value !== "" && value != null && value !== false));
  const text = search.toString();
  return `#/${parts.map(encodeURIComponent).join("/")}${text ? `?${text}` : ""}`;
}

export const address = signal(parseAddress(location.hash));
addEventListener("hashchange", () => { address.value = parseAddress(location.hash); });

export function go(parts, query) {
  move("pushState", addressOf(parts, query));
}

// A document within another one may have no address of its own.
function move(method, next) {
  try {
    history[method](null, "", next);
  } catch { /* the view changes all the same */ }
  address.value = parseAddress(next);
}

// Change filters of the present view. They are remembered in the address, without an entry in the history for each key.
export function setQuery(changes, { entry = false } = {}) {
  const { parts, query } = address.value;
  const next = addressOf(parts, { ...query, ...changes });
  if (next !== addressOf(parts, query)) move(entry ? "pushState" : "replaceState", next);
}
