// Bodies: as what they are, or as text, JSON or hex digits where somebody wants them so.
import { el } from "/console/drawing.js";

export const VIEWS = { "": "as they are", text: "text", json: "JSON", hex: "hex" };
const SHORT = 100, DEEPEST = 100;

/** Bytes as lines of hex digits with what is printable beside. */
function hex(raw) {
  const lines = [];
  for (let at = 0; at < raw.length; at += 16) {
    const part = [...raw.slice(at, at + 16)];
    const digits = part.map((each) => each.toString(16).padStart(2, "0")).join(" ");
    lines.push(`${at.toString(16).padStart(6, "0")}  ${digits.padEnd(47)}  ${part.map((each) => (each >= 32 && each <= 126 ? String.fromCharCode(each) : ".")).join("")}`);
  }
  return lines.join("\n");
}

const raw = (message) => (message.body_b64 === undefined ? new TextEncoder().encode(message.body) : Uint8Array.from(atob(message.body_b64), (each) => each.charCodeAt(0)));

/** JSON with a value a line, each as it was written: who parses it rounds numbers, and drops names that are said twice. */
function indented(text) {
  let depth = 0;
  const further = (by) => {
    depth += by;
    if (depth > DEEPEST) throw new RangeError();
    return `\n${"  ".repeat(depth)}`;
  };
  try {
    JSON.parse(text);
    return text.replace(/"[^"\\]*(?:\\.[^"\\]*)*"|\s+|\{\s*\}|\[\s*\]|[{}[\],:]/g, (part) => {
      if (part === "{" || part === "[") return part + further(1);
      if (part === "}" || part === "]") return further(-1) + part;
      if (part === ",") return part + further(0);
      return part === ":" ? ": " : part.startsWith('"') ? part : part.replace(/\s+/g, "");
    });
  } catch { return null; }
}

export function body(message, view) {
  if (message.delete) return el("span", { class: "soft" }, "says that its key is gone");
  if (view === "hex" || (view === "" && message.body_b64 !== undefined)) return folded(hex(raw(message)), `${raw(message).length} bytes`, "hex");
  const text = message.body ?? new TextDecoder().decode(raw(message));
  if (view === "text") return folded(text, `${text.slice(0, SHORT)}...`);
  const json = indented(text);
  if (view === "json" && json === null) return [el("p", { class: "soft" }, "no JSON"), folded(text, `${text.slice(0, SHORT)}...`)];
  return text.length <= SHORT && view === "" ? el("pre", {}, text) : folded(json ?? text, `${text.slice(0, SHORT)}...`);
}

/** All of it, below a line of it where it is long. */
function folded(text, beginning, kind = null) {
  const whole = el("pre", { class: kind }, text);
  return text.length <= 4 * SHORT ? whole : el("details", {}, el("summary", {}, el("code", {}, beginning)), whole);
}
