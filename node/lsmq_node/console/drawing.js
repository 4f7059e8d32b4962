// Elements out of text: whatever a name or a body says is text, and nothing here reads HTML.

/** An element with attributes, handlers (functions) and children (elements or text). */
export function el(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (typeof value === "function") made.addEventListener(key, value);
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined).map((child) => (child instanceof Node ? child : String(child))));
  return made;
}

/** A table that scrolls by itself where it is too wide. Headings that begin with "#" are of numbers. */
export function table(label, headings, rows) {
  const isNumber = headings.map((heading) => heading.startsWith("#"));
  const kind = (at) => (isNumber[at] ? { class: "number" } : {});
  const head = el("tr", {}, headings.map((heading, at) => el("th", { scope: "col", ...kind(at) }, heading.replace("#", ""))));
  const body = rows.map((cells) => el("tr", {}, cells.map((cell, at) => el("td", kind(at), cell))));
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label }, el("table", {}, el("thead", {}, head), el("tbody", {}, body)));
}

/** A line over values, drawn from 0 to the largest; null is a gap in it. */
export function line(values, label) {
  const space = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(space, "svg");
  for (const [key, value] of Object.entries({ viewBox: "0 0 300 40", preserveAspectRatio: "none", role: "img", "aria-label": label })) svg.setAttribute(key, value);
  const most = values.reduce((found, value) => Math.max(found, value), 1e-9), step = 300 / Math.max(1, values.length - 1);
  let points = [];
  const draw = () => {
    if (!points.length) return;
    const drawn = document.createElementNS(space, "polyline");
    drawn.setAttribute("points", points.join(" "));
    svg.append(drawn);
    points = [];
  };
  values.forEach((value, at) => { if (value === null) draw(); else points.push(`${(at * step).toFixed(1)},${(39 - (38 * value) / most).toFixed(1)}`); });
  draw();
  return svg;
}

export function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (count >= 1024 && at < units.length - 1) { count /= 1024; at += 1; }
  return `${count.toFixed(at && count < 100 ? 1 : 0)} ${units[at]}`;
}

/** That a list has more than is shown of it; nothing where that is all. */
export const cut = (all, shown) => (all > shown ? el("p", { class: "soft" }, `... and ${count(all - shown)} more`) : null);

export const count = (value) => Number(value).toLocaleString("en");
/** How many a second: one in a while is not none. */
export const rate = (value) => Number(value).toLocaleString("en", { maximumFractionDigits: value < 10 ? 1 : 0 });
export const when = (ms) => el("time", { datetime: new Date(ms).toISOString() }, new Date(ms).toISOString().replace("T", " ").replace("Z", ""));

/** A form of fields, filled in from the address; `go` is given what they say. */
export function fields(query, shown, go) {
  const inputs = Object.entries(shown).map(([name, label]) => [name, label, el("input", { name, value: query.get(name) ?? "" })]);
  return el("form", { submit: (event) => { event.preventDefault(); go(Object.fromEntries(inputs.map(([name, , input]) => [name, input.value]))); } },
    inputs.map(([, label, input]) => el("label", {}, label, input)), el("button", {}, "Show"));
}

const UNIT_MS = { s: 1_000, m: 60_000, h: 3_600_000, d: 86_400_000 };

/** Milliseconds of a time in UTC unless it says otherwise, or of so long ago: 2026-03-01 12:00, -15m. NaN for what is none. */
export function moment(text) {
  const back = /^-([0-9]{1,6})([smhd])$/.exec(text);
  if (back) return Date.now() - Number(back[1]) * UNIT_MS[back[2]];
  return Date.parse(/(Z|[+-][0-9]{2}:?[0-9]{2})$/.test(text) ? text : `${text.replace(" ", "T")}${text.includes(":") ? "Z" : ""}`);
}

/** A button that asks to be pressed a second time, and then says what became of it. It works once, or `again` and again. */
export function act(label, work, again = false) {
  const said = el("span", { role: "status" });
  const button = el("button", { type: "button" }, label);
  const back = () => { button.textContent = label; button.classList.remove("sure"); };
  button.addEventListener("blur", back);
  button.addEventListener("click", async () => {
    if (!button.classList.contains("sure")) { button.classList.add("sure"); button.textContent = `${label}: sure?`; return; }
    back();
    button.disabled = true;
    try { said.className = "good"; said.textContent = (await work()) ?? "done"; button.disabled = !again; } catch (error) { said.className = "bad"; said.textContent = error.message; button.disabled = false; }
  });
  return el("span", { class: "act" }, button, said);
}
