// The slider over the versions of a plan. Its right end is the present; the graph and the timeline follow.
import { address, setQuery } from "./address.js";
import { get } from "./api.js";
import { html, useEffect, useState } from "./ui.js";
import { clock, plural } from "./words.js";

export function TimeTravel({ state }) {
  const { query } = address.value;
  const [versions, setVersions] = useState([]);
  const newest = state.version === null ? state.view.value?.version : null;
  useEffect(() => { get(["plans", state.name, "versions"]).then((page) => setVersions(page.items), () => {}); }, [state, newest]);
  if (!versions.length) return html`<div class="travel" aria-hidden="true"></div>`; // the bar has its place from the beginning
  const live = query.version === undefined || query.version === "";
  const found = versions.findIndex((one) => String(one.version) === query.version);
  const index = live || found < 0 ? versions.length : found;
  const choose = (place) => setQuery({ version: place >= versions.length ? "" : String(versions[place].version) }, { entry: live });
  const shown = versions[index];
  const text = live ? `Live: version ${versions.at(-1).version}` : `Version ${query.version}, ${clock(shown?.at)}`;
  return html`<div class=${`travel ${live ? "" : "past"}`} role="group" aria-label="Time travel">
    <button aria-label="Earlier version" disabled=${index === 0 || (versions.length < 2 && live)} onClick=${() => choose(index - 1)}>‹</button>
    <input type="range" min="0" max=${versions.length} value=${index} disabled=${versions.length < 2 && live} aria-label="Version" aria-valuetext=${text} onInput=${(event) => choose(Number(event.target.value))} />
    <button aria-label="Later version" disabled=${live} onClick=${() => choose(index + 1)}>›</button>
    <span class="travel-text" role="status"><b>${text}</b>${!live && shown && html` <span>${shown.author || "as it was stored"}${shown.reason && `: ${shown.reason}`}${shown.edits?.length ? ` (${plural(shown.edits.length, "edit")})` : ""}</span>`}</span>
    ${!live && html`<button class="primary" onClick=${() => choose(versions.length)}>Back to live</button>`}
  </div>`;
}
