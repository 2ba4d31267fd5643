// The last ends of the plans of one file, as marks: whether what runs every night has been well.
import { addressOf } from "./address.js";
import { html } from "./ui.js";
import { clock, mark, words } from "./words.js";

export const SHOWN = 5;

// For each plan of a list, the newest first: itself and the plans of its file before it, the oldest first.
export function recentOf(plans) {
  const byFile = new Map();
  for (const plan of plans) if (plan.file) byFile.set(plan.file, [...(byFile.get(plan.file) ?? []), plan]);
  const recent = new Map();
  for (const alike of byFile.values()) {
    if (alike.length > 1) alike.forEach((plan, place) => recent.set(plan.name, alike.slice(place, place + SHOWN).reverse()));
  }
  return recent;
}

export function RecentEnds({ plans }) {
  if (!plans) return null;
  const stateOf = (plan) => (plan.paused ? "paused" : plan.state);
  const text = (plan) => `${plan.name}, ${clock(plan.started_at ?? plan.created_at)}: ${plan.state_text ?? words(plan.state)}`;
  return html`<span class="recent">${plans.map((plan) => html`<a key=${plan.name} class=${`is-${stateOf(plan)}`} href=${addressOf(["plans", plan.name, "graph"])} title=${text(plan)} aria-label=${text(plan)}><span class="glyph" aria-hidden="true">${mark(stateOf(plan))}</span></a>`)}</span>`;
}
