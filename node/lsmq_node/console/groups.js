// Groups: who is in one, how far it is behind, and having it go on from somewhere else.
import { address, ask, further, keep } from "/console/console.js";
import { act, count, cut, el, fields, line, moment, table, when } from "/console/drawing.js";
import { only } from "/console/rights.js";

const enc = encodeURIComponent;
const PAGE = 100;
const RANGES = 6;
const LAGS = 10;
const WHERE = { earliest: "the first message kept", latest: "the end", offset: "an offset", time: "a time (UTC), or -15m, -2h, -1d" };

export async function groups(into, parts, query) {
  if (parts.length) return group(into, parts[0], query);
  const found = await ask(`/v1/groups?limit=${PAGE}&after=${enc(query.get("after") ?? "")}`);
  const details = new Map(found.details.map((each) => [each.group, each]));
  into.append(el("h1", {}, "Groups"), el("p", { class: "soft" }, "Of the shards at this node; members where it coordinates the group."),
    fields(query, { after: "Names after" }, (given) => { location.hash = address("/groups", given); }),
    table("Groups", ["group", "mode", "state", "#members", "#stalled"], found.groups.map((name) => {
      const known = details.get(name);
      return [el("a", { href: address(`/groups/${enc(name)}`) }, name), known?.mode ?? "", known?.state ?? "", known?.members ?? "", known?.stalled ?? ""];
    })), further("/groups", query, found.next) ?? "");
}

async function group(into, name, query) {
  into.append(el("h1", {}, name));
  let found = { topics: [], members: [] };
  try {
    found = await ask(`/v1/groups/${enc(name)}`);
    if (found.mode === "work_queue") into.append(el("p", {}, "A work queue: workers take single messages, and are not kept as members."));
    else into.append(el("p", {}, `${found.mode}, ${found.state}, generation ${found.generation}`),
      ...Object.entries(found.patterns ?? {}).map(([topic, pattern]) => el("p", {}, `It reads ${pattern} of ${topic}.`)),
      table("Members", ["member", "client", "#queues", "owns", "#waits for", "#heard ms ago", "stalled"], found.members.slice(0, PAGE).map((each) => [
        each.id, each.client, count(each.queues), owned(each.assigned), count(each.pending), count(each.heartbeat_age_ms), each.stalled ? "yes" : ""])),
      cut(found.members.length, PAGE) ?? "");
  } catch (error) {
    if (error.code !== "unknown_group") throw error;
    into.append(el("p", { class: "soft" }, "It has no members, and had none lately."));
  }
  const { topics: known } = await ask(`/v1/groups/${enc(name)}/topics`);
  const wanted = [...new Set([query.get("topic"), ...found.topics.map((each) => each.topic), ...known])].filter(Boolean);
  const behind = el("div");
  if (wanted.length) into.append(el("h2", {}, "Behind"), behind, cut(wanted.length, LAGS) ?? "");
  if (found.mode === "work_queue") await atWork(into, name, query);
  else into.append(el("h2", {}, "Go on from somewhere else"), where(name, query, wanted[0] ?? ""));
  const look = () => lags(behind, name, wanted.slice(0, LAGS));
  if (wanted.length) await look();
  if (query.get("to")) await preview(into, name, query, found.members.length);
  if (wanted.length) await keep(5000, look);
}

/** Messages of a work queue that somebody has and has not settled: each is listed, and can be taken from him. */
async function atWork(into, name, query) {
  const path = `/groups/${enc(name)}`, topic = query.get("topic") ?? "", own = `/v1/groups/${enc(name)}`;
  into.append(el("h2", {}, "What somebody has"), fields(query, { topic: "Topic" }, (given) => { location.hash = address(path, given); }));
  if (!topic) return;
  const needs = [["read", "group", name], ["read", "topic", topic]];
  const found = await only(needs, () => ask(`${own}/held?topic=${enc(topic)}&limit=${PAGE}${query.get("after") ? `&after=${enc(query.get("after"))}` : ""}`));
  if (found === null) return;
  const settle = (each, label, how, body, said) => act(label, async () => {
    const { refused } = await ask(`${own}/${how}`, { method: "POST", body: { topic, receipts: [each.receipt], ...body } });
    if (refused.length) throw new Error(refused[0].message);
    return said;
  });
  into.append(table("Held", ["#offset", "queue", "#delivery", "hidden until (UTC)", "to do"], found.messages.map((each) => [
    el("a", { href: address(`/topics/${enc(topic)}/${enc(each.queue)}`, { offset: each.offset }) }, count(each.offset)), each.queue, count(each.deliveries), when(each.until_ms),
    el("span", { class: "acts" }, settle(each, "Give to others", "nack", { release: true }, "somebody else gets it"),
      settle(each, "To the dead letters", "nack", { dead_letter: true }, "it is not tried again"), settle(each, "Done", "ack", {}, "it never comes again"))])),
    found.messages.length ? "" : el("p", { class: "soft" }, "Nobody has any message of it."), further(path, query, found.next) ?? "");
}

