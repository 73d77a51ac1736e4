// Tables and lists, whose cells are changed in place.

import { age, bdi, bits, byId, bytes, checksPicture, count, drawChecks, duration, el, head, perSecond, Rows, setAttribute, setText, short, show, spark, sparkline } from "./dom.js";
import { openServer } from "./actions.js";

const PAGE = 100;
const GOOD = new Set(["up", "alive"]);
const WARN = new Set(["draining", "maintenance", "joining", "differs", "unknown"]);
export const kindOf = (state) => (GOOD.has(state) ? "good" : WARN.has(state) ? "warn" : "bad");
export const MARKS = { good: "●", warn: "◐", bad: "✕" };

const cell = (className, ...children) => el("td", className ? { class: className } : {}, ...children);
const sub = (className) => el("div", { class: `sub ${className || ""}` });

function stateCell() {
  const [word, reason] = [el("div", { class: "state" }), sub()];
  return { node: cell("words", word, reason), word, reason };
}

function showState({ word, reason }, state, why) {
  const kind = kindOf(state);
  setAttribute(word, "class", `state ${kind}`);
  setText(word, `${MARKS[kind]} ${state}`);
  setText(reason, why);
  show(reason, Boolean(why));
}

const written = (value) => (value == null ? "unset" : typeof value === "string" ? value : JSON.stringify(value));

function overridesText(row, store) {
  const one = ({ key, value, file, by, age_seconds }) => {
    const when = `by ${by}, ${age(age_seconds + store.since(row))} ago`;
    if (key === "server" || key === "service") return `added at run time (${when})`;
    return key === "state" ? `${written(value)} (${when})` : `${key} ${written(value)}; ${file == null ? "the file sets none" : `the file has ${written(file)}`} (${when})`;
  };
  return (row.overrides || []).map(one).join("\n");
}

export const number = (value) => (Number.isInteger(value) ? count(value) : value.toFixed(2));

const SORTS = {
  name: null,
  state: (row) => ["down", "silent", "draining", "maintenance", "up"].indexOf(row.state),
  weight: (row) => -row.effective_weight,
  new: (row, rate) => -(rate?.connections || 0),
  sessions: (row) => -row.sessions,
  bytes: (row, rate) => -(rate?.bytes || 0),
  latency: (row) => -(row.probe_seconds ?? -1),
  send: (row) => -(row.report?.bytes_to_send ?? -1),
};

function makeServer(store) {
  return (server) => {
    const cells = {
      service: el("bdi"), name: el("bdi"), address: sub(), state: stateCell(), checks: checksPicture(), weight: el("div"), cause: sub(), changed: sub("changed"),
      rate: el("div"), spark: sparkline(), sessions: cell("number"), bytes: cell("number"), latency: cell("number"), send: el("div"), load: sub(),
    };
    cells.state.node.append(cells.checks);
    const row = { cells, item: server };
    const button = el("button", { type: "button", class: "small", onclick: () => openServer(row.item, store) }, "Details…");
    row.button = button;
    row.node = el(
      "tr", {},
      el("th", { scope: "row", class: "name" }, cells.service, "/", cells.name, cells.address),
      cells.state.node, cell("words", cells.weight, cells.cause, cells.changed),
      cell("number", cells.rate, cells.spark), cells.sessions, cells.bytes, cells.latency, cell("number", cells.send, cells.load), cell("", button),
    );
    return row;
  };
}

function updateServer(store) {
  return (row, server) => {
    row.item = server;
    const { cells } = row;
    const rate = store.rate("servers", server);
    setText(cells.service, server.service);
    setText(cells.name, server.name);
    setText(cells.address, server.address === server.name ? "" : server.address);
    showState(cells.state, server.state, stateText(server));
    drawChecks(cells.checks, server.checks || "");
    const isWhole = server.effective_weight === server.weight;
    setText(cells.weight, isWhole ? server.weight : `${number(server.effective_weight)} of ${server.weight}`);
    setText(cells.cause, server.cause);
    setText(cells.changed, overridesText(server, store));
    setText(cells.rate, perSecond(rate?.connections));
    if (rate) spark(cells.spark, rate.series.values);
    setText(cells.sessions, server.forwarding === "redirect" ? "–" : count(server.sessions));
    setText(cells.bytes, server.forwarding === "redirect" ? "–" : rate ? `${bytes(rate.bytes)}/s` : "–");
    setText(cells.latency, duration(server.probe_seconds));
    setText(cells.send, server.report?.bytes_to_send == null ? "–" : bytes(server.report.bytes_to_send));
    setText(cells.load, loadText(server));
    setAttribute(row.button, "aria-label", `Details of ${server.service}/${server.name}`);
  };
}

