// The pages. Each costs the node a bounded answer, however many queues and groups there are.
import { address, ask, further, keep } from "/console/console.js";
import { act, bytes, count, el, hex, line, table, when } from "/console/drawing.js";
import { cluster } from "/console/cluster.js";
import { groups } from "/console/groups.js";
import { later } from "/console/later.js";
import { producers } from "/console/producers.js";

const enc = encodeURIComponent;
const PAGE = 100;

async function overview(into) {
  const tiles = el("div", { class: "tiles" });
  into.append(el("h1", {}, "This node"), tiles, el("p", { class: "soft" }, "The last hour, a sample every five seconds. Messages count at every replica here; times are bounds of a histogram."));
  const shown = [
    ["messages in a second", "in_per_s", (value) => count(Math.round(value))],
    ["messages out a second", "out_per_s", (value) => count(Math.round(value))],
    ["sending, half within", "send_p50_ms", (value) => (value ? `${value} ms` : "-")],
    ["sending, 99 of 100 within", "send_p99_ms", (value) => (value ? `${value} ms` : "-")],
    ["tables on the disk", "table_bytes", bytes],
    ["disk free", "disk_free_bytes", bytes],
    ["memory", "memory_bytes", bytes],
    ["shards led without enough in sync", "shards_not_in_sync", count],
    ["parts stopped", "parts_stopped", count],
  ];
  await keep(5000, async () => {
    const found = await ask("/v1/history");
    tiles.replaceChildren(...shown.map(([label, name, say]) => el("div", { class: "tile" }, el("p", {}, label),
      el("strong", {}, found[name].length ? say(found[name].at(-1)) : "-"), line(found[name], `${label}, the last hour`))));
  });
}

function fields(query, shown, go) {
  const inputs = Object.entries(shown).map(([name, label]) => [name, label, el("input", { name, value: query.get(name) ?? "" })]);
  return el("form", { submit: (event) => { event.preventDefault(); go(Object.fromEntries(inputs.map(([name, , input]) => [name, input.value]))); } },
    inputs.map(([, label, input]) => el("label", {}, label, input)), el("button", {}, "Show"));
}

async function topics(into, parts, query, signal) {
  if (parts.length >= 2) return messages(into, parts, query, signal);
  if (parts.length === 1) return topic(into, parts[0], query);
  const found = await ask(`/v1/topics?limit=${PAGE}&after=${enc(query.get("after") ?? "")}`);
  into.append(el("h1", {}, "Topics"), table("Topics", ["topic", "#queues", "options"], found.topics.map((each) => [
    el("a", { href: address(`/topics/${enc(each.name)}`) }, each.name), each.named ? "named" : count(each.queues), JSON.stringify(each.options)])),
    further("/topics", query, found.next) ?? "");
}

