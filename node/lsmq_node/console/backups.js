// Backups that this node makes itself: one begun, how far it is, what came of the last one, and those there are.
import { address, ask, keep } from "/console/console.js";
import { act, bytes, el, when } from "/console/drawing.js";
import { only } from "/console/rights.js";

const PATH = "/v1/backups";
const WHOLE = [["describe", "rights"], ["read", "topic", "*"], ["read", "group", "*"], ["describe", "producer-group", "*"]];
const made = (id) => id.replace(/^(\d{4})(\d\d)(\d\d)T(\d\d)(\d\d)(\d\d)\.\d+Z$/, "$1-$2-$3 $4:$5:$6");

export async function backups(into) {
  into.append(el("h1", {}, el("a", { href: address("/cluster") }, "Cluster"), " / backups"));
  const first = await ask(PATH);
  if (first.place === null) return into.append(...without());
  const state = el("div"), moving = el("div", { role: "status" }), there = el("div");
  const bar = el("progress", { "aria-label": "Backup" }), far = el("p");
  const start = act("Start a backup", async () => { show(await ask(PATH, { method: "POST" })); return "begun"; }, true);
  const stop = act("Stop it", async () => { show(await ask(`${PATH}/running`, { method: "DELETE" })); return "stopped"; }, true);
  into.append(el("p", {}, "This node puts backups of all shards into ", el("code", {}, first.place), first.keep ? `, and keeps the newest ${first.keep}.` : ", and removes none."),
    only(WHOLE, () => el("p", {}, start, " ", stop)) ?? "", moving, state, el("h2", {}, "Backups there"), there);
  let listed = "";
  const show = (found) => {
    start.hidden = found.running !== null;
    stop.hidden = found.running === null;
    if (found.running) {
      const { total_bytes: total, done_bytes: done } = found.running;
      if (total !== null) { bar.max = Math.max(total, 1); bar.value = done; } else bar.removeAttribute("value");
      far.textContent = total === null ? "all shards are being taken" : `${bytes(done)} of ${bytes(total)}`;
      if (!bar.isConnected) moving.replaceChildren(bar, far);
    } else moving.replaceChildren();
    state.replaceChildren(...ended(found.last));
    const now = JSON.stringify([found.problem, found.backups]);
    if (now !== listed) there.replaceChildren(found.problem ? el("p", { class: "bad" }, found.problem) : list(found.backups));
    listed = now;
  };
  show(first);
  await keep(1000, async () => show(await ask(PATH)));
}

function ended(last) {
  if (last === null) return [];
  const at = [" (", when(last.ended_ms), " UTC)"];
  if (last.error !== null) return [el("p", { class: "bad" }, "The last one was not made: ", last.error, ...at)];
  return [el("p", { class: "good" }, `Made: ${last.id}, ${bytes(last.size_bytes)}, of which ${bytes(last.fetched_bytes)} were new`, ...at),
    last.removed.length ? el("p", { class: "soft" }, `Removed: ${last.removed.join(", ")}`) : "",
    last.unread.length ? el("p", { class: "bad" }, `No space is freed: ${last.unread.join(", ")} cannot be read, so that nobody knows which files are theirs`) : ""];
}

const list = (ids) => (ids.length ? el("ul", {}, ids.map((id) => el("li", {}, el("code", {}, id), ` made at ${made(id)} (UTC)`))) : el("p", { class: "soft" }, "None yet."));

/** What to set, and what does the same without it. */
function without() {
  return [el("p", {}, "This node makes no backups: it was not told where to put them. Set a directory, or an object store, and start it again:"),
    el("pre", { class: "panel" }, 'backup_to = "/backups/lsmq"      # or s3://BUCKET/PREFIX; LSMQ_BACKUP_TO in the environment'),
    el("p", {}, "Or have one made from any machine that reaches the nodes:"),
    el("pre", { class: "panel" }, `lsmq backup create --url ${location.origin} --to /backups/lsmq --keep 7`)];
}