function stateText(server) {
  const why = server.state === "up" ? [] : [...new Set([server.reason, server.probe_error])];
  return [why.filter(Boolean).join(": "), server.handshakes?.finding].filter(Boolean).join("; ");
}

function loadText({ report, member }) {
  if (member) return member.load == null ? "no load reported" : `load ${number(member.load_now)}`;
  if (report?.error) return report.error;
  if (report?.utilisation != null) return `${Math.round(report.utilisation * 100)} % used`;
  return report?.load != null ? `load ${number(report.load)}` : "";
}

// The table of servers, by pages.
export class Servers {
  constructor(store) {
    Object.assign(this, { store, page: 0, sort: "name", isDown: true, order: [] });
    const button = (key, title, isNumber) => {
      const node = el("button", { type: "button", onclick: () => this.sortBy(key) }, title);
      return { key, title, number: isNumber, button: node };
    };
    this.columns = [
      button("name", "Server"), button("state", "State and checks"), button("weight", "Weight in force"), button("new", "New", true), button("sessions", "Sessions", true),
      button("bytes", "To it", true), button("latency", "Latency", true), button("send", "Still to send", true), { title: el("span", { class: "unseen" }, "Details") },
    ];
    const table = byId("servers-table");
    const body = head(table, "Servers, with state, weight and traffic", this.columns);
    this.body = body;
    this.rows = new Rows(body, makeServer(store), updateServer(store));
    this.heads = [...table.querySelectorAll("thead th")];
    for (const id of ["filter", "filter-service", "filter-state"]) byId(id).addEventListener("input", () => this.turn(-this.page));
    byId("page-back").addEventListener("click", () => this.turn(-1));
    byId("page-next").addEventListener("click", () => this.turn(1));
  }

  turn(by) {
    this.page += by;
    this.isForced = true;
    this.show();
  }

  sortBy(key) {
    this.isBackwards = this.sort === key && !this.isBackwards;
    this.sort = key;
    this.turn(-this.page);
  }

  // Whether rows may change places: not below a pointer, nor while one of them has the focus.
  mayMove() {
    return this.isForced || !(this.body.matches(":hover") || this.body.contains(document.activeElement));
  }

  filtered() {
    const [text, service, state] = [byId("filter").value.trim().toLowerCase(), byId("filter-service").value, byId("filter-state").value];
    const matches = (row) =>
      (!service || row.service === service) && (!state || row.state === state) &&
      (!text || [row.service, row.name, row.address, row.state, row.reason, row.probe_error, row.cause].some((one) => one && one.toLowerCase().includes(text)));
    const rows = this.store.tables.servers.filter(matches);
    const of = SORTS[this.sort];
    if (of) {
      const keyed = rows.map((row) => [of(row, this.store.rate("servers", row)), row]);
      keyed.sort((one, other) => one[0] - other[0]);
      rows.splice(0, rows.length, ...keyed.map(([, row]) => row));
    }
    return this.isBackwards ? rows.reverse() : rows;
  }

  show() {
    this.fillServices();
    const mayMove = this.mayMove();
    this.isForced = false;
    const all = this.store.tables.servers.length;
    if (mayMove || this.known !== this.store.tables.servers) {
      this.known = this.store.tables.servers;
      this.order = this.filtered();
      const pages = Math.max(1, Math.ceil(this.order.length / PAGE));
      this.page = Math.min(Math.max(0, this.page), pages - 1);
      setText(byId("count"), this.order.length === all ? `${count(all)} servers` : `${count(this.order.length)} of ${count(all)} servers`);
      show(byId("pages"), pages > 1);
      setText(byId("page-text"), `page ${this.page + 1} of ${pages}`);
      byId("page-back").disabled = this.page === 0;
      byId("page-next").disabled = this.page === pages - 1;
      this.columns.forEach(({ key }, at) => key && setAttribute(this.heads[at], "aria-sort", key !== this.sort ? "none" : this.isBackwards ? "descending" : "ascending"));
    }
    this.rows.show(this.order.slice(this.page * PAGE, (this.page + 1) * PAGE), (row) => row.key);
  }

  fillServices() {
    const select = byId("filter-service");
    const names = this.store.tables.services.map((service) => service.name);
    if (select.dataset.names === names.join("\n")) return;
    select.dataset.names = names.join("\n");
    const chosen = select.value;
    select.replaceChildren(el("option", { value: "" }, "all"), ...names.map((name) => el("option", { value: name }, name)));
    if (names.includes(chosen)) select.value = chosen;
  }
}

