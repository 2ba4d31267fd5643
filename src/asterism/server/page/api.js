// The HTTP API, and its event streams, which reconnect and continue after the last event.
import { pageKey } from "./page_key.js";
import { signal } from "./ui.js";

export const BASE = "/api/v1";
export const me = signal(null);
// "connected", "lost" (the stream is down and tries again) or "signed out".
export const connection = signal("connected");

export class Problem extends Error {
  constructor(status, body) {
    super(body.detail || body.title || `The server answered with ${status}.`);
    Object.assign(this, { status, title: body.title, name: (body.type ?? "").split(":").at(-1), violations: body.violations ?? [] });
  }
}

// Whether a request failed because the server, or the one behind a proxy, was not there.
export const isAway = (problem) => problem.status === 0 || problem.status >= 502;

// Browsers remove "." and ".." from paths, also if they are encoded: such a name gets a "~" in front (base/path_names.py).
const pathPart = (name) => encodeURIComponent(/^~*\.{1,2}$/.test(name) ? `~${name}` : name);
const path = (parts) => `${BASE}/${parts.map(pathPart).join("/")}`;

export function url(parts, query = {}) {
  const search = new URLSearchParams(Object.entries(query).filter(([, value]) => value !== "" && value != null));
  const text = search.toString();
  return path(parts) + (text ? `?${text}` : "");
}

async function request(method, address, body) {
  const headers = { Accept: "application/json", "X-Asterism-Page": pageKey() };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(address, { method, headers, body: body === undefined ? undefined : JSON.stringify(body), credentials: "same-origin" });
  } catch {
    throw new Problem(0, { detail: "The server cannot be reached." });
  }
  if (response.status === 401) connection.value = "signed out";
  const text = await response.text();
  const data = /json/.test(response.headers.get("content-type") ?? "") && text ? JSON.parse(text) : text;
  if (!response.ok) throw new Problem(response.status, typeof data === "object" ? data : { detail: data });
  return data;
}

// A report has its documents with it: `answer` returns the document of an address. Otherwise the server is asked.
let answer = null;
export const answerWith = (documents) => { answer = documents; };
export const isReport = () => answer !== null;

export const get = async (parts, query) => (answer ? answer(parts) : request("GET", url(parts, query)));
export const post = (parts, body = {}, query = {}) => request("POST", url(parts, query), body);

export async function signIn() {
  me.value = await get(["me"]);
  connection.value = "connected";
  return me.value;
}

// Lines of an event stream as events: {id, event, data}.
export function eventParser(receive) {
  let rest = "";
  let event = { event: "message", data: [] };
  return (chunk) => {
    rest += chunk;
    const lines = rest.split(/\r\n|\n/);
    rest = lines.pop();
    for (const line of lines) {
      if (line === "") {
        if (event.data.length) receive({ ...event, data: event.data.join("\n") });
        event = { event: "message", data: [] };
      } else if (!line.startsWith(":")) {
        const [, field, text] = /^([^:]*):? ?(.*)$/.exec(line);
        if (field === "data") event.data.push(text);
        else if (field === "id" || field === "event") event[field] = text;
      }
    }
  };
}

const SILENCE = 40_000; // the server sends a comment every 15 s
const LONGEST_PAUSE = 10_000;

// Follow an event stream until the returned function is called. After a break it goes on behind the last event;
// `reconnected` is called then. EventSource gives up after an error of the server, so fetch reads the stream.
export function follow(parts, { since, receive, reconnected }) {
  if (answer) return () => {};
  let last = since;
  let stopped = false;
  let pause = 500;
  let controller;

  async function read() {
    controller = new AbortController();
    let timer = setTimeout(() => controller.abort(), SILENCE);
    try {
      const headers = { Accept: "text/event-stream", "X-Asterism-Page": pageKey() };
      if (last != null && last !== "") headers["Last-Event-ID"] = String(last);
      const response = await fetch(url(parts), { headers, signal: controller.signal, credentials: "same-origin", cache: "no-store" });
      if (response.status === 401) connection.value = "signed out";
      if (response.status === 404) stopped = true; // it is gone: trying again would not help
      if (!response.ok || !response.body) throw new Error(`status ${response.status}`);
      if (connection.value === "lost") {
        connection.value = "connected";
        reconnected?.();
      }
      pause = 500;
      const feed = eventParser((event) => {
        if (event.id !== undefined) last = event.id;
        let data = {};
        try {
          data = JSON.parse(event.data);
        } catch { /* an event without data */ }
        receive(event.event, data);
      });
      const decoder = new TextDecoder();
      for (const reader = response.body.getReader(); ;) {
        const { done, value } = await reader.read();
        if (done) break;
        clearTimeout(timer);
        timer = setTimeout(() => controller.abort(), SILENCE);
        feed(decoder.decode(value, { stream: true }));
      }
    } finally {
      clearTimeout(timer);
    }
  }

  async function run() {
    while (!stopped) {
      try {
        await read();
      } catch {
        if (!stopped && connection.value === "connected") connection.value = "lost";
      }
      if (stopped) return;
      await new Promise((wake) => setTimeout(wake, pause));
      pause = Math.min(pause * 2, LONGEST_PAUSE);
    }
  }
  run();
  return () => {
    stopped = true;
    controller?.abort();
  };
}
