// Topics and their queues: listed in their order, or those first that stand out among a million.
import { address, ask, further } from "/console/console.js";
import { bytes, count, el, fields, rate, table, when } from "/console/drawing.js";
import { found, queue } from "/console/messages.js";

const enc = encodeURIComponent;
const PAGE = 100, SHOWN_GROUPS = 20;
const ORDERS = { "": "by name", depth: "deepest first", rate: "busiest first", age: "oldest first" };

export async function topics(into, parts, query, signal) {
  if (parts.length >= 2) return queue(into, parts, query, signal);
  if (parts.length === 1) return topic(into, parts[0], query);
  const known = await ask(`/v1/topics?limit=${PAGE}&after=${enc(query.get("after") ?? "")}`);
  into.append(el("h1", {}, "Topics"), fields(query, { after: "Names after" }, (given) => { location.hash = address("/topics", given); }), table("Topics", ["topic", "#queues", "options"], known.topics.map((each) => [
    el("a", { href: address(`/topics/${enc(each.name)}`) }, each.name), each.named ? "named" : count(each.queues), JSON.stringify(each.options)])),
    further("/topics", query, known.next) ?? "");
}

async function topic(into, name, query) {
  const path = `/topics/${enc(name)}`, own = `/v1/topics/${enc(name)}`;
  const [known, usage] = await Promise.all([ask(own), ask(`${own}/usage?groups=${SHOWN_GROUPS}`)]);
  into.append(el("h1", {}, name), el("p", {}, `${count(usage.messages)} messages, ${bytes(usage.bytes)}. Groups: `,
    usage.groups.length ? usage.groups.flatMap((group, at) => [at ? ", " : "", el("a", { href: address(`/groups/${enc(group)}`, { topic: name }) }, group)]) : "none", usage.group_count > usage.groups.length ? `, ... (${count(usage.group_count)})` : ""),
    el("p", {}, el("a", { href: address(`/later/${enc(name)}`) }, "What comes later")));
  into.append(fields(query, { key: "Key", tag: "Tag", filter: "Expression", from: "From (UTC)", to: "Until" }, (given) => { location.hash = address(path, given); }));
  if (["key", "tag", "filter", "from", "to"].some((each) => query.get(each))) return found(into, name, path, query);
  const by = query.get("by") ?? "";
  into.append(el("h2", {}, "Queues"), el("nav", { class: "orders", "aria-label": "Order of queues" }, Object.entries(ORDERS).map(([order, said]) =>
    el("a", { href: address(path, { by: order }), "aria-current": order === by ? "true" : null }, order || known.named ? said : "by number"))));
  if (by) return ranked(into, path, own, by, known);
  if (known.named) {
    into.append(fields(query, { prefix: "Beginning with" }, (given) => { location.hash = address(path, given); }));
    const some = await ask(`${own}/queues?limit=${PAGE}&prefix=${enc(query.get("prefix") ?? "")}&after=${enc(query.get("after") ?? "")}`);
    into.append(table("Queues", ["queue", "#earliest", "#latest", "#messages"], some.queues.map((each) => [
      el("a", { href: address(`${path}/${enc(each.name)}`) }, each.name), count(each.earliest), count(each.latest), count(each.count)])), further(path, query, some.next) ?? "");
  } else {
    const first = Math.max(0, Math.min(Number(query.get("after") ?? 0) || 0, known.queues - 1)), last = Math.min(first + PAGE, known.queues) - 1;
    into.append(fields(query, { after: "From queue" }, (given) => { location.hash = address(path, given); }));
    const some = await ask(`${own}/offsets?queues=${first}-${last}`);
    into.append(table("Queues", ["queue", "#earliest", "#latest", "#messages", "leader"], some.queues.map((number, at) => [
      el("a", { href: address(`${path}/${number}`) }, number), count(some.earliest[at]), count(some.latest[at]), count(some.latest[at] - some.earliest[at]), leader(known, number)])),
      further(path, query, last + 1 < known.queues ? last + 1 : null) ?? "");
  }
}

const leader = (known, number) => known.routes.find((route) => route.first <= number && number < route.end)?.leader ?? "nobody";

/** The queues that come first in an order. By rate the node watches for a second. */
async function ranked(into, path, own, by, known) {
  const wait = el("p", { role: "status" }, by === "rate" ? "watching for a second..." : "looking...");
  into.append(wait);
  let first;
  try { first = await ask(`${own}/top-queues?by=${by}&limit=${PAGE}`); } finally { wait.remove(); }
  const rates = by === "rate" ? ["#new in a second"] : [];
  into.append(table("Queues", ["queue", "#messages", ...rates, "oldest stored (UTC)", "#earliest", "#latest", "leader"], first.queues.map((each) => [
    el("a", { href: address(`${path}/${enc(each.queue)}`) }, each.queue), count(each.count), ...rates.map(() => rate(each.in_per_s)),
    each.oldest_ms === null ? "empty" : when(each.oldest_ms), count(each.earliest), count(each.latest), leader(known, each.number)])),
    el("p", { class: "soft" }, `The first ${count(first.queues.length)}; ${count(first.with_messages)} queues have messages.`,
      first.partial ? " There are too many to look at the oldest message of each: these are of the deepest." : ""));
}
