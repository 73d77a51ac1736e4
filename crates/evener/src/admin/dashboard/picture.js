// A picture of the farm: clients, directors or hosts, servers, and the ways between them.

import { bdi, byId, el, perSecond, setText, show, svg } from "./dom.js";
import { kindOf, MARKS } from "./tables.js";

const SHOWN_MAX = 8;
const [WIDTH, CLIENTS, MIDDLE, SERVERS] = [1000, 20, 390, 700];
const BOX = { clients: 150, middle: 190, server: 280 };
const [ROW, HEIGHT] = [62, 48];

const WAYS = {
  link: "replies go from the server straight to the client",
  tunnel: "requests come by a tunnel, and replies go from the server straight to the client",
  nat: "replies come back through the director",
  handoff: "the connection is handed to the server, and replies go from it straight to the client",
  redirect: "clients are sent on by HTTP, and talk to the server themselves",
  dns: "clients get the server's address as an answer, and talk to it themselves",
};

const cut = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

// How replies and requests go, for one service.
function wayOf(service, servers) {
  if (service.method === "redirect" || service.method === "handoff") return service.method;
  return servers[0]?.forwarding ?? { l2: "link", nat: "nat", tunnel: "tunnel" }[service.method] ?? "link";
}

function node(x, y, width, kind, lines) {
  const texts = lines.map((line, at) =>
    svg("text", { x: x + 12, y: y + (lines.length === 1 ? 29 : 20 + at * 17), class: at ? "small" : null, direction: "ltr" }, line),
  );
  return svg("g", { class: `node ${kind}` }, svg("rect", { x, y, width, height: HEIGHT, rx: 7 }), texts);
}

const width = (traffic, most) => (most > 0 && traffic > 0 ? 1.5 + 7.5 * Math.sqrt(traffic / most) : 1.5);
const curve = (x1, y1, x2, y2, bend = 0) => {
  const middle = (x1 + x2) / 2;
  return `M${x1} ${y1}C${middle} ${y1 + bend} ${middle} ${y2 + bend} ${x2} ${y2}`;
};
const way = (kind, d, traffic, most) => {
  const path = svg("path", { class: `way ${kind}${traffic > 0 ? "" : " idle"}`, d });
  path.setAttribute("stroke-width", width(traffic, most).toFixed(1));
  return path;
};

// The servers to show: those that aren't up first, and the busiest of the others.
function chosen(servers, traffic) {
  const down = servers.filter((one) => one.state !== "up");
  const up = servers.filter((one) => one.state === "up");
  if (servers.length <= SHOWN_MAX) return { shown: servers, rest: [] };
  up.sort((one, other) => traffic(other) - traffic(one));
  const shown = down.slice(0, SHOWN_MAX / 2);
  shown.push(...up.slice(0, SHOWN_MAX - 1 - shown.length));
  const known = new Set(shown);
  return { shown, rest: servers.filter((one) => !known.has(one)) };
}

export class Picture {
  constructor(store) {
    this.store = store;
    this.select = byId("picture-service");
    this.select.addEventListener("change", () => this.show());
  }

  // What can be shown: services, and names that clients ask for by DNS.
  subjects() {
    const { services, servers, names } = this.store.tables;
    const of = services.map((service) => ({ id: `s${service.name}`, name: service.name, service, servers: [] }));
    const known = new Map(of.map((one) => [one.name, one]));
    for (const server of servers) known.get(server.service)?.servers.push(server);
    const byName = new Map();
    for (const name of names) {
      if (!byName.has(name.name)) byName.set(name.name, { id: `n${name.name}`, name: name.name, names: [] });
      byName.get(name.name).names.push(name);
    }
    return [...of, ...byName.values()];
  }

  show() {
    const subjects = this.subjects();
    this.fill(subjects);
    const subject = subjects.find((one) => one.id === this.select.value) || subjects[0];
    show(byId("picture-controls"), subjects.length > 1);
    this.words(subjects);
    const place = byId("picture");
    if (!subject) return place.replaceChildren(el("p", {}, "The file has no service."));
    place.replaceChildren(this.draw(subject));
  }

  fill(subjects) {
    const names = subjects.map((one) => one.id).join("\n");
    if (this.select.dataset.names === names) return;
    this.select.dataset.names = names;
    const before = this.select.value;
    this.select.replaceChildren(...subjects.map(({ id, name, names }) => el("option", { value: id }, names ? `${name} (name)` : name)));
    if (subjects.some((one) => one.id === before)) this.select.value = before;
  }

  words(subjects) {
    const list = byId("ways");
    const wanted = subjects.slice(0, 20).map(({ name, service, servers }) => {
      if (!service) return [name, WAYS.dns];
      const where = service.placement === "every-host" ? "any host takes a request to the host that serves it; " : "";
      return [name, where + WAYS[wayOf(service, servers)]];
    });
    const text = JSON.stringify(wanted);
    if (list.dataset.text === text) return;
    list.dataset.text = text;
    list.replaceChildren(...wanted.map(([name, words]) => el("li", {}, el("strong", {}, bdi(name)), `: ${words}`)));
  }

