// What is to come later in a topic: delayed messages and schedules. What is called off here is gone.
import { address, ask } from "/console/console.js";
import { act, count, el, table, when } from "/console/drawing.js";
import { only } from "/console/rights.js";

const enc = encodeURIComponent;
const PAGE = 100;
const short = (text) => (text.length > 120 ? `${text.slice(0, 120)}...` : text);
const told = (message) => short(message.body ?? (message.body_b64 ? `base64 ${message.body_b64}` : ""));

/** The next time by the clocks of a schedule's own zone. */
function there(schedule) {
  try { return new Date(schedule.next_ms).toLocaleString("sv", { timeZone: schedule.tz }); } catch { return "the browser does not know this zone"; }
}

async function rest(into, path, name, next) {
  if (next !== null) into.append(el("p", {}, el("a", { href: address(path, { [name]: next }) }, "Further")));
}

export async function later(into, [topic], query) {
  const path = `/later/${enc(topic)}`, own = `/v1/topics/${enc(topic)}`;
  const write = (make) => only([["write", "topic", topic]], make);
  const after = (name) => enc(query.get(name) ?? "");
  const [waiting, plans] = await Promise.all([
    ask(`${own}/delayed?max=${PAGE}${query.get("after") ? `&after=${after("after")}` : ""}`),
    ask(`${own}/schedules?max=${PAGE}${query.get("behind") ? `&after=${after("behind")}` : ""}`),
  ]);
  into.append(el("h1", {}, el("a", { href: address(`/topics/${enc(topic)}`) }, topic), " / later"), el("h2", {}, "Delayed messages, next first"));
  into.append(table("Delayed messages", ["due (UTC)", "queue", "key", "body", "to do"], waiting.messages.map((each) => [
    when(each.due_ms), each.queue, each.key ?? "", el("pre", {}, told(each)), el("span", { class: "acts" },
      write(() => act("Now", async () => { await ask(`${own}/delayed/${enc(each.id)}`, { method: "PUT", body: { delay_ms: 0 } }); return "comes now"; })),
      write(() => act("Cancel", async () => { await ask(`${own}/delayed/${enc(each.id)}`, { method: "DELETE" }); return "cancelled"; })))])));
  await rest(into, path, "after", waiting.next);
  into.append(el("h2", {}, "Schedules"));
  into.append(table("Schedules", ["name", "cron", "time zone", "next there", "next (UTC)", "#times", "queue", "body", "to do"], plans.schedules.map((each) => [
    each.name, each.cron, each.tz, there(each), when(each.next_ms), count(each.count), each.queue, el("pre", {}, told(each.message)),
    write(() => act("Delete", async () => { await ask(`${own}/schedules/${enc(each.name)}`, { method: "DELETE" }); return "deleted"; }))])));
  await rest(into, path, "behind", plans.next);
}
