// The farm as the daemon streams it, with the rates that are computed from its counters. Ages and
// times are the daemon's: this page's own clock may be a day off.

const SAMPLES = 90;
const WAIT_MAX_MS = 30000;
// A frame comes each 2 s; so long without one, and the connection counts as lost.
const SILENCE_MS = 10000;
const TOKEN = "evener-token";
const COUNTERS = {
  services: ["sessions", "connections", "packets", "bytes"],
  servers: ["sessions", "connections", "packets", "bytes", "probe_seconds"],
  names: ["answers"],
  hosts: ["load", "last_seen_seconds"],
};
const KEYS = {
  services: (row) => row.name,
  servers: (row) => `${row.service}\n${row.name}`,
  names: (row, at) => `${row.name}\n${row.address}\n${row.server}\n${at}`,
  hosts: (row) => row.name,
};

// The last values, the oldest first.
class Series {
  constructor() {
    this.values = [];
  }

  push(value) {
    this.values.push(value);
    if (this.values.length > SAMPLES) this.values.shift();
  }
}

export const token = {
  get: () => sessionStorage.getItem(TOKEN),
  set: (value) => sessionStorage.setItem(TOKEN, value),
  forget: () => sessionStorage.removeItem(TOKEN),
};

// Asks the daemon; the token goes in a header and never in a URL.
export function ask(path, options = {}) {
  const headers = { ...options.headers };
  if (token.get()) headers.Authorization = `Bearer ${token.get()}`;
  return fetch(path, { ...options, headers, cache: "no-store", credentials: "same-origin" });
}

// The sentence of a refusal.
export async function sentence(response) {
  try {
    return (await response.json()).error || `The daemon answered ${response.status}.`;
  } catch {
    return `The daemon answered ${response.status}.`;
  }
}

// Each line of an answer that has no end.
export async function eachLine(response, take) {
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  let rest = [];
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    // Pieces are joined once there is a whole line: a snapshot comes in many.
    const lines = decoder.decode(value, { stream: true }).split("\n");
    if (lines.length === 1) {
      rest.push(lines[0]);
      continue;
    }
    take(rest.join("") + lines[0]);
    for (const line of lines.slice(1, -1)) take(line);
    rest = [lines[lines.length - 1]];
  }
}

export class Store {
  constructor(changed) {
    this.changed = changed;
    this.tables = { services: [], servers: [], names: [], hosts: [] };
    this.rates = new Map();
    this.totals = {};
    this.status = null;
    this.changes = [];
    this.events = [];
    this.news = [];
    this.daemon = null;
    this.connection = { state: "connecting", text: "Connecting" };
    this.caller = null;
    this.failures = 0;
    this.receivedAt = 0;
  }

  // Seconds since an age was sent, by the daemon's clock.
  since(row) {
    return (this.atMs - row.sent_ms) / 1000;
  }

  // How long ago something was that the daemon gives a time for, in seconds.
  ago(time) {
    return (Date.parse(this.time) - Date.parse(time)) / 1000 + (performance.now() - this.receivedAt) / 1000;
  }

  rate(table, row) {
    return this.rates.get(table)?.get(row.key);
  }

  start() {
    clearTimeout(this.timer);
    this.stop?.abort();
    const stop = new AbortController();
    this.stop = stop;
    this.run(stop).catch((error) => {
      if (!stop.signal.aborted || stop.isSilent) this.lost(error, stop);
    });
  }

  end() {
    clearTimeout(this.timer);
    this.stop?.abort();
    this.stop = null;
  }

  tell(state, text, detail) {
    this.connection = { state, text, detail };
    this.changed("connection");
  }

