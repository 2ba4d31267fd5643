// A new plan: its text or a file, a form for its parameters, the mistakes by line, and then the plan itself.
import { go } from "./address.js";
import { post } from "./api.js";
import { Action, Failure, Field, lines } from "./parts.js";
import { classes, html, useEffect, useRef, useState } from "./ui.js";
import { plural } from "./words.js";

const PAUSE = 500; // ms after the last key until the text is checked
const START = "asterism: 1\ntasks:\n  hello: {shell: echo hello}\n";
const LARGEST_FILE = 2_000_000;

export function SubmitView() {
  const [text, setText] = useState(START);
  const [file, setFile] = useState("");
  const [name, setName] = useState("");
  const [reason, setReason] = useState("");
  const [typed, setTyped] = useState({});
  const [checked, setChecked] = useState(null);
  const [problem, setProblem] = useState(null);
  const editor = useRef(null);
  const latest = useRef(0);
  const declared = checked?.params ?? [];
  const { params, mistakes } = valuesOf(declared, typed);
  const missing = declared.filter((one) => one.required && (typed[one.name] ?? "") === "").map((one) => one.name);

  const check = async () => {
    const turn = (latest.current += 1);
    try {
      const found = await post(["plan-checks"], { text, file, params });
      if (turn === latest.current) { setChecked(found); setProblem(null); }
    } catch (error) {
      if (turn === latest.current) setProblem(error);
    }
  };
  useEffect(() => { const timer = setTimeout(check, PAUSE); return () => clearTimeout(timer); }, [text, file, JSON.stringify(params)]);

  const open = async (event) => {
    const chosen = event.target.files[0];
    if (!chosen) return;
    if (chosen.size > LARGEST_FILE) return setProblem(new Error(`${chosen.name} has ${plural(chosen.size, "byte")}; a plan file has ${LARGEST_FILE.toLocaleString("en")} at most.`));
    setText(await chosen.text());
    setFile(chosen.name);
    setTyped({});
  };
  const submit = async () => {
    const plan = await post(["plans"], { text, file, params, reason, ...(name.trim() ? { name: name.trim() } : {}) });
    go(["plans", plan.name, "graph"]);
  };
  const errors = checked?.findings.filter((one) => !one.warning) ?? [];
  const ready = checked?.valid && !missing.length && !Object.keys(mistakes).length;
  return html`<div class="column wide"><div class="row-head"><h2>New plan</h2><span class="spring"></span>
      <label class="button file-choice">Open a file…<input class="visually-hidden" type="file" accept=".yaml,.yml,.json" onChange=${open} /></label></div>
    <div class="submit"><div class="submit-text"><${Editor} text=${text} change=${setText} editor=${editor} marked=${checked?.findings ?? []} file=${file} />
        ${problem && html`<${Failure} problem=${problem} retry=${check} />`}
        <${Findings} checked=${checked} errors=${errors} show=${(line) => select(editor.current, text, line)} /></div>
      <form class="submit-form" aria-label="Parameters and name" onSubmit=${(event) => event.preventDefault()}>
        ${declared.length > 0 && html`<h3>Parameters</h3>`}
        ${declared.map((one) => html`<${Parameter} key=${one.name} item=${one} typed=${typed[one.name]} mistake=${mistakes[one.name]} change=${(value) => setTyped({ ...typed, [one.name]: value })} />`)}
        <h3>The plan</h3>
        <${Field} label="Name" hint=${name ? "May have {name}, {date}, {time} and {seconds}." : `Without one: ${checked?.name ?? "that of the file"}`}><input value=${name} maxlength="100" onInput=${(event) => setName(event.target.value)} /><//>
        <${Field} label="Reason" hint="Recorded in the audit log.">${lines(reason, setReason, { people: true })}<//>
        ${missing.length > 0 && html`<p class="note" role="status">Without a value: ${missing.join(", ")}</p>`}
        <p class="buttons"><${Action} operation="submit_plan" kind="primary" disabled=${!ready} act=${submit}>Submit<//><${Action} operation="check_plan" act=${check}>Check again<//></p>
      </form></div></div>`;
}

