//! The views as metrics for Prometheus and compatible programs: in its own text format, or in
//! OpenMetrics on request.

use std::collections::BTreeMap;
use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

use super::process::Process;
use crate::views::{DirectorView, FarmView, HostView, NameView, ServerView, ServiceView, StatusView};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Prometheus text format, version 0.0.4, which all programs read.
    Text,
    /// OpenMetrics 1.0, for clients that accept it.
    OpenMetrics,
}

impl Format {
    /// Returns the format for an Accept field (RFC 9110, section 12.5.1): OpenMetrics if it is
    /// named, and not ranked below plain text.
    pub fn accepted(accept: &str) -> Format {
        let liked = |names: &[&str]| {
            let entries = accept.split(',').filter_map(|entry| {
                let mut parts = entry.split(';').map(str::trim);
                let named =
                    parts.next().is_some_and(|name| names.iter().any(|n| name.eq_ignore_ascii_case(n)));
                let quality = parts.find_map(|part| part.strip_prefix("q=").or(part.strip_prefix("Q=")));
                named.then(|| quality.map_or(Some(1.0), |text| text.trim().parse::<f64>().ok())).flatten()
            });
            entries.fold(None, |most: Option<f64>, one| Some(most.map_or(one, |most| most.max(one))))
        };
        let plain = liked(&["text/plain"]).or(liked(&["text/*"])).or(liked(&["*/*"])).unwrap_or(0.0);
        match liked(&["application/openmetrics-text"]) {
            Some(open) if open > 0.0 && open >= plain => Format::OpenMetrics,
            _ => Format::Text,
        }
    }

    /// Returns the media type.
    pub fn content_type(self) -> &'static str {
        match self {
            Format::Text => "text/plain; version=0.0.4; charset=utf-8",
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// Input of the metrics.
#[derive(Debug)]
pub struct Scrape {
    /// All views at one moment.
    pub farm: FarmView,
    /// Resources of the daemon.
    pub process: Process,
}

/// Formats all metrics. Metrics are computed from the views at each scrape, so no metrics of
/// removed servers remain.
pub fn text(scrape: Scrape, format: Format) -> String {
    // Close to the size of a large farm's text, so that the text isn't copied as it grows.
    let bytes = (64 << 10) + (scrape.farm.servers.len() << 10);
    let mut usual = Registry::default();
    usual.register_collector(Box::new(scrape.process));
    let mut registry = Registry::with_prefix("evener");
    registry.register_collector(Box::new(scrape.farm));
    write(&[registry, usual], format, bytes)
}

/// Formats registries. `bytes` is the estimated size.
pub(crate) fn write(registries: &[Registry], format: Format, bytes: usize) -> String {
    // Writing to a String does not fail.
    match format {
        Format::Text => {
            let mut plain = PlainText::with_capacity(bytes);
            let _ = write_all(registries, &mut plain);
            plain.text
        }
        Format::OpenMetrics => {
            let mut text = String::with_capacity(bytes);
            let _ = write_all(registries, &mut text);
            text
        }
    }
}

fn write_all(registries: &[Registry], text: &mut impl fmt::Write) -> fmt::Result {
    registries.iter().try_for_each(|registry| encode_registry(text, registry))?;
    encode_eof(text)
}

/// Converts OpenMetrics to the older format.
/// In the older format, a counter family has the name of its samples. Units and infos don't exist
/// (Prometheus, "Exposition formats"). Samples, nearly all of the text, are the same in both
/// formats.
struct PlainText {
    text: String,
    /// Comment that is being written, without its end.
    comment: Option<String>,
    /// Name and text of the last HELP line.
    help: Option<(String, String)>,
}

impl PlainText {
    fn with_capacity(bytes: usize) -> PlainText {
        PlainText { text: String::with_capacity(bytes), comment: None, help: None }
    }

    fn end_comment(&mut self, comment: &str) {
        let mut words = comment.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some("HELP"), Some(name), about) => {
                self.help = Some((name.to_owned(), about.unwrap_or_default().to_owned()));
            }
            (Some("#"), Some("TYPE"), Some(name), Some(kind)) => {
                let (suffix, kind) = match kind {
                    "counter" => ("_total", "counter"),
                    "info" => ("_info", "gauge"),
                    "unknown" => ("", "untyped"),
                    other => ("", other),
                };
                if let Some((_, about)) = self.help.take().filter(|(of, _)| of == name) {
                    self.text += &format!("# HELP {name}{suffix} {about}\n");
                }
                self.text += &format!("# TYPE {name}{suffix} {kind}\n");
            }
            _ => {}
        }
    }
}

