// The cluster: its nodes and shards, and where a shard is held and who leads it.
import { address, ask, keep } from "/console/console.js";
import { act, count, el, table } from "/console/drawing.js";
import { only } from "/console/rights.js";

export async function cluster(into, parts) {
  if (parts.length) return shard(into, parts[0]);
  const place = el("div"), begun = await ask("/v1/cluster"), voting = voters(begun.nodes), draining = drains(begun.nodes);
  into.append(el("h1", {}, "Cluster"), el("p", {}, el("a", { href: address("/backups") }, "Backups of this node")), place, ...voting.shown, ...draining.shown);
  await keep(3000, async () => {
    const found = await ask("/v1/cluster"), plan = await ask("/v1/cluster/plan").catch(() => null);
    voting.update(found);
    draining.update(found);
    place.replaceChildren(
      table("Nodes", ["node", "url", "rack", "host", "state", "alive", "votes", "#leads", "#replicas", "problems"], found.nodes.map((each) => [
        each.id, each.url, each.rack ?? "", each.host ?? "", condition(each), alive(each), votes(each, found), each.shards_led, each.replicas, each.problems.join("; ")])),
      ...planned(plan), el("h2", {}, "Who holds what"), map(found),
      el("h2", {}, "Shards"),
      table("Shards", ["shard", "leader", "#epoch", "in sync", "replicas", "moving to", "problem"], found.shards.map((each) => [
        el("a", { href: address(`/cluster/${each.id}`) }, each.id), each.leader ?? "nobody", count(each.epoch), each.in_sync.join(", "), each.replicas.join(", "), each.target.join(", "), [each.problem, each.misplaced].filter(Boolean).join("; ")])));
  });
}

const COLUMNS = 64;
const ALTERS = [["alter", "cluster"]];

/** Nodes by shards, those of a rack and of a host together: who leads one, who holds it and has all of it, who is behind. */
function map(found) {
  const shards = found.shards.slice(0, COLUMNS);
  const cell = (node, shard) => {
    if (shard.leader === node) return el("td", { class: "leads" }, "leads");
    if (shard.in_sync.includes(node)) return el("td", {}, "in sync");
    return shard.replicas.includes(node) || shard.adding.includes(node) ? el("td", { class: "behind" }, "behind") : el("td", {});
  };
  const labels = ["rack", "host"].filter((label) => found.nodes.some((node) => node[label]));
  const place = (node) => labels.map((label) => node[label] ?? "");
  const nodes = [...found.nodes].sort((one, other) => place(one).join("\n").localeCompare(place(other).join("\n")) || one.id.localeCompare(other.id));
  const where = (node, at) => place(node).map((label, level) => el("td", { class: "place" }, at && place(nodes[at - 1]).slice(0, level + 1).join("\n") === place(node).slice(0, level + 1).join("\n") ? "" : label));
  const head = el("tr", {}, [...labels, "node"].map((each) => el("th", { scope: "col" }, each)), shards.map((each) => el("th", { scope: "col", class: "number" }, each.id)));
  const rows = nodes.map((node, at) => el("tr", {}, where(node, at), el("th", { scope: "row" }, node.id), shards.map((each) => cell(node.id, each))));
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Who holds what" }, el("table", { class: "map" }, el("thead", {}, head), el("tbody", {}, rows)),
    found.shards.length > COLUMNS ? el("p", { class: "soft" }, `The first ${COLUMNS} shards.`) : null);
}

/** Draining nodes, or calling that off, and how far it is. It stays while the tables above are drawn anew. */
function drains(nodes) {
  const many = nodes.filter((each) => each.state !== "removed");
  if (many.length < 2) return { shown: [], update: () => {} };
  const which = el("select", { name: "node" }, many.map((each) => el("option", { value: each.id }, each.id)));
  const path = () => `/v1/cluster/nodes/${encodeURIComponent(which.value)}/drain`;
  const far = el("div", { role: "status" }), bars = new Map();
  const update = (found) => {
    for (const { id, state, replicas, only_votes: votes } of found.nodes) {
      if (state !== "draining" || votes) { bars.get(id)?.line.remove(); bars.delete(id); continue; }
      if (!bars.has(id)) {
        const said = el("span"), bar = el("progress", { "aria-label": `Draining ${id}` }), line = el("p", {}, said, " ", bar);
        bars.set(id, { said, bar, line, most: Math.max(replicas, 1) });
        far.append(line);
      }
      const { said, bar, most } = bars.get(id);
      bar.max = Math.max(most, replicas);
      bar.value = bar.max - replicas;
      said.textContent = replicas ? `${id} is being drained: replicas left on it: ${count(replicas)}` : `${id} is drained: it holds nothing`;
    }
  };
  const form = only(ALTERS, () => [el("h2", {}, "Take a node out of use"), el("form", { submit: (event) => event.preventDefault() }, el("label", {}, "Node", which),
    act("Drain", async () => { await ask(path(), { method: "POST" }); return `${which.value} hands over what it leads, and its replicas go to others`; }, true),
    act("Call off", async () => { await ask(path(), { method: "DELETE" }); return `${which.value} may have replicas again`; }, true))]);
  return { update, shown: [...(form ?? []), far] };
}

