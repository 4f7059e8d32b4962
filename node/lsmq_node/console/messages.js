// Messages: found in a topic, read and followed in a queue; what can be done with one, or with all that were found.
import { address, ask, further, keep } from "/console/console.js";
import { act, count, el, fields, moment, table, when } from "/console/drawing.js";
import { body, VIEWS } from "/console/bodies.js";
import { keeping } from "/console/keeping.js";
import { only } from "/console/rights.js";

const enc = encodeURIComponent;
const FOUND = 50;
const REFUSED = /^negative acknowledgement: (.*)$/s;
const COPIED = ["key", "key_b64", "tag", "type", "headers"];

/** Where dead letters of a topic go unless somebody says otherwise, as `dead_letter_topic` of lsmq.topics has it. */
function lettersOf(topic) {
  const named = topic.slice(0, 196) + ".dlq";
  return named === topic ? topic.slice(0, 195) + ".dlq" : named;
}

/** How bodies are shown stands in the address as well. */
function views(path, query) {
  const chosen = query.get("view") ?? "";
  return el("nav", { class: "orders", "aria-label": "Bodies" }, "Bodies: ", Object.entries(VIEWS).map(([view, said]) =>
    el("a", { href: address(path, { ...Object.fromEntries(query), view }), "aria-current": view === chosen ? "true" : null }, said)));
}

function about(message) {
  const { "lsmq-dlq-reason": why, ...more } = message.properties ?? {};
  if (why !== undefined) {
    const [, said] = REFUSED.exec(why) ?? [];
    Object.assign(more, said === undefined ? { "lsmq-dlq-reason": why } : { kind: "negative acknowledgement", reason: said });
  }
  for (const header of message.headers ?? []) more[header.name] = header.value ?? `base64 ${header.value_b64}`;
  return Object.entries(more).map(([name, value]) => el("div", {}, `${name}: ${value}`));
}

/** Messages of a topic, with what can be done with each: sent again, a dead letter to where it was, edited before; or deleted.
 *  Whoever may write here can say of a message where it was: so a button says where it goes, unless that is plain. */
const shown = (topic, messages, view) => table("Messages", ["#offset", "queue", "stored (UTC)", "key", "tag", "body", "properties", "to do"], messages.map((each) => {
  const origin = each.properties?.["lsmq-dlq-topic"], place = el("span"), sends = [["write", "topic", origin ?? topic]];
  return [count(each.offset), each.queue, when(each.stored_ms), each.key ?? (each.key_b64 ? `base64 ${each.key_b64}` : ""), each.tag ?? "", body(each, view), about(each),
    el("span", { class: "acts" }, only(sends, () => act(origin ? (topic === lettersOf(origin) ? "Send back" : `Send back to ${origin}`) : "Send again", () => sendAgain(topic, each))),
      each.body === undefined ? null : only(sends, () => el("button", { type: "button", click: (event) => { event.target.disabled = true; place.append(edit(topic, each)); } }, "Edit")),
      only([["delete", "topic", topic]], () => act("Delete", () => remove(topic, [each]).then(() => "deleted"))), place)];
}));

/** Where a message goes once more, and with what: a dead letter to where it was, without what made it one. */
function again(topic, message) {
  const of = message.properties ?? {}, origin = of["lsmq-dlq-topic"];
  if (of["lsmq-dlq-cut"]) throw new Error("its body was cut, and cannot be sent back");
  const made = { queue: origin ? of["lsmq-dlq-queue-name"] ?? Number(of["lsmq-dlq-queue"]) : message.queue };
  for (const name of [...COPIED, ...(message.delete ? ["delete"] : ["body", "body_b64"])]) if (message[name] !== undefined && message[name] !== null) made[name] = message[name];
  made.properties = Object.fromEntries(Object.entries(of).filter(([name]) => !name.startsWith("lsmq-dlq-")));
  return [origin ?? topic, made];
}

async function sendAgain(topic, message) {
  const [where, made] = again(topic, message);
  const [sent] = await post(where, [made]);
  return `stored in ${where} at offset ${count(sent.offset)}`;
}

/** Its body to be changed, and then sent. */
function edit(topic, message) {
  const text = el("textarea", { "aria-label": "Body to be sent" });
  text.value = message.body;
  const where = message.properties?.["lsmq-dlq-topic"] ?? topic;
  return el("div", { class: "edit" }, text, act(where === topic || topic === lettersOf(where) ? "Send as it is now" : `Send as it is now to ${where}`, () => sendAgain(topic, { ...message, delete: false, body: text.value })));
}

/** By their ids, which have the numbers of topic and queue: another one may have the name since they were shown. */
async function remove(topic, messages) {
  const part = ({ id }, first, end) => parseInt(id.slice(first, end), 16);
  const body = { queues: messages.map((each) => part(each, 8, 16)), offsets: messages.map((each) => each.offset) };
  await ask(`/v1/topics/${enc(topic)}/delete`, { method: "POST", body, meant: part(messages[0], 0, 8) });
}

/** What a search asks for, as the API has it. */
function asked(query) {
  const given = new URLSearchParams({ limit: FOUND });
  for (const name of ["key", "tag", "filter"]) if (query.get(name)) given.set(name, query.get(name));
  for (const [name, as] of [["from", "from_ms"], ["to", "to_ms"]]) {
    if (!query.get(name)) continue;
    const at = moment(query.get(name));
    if (Number.isNaN(at)) throw new Error(`${query.get(name)} is no time: 2026-03-01 12:00, or -15m`);
    given.set(as, at);
  }
  return given;
}