impl fmt::Write for PlainText {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        let begins_comment =
            part.starts_with('#') && matches!(self.text.bytes().next_back(), None | Some(b'\n'));
        if self.comment.is_none() && !begins_comment {
            self.text.push_str(part);
            return Ok(());
        }
        let mut lines = part.split('\n');
        self.comment.get_or_insert_default().push_str(lines.next().unwrap_or_default());
        for line in lines {
            if let Some(comment) = self.comment.take() {
                self.end_comment(&comment);
            }
            // After a comment, each sample starts on its own line.
            match line.starts_with('#') {
                true => self.comment = Some(line.to_owned()),
                false => self.text.push_str(line),
            }
        }
        Ok(())
    }
}

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut process =
            MetricFamily { encoder: &mut encoder, things: std::slice::from_ref(self), labels: |_| [] };
        let cpu = "Processor time that the daemon has used, user's and system's.";
        let metric = process.encoder.encode_descriptor(
            "process_cpu",
            cpu,
            Some(&Unit::Seconds),
            MetricType::Counter,
        )?;
        each(metric, process.things, process.labels, |metric, process| {
            metric.encode_counter::<NoLabelSet, _, f64>(&process.cpu_seconds, None)
        })?;
        process.gauge("process_open_fds", "File descriptors in use.", |process| process.open_fds)?;
        process.gauge("process_max_fds", "The most file descriptors that it may have.", |p| p.max_fds)?;
        process.gauge("process_threads", "Threads.", |process| process.threads)?;
        process.gauge("process_virtual_memory_bytes", "Address space.", |process| process.virtual_bytes)?;
        process.gauge("process_resident_memory_bytes", "Memory in use.", |process| process.resident_bytes)?;
        process.seconds("process_start_time", "When it started, since 1970.", |p| Some(p.start_seconds))
    }
}

impl Collector for FarmView {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let encoder = &mut encoder;
        encode_status(encoder, &self.status)?;
        let up = self.servers.iter().filter(|server| server.state == "up").count() as u64;
        let mut farm = MetricFamily { encoder, things: &[()], labels: |()| [] };
        farm.gauge("up_servers", "Servers that are up, over all services.", |()| up)?;
        encode_services(farm.encoder, &self.services)?;
        encode_servers(farm.encoder, &self.servers)?;
        encode_names(encoder, &self.status, &self.names)?;
        encode_directors(encoder, &self.directors)?;
        // A farm with directors has no metrics of hosts.
        if self.hosts.is_empty() { Ok(()) } else { encode_hosts(encoder, &self.status, &self.hosts) }
    }
}

/// Labels with their values.
type Labels<'t, const N: usize> = [(&'static str, &'t str); N];

/// Metrics of one kind of object, distinguished by labels.
struct MetricFamily<'g, 'e, 't, T, const N: usize> {
    encoder: &'g mut DescriptorEncoder<'e>,
    things: &'t [T],
    labels: fn(&'t T) -> Labels<'t, N>,
}

impl<'t, T, const N: usize> MetricFamily<'_, '_, 't, T, N> {
    fn gauge(&mut self, name: &str, help: &str, value: impl Fn(&T) -> u64) -> fmt::Result {
        let metric = self.encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        each(metric, self.things, self.labels, |metric, thing| metric.encode_gauge(&value(thing)))
    }

    fn fraction(&mut self, name: &str, help: &str, value: impl Fn(&T) -> f64) -> fmt::Result {
        let metric = self.encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        each(metric, self.things, self.labels, |metric, thing| metric.encode_gauge(&value(thing)))
    }