/** Queues that a member owns by topic: their first ranges, in words. */
function owned(assigned) {
  return Object.entries(assigned).filter(([, ranges]) => ranges.length).map(([topic, ranges]) => {
    const said = ranges.slice(0, RANGES).map(([first, end]) => (end - first === 1 ? `${first}` : `${first} to ${end - 1}`)).join(", ");
    return `${topic} ${said}${ranges.length > RANGES ? ", …" : ""}`;
  }).join("; ");
}

/** How far the group is behind in topics, now and in the last hour. */
async function lags(into, name, topics) {
  const found = await Promise.all(topics.map(async (topic) => {
    const own = `/v1/groups/${enc(name)}/lag`, of = `?topic=${enc(topic)}`;
    const [now, past] = await Promise.all([ask(`${own}${of}`), ask(`${own}/history${of}`)]);
    return [topic, now, [...past.lags, now.lag]];
  }));
  into.replaceChildren(table("Lag", ["topic", "#messages", "the last hour", "#queues behind", "#most of one"], found.map(([topic, now, values]) => [
    topic, count(now.lag), el("span", { class: "small" }, line(values, `lag in ${topic}, the last hour`)), count(now.behind), count(now.largest)])));
}

/** The form that says where to. What it says stands in the address; a time as one that stays the same. */
function where(name, query, topic) {
  const field = (named, value, more = {}) => el("input", { name: named, value: query.get(named) ?? value, ...more });
  const of = field("topic", topic, { required: true }), at = field("at", ""), queues = field("queues", "");
  const to = el("select", { name: "to" }, Object.entries(WHERE).map(([value, said]) => el("option", { value, selected: query.get("to") === value }, said)));
  const said = el("span", { class: "bad", role: "alert" });
  const submit = (event) => {
    event.preventDefault();
    said.textContent = "";
    const given = { topic: of.value.trim(), to: to.value, queues: queues.value.trim() };
    if (to.value === "time") {
      const time = moment(at.value.trim());
      if (Number.isNaN(time)) { said.textContent = `${at.value || "nothing"} is no time: 2026-03-01 12:00, or -15m`; return; }
      given.at = new Date(time).toISOString();
    } else if (to.value === "offset") {
      if (!/^[0-9]{1,15}$/.test(at.value.trim())) { said.textContent = `${at.value || "nothing"} is no offset`; return; }
      given.at = at.value.trim();
    }
    const next = address(`/groups/${enc(name)}`, given);
    if (location.hash === next) dispatchEvent(new HashChangeEvent("hashchange")); else location.hash = next;
  };
  return el("form", { submit }, el("label", {}, "Topic", of), el("label", {}, "To", to), el("label", {}, "Which offset or time", at), el("label", {}, "Only queues (0-99,200)", queues), el("button", {}, "Show what changes"), said);
}

async function preview(into, name, query, members) {
  const to = query.get("to"), body = { topic: query.get("topic") };
  if (to === "offset") body.offset = Number(query.get("at"));
  else if (to === "time") body.time_ms = Date.parse(query.get("at"));
  else body.to = to;
  if (query.get("queues")) body.queues = query.get("queues");
  const place = el("div"), said = el("p", { role: "status" }, "...");
  into.append(said, place);
  let found;
  try { found = await steps(name, body, (sum) => { said.textContent = `${sums(sum)} so far`; }); } catch (error) { said.remove(); throw error; }
  said.textContent = `${sums(found)}. Messages are counted by their offsets, deleted ones as well.`;
  if (!found.queues) return;
  if (members) place.append(el("p", { class: "bad" }, `Members that live: ${count(members)}. They go on from where they are until they are started again: stop them first.`));
  place.append(table("What changes", ["queue", "#from", "#to", "#read again", "#skipped"], found.moves.map((move) => {
    const difference = Math.max(move.committed ?? 0, move.earliest) - move.to;
    return [move.queue, move.committed === null ? "-" : count(move.committed), count(move.to), count(Math.max(difference, 0)), count(Math.max(-difference, 0))];
  })));
  place.append(cut(found.queues, found.moves.length) ?? "");
  const needs = [["alter", "group", name.split("/")[0]], ["read", "topic", body.topic]];
  place.append(el("p", {}, only(needs, () => act(members ? "Reset, though members live" : "Reset", async () => {
    const done = await steps(name, { ...body, force: members > 0 }, (sum) => { said.textContent = `offsets set: ${count(sum.queues)}`; }, "POST");
    return `offsets set: ${count(done.queues)}`;
  }))));
}

const sums = (sum) => `Queues that change: ${count(sum.queues)}; messages read again: ${count(sum.read_again)}, skipped: ${count(sum.skipped)}`;

/** All steps of a reset (POST) or what it would change (GET), each for some queues of one shard, summed up. */
async function steps(name, given, shown, method = "GET") {
  const sum = { queues: 0, read_again: 0, skipped: 0, moves: [] };
  for (let after = null; ;) {
    const wanted = after === null ? given : { ...given, after }, path = `/v1/groups/${enc(name)}/reset`;
    const found = await (method === "GET" ? ask(`${path}?${new URLSearchParams(wanted)}`) : ask(path, { method, body: wanted }));
    for (const each of ["queues", "read_again", "skipped"]) sum[each] += found[each];
    sum.moves = [...sum.moves, ...found.moves].slice(0, PAGE);
    if ((after = found.next) === null) return sum;
    shown(sum);
  }
}
