// Producer groups, and their transactions that nobody has decided: whoever hangs is ended here.
import { address, ask } from "/console/console.js";
import { act, bytes, count, cut, el, fields, table, when } from "/console/drawing.js";
import { only } from "/console/rights.js";

const enc = encodeURIComponent;
const PAGE = 100;

export async function producers(into, parts, query) {
  if (parts.length) return group(into, parts[0], query.get("after") ?? "");
  const found = await ask(`/v1/producer-groups?limit=${PAGE}&after=${enc(query.get("after") ?? "")}`);
  into.append(el("h1", {}, "Producer groups"), el("p", { class: "soft" }, "Those that this node coordinates, with members or unfinished transactions."),
    fields(query, { after: "Names after" }, (given) => { location.hash = address("/producers", given); }),
    table("Producer groups", ["group", "#shard", "#members", "#unfinished"], found.groups.map((each) => [
      el("a", { href: address(`/producers/${enc(each.group)}`) }, each.group), each.shard, count(each.members), count(each.unfinished)])));
  if (found.next) into.append(el("p", {}, el("a", { href: address("/producers", { after: found.next }) }, "Further")));
}

async function group(into, name, after) {
  const own = `/v1/producer-groups/${enc(name)}`;
  const listed = (state, more = "") => ask(`${own}/transactions?state=${state}&limit=${PAGE}${more}`);
  const [known, open, late] = await Promise.all([ask(own), listed("open", `&after=${enc(after)}`), listed("undelivered")]);
  const write = (make) => only([["write", "producer-group", name]], make);
  const decide = (each, word, said) => write(() => act(word, async () => { await ask(`${own}/transactions/${enc(each.transaction)}/${said}`, { method: "POST", body: {} }); return said === "commit" ? "committed" : "rolled back"; }));
  const end = ({ id }) => write(() => act("End", async () => { await ask(`${own}/heartbeat`, { method: "POST", body: { member: id, leave: true } }); return "ended; others are asked about its transactions"; }));
  const holds = (each) => Object.entries(each.messages).map(([topic, many]) => `${topic}: ${count(many)}`).join(", ");
  into.append(el("h1", {}, name), el("p", {}, `${count(known.open)} transactions open, ${count(known.undelivered)} committed and not delivered yet.`),
    table("Members", ["member", "client", "#heard ms ago", "#transactions", "to do"], known.members.slice(0, PAGE).map((each) => [each.id, each.client, count(each.heartbeat_age_ms), count(each.transactions), end(each)])),
    cut(known.members.length, PAGE) ?? "",
    el("h2", {}, "Open transactions"),
    table("Open transactions", ["transaction", "begun (UTC)", "by", "reference", "messages", "#size", "to do"], open.transactions.map((each) => [
      each.transaction, when(each.begun_ms), each.member, each.reference, holds(each), bytes(each.size_bytes),
      el("span", { class: "acts" }, decide(each, "Commit", "commit"), decide(each, "Roll back", "rollback"))])));
  if (open.next) into.append(el("p", {}, el("a", { href: address(`/producers/${enc(name)}`, { after: open.next }) }, "Further")));
  if (late.transactions.length) into.append(el("h2", {}, "Committed, and not delivered yet"),
    table("Not delivered", ["transaction", "begun (UTC)", "reference", "messages", "shards that it waits for"], late.transactions.map((each) => [
      each.transaction, when(each.begun_ms), each.reference, holds(each), each.waiting_shards.join(", ")])), cut(known.undelivered, late.transactions.length) ?? "");
  if (known.sequences.length) into.append(el("h2", {}, "Sequences"),
    table("Sequences", ["sequence", "#epoch", "position", "member"], known.sequences.slice(0, PAGE).map((each) => [each.sequence, count(each.epoch), each.position, each.member])), cut(known.sequences.length, PAGE) ?? "");
}
