// The drawer of a task: status, why, attempts, live output, inputs and result, story, device.
import { get, post } from "./api.js";
import { Approval } from "./approval.js";
import { isFolded, shownStatus, waitSeconds, workSpan } from "./graph_boxes.js";
import { Elements } from "./group_elements.js";
import { Action, Status } from "./parts.js";
import { changeOf, isChangeable, isOpen, operationOf } from "./task_changes.js";
import { TaskFiles } from "./task_files.js";
import { html, useEffect, useRef, useState } from "./ui.js";
import { ENDED, ENDED_STATES, clock, duration, value, words } from "./words.js";

const OUTPUT_EVERY = 1_000;

export function TaskDrawer({ state, id, close, compose, jump, fold, open }) {
  const task = state.find(id);
  const data = task?.value;
  const heading = useRef(null);
  const [detail, setDetail] = useState({});
  const [, redraw] = useState(0);
  useEffect(() => { if (!task && state.version === null) state.readHidden(id).then(() => redraw((turn) => turn + 1), () => {}); }, [state, id, !task]);
  const changed = `${id} ${data?.status} ${data?.phase} ${data?.attempts} ${state.view.value?.version} ${data?.held_by?.length}`;
  useEffect(() => { heading.current?.focus({ preventScroll: true }); }, [id]);
  useEffect(() => {
    let current = true;
    const parts = ["plans", state.name, "tasks", id];
    if (state.version === null) {
      get(parts).then((found) => current && setDetail((old) => ({ ...(old.id === id ? old : {}), ...found, id })), () => {});
      get([...parts, "why"]).then((why) => current && setDetail((old) => ({ ...(old.id === id ? old : { id }), why })), () => {});
    }
    return () => { current = false; };
  }, [changed]);
  if (!data) {
    return html`<aside class="drawer" aria-label="Task"><${Head} title=${id} close=${close} heading=${heading} /><p class="note">This version of the plan has no task ${id}.</p></aside>`;
  }
  const mine = detail.id === id ? detail : {};
  const [work, waited] = [workSpan(data), waitSeconds(data)];
  const { dependencies } = state.view.value;
  const approval = state.view.value.approvals?.find((one) => one.task === id);
  const above = dependencies.filter((edge) => edge.target === id);
  const below = dependencies.filter((edge) => edge.source === id);
  const again = async () => { await post(["plans", state.name, "retry"], { from_tasks: [id] }); await state.reload(); };
  const cut = (edge) => compose && isOpen(state.tasks.get(edge.target)?.peek()) && (() => compose({ edits: [{ op: "remove_dependency", source: edge.source, target: edge.target }] }));
  return html`<aside class="drawer" aria-label=${`Task ${data.name || id}`}>
    <${Head} title=${data.name || id} close=${close} heading=${heading} />
    <p class="drawer-status"><${Status} status=${shownStatus(data)} />${data.provisional && html` <span class="tag">provisional</span>`}${data.needless && html` <span class="tag">needless</span>`}</p>
    ${data.name && data.name !== id && html`<p class="note">id: ${id}</p>`}
    ${data.held_by?.length > 0 && html`<p class="held-note">Held by ${data.held_by.join(", ")}</p>`}
    ${data.reason && html`<section><h3>Reason</h3><p class="text">${data.reason}</p></section>`}
    ${isFolded(data) && html`<${Elements} key=${id} state=${state} group=${data} jump=${jump} open=${() => open(id)} />`}
    ${approval ? html`<${Approval} key=${approval.id} item=${approval} name=${state.name} done=${() => state.reload()} />` : html`<${Why} why=${mine.why} begun=${(data.phase ?? data.status) === "running" || ENDED.has(data.status)} />`}
    <dl class="facts">
      ${fact("Device", data.phase !== "queued" && data.device)}${fact("Waited", waited !== undefined && duration(waited))}
      ${fact("Started", work && clock(work.begin))}${fact("Took", work && duration((work.end ?? Date.now() / 1000) - work.begin))}
      ${fact("Estimate", data.estimate && duration(data.estimate))}${fact("Group", data.group && html`<button class="link" onClick=${() => jump(data.group)}>${data.group}</button>${state.tasks.has(id) && html` <button class="link" onClick=${() => fold(data.group)}>collapse</button>`}`)}
    </dl>
    ${isChangeable(state, data) && html`<p class="buttons">${compose && html`<${Action} kind="primary" operation=${operationOf(state, data)} label=${isOpen(data) ? `Edit ${id}` : undefined} act=${async () => compose(await changeOf(state, data))}>${ENDED.has(data.status) ? "Change and continue from here" : "Edit"}<//>`}
      ${ENDED.has(data.status) && ENDED_STATES.has(state.view.value.state) && html`<${Action} operation="retry_plan" confirm="Run it and all tasks after it again?" act=${again}>Run again from here<//>`}</p>`}
    ${!ENDED.has(data.status) && compose && html`<p class="buttons" data-operation="edit_plan">
      <button onClick=${() => compose({ edits: [{ op: "add_task", task: { id: "" }, after: [id] }] })}>Add a task after it</button>
      ${isOpen(data) && html`<button onClick=${() => compose({ edits: [{ op: "remove_task", task_id: id }] })}>Remove</button>`}
      <button onClick=${() => compose({ edits: [{ op: "add_dependency", source: isOpen(data) ? "" : id, target: isOpen(data) ? id : "" }] })}>Add a dependency</button>
      <button onClick=${() => compose({ edits: [{ op: "cancel_task", task_id: id, reason: "" }] })}>Cancel task</button></p>`}
    ${state.version === null && html`<${Output} state=${state} id=${id} running=${data.status === "running"} attempts=${data.attempts} />`}
    <${Attempts} items=${mine.executions} />
    <${AgentWork} agent=${mine.definition?.agent} />
    ${hasContent(mine.definition?.inputs) && html`<section><h3>Inputs</h3><pre class="data">${value(mine.definition.inputs)}</pre></section>`}
    ${mine.result !== undefined && mine.result !== null && html`<section><h3>Result</h3><pre class="data">${value(mine.result)}</pre></section>`}
    ${state.version === null && data.status === "completed" && mine.definition?.outputs && html`<${TaskFiles} key=${id} plan=${state.name} id=${id} />`}
    ${above.length > 0 && html`<section><h3>After</h3><${Neighbours} edges=${above} end="source" jump=${jump} cut=${cut} /></section>`}
    ${below.length > 0 && html`<section><h3>Before</h3><${Neighbours} edges=${below} end="target" jump=${jump} cut=${cut} /></section>`}
    ${hasContent(mine.definition) && html`<details><summary>Definition</summary><pre class="data">${value(mine.definition)}</pre></details>`}
    <${Story} lines=${mine.story} />
  </aside>`;
}