function services(store) {
  const body = head(byId("services-table"), "Services", [
    { title: "Service" }, { title: "Servers" }, { title: "Method and policy" }, { title: "New", number: true }, { title: "Sessions", number: true }, { title: "To servers", number: true }, { title: "Requests" },
  ]);
  const make = () => {
    const cells = { name: el("bdi"), address: sub(), state: stateCell(), method: el("div"), policy: sub(), changed: sub("changed"), rate: el("div"), spark: sparkline(), sessions: cell("number"), bytes: cell("number"), requests: cell("words") };
    const node = el("tr", {}, el("th", { scope: "row", class: "name" }, cells.name, cells.address), cells.state.node, cell("words", cells.method, cells.policy, cells.changed), cell("number", cells.rate, cells.spark), cells.sessions, cells.bytes, cells.requests);
    return { cells, node };
  };
  const update = ({ cells }, service) => {
    const rate = store.rate("services", service);
    setText(cells.name, service.name);
    setText(cells.address, `${service.protocol} ${service.addresses.join(", ")}`);
    const { servers, servers_up: up } = service;
    const kind = service.degraded || up === 0 ? "bad" : up < servers ? "warn" : "good";
    setAttribute(cells.state.word, "class", `state ${kind}`);
    setText(cells.state.word, `${MARKS[kind]} ${count(up)} of ${count(servers)} up`);
    setText(cells.state.reason, service.degraded ? "all fail at once: those that worked last are kept" : "");
    setText(cells.method, `${service.method}${service.placement === "every-host" ? ", every host" : ""}`);
    setText(cells.policy, service.policy);
    setText(cells.changed, overridesText(service, store));
    setText(cells.rate, perSecond(rate?.connections));
    if (rate) spark(cells.spark, rate.series.values);
    const isGroup = service.method === "redirect";
    setText(cells.sessions, isGroup ? "–" : count(service.sessions));
    setText(cells.bytes, isGroup || !rate ? "–" : `${bytes(rate.bytes)}/s`);
    const requests = Object.entries(service.requests || {}).filter(([, number]) => number > 0);
    setText(cells.requests, requests.map(([name, number]) => `${name.replaceAll("_", " ")} ${short(number)}`).join(", "));
  };
  const rows = new Rows(body, make, update);
  return () => rows.show(store.tables.services, (row) => row.key);
}

function names(store) {
  const body = head(byId("names-table"), "Names and their addresses", [
    { title: "Name" }, { title: "Address" }, { title: "State and checks" }, { title: "Share", number: true }, { title: "Rank", number: true }, { title: "Answers", number: true }, { title: "Path to clients", number: true }, { title: "Why" },
  ]);
  const make = () => {
    const cells = { name: el("bdi"), policy: sub(), address: el("bdi"), server: sub(), state: stateCell(), checks: checksPicture(), share: cell("number"), rank: cell("number"), answers: el("div"), rate: sub(), path: cell("number"), cause: cell("words") };
    cells.state.node.append(cells.checks);
    const node = el("tr", {}, el("th", { scope: "row", class: "name" }, cells.name, cells.policy), cell("", cells.address, cells.server), cells.state.node, cells.share, cells.rank, cell("number", cells.answers, cells.rate), cells.path, cells.cause);
    return { cells, node };
  };
  const update = ({ cells }, name) => {
    setText(cells.name, name.name);
    setText(cells.policy, `${name.policy}, ttl ${name.ttl_seconds} s`);
    setText(cells.address, name.address);
    setText(cells.server, name.server === name.address ? "" : name.server);
    showState(cells.state, name.state);
    drawChecks(cells.checks, name.checks || "");
    setText(cells.share, `${(name.share * 100).toFixed(name.share && name.share < 0.1 ? 1 : 0)} %`);
    setText(cells.rank, name.rank ?? "–");
    setText(cells.answers, count(name.answers));
    setText(cells.rate, perSecond(store.rate("names", name)?.connections));
    setText(cells.path, bits(name.available_bps ?? name.bottleneck_bps));
    setText(cells.cause, name.cause);
  };
  const rows = new Rows(body, make, update);
  return () => rows.show(store.tables.names.slice(0, 500), (row) => row.key);
}

