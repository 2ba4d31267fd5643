// The vendored libraries under the names that the views use.
import htm from "./vendor/htm.mjs";
import { h } from "./vendor/preact.mjs";

export { cloneElement, render, Fragment } from "./vendor/preact.mjs";
export { useEffect, useRef, useState, useMemo, useCallback, useLayoutEffect } from "./vendor/preact-hooks.mjs";
export { signal, computed, effect, batch, untracked, useSignal, useComputed, useSignalEffect } from "./vendor/signals.mjs";
export const html = htm.bind(h);

// Class names from strings and { name: condition }.
export function classes(...parts) {
  return parts.flatMap((part) =>
    typeof part === "object" && part ? Object.keys(part).filter((name) => part[name]) : part ? [part] : []
  ).join(" ");
}
