// Boxes of the graph in pixels, and how far layers and rows are apart (layout.js).
export const WIDTH = 204;
export const HEIGHT = 46;
export const COLUMN = 252;
export const ROW = 64;
