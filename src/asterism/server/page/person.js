// Who is logged in, and the way out.
import { connection, me, post } from "./api.js";
import { Action } from "./parts.js";
import { html } from "./ui.js";

async function logOut() {
  await post(["logout"]);
  me.value = null;
  connection.value = "signed out";
}

export function Person() {
  if (!me.value) return null;
  const { name, scopes, logout } = me.value;
  return html`<span class="person" title=${`Logged in as ${name} (${scopes.join(", ")})`}><span class="visually-hidden">Logged in as </span>${name}</span>
    ${logout ? html`<a class="button" href=${logout}>Log out</a>` : html`<${Action} act=${logOut}>Log out<//>`}`;
}
