//! Rules of alerts, by the metrics that they go by.

/// A metric, and an expression that is true when somebody should look.
pub const ALERTS: &[(&str, &str)] = &[
    ("evener_service_servers_up", "evener_service_servers_up == 0"),
    ("evener_service_degraded", "evener_service_degraded == 1"),
    ("evener_server_up", "avg_over_time(evener_server_up[10m]) < 0.9"),
    ("evener_server_state_changes_total", "increase(evener_server_state_changes_total[15m]) > 4"),
    ("evener_server_reports_refused_total", "increase(evener_server_reports_refused_total[15m]) > 10"),
    ("evener_service_cookies_unchecked_total", "rate(evener_service_cookies_unchecked_total[5m]) > 0"),
    ("evener_sessions_assured", "evener_sessions_assured > 0.9 * evener_sessions_max"),
    (
        "evener_packets_total",
        "rate(evener_packets_total{reason=~\"no_server|table_full|no_port|no_route\"}[5m]) > 0",
    ),
    ("evener_tunnel_packets_total", "rate(evener_tunnel_packets_total{reason=\"forged_mark\"}[5m]) > 0"),
    ("evener_generation_wanted", "evener_generation_wanted > evener_generation"),
    ("evener_config_last_reload_failed", "evener_config_last_reload_failed == 1"),
    ("evener_events_total", "increase(evener_events_total{event=\"missing\"}[5m]) > 0"),
    ("evener_access_log_lost_total", "rate(evener_access_log_lost_total[5m]) > 0"),
    ("evener_node_up", "evener_node_up == 0"),
    ("evener_node_refused", "evener_node_refused == 1"),
    ("evener_host_up", "evener_host_up == 0"),
    ("evener_host_refused", "evener_host_refused == 1"),
    ("evener_name_up", "sum by (name) (evener_name_up) == 0"),
    ("process_open_fds", "process_open_fds > 0.9 * process_max_fds"),
];