const hasContent = (data) => data != null && (typeof data !== "object" || Object.keys(data).length > 0);
const fact = (name, text) => text && html`<div><dt>${name}</dt><dd>${text}</dd></div>`;

export function Head({ title, close, heading }) {
  return html`<header><h2 tabindex="-1" ref=${heading}>${title}</h2><button class="plain" onClick=${close} aria-label="Close (Escape)" title="Close (Escape)">✕</button></header>`;
}

// What an agent has to do.
function AgentWork({ agent }) {
  if (!agent) return null;
  return html`<section><h3>Work for an agent</h3><p class="prose">${agent.description}</p></section>
    ${agent.tips?.length > 0 && html`<section><h3>Tips</h3><ul class="tips">${agent.tips.map((one) => html`<li>${one}</li>`)}</ul></section>`}
    ${hasContent(agent.result) && html`<section><h3>Expected result</h3><pre class="data">${value(agent.result)}</pre></section>`}`;
}

// Why it has not started.
function Why({ why, begun }) {
  if (!why || begun) return null;
  if (!why.reasons?.length) return null;
  return html`<section><h3>Why it waits</h3><ul class="plain-list">${why.reasons.map((one) => html`<li>${one.text}</li>`)}</ul></section>`;
}

// Dependencies, each with a button that removes it where `cut` gives the action.
function Neighbours({ edges, end, jump, cut }) {
  return html`<ul class="links">${edges.map((edge) => html`<li key=${edge[end]}><button class="link" onClick=${() => jump(edge[end])}>${edge[end]}</button>
    ${edge.on && edge.on !== "success" && html` <small>on ${edge.on}</small>`}${edge.when && html` <small>if ${edge.when}</small>`}
    ${cut(edge) && html` <button class="plain small" aria-label=${`Remove the dependency ${edge.source} → ${edge.target}`} title="Remove this dependency" onClick=${cut(edge)}>✕</button>`}</li>`)}</ul>`;
}

// An attempt that has not begun is queued until a device has it, then starting, whatever its run is called.
const attemptStatus = (one) => (one.ended_at ? one.status : one.started_at ? "running" : one.device ? "starting" : "queued");

function Attempts({ items }) {
  if (!Array.isArray(items) || !items.length) return null;
  return html`<section><h3>Attempts</h3><ol class="attempts">${items.map((one, index) => html`<li>
    <b>${index + 1}</b> ${words(attemptStatus(one))} ${one.device && html`on ${one.device}`} <small>${clock(one.started_at)}${one.ended_at && one.started_at && `, ${duration(one.ended_at - one.started_at)}`}</small>
    ${one.error && html`<span class="text">${one.error}</span>`}</li>`)}</ol></section>`;
}

function Story({ lines }) {
  if (!Array.isArray(lines) || !lines.length) return null;
  return html`<section><h3>Story</h3><ol class="story">${lines.map((line) => html`<li><time>${clock(line.at)}</time><span>${words(line.what)}${line.why && html`<small>${line.why}</small>`}${line.traceback && html`<pre class="output traceback" tabindex="0">${line.traceback}</pre>`}</span></li>`)}</ol></section>`;
}

// The output of a task, read on while it runs. It scrolls with the output only while it is at its end.
function Output({ state, id, running, attempts }) {
  const [lines, setLines] = useState([]);
  const box = useRef(null);
  useEffect(() => {
    let stopped = false;
    let after = null;
    let timer = null;
    setLines([]);
    const read = async () => {
      try {
        const page = await get(["plans", state.name, "tasks", id, "logs"], { after });
        if (stopped) return;
        const found = page.items;
        if (found.length) {
          const atEnd = !box.current || box.current.scrollTop + box.current.clientHeight >= box.current.scrollHeight - 4;
          setLines((old) => [...old, ...found].slice(-2000));
          if (atEnd) requestAnimationFrame(() => { if (box.current) box.current.scrollTop = box.current.scrollHeight; });
        }
        after = page.next ?? after;
      } catch { /* tried again while it runs */ }
      if (running && !stopped) timer = setTimeout(read, OUTPUT_EVERY);
    };
    read();
    return () => { stopped = true; clearTimeout(timer); };
  }, [state, id, running, attempts]);
  if (!lines.length && !running) return null;
  return html`<section><h3>Output${running && html` <small>live</small>`}</h3>
    <pre class="output" ref=${box} tabindex="0" role="log" aria-label="Output">${lines.length ? lines.map((line) => html`<span class=${line.stream}>${line.text}${"\n"}</span>`) : "No output yet."}</pre></section>`;
}
