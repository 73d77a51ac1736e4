// The page: what is shown when, and what people press.

import { bdi, byId, bytes, count, el, perSecond, setText, short, show, spark, sparkline } from "./dom.js";
import { undo } from "./actions.js";
import { Picture } from "./picture.js";
import { ask, Store, token } from "./store.js";
import { startTables } from "./tables.js";
import { startTools } from "./tools.js";

const THEME = "evener-theme";
const THEMES = ["system", "light", "dark"];
const version = document.querySelector("meta[name=evener-version]").content;

function showTheme(theme) {
  const isDark = theme === "dark" || (theme === "system" && matchMedia("(prefers-color-scheme: dark)").matches);
  document.documentElement.dataset.theme = isDark ? "dark" : "light";
  setText(byId("theme"), `Colours: ${theme === "system" ? "as the system" : theme}`);
}

function startTheme() {
  let theme = localStorage.getItem(THEME);
  if (!THEMES.includes(theme)) theme = "system";
  showTheme(theme);
  byId("theme").addEventListener("click", () => {
    theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
    localStorage.setItem(THEME, theme);
    showTheme(theme);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => showTheme(theme));
}

const store = new Store((what) => (what === "data" ? showData() : showConnection()));
const showTables = startTables(store);
const showTools = startTools(store);
const picture = new Picture(store);

function banner(text, name, press) {
  show(byId("banner"), Boolean(text));
  if (!text) return;
  setText(byId("banner-text"), text);
  setText(byId("banner-button"), name);
  byId("banner-button").onclick = press;
}

function showConnection() {
  const { state, text, detail } = store.connection;
  document.body.dataset.connection = state;
  setText(byId("connection-text"), text);
  const isRefused = state === "refused";
  const wasShown = !byId("sign-in").hidden;
  show(byId("sign-in"), isRefused);
  if (isRefused) {
    setText(byId("sign-in-title"), text);
    setText(byId("sign-in-text"), detail);
    store.daemon = null;
    if (!wasShown) byId("token").focus();
  }
  const hasData = store.status != null && !isRefused;
  show(byId("content"), hasData);
  show(byId("no-data"), !hasData && !isRefused);
  setText(byId("no-data"), state === "lost" ? detail : "No data yet: the page waits for the daemon's first answer.");
  if (state === "lost") banner(`${detail || ""} ${store.status ? "What is shown is old." : ""}`.trim(), "Try now", () => store.start());
  else showVersion();
  const { caller } = store;
  setText(byId("who"), caller && !isRefused ? `${caller.by}, role ${caller.role}` : "");
  show(byId("sign-out"), token.get() != null && !isRefused);
}

function showVersion() {
  const running = store.status?.version;
  const differs = running && running !== version;
  banner(differs ? `The daemon is of version ${running} now, and this page of ${version}.` : "", "Load the page again", () => location.reload());
}

const FIGURES = [
  ["sessions", "Sessions", (total) => count(total)],
  ["connections", "New sessions", (total) => perSecond(total)],
  ["packets", "Packets to servers", (total) => perSecond(total)],
  ["bytes", "Bytes to servers", (total) => `${bytes(total)}/s`],
];
const figures = new Map();

function showFigures() {
  const up = el("dd");
  if (!figures.size) {
    const servers = { value: up };
    const boxes = FIGURES.map(([name, title]) => {
      const figure = { value: el("dd"), line: sparkline() };
      figures.set(name, figure);
      const picture = el("dd", {}, figure.line);
      return el("div", {}, el("dt", {}, title), figure.value, picture);
    });
    figures.set("servers", servers);
    byId("figures").append(...boxes, el("div", {}, el("dt", {}, "Servers up"), up));
  }
  for (const [name, , written] of FIGURES) {
    const total = store.totals[name];
    const { value, line } = figures.get(name);
    setText(value, total ? written(total.now) : "–");
    if (total) spark(line, total.series.values);
  }
  const sum = (of) => store.tables.services.reduce((all, one) => all + of(one), 0);
  setText(figures.get("servers").value, `${count(sum((one) => one.servers_up))} of ${count(sum((one) => one.servers))}`);
}

// Sentences on what is wrong, the worst first.
function problems() {
  const { status, tables } = store;
  const found = [];
  const add = (...parts) => found.push(parts);
  for (const service of tables.services) {
    if (service.servers_up === 0) add("Service ", bdi(service.name), " has no server that takes new sessions.");
    else if (service.degraded) add("All servers of ", bdi(service.name), " fail at once: those that worked last are kept.");
  }
  const down = tables.servers.filter((server) => server.state === "down");
  if (down.length) {
    const some = down.slice(0, 5).flatMap((server, at) => [at ? ", " : "", bdi(server.service), "/", bdi(server.name), server.reason ? ` (${server.reason})` : ""]);
    add(down.length === 1 ? "One server is down: " : `${count(down.length)} servers are down: `, ...some, down.length > 5 ? " and others." : ".");
  }
  if (status.reload_error) add("The last reload: ", bdi(status.reload_error));
  if (status.restart_needed_for) add("A restart is needed for ", bdi(status.restart_needed_for), ".");
  if (status.generation_wanted > status.generation) add("The engine has refused a change; it is tried again.");
  for (const part of (status.installed || []).filter((one) => one.missing)) add(`${part.kind} at `, bdi(part.location), " is missing: ", bdi(part.missing));
  for (const host of tables.hosts.filter((one) => !["alive", "joining"].includes(one.state))) add("Host ", bdi(host.name), ` is ${host.state}. `, host.refused ? bdi(host.refused.text) : "");
  for (const [address, refused] of Object.entries(status.nodes_refused || {})) add("No message of node ", bdi(address), " is understood: ", bdi(refused.text));
  if (status.dispatcher && !status.dispatcher.responding) add("The dispatcher ", bdi(status.dispatcher.address), " does not answer: this host decides by its own tables.");
  if (status.sessions > status.sessions_max * 0.9) add(`The session table is nearly full: ${short(status.sessions)} of ${short(status.sessions_max)}.`);
  return found;
}

function showProblems() {
  const found = problems();
  show(byId("attention"), found.length > 0);
  const list = byId("attention-list");
  const items = found.map((parts) => el("li", {}, parts));
  const text = items.map((item) => item.textContent).join("\n");
  if (list.dataset.text === text) return;
  list.dataset.text = text;
  list.replaceChildren(...items);
}

function showData() {
  const { status } = store;
  const started = performance.now();
  if (!store.reasons) {
    store.reasons = {};
    loadReasons();
  }
  setText(byId("daemon"), `${status.version}, engine ${status.engine}, ${status.config}`);
  const down = store.tables.servers.filter((server) => server.state === "down").length;
  document.title = down ? `(${down} down) Evener` : "Evener";
  showConnection();
  showFigures();
  showProblems();
  picture.show();
  showTables();
  showTools();
  // For whoever measures: how long that took.
  document.body.dataset.refresh = (performance.now() - started).toFixed(1);
  document.body.dataset.frame = store.atMs;
  document.body.dataset.first ??= performance.now().toFixed(0);
}

async function loadReasons() {
  try {
    const response = await ask("/v1/reasons");
    if (response.ok) store.reasons = (await response.json()).packets;
  } catch {
    // The table shows names alone until they come.
  }
}

startTheme();
byId("sign-in-form").addEventListener("submit", (event) => {
  event.preventDefault();
  token.set(byId("token").value.trim());
  byId("token").value = "";
  store.failures = 0;
  store.start();
});
byId("sign-out").addEventListener("click", () => {
  token.forget();
  store.caller = null;
  store.start();
});
byId("undo").addEventListener("click", undo);
document.addEventListener("visibilitychange", () => document.visibilityState === "visible" && store.wake());
addEventListener("online", () => store.wake());
addEventListener("pageshow", (event) => event.persisted && store.start());
store.start();
