// Which page stands at the address behind "#", and how the node is asked.
import { el } from "/console/drawing.js";
import { pages } from "/console/pages.js";
import { learn, noting } from "/console/rights.js";
import { answered, antiForgery, findOut, signIn, watchUse } from "/console/session.js";

const AGAIN_MS = 2000;
let leaving = new AbortController(), away = false;

/** The node's answer, as JSON. `meant`: the id of the topic that it is about. Throws what the node has against it. */
export async function ask(path, { method = "GET", body, meant, signal = leaving.signal, again = true } = {}) {
  const headers = { Accept: "application/json", "Lsmq-Forward": "pass", ...(method === "GET" ? {} : antiForgery()) };
  if (meant !== undefined) headers["Lsmq-Topic-Id"] = String(meant);
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const [status, found] = await answered(path, { method, headers, signal, credentials: "same-origin", body: body === undefined ? undefined : JSON.stringify(body) });
  if (found?.error?.code === "anti_forgery_failed" && again) { // Somebody signed in anew in another tab.
    await findOut();
    return ask(path, { method, body, meant, signal, again: false });
  }
  if (status === 401) throw Object.assign(new Error(found.error.message), { unauthenticated: true });
  if (found?.error) throw Object.assign(new Error(`${found.error.code}: ${found.error.message}`), { code: found.error.code, passing: found.error.retriable });
  return found;
}

/** Returns once somebody can see the page, or has left it. */
async function seen(signal) {
  while (document.hidden && !signal.aborted) {
    await new Promise((done) => { for (const [what, event] of [[document, "visibilitychange"], [signal, "abort"]]) what.addEventListener(event, done, { once: true }); });
  }
}

/** Ask again and again while the page is shown, and none of it while its tab is in the background; it says so while there is
 *  no answer, and goes on when there is. */
export async function keep(every_ms, work, signal = leaving.signal) {
  const said = el("p", { class: "bad", role: "alert" });
  while (!signal.aborted) {
    let pause_ms = every_ms;
    try {
      await work();
      said.remove();
    } catch (error) {
      if (signal.aborted || !error.passing) throw error;
      pause_ms = Math.max(every_ms, AGAIN_MS);
      said.textContent = `${error.message}; what stands here is from before`;
      if (!said.isConnected) document.getElementById("page").append(said);
    }
    await new Promise((done) => { const timer = setTimeout(done, pause_ms); signal.addEventListener("abort", () => { clearTimeout(timer); done(); }, { once: true }); });
    await seen(signal);
  }
}

/** The address of a page with these words behind its path. */
export function address(path, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  return `#${path}${given.length ? `?${new URLSearchParams(given)}` : ""}`;
}

/** A link to what comes after it in a list; nothing where that is all. */
export const further = (path, query, after) => (after === null || after === undefined ? null : el("p", {}, el("a", { href: address(path, { ...Object.fromEntries(query), after }) }, "Further")));

function decoded(part) {
  try { return decodeURIComponent(part); } catch { return part; }
}

async function show() {
  leaving.abort();
  leaving = new AbortController();
  away = false;
  const signal = leaving.signal, page = document.getElementById("page");
  const [path, words] = (location.hash.slice(1) || "/").split("?");
  const parts = path.split("/").slice(1).map(decoded);
  for (const link of document.querySelectorAll("header nav a")) {
    const own = link.getAttribute("href").slice(2);
    if (own === (parts[0] === "backups" ? "cluster" : parts[0])) link.setAttribute("aria-current", "page"); else link.removeAttribute("aria-current");
  }
  document.title = parts.filter(Boolean).length ? `${parts.filter(Boolean).join(" / ")} - LSMQ` : "LSMQ";
  const into = el("div");
  page.replaceChildren(noting(), into);
  try {
    learn(await ask("/v1/whoami"));
    await (pages[parts[0]] ?? pages[""])(into, parts.slice(1), new URLSearchParams(words), signal);
  } catch (error) {
    if (signal.aborted) return;
    away = error.away === true;
    if (error.unauthenticated) signIn(page, error.message, show);
    else page.append(el("p", { class: "bad", role: "alert" }, error.message));
  }
}

async function health() {
  const shown = document.getElementById("health");
  let text, good = false;
  try {
    const found = await (await fetch("/readyz", { credentials: "same-origin", signal: AbortSignal.timeout(5000) })).json();
    const said = [...found.reasons, ...(found.warnings ?? [])];
    good = !said.length;
    text = good ? "all is well" : said[0] + (said.length > 1 ? ` (and ${said.length - 1} more)` : "");
    if (away) show();
  } catch { text = "the node does not answer"; }
  if (shown.textContent !== text) { shown.textContent = text; shown.className = good ? "good" : "bad"; }
  setTimeout(health, 5000);
}

addEventListener("hashchange", () => { show(); document.getElementById("page").focus(); });
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select")) return;
  const to = { o: "#/", t: "#/topics", g: "#/groups", p: "#/producers", c: "#/cluster", b: "#/backups" }[event.key];
  if (to) location.hash = to;
  if (event.key === "?") document.getElementById("keys").showModal();
  if (event.key === "/") { const field = document.querySelector("main input"); if (field) { event.preventDefault(); field.focus(); } }
});
watchUse(show);
findOut().then(show);
health();