async function topic(into, name, query) {
  const path = `/topics/${enc(name)}`, own = `/v1/topics/${enc(name)}`;
  const [known, usage] = await Promise.all([ask(own), ask(`${own}/usage`)]);
  into.append(el("h1", {}, name), el("p", {}, `${count(usage.messages)} messages, ${bytes(usage.bytes)}. Groups: ${usage.groups.slice(0, 20).join(", ") || "none"}${usage.groups.length > 20 ? ", ..." : ""}`),
    el("p", {}, el("a", { href: address(`/later/${enc(name)}`) }, "What comes later")));
  into.append(fields(query, { key: "Key", tag: "Tag", filter: "Expression" }, (given) => { location.hash = address(path, given); }));
  if (["key", "tag", "filter"].some((each) => query.get(each))) return find(into, name, own, path, query);
  into.append(el("h2", {}, "Queues"));
  const leader = (number) => known.routes.find((route) => route.first <= number && number < route.end)?.leader ?? "nobody";
  if (known.named) {
    into.append(fields(query, { prefix: "Beginning with" }, (given) => { location.hash = address(path, given); }));
    const found = await ask(`${own}/queues?limit=${PAGE}&prefix=${enc(query.get("prefix") ?? "")}&after=${enc(query.get("after") ?? "")}`);
    into.append(table("Queues", ["queue", "#earliest", "#latest", "#messages"], found.queues.map((each) => [
      el("a", { href: address(`${path}/${enc(each.name)}`) }, each.name), count(each.earliest), count(each.latest), count(each.count)])), further(path, query, found.next) ?? "");
  } else {
    const first = Math.max(0, Math.min(Number(query.get("after") ?? 0) || 0, known.queues - 1)), last = Math.min(first + PAGE, known.queues) - 1;
    into.append(fields(query, { after: "From queue" }, (given) => { location.hash = address(path, given); }));
    const found = await ask(`${own}/offsets?queues=${first}-${last}`);
    into.append(table("Queues", ["queue", "#earliest", "#latest", "#messages", "leader"], found.queues.map((queue, at) => [
      el("a", { href: address(`${path}/${queue}`) }, queue), count(found.earliest[at]), count(found.latest[at]), count(found.latest[at] - found.earliest[at]), leader(queue)])),
      further(path, query, last + 1 < known.queues ? last + 1 : null) ?? "");
  }
  into.append(el("p", { class: "soft" }, "In the order of queues. There is no order by depth or age: it would cost a look at all of them."));
}

function body(message) {
  if (message.delete) return el("span", { class: "soft" }, "says that its key is gone");
  if (message.body_b64 !== undefined) return el("pre", {}, hex(message.body_b64));
  let text = message.body;
  try { text = JSON.stringify(JSON.parse(text), null, 2); } catch { /* no JSON */ }
  if (message.body.length <= 100) return el("pre", {}, message.body);
  return el("details", {}, el("summary", {}, el("code", {}, `${message.body.slice(0, 100)}...`)), el("pre", {}, text));
}

function about(message) {
  const more = { ...message.properties };
  for (const header of message.headers ?? []) more[header.name] = header.value ?? `base64 ${header.value_b64}`;
  return Object.entries(more).map(([name, value]) => el("div", {}, `${name}: ${value}`));
}

/** Messages of a topic, with what can be done with each: sent again, a dead letter to where it was; or deleted. */
const shown = (topic, found) => table("Messages", ["#offset", "queue", "stored (UTC)", "key", "tag", "body", "properties", "to do"], found.map((each) => {
  const origin = each.properties?.["lsmq-dlq-topic"];
  return [count(each.offset), each.queue, when(each.stored_ms), each.key ?? (each.key_b64 ? `base64 ${each.key_b64}` : ""), each.tag ?? "", body(each), about(each),
    el("span", { class: "acts" }, act(origin ? "Send back" : "Send again", () => sendAgain(origin ?? topic, each)), act("Delete", () => remove(topic, each)))];
}));

/** Send a message once more, with all that it says but for what made it a dead letter. */
async function sendAgain(topic, message) {
  const of = message.properties ?? {}, again = { queue: message.queue };
  if (of["lsmq-dlq-cut"]) throw new Error("its body was cut, and cannot be sent back");
  if (of["lsmq-dlq-topic"]) again.queue = of["lsmq-dlq-queue-name"] ?? Number(of["lsmq-dlq-queue"]);
  for (const name of ["body", "body_b64", "key", "key_b64", "tag", "type", "headers"]) if (message[name] !== undefined && message[name] !== null) again[name] = message[name];
  if (message.delete) { again.delete = true; delete again.body; delete again.body_b64; }
  again.properties = Object.fromEntries(Object.entries(of).filter(([name]) => !name.startsWith("lsmq-dlq-")));
  const sent = await post(topic, again);
  return `stored in ${topic} at offset ${count(sent.offset)}`;
}

async function remove(topic, message) {
  const own = `/v1/topics/${enc(topic)}`;
  const number = typeof message.queue === "number" ? message.queue : (await ask(`${own}/queues/${enc(message.queue)}`)).number;
  await ask(`${own}/delete`, { method: "POST", body: { queues: [number], offsets: [message.offset] } });
  return "deleted";
}

