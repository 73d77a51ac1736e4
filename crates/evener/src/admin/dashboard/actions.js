// Changes: each is tried first without effect, shown, and asked back once.

import { age, bdi, byId, checksSentence, duration, el } from "./dom.js";
import { ask, sentence } from "./store.js";

const dialog = byId("dialog");

const shown = (value) => (value == null ? "unset" : typeof value === "string" ? value : JSON.stringify(value));

function differences(list) {
  if (!list.length) return el("p", {}, "Nothing would differ.");
  return el("ul", {}, list.map(({ service, server, key, from, to }) => {
    const place = [service, server].filter((one) => one != null).map(bdi);
    const slash = place.length > 1 ? [place[0], "/", place[1]] : place;
    return el("li", {}, slash, `: ${key || "all of it"} ${shown(from)} → ${shown(to)}`);
  }));
}

const send = (method, path, body, more = {}) =>
  ask(path, {
    method,
    headers: body ? { "Content-Type": "application/json", ...more } : more,
    body: body ? JSON.stringify(body) : undefined,
  });

function answer(node, text, isError) {
  node.replaceChildren(text);
  node.hidden = false;
  node.classList.toggle("error", Boolean(isError));
}

// Tries a change, shows what would differ, and makes it once that is confirmed: of the farm as it
// was then, where the change depends on it.
async function propose(title, method, path, body, { dependsOnFarm } = {}) {
  let condition = {};
  const reply = el("div", { class: "answer", role: "status", hidden: true });
  const confirm = el("button", { type: "button", class: "primary", id: "confirm" }, "Do it");
  const cancel = el("button", { type: "button", onclick: () => dialog.close() }, "Leave it as it is");
  const preview = el("div", {}, "Asking what would differ…");
  confirm.disabled = true;
  confirm.addEventListener("click", async () => {
    confirm.disabled = true;
    try {
      const response = await send(method, path, body, condition);
      if (!response.ok) return answer(reply, await sentence(response), true);
      answer(reply, (await response.json()).message);
      cancel.textContent = "Close";
      confirm.hidden = true;
      cancel.focus();
    } catch {
      answer(reply, "The daemon can't be reached: it is not known whether the change was made.", true);
    }
  });
  dialog.replaceChildren(el("h2", { id: "dialog-title", tabindex: "-1" }, title), preview, reply, el("div", { class: "buttons" }, confirm, cancel));
  if (!dialog.open) dialog.showModal();
  byId("dialog-title").focus();
  try {
    const response = await send(method, `${path}?dry_run=true`, body);
    if (!response.ok) {
      preview.replaceChildren();
      return answer(reply, await sentence(response), true);
    }
    const tried = await response.json();
    if (dependsOnFarm) condition = { "If-Match": `"${tried.tag}"` };
    preview.replaceChildren(differences(tried.differences));
    confirm.disabled = false;
    confirm.focus();
  } catch {
    preview.replaceChildren();
    answer(reply, "The daemon can't be reached.", true);
  }
}

export const undo = () => propose("Take back the last change?", "POST", "/v1/undo", null, { dependsOnFarm: true });

const path = (server) => `/v1/services/${encodeURIComponent(server.service)}/servers/${encodeURIComponent(server.name)}`;

// All that is known of a server, and what can be done with it.
export function openServer(server, store) {
  const facts = [
    ["State", server.state + (server.reason ? `: ${server.reason}` : "")],
    ["Address", server.address],
    ["Checks", server.checks ? checksSentence(server.checks) : "none"],
    ["Last failure", server.probe_error],
    ["Weight", `${server.effective_weight} of ${server.weight} in force`],
    ["Cause", server.cause],
    ["Latency", server.probe_seconds == null ? null : duration(server.probe_seconds)],
    ["Way", [server.forwarding, server.interface && `by ${server.interface}`, server.mac && `to ${server.mac}`].filter(Boolean).join(" ")],
    ["So since", server.state_since_seconds == null ? null : new Date(server.state_since_seconds * 1000).toLocaleString()],
    ["New connections", server.handshakes && `${server.handshakes.new} in a minute, ${server.handshakes.stalled} of them went nowhere`],
    ["Failed checks", server.probe_failures],
    ["Turns up or down", server.state_changes],
    ...(server.overrides || []).map((one) => [
      `Changed: ${one.key}`,
      `${shown(one.value)}, in the file ${shown(one.file)}, by ${one.by} ${age(one.age_seconds + store.since(server))} ago`,
    ]),
  ];
  const list = facts.filter(([, value]) => value != null && value !== "").flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, bdi(value))]);
  const weight = el("input", { id: "weight", type: "number", min: "0", max: "65535", required: true, value: server.weight });
  const title = (verb) => [`${verb} `, bdi(server.service), "/", bdi(server.name), "?"];
  const button = (name, verb, body) =>
    el("button", { type: "button", onclick: () => propose(title(verb), "PATCH", path(server), body) }, name);
  const form = el(
    "form",
    {
      class: "buttons",
      onsubmit: (event) => {
        event.preventDefault();
        propose(title(`Give weight ${weight.value} to`), "PATCH", path(server), { weight: Number(weight.value) });
      },
    },
    el("label", { for: "weight" }, "Weight"),
    weight,
    el("button", { type: "submit" }, "Change the weight…"),
  );
  const role = store.caller?.role;
  const hint = role === "read" ? el("p", { class: "hint" }, "Your role here is read: changes take a token of role operate.") : null;
  const states = el(
    "div",
    { class: "buttons" },
    server.state !== "draining" && button("Drain…", "Drain", { drain: true }),
    server.state !== "maintenance" && button("Maintenance…", "Put into maintenance", { maintenance: true }),
    button("Take sessions again…", "Have new sessions go to", { drain: false, maintenance: false }),
  );
  dialog.replaceChildren(
    el("h2", { id: "dialog-title", tabindex: "-1" }, bdi(server.service), "/", bdi(server.name)),
    el("dl", {}, list),
    el("h3", {}, "Change"),
    hint || "",
    states,
    form,
    el("div", { class: "buttons" }, el("button", { type: "button", onclick: () => dialog.close() }, "Close")),
  );
  dialog.showModal();
  byId("dialog-title").focus();
}