/** Messages of a topic that a search finds, and what can be done with all of them. */
export async function found(into, name, path, query) {
  const own = `/v1/topics/${enc(name)}/messages`, given = asked(query);
  if (query.get("after")) given.set("after", query.get("after"));
  const some = await ask(`${own}?${given}`);
  into.append(el("h2", {}, "Found"), views(path, query), shown(name, some.messages, query.get("view") ?? ""), further(path, query, some.next) ?? "");
  if (!some.messages.length && some.next === null) return;
  const origins = [...new Set(some.messages.map((each) => each.properties?.["lsmq-dlq-topic"]).filter(Boolean))];
  const deletes = [["delete", "topic", name]], backs = [...deletes, ...origins.map((origin) => ["write", "topic", origin])], said = el("span", { role: "status" });
  const all = async (work, word) => {
    const to_ms = Date.now() + 1, fixed = asked(query);
    if (!fixed.has("to_ms")) fixed.set("to_ms", to_ms); // What comes meanwhile, by this as well, is left alone.
    let done = 0;
    for (let after = null; ;) {
      if (after !== null) fixed.set("after", after);
      const page = await ask(`${own}?${fixed}`);
      if (page.messages.length) await work(page.messages);
      done += page.messages.length;
      said.textContent = `${count(done)} ${word} so far`;
      if ((after = page.next) === null) { said.textContent = ""; return `${count(done)} ${word}`; }
    }
  };
  into.append(el("h2", {}, "All that match, on all pages"), el("p", {},
    origins.length ? only(backs, () => act("Send all back and delete them here", () => all((page) => sendBack(name, page), "sent back"))) : null, " ",
    only(deletes, () => act("Delete all", () => all((page) => remove(name, page), "deleted"))), said));
}

/** Dead letters to where they were, a request for each topic; then they go from here. */
async function sendBack(name, letters) {
  const by = new Map();
  for (const letter of letters) {
    const [where, made] = again(name, letter);
    if (!by.has(where)) by.set(where, []);
    by.get(where).push(made);
  }
  for (const [where, messages] of by) await post(where, messages);
  await remove(name, letters);
}

/** One queue: its bounds, its messages from an offset on, followed where asked. */
export async function queue(into, [name, called], query, signal) {
  const path = `/topics/${enc(name)}/${enc(called)}`, own = `/v1/topics/${enc(name)}/queues/${enc(called)}`;
  const bounds = await ask(own);
  const most = bounds.latest, from = query.has("offset") && query.get("offset") !== "" ? Number(query.get("offset")) : Math.max(bounds.earliest, most - 20);
  const kept = Object.fromEntries(query), view = query.get("view") ?? "";
  into.append(el("h1", {}, el("a", { href: address(`/topics/${enc(name)}`) }, name), ` / ${called}`),
    el("p", {}, `Offsets ${count(bounds.earliest)} to ${count(most)}, ${count(most - bounds.earliest)} messages. `,
      el("a", { href: address(path, { ...kept, offset: bounds.earliest, follow: "" }) }, "The oldest"), " ", el("a", { href: address(path, { ...kept, offset: "", follow: "" }) }, "The newest")),
    fields(query, { offset: "From offset", tag: "Tag", filter: "Expression" }, (given) => { location.hash = address(path, { ...given, view }); }));
  into.append(only([["write", "topic", name]], () => send(name, called)) ?? "", ...keeping(name, own, bounds.options));
  const follow = query.get("follow") === "1";
  into.append(el("p", {}, el("a", { href: address(path, { ...kept, follow: follow ? "" : "1" }) }, follow ? "Stop following" : "Follow live")), views(path, query));
  const place = el("div");
  into.append(place);
  let list = [], next = from;
  const read = async (wait) => {
    const given = new URLSearchParams({ offset: next, max: "50", wait_ms: wait });
    for (const each of ["tag", "filter"]) if (query.get(each)) given.set(each, query.get(each));
    const some = await ask(`${own}/messages?${given}`);
    next = some.next_offset;
    list = [...list, ...some.messages].slice(-200);
    if (some.messages.length || !wait) place.replaceChildren(shown(name, list, view));
  };
  await read(0);
  if (follow) await keep(50, () => read(5000), signal);
  else if (next < most) into.append(el("p", {}, el("a", { href: address(path, { ...kept, offset: next }) }, "Further")));
}

function send(name, called) {
  const text = el("textarea", { name: "body", required: true }), key = el("input", { name: "key" }), tag = el("input", { name: "tag" });
  const said = el("span", { role: "status" });
  const go = async (event) => {
    event.preventDefault();
    const message = { queue: called, body: text.value };
    if (key.value) message.key = key.value;
    if (tag.value) message.tag = tag.value;
    try {
      const [sent] = await post(name, [message]);
      said.className = "good";
      said.textContent = sent.offset === null ? "stored, and comes later" : `stored at offset ${count(sent.offset)}`;
      text.value = "";
    } catch (error) { said.className = "bad"; said.textContent = error.message; }
  };
  return el("details", {}, el("summary", {}, "Send a message"), el("form", { submit: go }, el("label", {}, "Body", text), el("label", {}, "Key of it", key), el("label", {}, "Tag of it", tag), el("button", {}, "Send"), said));
}

async function post(name, messages) {
  const path = `/v1/topics/${enc(name)}`, named = (await ask(path)).named;
  const place = (queue) => (named ? String(queue) : /^[0-9]+$/.test(queue) ? Number(queue) : queue);
  const made = messages.map((each) => ({ ...each, queue: place(each.queue) }));
  return (await ask(`${path}/messages`, { method: "POST", body: { messages: made } })).results;
}
