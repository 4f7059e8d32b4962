// What one queue keeps, where that is not what its topic says.
import { ask } from "/console/console.js";
import { act, el } from "/console/drawing.js";
import { only } from "/console/rights.js";

const LIMITS = {
  retention_ms: ["Age", "7d", { "": 1, ms: 1, s: 1_000, m: 60_000, h: 3_600_000, d: 86_400_000, w: 604_800_000 }],
  retention_bytes: ["Bytes", "100m", { "": 1, k: 2 ** 10, m: 2 ** 20, g: 2 ** 30, t: 2 ** 40 }],
  retention_messages: ["Messages", "10000", { "": 1 }],
};

/** The value of a limit that somebody wrote: null for nothing, which is as the topic has it. */
function limit(name, text) {
  const [label, such, units] = LIMITS[name], given = text.trim().toLowerCase();
  if (given === "" || given === "unlimited") return given || null;
  const [, number, unit] = /^([0-9]{1,15})([a-z]*)$/.exec(given) ?? [];
  const value = Number(number) * (units[unit] ?? NaN);
  if (!Number.isSafeInteger(value) || value < 1) throw new Error(`${label}: ${text} is no limit; such as ${such}, "unlimited", or nothing, for what the topic says`);
  return value;
}

const said = (options) => (Object.keys(options).length
  ? `Keeps by options of its own: ${Object.entries(options).map(([name, value]) => `${name} ${value}`).join(", ")}.` : "Keeps what its topic says.");

/** What it keeps, and a form that changes it. `own` is the queue's path. */
export function keeping(topic, own, options = {}) {
  const text = el("p", {}, said(options));
  return [text, only([["alter", "topic", topic]], () => changing(text, own, options)) ?? ""];
}

function changing(text, own, options) {
  const inputs = Object.entries(LIMITS).map(([name, [label, such]]) => [name, label, el("input", { name, value: options[name] ?? "", placeholder: `as the topic; ${such}` })]);
  const change = act("Change", async () => {
    const body = Object.fromEntries(inputs.map(([name, , input]) => [name, limit(name, input.value)]));
    const now = (await ask(own, { method: "PATCH", body })).options ?? {};
    text.textContent = said(now);
    for (const [name, , input] of inputs) input.value = now[name] ?? "";
    return "changed; what is beyond it goes by itself";
  }, true);
  return el("details", {}, el("summary", {}, "Keep more or less than the topic says"),
    el("form", { submit: (event) => event.preventDefault() }, inputs.map(([, label, input]) => el("label", {}, label, input)), change));
}