  draw(subject) {
    const { store } = this;
    const isName = !subject.service;
    const all = isName ? subject.names : subject.servers;
    const table = isName ? "names" : "servers";
    const kind = isName ? "dns" : wayOf(subject.service, all);
    const usesBytes = !isName && all.some((one) => store.rate(table, one)?.bytes > 0);
    const traffic = (one) => store.rate(table, one)?.[usesBytes ? "bytes" : "connections"] || 0;
    const { shown, rest } = chosen(all, traffic);
    const boxes = shown.map((one) => ({ server: one, traffic: traffic(one), kind: kindOf(one.state), lines: this.lines(one, isName) }));
    if (rest.length) {
      const up = rest.filter((one) => one.state === "up").length;
      boxes.push({ traffic: rest.reduce((sum, one) => sum + traffic(one), 0), kind: up === rest.length ? "good" : "warn", lines: [`and ${rest.length} more`, `${up} of them up`] });
    }
    const middles = this.middles(subject, isName);
    const height = Math.max(3, boxes.length, middles.length) * ROW + 52;
    const most = boxes.reduce((sum, box) => sum + box.traffic, 0);
    const center = (height - 44) / 2;
    const spread = (count, at) => center - (count * ROW) / 2 + at * ROW + (ROW - HEIGHT) / 2;
    const [lines, nodes] = [[], []];
    const from = center;
    const perMiddle = most / (middles.filter((middle) => middle.kind !== "bad").length || 1);
    middles.forEach((middle, at) => {
      middle.y = spread(middles.length, at);
      const y = middle.y + HEIGHT / 2;
      const share = middle.kind === "bad" ? 0 : perMiddle;
      lines.push(way("request", curve(CLIENTS + BOX.clients, from, MIDDLE, y), isName ? 0 : share, most));
      if (kind === "nat") lines.push(way("reply", curve(CLIENTS + BOX.clients, from + 12, MIDDLE, y + 12), share, most));
      if (kind === "redirect" || kind === "dns") lines.push(way("redirect", curve(CLIENTS + BOX.clients, from + 12, MIDDLE, y + 12), share, most));
      nodes.push(node(MIDDLE, middle.y, BOX.middle, middle.kind, middle.lines));
    });
    boxes.forEach((box, at) => {
      const y = spread(boxes.length, at) + HEIGHT / 2;
      const isUsed = box.kind !== "bad" || box.traffic > 0;
      if (kind === "redirect" || kind === "dns") {
        if (isUsed) lines.push(this.around(y, height, "request", box.traffic, most, -5), this.around(y, height, "reply", box.traffic, most, 5));
      } else {
        const source = middles[at % middles.length].y + HEIGHT / 2;
        if (isUsed) lines.push(way("request", curve(MIDDLE + BOX.middle, source, SERVERS, y), box.traffic, most));
        if (isUsed && kind === "nat") lines.push(way("reply", curve(MIDDLE + BOX.middle, source + 12, SERVERS, y + 12), box.traffic, most));
        if (isUsed && kind !== "nat") lines.push(this.around(y + 10, height, "reply", box.traffic, most, 0));
      }
      nodes.push(node(SERVERS, y - HEIGHT / 2, BOX.server, box.kind, box.lines));
    });
    const total = isName ? null : store.rate("services", subject.service)?.connections;
    nodes.push(node(CLIENTS, center - HEIGHT / 2, BOX.clients, "", ["Clients", total == null ? "" : `${perSecond(total)} new`].filter(Boolean)));
    const up = all.filter((one) => one.state === "up").length;
    const title = `${subject.name}: ${up} of ${all.length} servers up; ${WAYS[kind]}`;
    return svg("svg", { viewBox: `0 0 ${WIDTH} ${height}`, role: "img", "aria-label": title }, lines, nodes);
  }

  // From clients to a server without the director: below it, as far as there is room.
  around(y, height, kind, traffic, most, by) {
    const low = height - 22 + by;
    const start = (height - 44) / 2 + HEIGHT / 2;
    const [x, end] = [CLIENTS + BOX.clients / 2 + by * 3, SERVERS];
    return way(kind, `M${x} ${start}C${x} ${low + 14} ${x + 90} ${low} ${x + 220} ${low}L${end - 130} ${low}C${end - 40} ${low} ${end - 60} ${y} ${end} ${y}`, traffic, most);
  }

  middles(subject, isName) {
    const { hosts } = this.store.tables;
    const { status } = this.store;
    if (!isName && subject.service.placement === "every-host" && hosts.length) {
      const box = (host) => ({
        kind: kindOf(host.state),
        lines: [cut(`${MARKS[kindOf(host.state)]} ${host.name}${host.own ? " (this host)" : ""}`, 26), host.state === "alive" ? cut(host.addresses_owned.join(" ") || "owns no address", 30) : host.state],
      });
      const shown = hosts.slice(0, SHOWN_MAX).map(box);
      if (hosts.length > SHOWN_MAX) shown.push({ kind: "", lines: [`and ${hosts.length - SHOWN_MAX} more hosts`] });
      return shown;
    }
    const address = isName ? subject.name : subject.service.addresses.join(" ");
    return [{ kind: "good", lines: [isName ? "Name server" : status.dispatcher ? "Director (of several)" : "Director", cut(address, 27)] }];
  }

  lines(one, isName) {
    const kind = kindOf(one.state);
    const rate = this.store.rate(isName ? "names" : "servers", one);
    const name = isName ? `${one.address}${one.server === one.address ? "" : ` ${one.server}`}` : one.name;
    const why = isName ? one.cause : one.reason || one.probe_error;
    const calm = isName ? `${Math.round(one.share * 100)} % of answers` : [`${perSecond(rate?.connections)} new`, one.forwarding !== "redirect" && `${one.sessions} sessions`].filter(Boolean).join(", ");
    return [cut(`${MARKS[kind]} ${name}`, 38), cut(one.state === "up" ? calm : `${one.state}${why && why !== one.state ? `: ${why}` : ""}`, 46)];
  }
}
