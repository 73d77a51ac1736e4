// Explain and trace.

import { bdi, byId, el } from "./dom.js";
import { ask, eachLine, sentence } from "./store.js";

const LINES_MAX = 200;

function fillServices(store) {
  const select = byId("explain-service");
  const wanted = store.tables.services.map((service) => service.name).join("\n");
  if (select.dataset.names === wanted) return;
  select.dataset.names = wanted;
  const chosen = select.value;
  select.replaceChildren(...store.tables.services.map((service) => el("option", { value: service.name }, service.name)));
  if (store.tables.services.some((service) => service.name === chosen)) select.value = chosen;
}

const withPort = (client) => {
  if (/^\[.*\]:\d+$|^[^:]+:\d+$/.test(client)) return client;
  return client.includes(":") && !client.startsWith("[") ? `[${client}]:40000` : `${client}:40000`;
};

async function explain(store) {
  const answer = byId("explain-answer");
  const service = store.tables.services.find((one) => one.name === byId("explain-service").value);
  const [client, url] = [byId("explain-client").value.trim(), byId("explain-url").value.trim()];
  if (!service || (!client && !url)) {
    answer.replaceChildren(el("p", {}, "Write a client's address, or a URL, or both."));
    return;
  }
  const query = new URLSearchParams();
  if (client) {
    query.set("client", withPort(client));
    query.set("vip", service.addresses[0] || "");
    query.set("protocol", service.protocol);
  }
  if (url) {
    query.set("request", url);
    query.set("service", service.name);
  }
  try {
    const response = await ask(`/v1/explain?${query}`);
    if (!response.ok) return answer.replaceChildren(el("p", {}, await sentence(response)));
    const { server, reasons, pending, request } = await response.json();
    const result = server ? ["Server ", el("strong", {}, bdi(server))] : [pending ? "Not settled yet." : "No server."];
    const servers = request?.servers.length ? el("p", {}, "It may go to: ", request.servers.flatMap((name, at) => (at ? [", ", bdi(name)] : [bdi(name)]))) : "";
    answer.replaceChildren(el("p", {}, result), el("ol", {}, reasons.map((reason) => el("li", {}, bdi(reason)))), servers);
  } catch {
    answer.replaceChildren(el("p", {}, "The daemon can't be reached."));
  }
}

function line(traced) {
  if (traced.what === "lost") return `${traced.count} lines are missing here: they came too fast`;
  if (traced.what === "packet") {
    const { time, protocol, flags, src, dst, bytes, verdict, reason, also_counted, server } = traced;
    return `${time} ${[protocol, flags].filter(Boolean).join(" ")} ${src} > ${dst} ${bytes} bytes: ${verdict}, ${[reason, also_counted].filter(Boolean).join(", ")}${server ? ` → ${server}` : ""}`;
  }
  const { time, service, client, method, host, sni, path, route, mechanism, status, server } = traced;
  const request = [method, host || sni, path].filter(Boolean).join(" ") || "a request that can't be read";
  return `${time} ${client} asks ${service}: ${request}: ${route ? `route ${route}` : "no route"}, ${mechanism}${status ? `, answered ${status}` : ""} → ${server || "no server"}`;
}

let tracing = null;

async function trace() {
  const [text, list, button] = [byId("trace-text"), byId("trace-list"), byId("trace-button")];
  if (tracing) {
    tracing.abort();
    return;
  }
  tracing = new AbortController();
  button.textContent = "Stop";
  list.replaceChildren();
  let end = "Stopped.";
  try {
    const client = byId("trace-client").value.trim();
    text.textContent = "Asking…";
    const response = await ask(`/v1/trace?client=${encodeURIComponent(client)}`, { signal: tracing.signal });
    if (!response.ok) {
      end = await sentence(response);
    } else {
      text.textContent = `Following ${client}`;
      list.hidden = false;
      await eachLine(response, (one) => {
        if (!one) return;
        list.prepend(el("li", {}, bdi(line(JSON.parse(one)))));
        while (list.children.length > LINES_MAX) list.lastChild.remove();
      });
      end = "The daemon has ended the trace.";
    }
  } catch (error) {
    if (error.name !== "AbortError") end = "The daemon can't be reached.";
  }
  text.textContent = end;
  button.textContent = "Trace";
  tracing = null;
}

export function startTools(store) {
  byId("explain-form").addEventListener("submit", (event) => {
    event.preventDefault();
    explain(store);
  });
  byId("trace-form").addEventListener("submit", (event) => {
    event.preventDefault();
    trace();
  });
  return () => fillServices(store);
}