const after = (seconds) => (seconds > 0 ? `in ${count(Math.round(seconds))} s` : "now");

/** What the cluster is about to do by itself, as its control plane's leader has it; nothing where there is no leader. */
function planned(plan) {
  const said = plan === null ? [] : [
    ...plan.voters.map((each) => `voter ${each.old} is away; ${each.new ?? "another node"} takes its vote ${each.in_s === null ? "not by itself" : after(each.in_s)}${each.waits_for ? `, but: ${each.waits_for}` : ""}`),
    ...plan.away.map((each) => `node ${each.node} has been away for ${count(Math.round(each.away_s))} s; its replicas ${each.rebuilt_in_s === null ? "wait for it" : `are made again ${after(each.rebuilt_in_s)}`}`),
    ...plan.moves.map((each) => `shard ${each.shard} moves from ${each.from.join(", ")} to ${each.to.join(", ")} (${each.why})`),
    ...(plan.more ? ["and more moves after these"] : []),
    ...(plan.paused ? ["moves are paused"] : [])];
  return said.length ? [el("h2", {}, "What comes next"), el("ul", { "aria-label": "Plan" }, said.map((each) => el("li", {}, each)))] : [];
}

const STEPS = ["filling", "joining", "leaving"];
const SAID = { filling: "is sent the log of the control plane", joining: "is sent the last of the log, and the other votes no more", leaving: "votes, and the other goes" };

/** Whose vote goes to whom: how far that is, and a form that begins it. It stays while the tables above are drawn anew. */
function voters(nodes) {
  const some = nodes.filter((each) => each.state !== "removed");
  if (some.length < 2) return { shown: [], update: () => {} };
  const under = el("div", { role: "status" }), far = el("p"), bar = el("progress", { "aria-label": "Voter", max: STEPS.length });
  const chosen = (name) => el("select", { name }, some.map((each) => el("option", { value: each.id }, each.id)));
  const old = chosen("old"), by = chosen("by"), path = (id) => `/v1/cluster/voters/${encodeURIComponent(id)}/replace`;
  old.value = some.find((each) => each.voter)?.id ?? some[0].id;
  by.value = some.find((each) => !each.voter)?.id ?? some[0].id;
  let known = "";
  const keepIt = (id) => act("Keep it", async () => { await ask(path(id), { method: "DELETE" }); return `${id} goes on voting`; });
  const update = ({ voter_change: change }) => {
    const now = JSON.stringify([change?.old, change?.new]);
    if (change) { far.textContent = `${change.new} takes the vote of ${change.old}: it ${SAID[change.step]}`; bar.value = STEPS.indexOf(change.step); }
    if (now !== known) under.replaceChildren(...(change ? [far, bar, " ", only(ALTERS, () => keepIt(change.old)) ?? ""] : []));
    known = now;
  };
  const form = only(ALTERS, () => el("form", { submit: (event) => event.preventDefault() }, el("label", {}, "Instead of", old), el("label", {}, "votes", by),
    act("Replace", async () => { await ask(path(old.value), { method: "POST", body: { by: by.value } }); return `${by.value} is to vote instead of ${old.value}`; }, true)));
  return { update, shown: form === null ? [under] : [el("h2", {}, "Who votes"), under, form] };
}

function votes(node, found) {
  if (node.id === found.voter_change?.new && !node.voter) return "will";
  return node.voter ? (node.id === found.control_leader ? "yes, leads" : "yes") : "no";
}

const condition = (node) => (node.state !== "draining" || node.replicas ? node.state : node.only_votes ? "only votes" : "drained");
const alive = (node) => (node.alive === null ? "not known" : node.alive ? "yes" : "no");

