// What the person may do. The server says it, in the names of its operations, and the page offers nothing else.
import { get } from "./api.js";
import { signal } from "./ui.js";

const allowed = signal({ plan: null, names: new Set() });

export const may = (operation) => allowed.value.names.has(operation);
export const knowsPlan = (plan) => allowed.value.plan === plan;

// In general, or for a plan that is opened.
export async function readPermissions(plan = null) {
  const { operations } = await get(["me", "operations"], { plan });
  allowed.value = { plan, names: new Set(operations) };
}
