// The pages. Each costs the node a bounded answer, however many queues and groups there are.
import { address, ask, keep } from "/console/console.js";
import { bytes, count, el, line, rate } from "/console/drawing.js";
import { backups } from "/console/backups.js";
import { cluster } from "/console/cluster.js";
import { groups } from "/console/groups.js";
import { later } from "/console/later.js";
import { producers } from "/console/producers.js";
import { topics } from "/console/topics.js";

async function overview(into) {
  const tiles = el("div", { class: "tiles" });
  into.append(el("h1", {}, "This node"), tiles, el("p", { class: "soft" }, "The last hour, a sample every five seconds. Messages count at every replica here; times are bounds of a histogram."));
  const shown = [
    ["messages in a second", "in_per_s", rate],
    ["messages out a second", "out_per_s", rate],
    ["sending, half within", "send_p50_ms", (value) => (value ? `${value} ms` : "-")],
    ["sending, 99 of 100 within", "send_p99_ms", (value) => (value ? `${value} ms` : "-")],
    ["tables on the disk", "table_bytes", bytes],
    ["disk free", "disk_free_bytes", bytes],
    ["memory", "memory_bytes", bytes],
    ["shards led without enough in sync", "shards_not_in_sync", count],
    ["parts stopped", "parts_stopped", count],
  ];
  const look = async () => {
    const found = await ask("/v1/history");
    tiles.replaceChildren(...shown.map(([label, name, say]) => el("div", { class: "tile" }, el("p", {}, label),
      el("strong", {}, found[name].length ? say(found[name].at(-1)) : "-"), line(found[name], `${label}, the last hour`))));
  };
  try { await keep(5000, look); } catch (error) {
    if (error.code !== "forbidden") throw error;
    const others = ["topics", "groups", "producers"].flatMap((each, at) => [at ? ", " : "", el("a", { href: address(`/${each}`) }, each)]);
    into.replaceChildren(el("h1", {}, "This node"), el("p", {}, "Its figures are for those who may describe the cluster. There are also: ", others, "."));
  }
}

export const pages = { "": overview, topics, later, groups, producers, cluster, backups };