  lost(error, stop) {
    if (this.stop !== stop) return;
    const wait = Math.min(WAIT_MAX_MS, 1000 * 2 ** this.failures) * (0.75 + Math.random() / 2);
    this.failures += 1;
    const why = error?.sentence || (stop.isSilent ? "The daemon has sent nothing for 10 s." : "The daemon can't be reached, or was stopped.");
    this.tell("lost", `Connection lost; trying again in ${Math.ceil(wait / 1000)} s`, why);
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.start(), wait);
  }

  watch(stop) {
    clearTimeout(this.watchdog);
    this.watchdog = setTimeout(() => {
      stop.isSilent = true;
      stop.abort();
    }, SILENCE_MS);
  }

  // After a sleep of the computer, or a long time in the background: what is shown may be old.
  wake() {
    // One of both clocks may stand still while the computer sleeps.
    const silent = Math.max(performance.now() - this.receivedAt, Date.now() - this.receivedDate);
    if (this.stop && !(silent < 5000) && this.connection.state !== "refused") this.start();
  }

  async run(stop) {
    if (this.connection.state !== "live") this.tell(this.failures ? "lost" : "connecting", this.failures ? "Reconnecting" : "Connecting");
    this.watch(stop);
    const options = { signal: stop.signal };
    const who = await ask("/v1/whoami", options);
    if (await this.refused(who)) return;
    this.caller = await who.json();
    const response = await ask("/v1/live", options);
    if (await this.refused(response)) return;
    let kind = "";
    await eachLine(response, (line) => {
      if (line.startsWith("event: ")) kind = line.slice(7);
      if (!line.startsWith("data: ") || this.stop !== stop) return;
      this.watch(stop);
      this.failures = 0;
      this.take(kind, JSON.parse(line.slice(6)));
    });
    throw new Error("the stream has ended");
  }

  async refused(response) {
    if (response.ok) return false;
    const text = await sentence(response);
    if (response.status !== 401) throw Object.assign(new Error(text), { sentence: text });
    clearTimeout(this.watchdog);
    const isWrong = token.get() != null;
    token.forget();
    this.tell("refused", isWrong ? "The token was refused" : "A token is needed", text);
    return true;
  }

  take(kind, data) {
    this.receivedAt = performance.now();
    this.receivedDate = Date.now();
    if (kind === "snapshot") this.snapshot(data);
    else this.delta(data);
    const seconds = (this.atMs - this.lastMs) / 1000;
    // A frame that comes early, for an event, is too short a time to count in.
    if (this.lastMs != null && seconds >= 1) this.measure(seconds);
    if (this.lastMs == null || seconds >= 1) this.remember();
    if (this.connection.state !== "live") this.tell("live", "Live");
    this.changed("data");
    this.news = [];
  }

  snapshot(data) {
    if (this.daemon !== data.daemon) {
      this.daemon = data.daemon;
      this.lastMs = null;
      this.rates.clear();
      this.totals = {};
      this.lastEvent = null;
    }
    this.atMs = data.at_ms;
    this.time = data.time;
    this.status = data.status;
    for (const table of Object.keys(this.tables)) this.replace(table, data[table]);
    this.changes = data.changes;
    const known = this.lastEvent;
    this.news = known == null ? [] : data.events.filter((event) => event.number > known);
    this.events = data.events.reverse();
    this.lastEvent = this.events[0]?.number ?? 0;
  }

  delta(data) {
    this.atMs = data.at_ms;
    this.time = data.time;
    Object.assign(this.status, data.status);
    for (const table of Object.keys(this.tables)) {
      const { all, counters, fields } = data[table] || {};
      if (all) this.replace(table, all);
      for (const [row, values] of counters || []) COUNTERS[table].forEach((name, at) => (this.tables[table][row][name] = values[at]));
      for (const [row, values] of fields || []) Object.assign(this.tables[table][row], values, { sent_ms: this.atMs });
    }
    if (data.changes) this.changes = data.changes;
    this.news = data.events || [];
    for (const event of this.news) this.events.unshift(event);
    this.events.length = Math.min(this.events.length, 300);
    this.lastEvent = this.events[0]?.number ?? 0;
  }

  replace(table, rows) {
    rows.forEach((row, at) => {
      row.key = KEYS[table](row, at);
      row.sent_ms = this.atMs;
    });
    this.tables[table] = rows;
  }

  // What has been counted since the frame before, by the second.
  measure(seconds) {
    for (const table of ["services", "servers", "names"]) {
      const known = this.rates.get(table) || new Map();
      const next = new Map();
      for (const row of this.tables[table]) {
        const last = this.last?.get(`${table}\n${row.key}`);
        const rate = known.get(row.key) || { series: new Series() };
        const by = (name) => (last ? Math.max(0, row[name] - last[name]) / seconds : 0);
        if (table === "names") rate.connections = by("answers");
        else for (const name of ["connections", "packets", "bytes"]) rate[name] = by(name);
        rate.series.push(rate.connections);
        next.set(row.key, rate);
      }
      this.rates.set(table, next);
    }
    for (const name of ["connections", "packets", "bytes", "sessions"]) {
      const of = (row) => (name === "sessions" ? row.sessions : this.rate("services", row)[name]);
      const total = (this.totals[name] ||= { series: new Series() });
      total.now = this.tables.services.reduce((sum, row) => sum + of(row), 0);
      total.series.push(total.now);
    }
    this.reasonRates = {};
    for (const [name, number] of Object.entries(this.status.packets)) {
      this.reasonRates[name] = Math.max(0, number - (this.lastPackets?.[name] ?? number)) / seconds;
    }
  }

  remember() {
    this.lastMs = this.atMs;
    this.lastPackets = this.status.packets;
    this.last = new Map();
    for (const table of ["services", "servers", "names"]) {
      for (const { key, connections, packets, bytes, answers } of this.tables[table]) {
        this.last.set(`${table}\n${key}`, { connections, packets, bytes, answers });
      }
    }
  }
}
