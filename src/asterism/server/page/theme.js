// The theme: as the system has it, unless the person chose one. A page without an origin keeps no choice.
import { html, signal } from "./ui.js";

const NAME = "asterism-theme";
const kept = (act) => {
  try {
    return act(localStorage);
  } catch {
    return null;
  }
};
const theme = signal(kept((storage) => storage.getItem(NAME)) ?? "");
document.documentElement.dataset.theme = theme.value;

function setTheme(name) {
  theme.value = name;
  kept((storage) => storage.setItem(NAME, name));
  document.documentElement.dataset.theme = name;
}

export function ThemeButton() {
  const isDark = theme.value === "dark" || (!theme.value && matchMedia("(prefers-color-scheme: dark)").matches);
  const label = isDark ? "Light theme" : "Dark theme";
  return html`<button class="plain" onClick=${() => setTheme(isDark ? "light" : "dark")} aria-label=${label} title=${label}>${isDark ? "☀" : "☾"}</button>`;
}
