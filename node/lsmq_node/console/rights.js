// What somebody may do who uses the page. The node decides: this spares him buttons that it would refuse, and says why.
import { el } from "/console/drawing.js";

const SAID = 5;
let allowed = null, note = null, lacking = new Set();

/** What the node says of who asks. Where it asks nobody, everybody may do everything. */
export function learn(who) {
  allowed = who.allowed ?? null;
  document.querySelector('header nav a[href="#/cluster"]').hidden = !may("describe", "cluster");
}

const satisfies = (given, asked) => given === asked || given === "all" || asked === "describe";
const covers = (pattern, name) => pattern === name || (pattern.endsWith("*") && name.startsWith(pattern.slice(0, -1)));

/** Whether an action may be done to a resource of a kind; "*" stands for every name there may be. */
export const may = (action, kind, name = "*") => allowed === null
  || allowed.some((each) => each.kind === kind && satisfies(each.action, action) && covers(each.pattern, name));

/** Where the page to come says what it leaves out. */
export function noting() {
  lacking = new Set();
  note = el("p", { class: "soft", role: "note", hidden: true });
  return note;
}

/** What `make` makes, for who has all rights that it needs, [action, kind, name] each. Else null, and the page says which he lacks. */
export function only(needs, make) {
  const missing = needs.filter((need) => !may(...need));
  if (!missing.length) return make();
  for (const need of missing) lacking.add(need.join(" "));
  const said = [...lacking];
  note.textContent = `Left out here is what you may not do. It needs: ${said.slice(0, SAID).join(", ")}${said.length > SAID ? ", …" : ""}.`;
  note.hidden = false;
  return null;
}
