// Text that fits a width in the drawing. The middle of a long name goes first: names often differ at their ends.
const STACK = 'system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "Liberation Sans", sans-serif'; // as in page.css
const MOST = 20_000;
const widths = new Map();
let context;

export function widthOf(text, font) {
  const key = `${font} ${text}`;
  if (!widths.has(key)) {
    if (widths.size > MOST) widths.clear();
    context ??= document.createElement("canvas").getContext("2d");
    context.font = `${font} ${STACK}`;
    widths.set(key, context.measureText(text).width);
  }
  return widths.get(key);
}

// The longest form of a text that fits: `cut` makes the form that keeps a number of letters.
function longest(text, font, width, cut) {
  if (widthOf(text, font) <= width) return text;
  let [low, high] = [0, text.length];
  while (low < high - 1) {
    const middle = (low + high) >> 1;
    if (widthOf(cut(text, middle), font) <= width) low = middle;
    else high = middle;
  }
  return cut(text, low);
}

const cutMiddle = (text, kept) => `${text.slice(0, Math.ceil(kept / 2)).trimEnd()}…${kept > 1 ? text.slice(-Math.floor(kept / 2)).trimStart() : ""}`;
const cutStart = (text, kept) => `…${kept ? text.slice(-kept).trimStart() : ""}`;
const cutEnd = (text, kept) => `${text.slice(0, kept).trimEnd()}…`;

export const fitName = (text, font, width) => longest(text, font, width, cutMiddle);
export const fitText = (text, font, width) => longest(text, font, width, cutEnd);

// A name in one or two lines; it breaks after a comma, hyphen, dot, underscore or space where it has one.
export function fitLines(text, font, width) {
  if (widthOf(text, font) <= width) return [text];
  const breaks = [...text.matchAll(/[-_., /:]/g)].map((found) => found.index + 1);
  const place = breaks.findLast((at) => widthOf(text.slice(0, at), font) <= width);
  if (place === undefined) return [fitName(text, font, width)];
  return [text.slice(0, place).trimEnd(), longest(text.slice(place), font, width, cutStart)];
}