// The text with the numbers of its lines; those with a mistake are marked. Tab leaves it, as it leaves any field.
function Editor({ text, change, editor, marked, file }) {
  const numbers = useRef(null);
  const lines = new Map(marked.filter((one) => !one.file).map((one) => [one.line, one.warning]));
  for (const one of marked) if (!one.file && !one.warning) lines.set(one.line, false);
  const count = text.split("\n").length;
  return html`<div class="plan-text"><pre class="plan-lines" ref=${numbers} aria-hidden="true">${Array.from({ length: count }, (_, index) => html`<span class=${lines.has(index + 1) ? (lines.get(index + 1) ? "has-warning" : "has-mistake") : ""}>${index + 1}${"\n"}</span>`)}</pre>
    <textarea ref=${editor} aria-label=${file ? `Text of ${file}` : "Text of the plan file"} aria-describedby="findings" spellcheck=${false} autocapitalize="off" autocomplete="off" wrap="off" rows="22" value=${text}
      onInput=${(event) => change(event.target.value)} onScroll=${(event) => { numbers.current.scrollTop = event.target.scrollTop; }}></textarea></div>`;
}

function Findings({ checked, errors, show }) {
  const told = !checked ? "Checking…" : errors.length ? plural(errors.length, "mistake") : `Valid: ${plural(checked.tasks, "task")}, ${plural(checked.dependencies, "dependency").replace(/ys$/, "ies")}.`;
  return html`<div id="findings"><p class=${classes({ bad: errors.length, good: checked && !errors.length })} role="status">${told}</p>
    ${checked?.findings.length > 0 && html`<ul class="findings">${checked.findings.map((one) => html`<li class=${one.warning ? "is-waiting" : "is-failed"}>
      ${one.file ? html`<b>${one.file}, line ${one.line}</b>` : html`<button class="link" onClick=${() => show(one.line)}>Line ${one.line}</button>`} ${one.warning && html`<b>warning:</b> `}${one.text}</li>`)}</ul>`}</div>`;
}

function select(area, text, line) {
  const before = text.split("\n").slice(0, line - 1).join("\n").length + (line > 1 ? 1 : 0);
  const end = text.indexOf("\n", before);
  area.focus();
  area.setSelectionRange(before, end < 0 ? text.length : end);
  area.scrollTop = Math.max(0, (line - 4) * Number.parseFloat(getComputedStyle(area).lineHeight));
}

const shown = (value) => (typeof value === "string" ? value : JSON.stringify(value));
const KINDS = { integer: "a whole number", number: "a number", list: "a list as JSON, such as [1, 2]", mapping: "a mapping as JSON, such as {\"a\": 1}" };

function Parameter({ item, typed, mistake, change }) {
  const hint = [item.description, KINDS[item.type], item.required ? "needed" : `default: ${shown(item.default)}`].filter(Boolean).join("; ");
  const value = typed ?? "";
  const options = item.type === "boolean" ? ["true", "false"] : item.choices?.map(shown);
  const terms = { value, "aria-invalid": mistake ? "true" : undefined, required: item.required };
  return html`<${Field} label=${item.name} hint=${mistake ? `${hint}. ${mistake}` : hint}>${options
    ? html`<select ...${terms} onChange=${(event) => change(event.target.value)}><option value="">${item.required ? "Choose…" : "default"}</option>${options.map((one) => html`<option value=${one}>${one}</option>`)}</select>`
    : item.type === "integer" || item.type === "number" ? html`<input ...${terms} inputmode=${item.type === "integer" ? "numeric" : "decimal"} onInput=${(event) => change(event.target.value)} />`
    : lines(value, change, terms)}<//>`;
}

// What was typed as values of the types of the parameters, and what cannot be one. An empty field keeps its default.
export function valuesOf(declared, typed) {
  const [params, mistakes] = [{}, {}];
  for (const { name, type, choices } of declared) {
    const text = typed[name] ?? "";
    if (text === "") continue;
    const choice = choices?.find((one) => shown(one) === text);
    if (choice !== undefined) params[name] = choice;
    else if (type === "text") params[name] = text;
    else if (type === "boolean") params[name] = text === "true";
    else if (type === "integer" || type === "number") {
      if (text.trim() !== "" && Number.isFinite(Number(text)) && (type === "number" || Number.isInteger(Number(text)))) params[name] = Number(text);
      else mistakes[name] = `This is not ${KINDS[type]}.`;
    } else {
      try {
        params[name] = JSON.parse(text);
      } catch {
        mistakes[name] = `This is not ${KINDS[type]}.`;
      }
    }
  }
  return { params, mistakes };
}
