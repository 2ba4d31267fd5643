"use strict";

// Tooltips: the native <title> waits too long and cannot be styled, so its text moves into a box of our own.
const tooltip = document.createElement("div");
tooltip.className = "tooltip";
tooltip.hidden = true;
document.body.append(tooltip);

function words(element) {
  const title = element.querySelector(":scope > title");
  if (title) {
    element.dataset.words = title.textContent;
    element.setAttribute("aria-label", title.textContent);
    title.remove();
  }
  return element.dataset.words;
}

document.addEventListener("pointermove", (event) => {
  const element = event.target.closest("svg g:has(> title), svg path:has(> title), svg [data-words]");
  tooltip.hidden = !element;
  if (!element) return;
  tooltip.textContent = words(element);
  const { width, height } = tooltip.getBoundingClientRect();
  tooltip.style.left = `${Math.max(8, Math.min(event.clientX + 14, innerWidth - width - 8))}px`;
  const below = event.clientY + 18;
  tooltip.style.top = `${below + height > innerHeight ? event.clientY - height - 12 : below}px`;
});
document.addEventListener("scroll", () => { tooltip.hidden = true; }, true);

// A link to a story, or a click on a task in a drawing, opens the story.
function tell(story) {
  if (!story) return;
  story.hidden = false;
  story.open = true;
  story.scrollIntoView({ block: "center" });
  story.querySelector("summary").focus({ preventScroll: true });
}
const stories = [...document.querySelectorAll(".stories details")];
const storyOf = new Map(stories.map((story) => [story.dataset.name, story]));
const linked = () => tell(stories.find((story) => `#${story.id}` === location.hash));
addEventListener("hashchange", linked);
linked();
document.addEventListener("click", (event) => {
  const drawn = event.target.closest("[data-task]");
  if (drawn) tell(storyOf.get(drawn.dataset.task));
});

// Find: hides the rows and stories of the tasks that do not match.
const rows = [...document.querySelectorAll("#tasks tbody tr")];
document.querySelector(".filter input")?.addEventListener("input", (event) => {
  const wanted = event.target.value.trim().toLowerCase();
  for (const element of [...rows, ...stories]) element.hidden = !element.dataset.name.toLowerCase().includes(wanted);
});

// Sort: by the column whose head is pressed, numbers as numbers, what is empty last.
const order = new Intl.Collator(undefined, { numeric: true });
for (const head of document.querySelectorAll("#tasks thead th")) {
  head.querySelector("button").addEventListener("click", () => {
    const down = head.getAttribute("aria-sort") === "ascending";
    for (const other of head.parentNode.children) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const key = (row) => row.cells[head.cellIndex].dataset.sort ?? row.cells[head.cellIndex].textContent;
    const keyed = rows.map((row) => [key(row), row]);
    keyed.sort(([a], [b]) => (!a - !b) || (down ? order.compare(b, a) : order.compare(a, b)));
    document.querySelector("#tasks tbody").append(...keyed.map(([, row]) => row));
  });
}
