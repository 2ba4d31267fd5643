// A request in words: the model of the server proposes edits, which the graph shows; the person applies them or says
// what to change, and the model proposes again.
import { go } from "./address.js";
import { post } from "./api.js";
import { Diff } from "./batch_diff.js";
import { Violations } from "./parts.js";
import { Head } from "./task_drawer.js";
import { html, useEffect, useRef, useState } from "./ui.js";
import { costText, plural } from "./words.js";

const LONGEST_REASON = 10_000;
const LONGEST_REQUEST = 10_000;

export const EMPTY_REQUEST = { edits: [], rounds: [] };

export function EditRequest({ state, draft, show }) {
  const { rounds } = draft.value;
  const [text, setText] = useState("");
  const [busy, setBusy] = useState("");
  const [problem, setProblem] = useState(null);
  const box = useRef(null);
  const last = rounds.at(-1)?.proposal;
  const ready = Boolean(last?.outcome.edits.length) && !busy;
  useEffect(() => { box.current?.focus({ preventScroll: true }); return () => show(null); }, []);
  const cancel = () => { draft.value = null; };
  // The conversation may be closed meanwhile, or another one may have begun.
  const during = async (what, act) => {
    const here = draft.value;
    box.current?.focus({ preventScroll: true }); // a button that is disabled would lose the focus, and Escape with it
    setBusy(what);
    setProblem(null);
    try {
      await act(() => draft.value === here);
    } catch (failed) {
      if (failed.name === "edit-waits") {
        draft.value = null;
        return go(["plans", state.name, "edits"]); // where it waits for approval
      }
      setProblem(failed);
    } finally {
      setBusy("");
    }
  };
  const ask = () => during("The model reads the plan…", async (open) => {
    const requests = [...rounds.map((round) => round.text), text.trim()];
    const answers = rounds.map(({ proposal }) => ({ edits: proposal.outcome.edits, reason: proposal.reason }));
    const proposal = await post(["plans", state.name, "proposals"], { requests, answers });
    if (!open()) return;
    draft.value = { ...draft.value, edits: proposal.outcome.edits, rounds: [...rounds, { text: text.trim(), proposal }] };
    setText("");
    show(proposal.outcome.edits.length ? proposal.outcome.edits : null);
  });
  const apply = () => during("The edits are applied…", async () => {
    const reason = rounds.map((round) => round.text).join("; ").slice(0, LONGEST_REASON);
    const { outcome, base_version, editor } = last;
    await post(["plans", state.name, "edits"], { edits: outcome.edits, reason, base_version, editor });
    await state.reload();
    draft.value = null;
  });
  const keys = (event) => {
    if (event.key === "Escape") { event.stopPropagation(); cancel(); }
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && text.trim() && !busy) { event.preventDefault(); ask(); }
  };
  return html`<aside class="drawer composer" aria-label="Ask for a change" onKeyDown=${keys}>
    <${Head} title="Ask for a change" close=${cancel} />
    ${!rounds.length && html`<p class="note">Say in words what to change. A model proposes edits, and nothing changes before you apply them.</p>`}
    <ol class="rounds" aria-label="Rounds">${rounds.map((round, number) => html`<li key=${number}><${Round} round=${round} latest=${number === rounds.length - 1} /></li>`)}</ol>
    <footer><label class="field"><span>${rounds.length ? "Something else" : "Request"}</span><textarea ref=${box} class="prose" rows="3" maxlength=${LONGEST_REQUEST} value=${text} onInput=${(event) => setText(event.target.value)} aria-describedby="ask-keys" /></label>
      <small id="ask-keys">Ctrl+Enter asks.</small>
      <div class="verdict" role="status">${busy || (ready && `The model proposes ${plural(last.outcome.edits.length, "operation")}. The graph shows the outcome.`)}
        ${problem && html`<p class="bad">✗ ${problem.message}</p><${Violations} items=${problem.violations} />`}</div>
      <p class="buttons"><button class=${ready ? "" : "primary"} disabled=${Boolean(busy) || !text.trim()} onClick=${ask}>${rounds.length ? "Ask again" : "Ask"}</button>
        ${ready && html`<button class="primary" onClick=${apply}>Apply</button>`}<button onClick=${cancel}>Cancel</button></p></footer>
  </aside>`;
}

function Round({ round: { text, proposal }, latest }) {
  const { outcome, reason, editor, cost } = proposal;
  return html`<p class="request"><b>You:</b> ${text}</p><p class="note"><b>${editor}:</b> ${reason || (outcome.edits.length ? "no reason" : "no edits")}</p>
    ${latest ? html`<${Diff} edits=${outcome.edits} changes=${outcome.changes} />` : html`<details><summary>${plural(outcome.edits.length, "operation")}, not applied</summary><${Diff} edits=${outcome.edits} changes=${outcome.changes} /></details>`}
    ${latest && outcome.stopped.length > 0 && html`<p class="note">It would stop ${outcome.stopped.join(", ")}.</p>`}
    ${latest && outcome.reopened && html`<p class="note">The plan has ended, and would be open again.</p>`}
    ${latest && outcome.waits.length > 0 && html`<p class="note">It would wait for approval: ${outcome.waits.join("; ")}.</p>`}
    <small>${costText(cost)}</small>`;
}