function find(overview, number) {
  const found = overview.shards.find((each) => String(each.id) === number);
  if (!found) throw new Error(`there is no shard ${number}; there are ${overview.shards.length}, from 0`);
  return found;
}

async function shard(into, number) {
  const path = `/v1/cluster/shards/${encodeURIComponent(number)}`;
  const begun = await ask("/v1/cluster"), first = find(begun, number);
  const state = el("div"), moving = el("div", { role: "status" }), handing = el("div");
  into.append(el("h1", {}, el("a", { href: address("/cluster") }, "Cluster"), ` / shard ${number}`), state, moving,
    ...(only(ALTERS, () => [el("h2", {}, "Hand it over"), handing, el("h2", {}, "Move its replicas"), move(path, begun.nodes, first)]) ?? []));
  const bar = el("progress", { "aria-label": `Moving shard ${number}` });
  let steps = 0, known = "";
  await keep(1000, async () => {
    const overview = await ask("/v1/cluster"), now = find(overview, number);
    const nodes = new Map(overview.nodes.map((each) => [each.id, each]));
    const held = [...new Set([...now.replicas, ...now.adding, ...now.target])];
    state.replaceChildren(
      el("p", {}, `Led by ${now.leader ?? "nobody"} in epoch ${count(now.epoch)}.${now.problem ? ` ${now.problem}` : ""}`),
      table("Replicas", ["node", "alive", "leads", "in sync", "moves"], held.map((id) => [
        id, nodes.has(id) ? alive(nodes.get(id)) : "gone", now.leader === id ? "yes" : "", now.in_sync.includes(id) ? "yes" : "no",
        now.adding.includes(id) ? "is being filled" : now.target.length && !now.target.includes(id) ? "goes" : ""])));
    const could = JSON.stringify([now.leader, now.in_sync]);
    if (could !== known) handing.replaceChildren(handOver(path, now));
    known = could;
    const left = now.target.length ? now.target.filter((id) => !now.in_sync.includes(id)).length + now.replicas.filter((id) => !now.target.includes(id)).length : 0;
    if (left && !steps) {
      moving.replaceChildren(el("p", {}, `Moving to ${now.target.join(", ")}`), bar,
        only(ALTERS, () => act("Stay as it is", async () => { await ask(`${path}/replicas`, { method: "DELETE" }); return "it stays"; })) ?? "");
    }
    if (left) {
      steps = Math.max(steps, left);
      bar.max = steps;
      bar.value = steps - left;
    } else if (steps) {
      steps = 0;
      moving.replaceChildren(el("p", { class: "good" }, `It is on ${now.replicas.join(", ")}`));
    }
  });
}

function handOver(path, found) {
  const others = found.in_sync.filter((id) => id !== found.leader);
  if (!others.length) return el("p", { class: "soft" }, "No other replica is in sync.");
  const to = el("select", { name: "leader" }, others.map((id) => el("option", { value: id }, id)));
  return el("form", { submit: (event) => event.preventDefault() }, el("label", {}, "To the node in sync", to),
    act("Hand over", async () => { await ask(`${path}/leader`, { method: "PUT", body: { node: to.value } }); return `${to.value} is to lead`; }));
}

function move(path, nodes, found) {
  const held = found.target.length ? found.target : found.replicas;
  const boxes = nodes.filter((each) => each.state !== "removed").map((each) => el("input", { type: "checkbox", name: "replica", value: each.id, checked: held.includes(each.id) }));
  const leads = el("select", { name: "first" }, boxes.map((box) => el("option", { value: box.value, selected: box.value === held[0] }, box.value)));
  return el("form", { submit: (event) => event.preventDefault() },
    el("fieldset", {}, el("legend", {}, "Held by"), boxes.map((box) => el("label", { class: "box" }, box, box.value))),
    el("label", {}, "Led, when it can be, by", leads),
    act("Move", async () => {
      const chosen = boxes.filter((box) => box.checked).map((box) => box.value);
      if (!chosen.includes(leads.value)) throw new Error(`${leads.value} is to lead, and does not hold it`);
      const replicas = [leads.value, ...chosen.filter((id) => id !== leads.value)];
      await ask(`${path}/replicas`, { method: "PUT", body: { replicas } });
      return `to be on ${replicas.join(", ")}`;
    }, true));
}
