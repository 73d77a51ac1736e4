// Elements and texts. All texts are set as text, never as markup: names come from elsewhere.

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value != null) node.setAttribute(name, value);
  }
  node.append(...children.flat(3).filter((child) => child != null && child !== false));
  return node;
}

export const el = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
export const svg = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

// A name in a direction of its own: one that is written from right to left moves no neighbour.
export const bdi = (text) => el("bdi", {}, String(text));

// Sets a text where it differs, so that nothing is laid out in vain.
export function setText(node, text) {
  const wanted = text == null ? "" : String(text);
  if (node.textContent !== wanted) node.textContent = wanted;
}

export function setAttribute(node, name, value) {
  if (node.getAttribute(name) !== value) node.setAttribute(name, value);
}

export function show(node, isShown) {
  // An attribute, since elements of SVG have no such property.
  node.toggleAttribute("hidden", !isShown);
}

// A table's head, once.
export function head(table, caption, columns) {
  const cell = (column) => el("th", { scope: "col", class: column.number ? "number" : null, id: column.id || null }, column.button || column.title);
  const body = el("tbody", { role: "rowgroup" });
  // For narrow pages, where each row is a list of its cells. Roles, since such a page has no table by its layout.
  body.titles = columns.map((column) => (column.button || column.title).textContent ?? column.title);
  table.setAttribute("role", "table");
  table.replaceChildren(el("caption", { class: "unseen" }, caption), el("thead", {}, el("tr", {}, columns.map(cell))), body);
  return body;
}

// Rows by key: each stays in its place in the document as long as its key has the same one.
export class Rows {
  constructor(body, make, update) {
    Object.assign(this, { body, make, update, rows: new Map() });
  }

  label(row) {
    if (!this.body.titles) return;
    row.setAttribute("role", "row");
    [...row.children].forEach((cell, at) => {
      cell.dataset.title = this.body.titles[at];
      cell.setAttribute("role", cell.scope === "row" ? "rowheader" : "cell");
    });
  }

  show(items, keyOf) {
    const seen = new Set();
    let at = this.body.firstElementChild;
    for (const item of items) {
      const key = keyOf(item);
      if (seen.has(key)) continue;
      seen.add(key);
      let row = this.rows.get(key);
      if (!row) {
        row = this.make(item);
        this.label(row.node);
        this.rows.set(key, row);
      }
      this.update(row, item);
      if (row.node === at) at = at.nextElementSibling;
      else this.body.insertBefore(row.node, at);
    }
    for (const [key, row] of this.rows) {
      if (!seen.has(key)) {
        row.node.remove();
        this.rows.delete(key);
      }
    }
  }
}

const scaled = (value, units, step) => {
  let at = 0;
  while (value >= step * 0.9995 && at < units.length - 1) {
    value /= step;
    at += 1;
  }
  const digits = value >= 100 || Number.isInteger(value) ? 0 : value >= 10 ? 1 : 2;
  return `${value.toFixed(digits)} ${units[at]}`.trim();
};

export const count = (value) => (value == null ? "–" : Math.round(value).toLocaleString("en"));
export const short = (value) => (value == null ? "–" : scaled(value, ["", "k", "M", "G", "T"], 1000));
export const bytes = (value) => (value == null ? "–" : scaled(value, ["B", "kB", "MB", "GB", "TB", "PB"], 1000));
export const perSecond = (value) => (value == null ? "–" : `${value > 0 && value < 0.05 ? "<0.1" : short(Math.round(value * 10) / 10)}/s`);
export const bits = (value) => (value == null ? "–" : `${scaled(value, ["", "k", "M", "G", "T"], 1000)}bit/s`);

export function duration(seconds) {
  if (seconds == null) return "–";
  if (seconds < 0.001) return `${Math.round(seconds * 1e6)} µs`;
  if (seconds < 1) return `${(seconds * 1000).toFixed(seconds < 0.01 ? 1 : 0)} ms`;
  return `${seconds.toFixed(1)} s`;
}

export function age(seconds) {
  if (seconds == null || Number.isNaN(seconds)) return "–";
  const whole = Math.max(0, Math.floor(seconds));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  return `${Math.floor(whole / 86400)} days`;
}

// A line of numbers, the latest at the right.
export function spark(node, values, max) {
  const top = max || Math.max(...values, 0) || 1;
  const [width, height] = [100, 20];
  // It fills from the right, until there are enough to fill all of it.
  const step = width / (Math.max(values.length, 15) - 1);
  const points = [...values].map((value, at) => {
    const x = width - (values.length - 1 - at) * step;
    return `${x.toFixed(1)} ${(height - 1 - (value / top) * (height - 3)).toFixed(1)}`;
  });
  setAttribute(node.firstElementChild, "d", points.length > 1 ? `M${points.join("L")}` : "");
}

export const sparkline = () =>
  svg("svg", { class: "spark", viewBox: "0 0 100 20", preserveAspectRatio: "none", "aria-hidden": "true" }, svg("path"));

// The history of checks: a stroke each, the failed ones shorter, with a sentence beside it.
export function checksPicture() {
  return svg("svg", { class: "checks", viewBox: "0 0 128 14", role: "img" }, svg("path", { class: "ok" }), svg("path", { class: "failed" }));
}

export function checksSentence(checks) {
  const failed = checks.split("x").length - 1;
  const last = checks.endsWith("x") ? "the last one failed" : "the last one was good";
  return `${checks.length} checks, ${failed} failed, ${last}`;
}

export function drawChecks(node, checks) {
  show(node, checks.length > 0);
  const stroke = (letter, top) =>
    [...checks].map((one, at) => (one === letter ? `M${2 + (32 - checks.length + at) * 4} ${top}V13` : "")).join("");
  setAttribute(node.children[0], "d", stroke(".", 2));
  setAttribute(node.children[1], "d", stroke("x", 8));
  setAttribute(node, "aria-label", checksSentence(checks));
}
