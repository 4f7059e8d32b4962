// Who uses the page. A session's cookie is the browser's alone; what is known here is the token that shows that this page asks.
import { el } from "/console/drawing.js";

const IDLE_MS = 60_000;
let session = null, renewed_ms = 0, signedOut = () => {};

/** The status and JSON of an answer. `away`, as `passing`, says of what it throws that it may be answered later. */
export async function answered(path, options) {
  let status = 0;
  try {
    const answer = await fetch(path, options);
    ({ status } = answer);
    return [status, status === 204 ? null : await answer.json()];
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw Object.assign(new Error(status ? `an answer (${status}) that is none of a node` : "the node does not answer"), { away: true, passing: true });
  }
}

async function call(method, path, headers = {}) {
  const own = { Accept: "application/json", "Content-Type": "application/json", "Lsmq-Anti-Forgery": session?.anti_forgery ?? "", ...headers };
  const [status, found] = await answered(path, { method, headers: own, credentials: "same-origin" });
  if (found?.error) throw Object.assign(new Error(found.error.message), { status });
  return found;
}

/** What a request that changes something shows. */
export const antiForgery = () => (session ? { "Lsmq-Anti-Forgery": session.anti_forgery } : {});

/** Find out who uses the page, as at its beginning. Where the node asks nobody, nobody does. */
export async function findOut() {
  let found = null;
  try { found = await call("GET", "/v1/session"); } catch { /* nobody: who must be somebody is told so with the first answer */ }
  know(found);
}

function know(found) {
  session = found;
  renewed_ms = Date.now();
  const who = document.getElementById("who");
  who.replaceChildren(...(found ? [el("span", {}, found.name), el("button", { type: "button", click: signOut }, "Sign out")] : []));
}

async function signOut() {
  try { await call("DELETE", "/v1/session"); } catch (error) {
    if (error.status !== 401) { document.getElementById("who").append(el("span", { class: "bad", role: "alert" }, error.message)); return; }
  }
  know(null);
  signedOut();
}

/** Have a session go on while somebody uses the page; what the page asks by itself is no use of it. */
export function watchUse(whenSignedOut) {
  signedOut = whenSignedOut;
  const used = async () => {
    if (!session || Date.now() < renewed_ms + Math.min(IDLE_MS, (session.idle_until_ms - renewed_ms) / 4)) return;
    renewed_ms = Date.now();
    try { session = await call("POST", "/v1/session/renew"); } catch { /* the next answer says why */ }
  };
  for (const event of ["pointerdown", "keydown"]) addEventListener(event, used);
}

/** Ask for a token, for which the node gives the browser a cookie; then go on. */
export function signIn(page, reason, go) {
  know(null);
  const field = el("input", { type: "password", autocomplete: "off", required: true, name: "token" });
  const said = el("p", { role: "alert" }), button = el("button", {}, "Sign in");
  const submit = async (event) => {
    event.preventDefault();
    button.disabled = true;
    const token = field.value.trim();
    try {
      if (!/^[!-~]+$/.test(token)) throw new Error("this is no token, which is one word of ASCII");
      know(await call("POST", "/v1/session", { Authorization: `Bearer ${token}` }));
    } catch (error) {
      said.className = "bad";
      said.textContent = error.message;
      return;
    } finally { field.value = ""; button.disabled = false; }
    go();
  };
  page.replaceChildren(el("h1", {}, "Sign in"), el("p", { class: "soft" }, 
      `${reason.replace(/: send '.*$/, "")}. The first token of a node is in its data directory, in the file admin.token.`),
    el("form", { submit }, el("label", {}, "Token", field), button), said);
  field.focus();
}
