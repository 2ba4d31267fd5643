// A spent budget of the model that edits the plan: what is spent, since when, and what a person can do about it.
import { post } from "./api.js";
import { Action } from "./parts.js";
import { may } from "./permissions.js";
import { html, useState } from "./ui.js";
import { clock, dollars, duration } from "./words.js";

// The limits of a budget: a label, an amount in words, and the limit as the API takes it.
const LIMITS = {
  dollars: ["Dollars", dollars, (typed) => `$${typed}`],
  tokens: ["Tokens", (number) => number.toLocaleString("en"), (typed) => `${typed}tokens`],
  calls: ["Calls", (number) => number.toLocaleString("en"), (typed) => `${typed}calls`],
  seconds: ["Seconds", duration, (typed) => `${typed}s`],
  tasks: ["Tasks added", (number) => number.toLocaleString("en"), (typed) => `${typed}tasks`],
};

export function BudgetBanner({ state, budget }) {
  const [raising, setRaising] = useState(false);
  const decide = async (decision) => { await post(["plans", state.name, "budget"], decision); await state.reload(); };
  const until = budget.held_until && ` Without a decision, the plan goes on without its editor at ${clock(budget.held_until)}.`;
  return html`<section class="hold-banner" aria-label="Budget of the editor">
    <p role="status"><b>The budget of the editor is spent${budget.held_why ? `: ${budget.held_why}` : ""}.</b> <small>The tasks below the ends that it reviews are held since ${clock(budget.held_since)}.${until}</small></p>
    <span class="buttons">${may("decide_budget") && html`<button data-operation="decide_budget" aria-expanded=${String(raising)} onClick=${() => setRaising(!raising)}>Raise it…</button>`}
      <${Action} operation="decide_budget" confirm="Ask the editor no more in this plan?" act=${() => decide({ without_editor: true })}>Go on without an editor<//></span>
    ${raising && html`<${Limits} budget=${budget} raise=${decide} />`}
  </section>`;
}

// The limits of the budget, to be changed.
function Limits({ budget, raise }) {
  const [typed, setTyped] = useState({});
  const limits = Object.entries(LIMITS).filter(([name]) => budget.budget[name] !== undefined);
  const changed = limits.filter(([name]) => typed[name]?.trim() && Number(typed[name]) !== budget.budget[name]);
  const text = () => changed.map(([name, [, , limit]]) => limit(typed[name].trim())).join(" ");
  return html`<div class="limits">${limits.map(([name, [label, amount]]) => html`<label key=${name}><span>${label}</span>
      <input inputmode="decimal" autocomplete="off" aria-describedby=${`spent-${name}`} value=${typed[name] ?? String(budget.budget[name])} onInput=${(event) => setTyped({ ...typed, [name]: event.target.value })} />
      <small id=${`spent-${name}`}>${amount(budget.spent[name] ?? 0)} spent</small></label>`)}
    <${Action} operation="decide_budget" kind="primary" disabled=${!changed.length} act=${() => raise({ limits: text() })}>Set the budget<//></div>`;
}