function hosts(store) {
  const body = head(byId("hosts-table"), "Hosts", [
    { title: "Host" }, { title: "State" }, { title: "Addresses that it answers for" }, { title: "Up for" }, { title: "Sessions", number: true }, { title: "Last seen", number: true },
  ]);
  const make = () => {
    const cells = { name: el("bdi"), address: sub(), state: stateCell(), owned: cell("words"), up: el("div"), draining: sub(), load: cell("number"), seen: cell("number") };
    const node = el("tr", {}, el("th", { scope: "row", class: "name" }, cells.name, cells.address), cells.state.node, cells.owned, cell("words", cells.up, cells.draining), cells.load, cells.seen);
    return { cells, node };
  };
  const update = ({ cells }, host) => {
    setText(cells.name, host.name);
    setText(cells.address, host.own ? `${host.address}, this host` : host.address);
    showState(cells.state, host.state, host.refused?.text || HOST_STATES[host.state]);
    setText(cells.owned, host.addresses_owned.join(", ") + (host.deferred.length ? `; somebody else answers for ${host.deferred.join(", ")}` : "") || "none");
    setText(cells.up, host.up.join(", ") || "none");
    setText(cells.draining, host.draining.length ? `drained for ${host.draining.join(", ")}` : "");
    setText(cells.load, count(host.load));
    setText(cells.seen, host.own ? "now" : host.last_seen_seconds == null ? "never" : `${duration(host.last_seen_seconds)} ago`);
  };
  const rows = new Rows(body, make, update);
  return () => rows.show(store.tables.hosts, (row) => row.key);
}

const HOST_STATES = {
  joining: "takes no part yet", differs: "runs another configuration", version: "speaks another version", silent: "was not heard from for a while", unknown: "was never heard from",
};

function events(store) {
  const make = () => {
    const cells = { when: el("time"), level: el("span"), text: el("span") };
    return { cells, node: el("li", {}, cells.when, cells.level, cells.text) };
  };
  const update = ({ cells, node }, event) => {
    setText(cells.when, `${age(store.ago(event.time))} ago`);
    if (node.dataset.number) return;
    node.dataset.number = event.number;
    cells.when.setAttribute("datetime", event.time);
    cells.when.title = event.time;
    cells.level.className = `level ${event.level}`;
    cells.level.textContent = event.level;
    const place = [event.service, event.server, event.host, event.address, event.interface].filter((one) => one && !event.text.includes(one));
    const named = place.flatMap((one, at) => (at ? [" ", bdi(one)] : [bdi(one)]));
    cells.text.append(...named, named.length ? ": " : "", bdi(event.text + (event.reason && !event.text.includes(event.reason) ? ` (${event.reason})` : "")));
  };
  const rows = new Rows(byId("events-list"), make, update);
  return () => {
    rows.show(store.events, (event) => event.number);
    const news = store.news.filter((event) => event.level !== "info");
    if (news.length) setText(byId("announce"), news.slice(-3).map((event) => `${event.level}: ${[event.service, event.server].filter(Boolean).join("/")} ${event.text}`).join(". "));
  };
}

function packets(store) {
  const body = head(byId("packets-table"), "Packets by reason", [{ title: "Reason" }, { title: "Meaning" }, { title: "Now", number: true }, { title: "Since the start", number: true }]);
  const make = ([name]) => {
    const meaning = store.reasons?.[name] || "";
    const cells = { rate: cell("number"), count: cell("number") };
    return { cells, node: el("tr", {}, el("th", { scope: "row" }, el("code", {}, name)), cell("", meaning), cells.rate, cells.count) };
  };
  const update = ({ cells }, [name, number]) => {
    setText(cells.rate, perSecond(store.reasonRates?.[name]));
    setText(cells.count, count(number));
  };
  const rows = new Rows(body, make, update);
  byId("all-reasons").addEventListener("change", () => showAll());
  const showAll = () => {
    const isAll = byId("all-reasons").checked;
    const counted = Object.entries(store.status.packets).filter(([, number]) => isAll || number > 0);
    rows.show(counted, ([name]) => `${name}${store.reasons?.[name] ? "" : "?"}`);
  };
  return showAll;
}

function changes(store) {
  const make = (change) => {
    const when = el("time", { datetime: change.time, title: change.time });
    return { when, node: el("li", {}, when, el("span", {}, bdi(change.by)), bdi(`${change.message} (from ${change.from})`)) };
  };
  const rows = new Rows(byId("changes-list"), make, ({ when }, change) => setText(when, `${age(store.ago(change.time))} ago`));
  return () => {
    rows.show(store.changes.slice(0, 200), (change) => change.generation);
    byId("undo").disabled = store.changes.length === 0;
    setText(byId("undo"), store.changes.length ? "Undo the last change…" : "There is no change to undo");
  };
}

// All of them: a function that shows them as they are now.
export function startTables(store) {
  const table = new Servers(store);
  const parts = [services(store), () => table.show(), names(store), hosts(store), events(store), packets(store), changes(store)];
  return () => {
    for (const name of ["names", "hosts"]) {
      show(byId(name), store.tables[name].length > 0);
      show(byId(`nav-${name}`), store.tables[name].length > 0);
    }
    parts.forEach((part) => part());
  };
}