/** What is to be sent for a message to stand there once more, with all that it says. */
function copied(message) {
  const again = { queue: message.queue };
  for (const name of ["body", "body_b64", "key", "key_b64", "tag", "type", "properties", "headers", "delete"]) if (message[name] !== undefined && message[name] !== null) again[name] = message[name];
  if (again.delete) delete again.body; else delete again.delete;
  return again;
}

async function find(into, name, own, path, query) {
  const given = new URLSearchParams({ limit: "50" });
  for (const name of ["key", "tag", "filter", "after"]) if (query.get(name)) given.set(name, query.get(name));
  const found = await ask(`${own}/messages?${given}`);
  into.append(el("h2", {}, "Found"), shown(name, found.messages), further(path, query, found.next) ?? "");
}

async function messages(into, [name, queue], query, signal) {
  const path = `/topics/${enc(name)}/${enc(queue)}`, own = `/v1/topics/${enc(name)}/queues/${enc(queue)}`;
  const bounds = await ask(own);
  const most = bounds.latest, from = query.has("offset") && query.get("offset") !== "" ? Number(query.get("offset")) : Math.max(bounds.earliest, most - 20);
  into.append(el("h1", {}, el("a", { href: address(`/topics/${enc(name)}`) }, name), ` / ${queue}`),
    el("p", {}, `Offsets ${count(bounds.earliest)} to ${count(most)}, ${count(most - bounds.earliest)} messages.`),
    fields(query, { offset: "From offset", tag: "Tag", filter: "Expression" }, (given) => { location.hash = address(path, given); }));
  into.append(send(name, queue));
  const follow = query.get("follow") === "1", kept = Object.fromEntries(query);
  into.append(el("p", {}, el("a", { href: address(path, { ...kept, follow: follow ? "" : "1" }) }, follow ? "Stop following" : "Follow live")));
  const place = el("div");
  into.append(place);
  let list = [], next = from;
  const read = async (wait) => {
    const given = new URLSearchParams({ offset: next, max: "50", wait_ms: wait });
    for (const each of ["tag", "filter"]) if (query.get(each)) given.set(each, query.get(each));
    const found = await ask(`${own}/messages?${given}`);
    next = found.next_offset;
    list = [...list, ...found.messages].slice(-200);
    if (found.messages.length || !wait) place.replaceChildren(shown(name, list));
  };
  await read(0);
  if (follow) await keep(50, () => read(5000));
  else if (next < most) into.append(el("p", {}, el("a", { href: address(path, { ...kept, offset: next }) }, "Further")));
}

function send(name, queue) {
  const text = el("textarea", { name: "body", required: true }), key = el("input", { name: "key" }), tag = el("input", { name: "tag" });
  const said = el("span", { role: "status" });
  const go = async (event) => {
    event.preventDefault();
    const message = { queue: /^[0-9]+$/.test(queue) ? Number(queue) : queue, body: text.value };
    if (key.value) message.key = key.value;
    if (tag.value) message.tag = tag.value;
    try {
      const sent = await post(name, message);
      said.className = "good";
      said.textContent = sent.offset === null ? "stored, and comes later" : `stored at offset ${count(sent.offset)}`;
      text.value = "";
    } catch (error) { said.className = "bad"; said.textContent = error.message; }
  };
  return el("details", {}, el("summary", {}, "Send a message"), el("form", { submit: go }, el("label", {}, "Body", text), el("label", {}, "Key of it", key), el("label", {}, "Tag of it", tag), el("button", {}, "Send"), said));
}

async function post(name, message) {
  const path = `/v1/topics/${enc(name)}`;
  const named = (await ask(path)).named;
  const found = await ask(`${path}/messages`, { method: "POST", body: { messages: [{ ...message, queue: named ? String(message.queue) : message.queue }] } });
  return found.results[0];
}

export const pages = { "": overview, topics, later, groups, producers, cluster };