    /// Writes a counter. The encoder appends `_total` to the name.
    fn counter(&mut self, name: &str, help: &str, value: impl Fn(&T) -> u64) -> fmt::Result {
        let metric = self.encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        each(metric, self.things, self.labels, |metric, thing| {
            metric.encode_counter::<NoLabelSet, _, f64>(&value(thing), None)
        })
    }

    /// Writes a duration. The encoder appends `_seconds` to the name. Objects with an unknown value
    /// are omitted.
    fn seconds(&mut self, name: &str, help: &str, value: impl Fn(&T) -> Option<f64>) -> fmt::Result {
        let metric = self.encoder.encode_descriptor(name, help, Some(&Unit::Seconds), MetricType::Gauge)?;
        let known = self.things.iter().filter(|thing| value(thing).is_some());
        each(metric, known, self.labels, |metric, thing| {
            metric.encode_gauge(&value(thing).unwrap_or_default())
        })
    }
}

/// Writes a sample for each object, without braces if there are no labels.
fn each<'t, T: 't, const N: usize>(
    mut metric: MetricEncoder<'_>,
    things: impl IntoIterator<Item = &'t T>,
    labels: impl Fn(&'t T) -> Labels<'t, N>,
    sample: impl Fn(&mut MetricEncoder<'_>, &T) -> fmt::Result,
) -> fmt::Result {
    for thing in things {
        let labels = labels(thing);
        match labels.is_empty() {
            true => sample(&mut metric, thing)?,
            false => sample(&mut metric.encode_family(&labels)?, thing)?,
        }
    }
    Ok(())
}

/// Writes a counter with one label, and a sample for each value.
fn encode_counts(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    label: &'static str,
    counts: &BTreeMap<String, u64>,
) -> fmt::Result {
    let metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    let counts: Vec<_> = counts.iter().collect();
    each(
        metric,
        &counts,
        |(value, _)| [(label, value.as_str())],
        |metric, (_, count)| metric.encode_counter::<NoLabelSet, _, f64>(*count, None),
    )
}

fn encode_status(encoder: &mut DescriptorEncoder<'_>, status: &StatusView) -> fmt::Result {
    encoder
        .encode_descriptor("build", "The program that runs.", None, MetricType::Info)?
        .encode_info(&[("version", &*status.version)])?;
    encoder
        .encode_descriptor("engine", "What moves the packets.", None, MetricType::Info)?
        .encode_info(&[("engine", &*status.engine)])?;
    encode_counts(encoder, "packets", "Packets by reason.", "reason", &status.packets)?;
    let help = "Tunnel packets and handed-over segments to this host, by reason.";
    encode_counts(encoder, "tunnel_packets", help, "reason", &status.tunnels)?;
    let help = "Answers to ARP and neighbour discovery that were refused, by reason.";
    encode_counts(encoder, "arp_refused", help, "reason", &status.refused)?;
    let help = "Connections that the daemon read, by outcome.";
    encode_counts(encoder, "punted", help, "outcome", &status.punted)?;
    let help = "LCCP messages, and connections given and taken by them, by outcome.";
    encode_counts(encoder, "lccp", help, "outcome", &status.lccp)?;

    encode_nodes(encoder, status)?;
    encode_events(encoder, status)?;
    encode_trace_counts(encoder, status)?;
    let mut daemon = MetricFamily { encoder, things: std::slice::from_ref(status), labels: |_| [] };
    daemon
        .seconds("uptime", "Time since the daemon started.", |status| Some(status.uptime_seconds as f64))?;
    daemon.gauge("engine_adopted", "Whether the daemon adopted a running data plane.", |status| {
        status.adopted.into()
    })?;
    daemon.gauge("sessions", "Active sessions: neither closing nor idle for too long.", |status| {
        status.sessions
    })?;
    daemon
        .gauge("sessions_assured", "Active sessions whose clients have answered.", |s| s.sessions_assured)?;
    daemon.gauge("sessions_embryonic", "Active sessions whose clients have not answered yet.", |status| {
        status.sessions_embryonic
    })?;
    daemon.gauge("sessions_max", "Sessions that the table is sized for.", |status| status.sessions_max)?;
    daemon.gauge(
        "session_slots",
        "Places of the session table that are in use, free ones included.",
        |status| status.session_slots,
    )?;
    daemon.gauge("session_slots_max", "The most places that the session table can use.", |status| {
        status.session_slots_max
    })?;
    daemon.gauge("sessions_resizing", "Whether the session table is being resized.", |status| {
        u64::from(status.sessions_resizing)
    })?;
    daemon.gauge("generation", "The generation of tables that is in force.", |status| status.generation)?;
    daemon.gauge(
        "generation_wanted",
        "The latest generation of tables: greater than the one in force while the engine refuses a change.",
        |s| s.generation_wanted,
    )?;
    daemon.counter("reloads", "Successful reloads since the daemon started.", |s| s.reloads)?;
    daemon.counter("reloads_refused", "Reloads refused for an error.", |s| s.reloads_refused)?;
    daemon.seconds(
        "config_loaded_timestamp",
        "When the configuration in force was read, by the start or a reload, since 1970.",
        |status| Some(status.config_loaded_seconds),
    )?;
    daemon.gauge("config_last_reload_failed", "Whether the last reload was refused for an error.", |status| {
        status.reload_error.is_some().into()
    })
}

/// Writes the metrics of other LCCP nodes.
fn encode_nodes(encoder: &mut DescriptorEncoder<'_>, status: &StatusView) -> fmt::Result {
    let nodes: Vec<_> = status.nodes.iter().collect();
    MetricFamily { encoder, things: &nodes, labels: |(node, _)| [("node", node.as_str())] }.gauge(
        "node_up",
        "Whether LCCP messages of this node arrive.",
        |(_, state)| (*state == "known").into(),
    )?;
    let refused: Vec<_> = status.nodes_refused.iter().collect();
    let help = "1 while all of its messages are refused, with the reason.";
    MetricFamily {
        encoder,
        things: &refused,
        labels: |(node, why)| [("node", node.as_str()), ("reason", why.reason.as_str())],
    }
    .gauge("node_refused", help, |_| 1)
}

/// Writes the counts of events.
fn encode_events(encoder: &mut DescriptorEncoder<'_>, status: &StatusView) -> fmt::Result {
    encode_counts(encoder, "events", "Events since the daemon started.", "event", &status.events)?;
    let mut all = MetricFamily { encoder, things: &[()], labels: |()| [] };
    all.counter("events_lost", "Events lost to slow readers.", |()| status.events_lost)
}

/// Writes the metrics of decisions, traces and the access log.
fn encode_trace_counts(encoder: &mut DescriptorEncoder<'_>, status: &StatusView) -> fmt::Result {
    let help = "Time to choose a server for a connection of method handoff.";
    let mut metric =
        encoder.encode_descriptor("handoff_decision", help, Some(&Unit::Seconds), MetricType::Histogram)?;
    for (mechanism, latency) in &status.decision_latency {
        let buckets: Vec<_> =
            latency.buckets.iter().map(|(bound, count)| (bound.unwrap_or(f64::INFINITY), *count)).collect();
        metric.encode_family(&[("mechanism", mechanism.as_str())])?.encode_histogram::<NoLabelSet>(
            latency.seconds,
            latency.count,
            &buckets,
            None,
        )?;
    }
    let mut log = MetricFamily { encoder, things: std::slice::from_ref(status), labels: |_| [] };
    log.counter("access_log_written", "Lines of the access log.", |status| status.access_log.written)?;
    log.counter("access_log_lost", "Lines of the access log that were lost.", |status| status.access_log.lost)
}

/// Writes the metrics of directors, if the farm has several.
fn encode_directors(encoder: &mut DescriptorEncoder<'_>, directors: &[DirectorView]) -> fmt::Result {
    if directors.is_empty() {
        return Ok(());
    }
    let things: Vec<(String, &DirectorView)> =
        directors.iter().map(|director| (director.address.to_string(), director)).collect();
    let mut family = MetricFamily {
        encoder,
        things: &things,
        labels: |(address, _): &(String, &DirectorView)| [("director", address.as_str())],
    };
    family.gauge("director_up", "Whether this director is heard; of this one, always.", |(_, one)| {
        matches!(one.state.as_str(), "ready" | "unready" | "version").into()
    })?;
    family.gauge("director_ready", "Whether this director is ready for clients.", |(_, director)| {
        (director.state == "ready").into()
    })?;
    let help = "Sessions that this director has told another one, so that they outlive it.";
    family.counter("director_sessions_sent", help, |(_, director)| director.sessions_sent)?;
    let help = "Sessions that another director has told this one.";
    family.counter("director_sessions_received", help, |(_, director)| director.sessions_received)?;
    let help = "Times that all sessions had to be told another director anew.";
    family.counter("director_sessions_restarted", help, |(_, director)| director.sessions_restarted)?;
    let help = "Sessions that another director was told late, since too many were waiting for it.";
    family.counter("director_sessions_unsent", help, |(_, director)| director.sessions_unsent)?;
    const KINDS: [&str; 4] = ["file", "release", "changes", "addresses"];
    let pairs = things.iter().filter(|(_, one)| !one.own);
    let pairs: Vec<_> = pairs.flat_map(|(address, one)| KINDS.map(|kind| (address, *one, kind))).collect();
    let help = "Whether this director differs from the one that is asked, by what.";
    MetricFamily {
        encoder,
        things: &pairs,
        labels: |(address, _, kind)| [("director", address.as_str()), ("what", *kind)],
    }
    .gauge("director_differs", help, |(_, one, kind)| one.differs.iter().any(|what| what == kind).into())
}

fn encode_hosts(encoder: &mut DescriptorEncoder<'_>, status: &StatusView, hosts: &[HostView]) -> fmt::Result {
    let help = "Datagrams to and from other hosts, by outcome.";
    encode_counts(encoder, "peer_datagrams", help, "outcome", &status.peers)?;
    let mut group = MetricFamily { encoder, things: hosts, labels: |host| [("host", host.name.as_str())] };
    group.gauge("host_up", "Whether this host is alive and takes part.", |host| {
        (host.state == "alive").into()
    })?;
    group.gauge("host_load", "Sessions that this host serves by its own report, smoothed.", |host| {
        host.load
    })?;
    group.gauge("host_addresses", "Service addresses that this host owns.", |host| {
        host.addresses_owned.len() as u64
    })?;
    let refused: Vec<_> =
        hosts.iter().filter_map(|host| Some((&host.name, host.refused.as_ref()?))).collect();
    let help = "1 while all of its messages are refused, with the reason.";
    MetricFamily {
        encoder,
        things: &refused,
        labels: |(host, why)| [("host", host.as_str()), ("reason", why.reason.as_str())],
    }
    .gauge("host_refused", help, |_| 1)
}

fn encode_names(encoder: &mut DescriptorEncoder<'_>, status: &StatusView, names: &[NameView]) -> fmt::Result {
    if status.dns.is_empty() {
        return Ok(());
    }
    let help = "DNS queries, by transport and outcome.";
    encode_counts(encoder, "dns_queries", help, "outcome", &status.dns)?;
    let mut group = MetricFamily {
        encoder,
        things: names,
        labels: |name| [("name", &*name.name), ("address", &*name.address), ("server", &*name.server)],
    };
    group.counter("name_answers", "Answers with this address first.", |name| name.answers)?;
    group.gauge("name_up", "Whether answers may have this address.", |name| name.rank.is_some().into())?;
    group.fraction("name_share", "Share of answers with this address first.", |name| name.share)
}

fn encode_services(encoder: &mut DescriptorEncoder<'_>, services: &[ServiceView]) -> fmt::Result {
    let mut things = Vec::new();
    for service in services {
        things.extend(service.requests.iter().map(|(outcome, count)| (&service.name, outcome, *count)));
    }
    let help = "Requests of services with method redirect, by outcome, and evicted connections.";
    MetricFamily {
        encoder,
        things: &things,
        labels: |(service, outcome, _)| [("service", service.as_str()), ("outcome", outcome.as_str())],
    }
    .counter("service_requests", help, |(_, _, count)| *count)?;
    let mut group =
        MetricFamily { encoder, things: services, labels: |service| [("service", service.name.as_str())] };
    group.gauge("service_servers", "Servers known.", |service| service.servers)?;
    group.gauge("service_servers_up", "Servers that take new sessions.", |service| service.servers_up)?;
    group.gauge(
        "service_degraded",
        "Whether too few servers work or want sessions, and some that fail or refuse take them.",
        |service| service.degraded.into(),
    )?;
    group.gauge("service_sessions", "Active sessions.", |service| service.sessions)?;
    group.gauge("service_affinity_entries", "Clients that return to their servers.", |service| {
        service.affinity_entries
    })?;
    group.counter(
        "service_affinity_evicted",
        "Affinity entries that gave way to sessions or newer entries.",
        |service| service.affinity_evicted,
    )?;
    group.counter("service_connections", "Times that a server was chosen.", |service| service.connections)?;
    group.counter("service_packets", "Frames sent to servers.", |service| service.packets)?;
    group.counter("service_bytes", "Bytes of the frames sent to servers.", |service| service.bytes)?;
    group.counter(
        "service_cookies_bad",
        "First segments of connections of method handoff with a wrong cookie.",
        |service| service.cookies_bad,
    )?;
    group.counter(
        "service_cookies_unchecked",
        "First segments without timestamps that were dropped unchecked, since too many had a wrong cookie.",
        |service| service.cookies_unchecked,
    )
}

fn encode_servers(encoder: &mut DescriptorEncoder<'_>, servers: &[ServerView]) -> fmt::Result {
    let mut group = MetricFamily {
        encoder,
        things: servers,
        labels: |server| [("service", server.service.as_str()), ("server", server.name.as_str())],
    };
    group.gauge("server_up", "Whether the server is up.", |server| (server.state == "up").into())?;
    group.gauge("server_down", "Whether the server fails, or can't be reached.", |server| {
        (server.state == "down").into()
    })?;
    group.gauge("server_draining", "Whether the server is draining: no new sessions.", |server| {
        matches!(server.state.as_str(), "draining" | "maintenance").into()
    })?;
    group.gauge("server_weight", "Its share of new sessions relative to the others.", |server| {
        server.weight.into()
    })?;
    group.fraction("server_effective_weight", "The part of its weight that is in force.", |server| {
        server.effective_weight
    })?;
    group.gauge(
        "server_score",
        "Load in sixteenths above the least loaded server of the service, with a policy by load.",
        |server| server.score.into(),
    )?;
    group.counter("server_reports_refused", "Load reports that did not come or were refused.", |server| {
        server.report.as_ref().map_or(0, |report| report.refused.values().sum())
    })?;
    group.seconds("server_report_age", "Age of the last load report.", |server| {
        server.report.as_ref()?.age_seconds
    })?;
    group.gauge("server_sessions", "Active sessions.", |server| server.sessions)?;
    group.counter("server_connections", "Times that this server was chosen.", |server| server.connections)?;
    group.counter("server_packets", "Frames sent to this server.", |server| server.packets)?;
    group.counter("server_bytes", "Bytes of the frames sent to this server.", |server| server.bytes)?;
    group.counter("server_probe_failures", "Probes that failed.", |server| server.probe_failures)?;
    group.counter("server_state_changes", "Times that probes found it up, or down.", |server| {
        server.state_changes
    })?;
    let handshakes = |server: &ServerView| server.handshakes.clone().unwrap_or_default();
    group.counter(
        "server_stalled_connections",
        "New connections that never continued; with nat those that got no answer from the server.",
        |server| handshakes(server).stalled_total,
    )?;
    group.gauge(
        "server_stalling",
        "Whether the server differs from the others in new connections that never continue.",
        |server| handshakes(server).finding.is_some().into(),
    )?;
    group.seconds("server_state_since_timestamp", "When it became as it is, since 1970.", |server| {
        server.state_since_seconds
    })?;
    group.seconds("server_probe", "Duration of the last successful probe.", |server| server.probe_seconds)
}
