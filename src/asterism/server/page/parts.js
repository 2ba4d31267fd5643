// Small parts that several views share.
import { may } from "./permissions.js";
import { classes, cloneElement, html, useEffect, useRef, useState } from "./ui.js";
import { mark, words } from "./words.js";

export function Status({ status, text }) {
  return html`<span class=${classes("status", `is-${status}`)}><span class="glyph" aria-hidden="true">${mark(status)}</span>${text ?? words(status)}</span>`;
}

export function Empty({ title, children }) {
  return html`<div class="empty"><p class="empty-title">${title}</p>${children}</div>`;
}

export function Command({ text }) {
  return html`<pre class="command"><code>${text}</code></pre>`;
}

export function Failure({ problem, retry }) {
  return html`<div class="failure" role="alert">
    <p><strong>${problem.title ?? "This did not work"}.</strong> ${problem.message}</p>
    <${Violations} items=${problem.violations} />
    ${retry && html`<button onClick=${retry}>Try again</button>`}
  </div>`;
}

export function Violations({ items }) {
  if (!items?.length) return null;
  return html`<ul class="violations">${items.map((one) => html`<li><b>${one.rule ?? one.code ?? "rule"}</b>${one.edit != null ? ` (edit ${one.edit + 1})` : ""}: ${one.message}</li>`)}</ul>`;
}

// A button whose action may fail or take a while; the failure is shown beside it. It keeps the focus meanwhile, which a
// disabled one would lose.
// `operation` is what it asks of the server: only those who may do that have the button.
export function Action({ children, act, kind, confirm, disabled, title, label, operation }) {
  const [busy, setBusy] = useState(false);
  const [problem, setProblem] = useState(null);
  const [asking, setAsking] = useState(false);
  const button = useRef(null);
  const asked = useRef(false);
  useEffect(() => {
    if (asked.current && !asking) button.current?.focus(); // where the person was before the question
    asked.current = asking;
  }, [asking]);
  const run = async () => {
    setAsking(false);
    setBusy(true);
    setProblem(null);
    try {
      await act();
    } catch (error) {
      setProblem(error);
    } finally {
      setBusy(false);
    }
  };
  if (operation && !may(operation)) return null;
  return html`<span class="action" data-operation=${operation}>
    ${asking
      ? html`<span class="confirm" role="group" aria-label=${confirm}>${confirm} <button class="danger" autofocus onClick=${run}>Yes</button> <button onClick=${() => setAsking(false)}>No</button></span>`
      : html`<button ref=${button} class=${kind} title=${title} aria-label=${label} disabled=${disabled} aria-disabled=${busy ? "true" : undefined} onClick=${() => !busy && (confirm ? setAsking(true) : run())}>${children}</button>`}
    ${problem && html`<span class="problem" role="alert">${problem.message}<${Violations} items=${problem.violations} /></span>`}
  </span>`;
}

// A dialog over the page; Escape closes it, and the focus returns to where it was.
export function Dialog({ title, close, children }) {
  const element = useRef(null);
  useEffect(() => {
    const before = document.activeElement;
    element.current.showModal();
    return () => before?.focus?.();
  }, []);
  return html`<dialog ref=${element} aria-label=${title} onClose=${close} onClick=${(event) => event.target === element.current && element.current.close()}>
    <header><h2>${title}</h2><button aria-label="Close" onClick=${() => element.current.close()}>✕</button></header>
    ${children}
  </dialog>`;
}

let hints = 0;

// A control with its label. A hint describes the control, and is no part of its name.
export function Field({ label, children, hint }) {
  const [id] = useState(() => `hint-${(hints += 1)}`);
  const control = hint && !Array.isArray(children) ? cloneElement(children, { "aria-describedby": id }) : children;
  return html`<div class="field"><label><span>${label}</span>${control}</label>${hint && html`<small id=${id}>${hint}</small>`}</div>`;
}

const MOST_ROWS = 20;

// A control for text that may have several lines: an <input> would remove its newlines. `text` is a text of people,
// otherwise it is code.
export function lines(value, change, { people = false, least = 1, ...terms } = {}) {
  const rows = Math.min(MOST_ROWS, Math.max(least, String(value ?? "").split("\n").length));
  return html`<textarea class=${people ? "prose" : ""} rows=${rows} spellcheck=${people} wrap=${people ? undefined : "off"} autocomplete="off" value=${value ?? ""} onInput=${(event) => change(event.target.value)} ...${terms}></textarea>`;
}

// A list that is read again by `load` when `when` changes.
export function useList(load, when) {
  const [state, setState] = useState({ items: null, problem: null });
  const latest = useRef(0);
  const read = async () => {
    const turn = (latest.current += 1);
    try {
      const items = await load();
      if (turn === latest.current) setState({ items, problem: null });
    } catch (problem) {
      if (turn === latest.current) setState((old) => ({ ...old, problem }));
    }
  };
  useEffect(() => { read(); }, when);
  return { ...state, read };
}

// Rows that are shown stay where they are and change in place; new ones wait behind a button. `key` names the filter,
// `id` identifies a row.
export function useCalmRows(items, key, id) {
  const order = useRef({ key: null, ids: [] });
  const [, redraw] = useState(0);
  if (items && order.current.key !== key) order.current = { key, ids: items.map(id) };
  const byId = new Map((items ?? []).map((one) => [id(one), one]));
  const known = new Set(order.current.ids);
  const fresh = (items ?? []).filter((one) => !known.has(id(one))).length;
  const shown = items && order.current.ids.map((one) => byId.get(one)).filter(Boolean);
  const showAll = () => { order.current.ids = items.map(id); redraw((turn) => turn + 1); };
  return { shown: shown?.length || !fresh ? shown : items, fresh: shown?.length ? fresh : 0, showAll };
}

// A table whose rows are {key, cells, selected}; the first cell names the row. On a narrow screen each row becomes a card,
// which would end its being a table for screen readers without the roles.
export function table(label, head, rows) {
  const cell = (content, index) => (index === 0 ? html`<th scope="row" role="rowheader">${content}</th>` : html`<td role="cell" data-label=${head[index]}>${content}</td>`);
  return html`<div class="sheet" tabindex="0" role="region" aria-label=${label}><table role="table"><thead role="rowgroup"><tr role="row">${head.map((text) => html`<th scope="col" role="columnheader">${text}</th>`)}</tr></thead>
    <tbody role="rowgroup">${rows.map(({ key, cells, selected }) => html`<tr key=${key} role="row" class=${selected ? "selected" : ""}>${cells.map(cell)}</tr>`)}</tbody></table></div>`;
}
