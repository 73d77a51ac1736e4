//! Why directives of nginx have no counterpart.

use crate::import::reasons::{self, LeftReason};

/// By the name, or the beginning that ends in `_`; the longest counts.
const LEFT: [(&str, &LeftReason); 70] = [
    ("accept_mutex", &reasons::PROCESS),
    ("access_log", &reasons::LOGGING),
    ("add_header", &reasons::HEADERS),
    ("add_trailer", &reasons::HEADERS),
    ("aio", &reasons::STATIC),
    ("alias", &reasons::STATIC),
    ("allow", &reasons::RULES),
    ("auth_", &reasons::RULES),
    ("autoindex", &reasons::STATIC),
    ("brotli", &reasons::COMPRESSION),
    ("brotli_", &reasons::COMPRESSION),
    ("charset", &reasons::HEADERS),
    ("chunked_transfer_encoding", &reasons::CONNECTION),
    ("client_", &reasons::CONNECTION),
    ("daemon", &reasons::PROCESS),
    ("default_type", &reasons::STATIC),
    ("deny", &reasons::RULES),
    ("error_log", &reasons::LOGGING),
    ("error_page", &reasons::REDIRECTS),
    ("events", &reasons::PROCESS),
    ("expires", &reasons::HEADERS),
    ("fastcgi_", &reasons::UPSTREAM_PROTOCOL),
    ("geo", &reasons::CONTENT),
    ("geoip_", &reasons::CONTENT),
    ("grpc_", &reasons::UPSTREAM_PROTOCOL),
    ("gunzip", &reasons::COMPRESSION),
    ("gzip", &reasons::COMPRESSION),
    ("gzip_", &reasons::COMPRESSION),
    ("health_check", &reasons::CHECK_DETAIL),
    ("http2", &reasons::CONNECTION),
    ("http2_", &reasons::CONNECTION),
    ("if", &reasons::RULES),
    ("include", &reasons::NOT_FOLLOWED),
    ("index", &reasons::STATIC),
    ("internal", &reasons::STATIC),
    ("keepalive_", &reasons::CONNECTION),
    ("large_client_header_buffers", &reasons::CONNECTION),
    ("limit_", &reasons::RATES),
    ("load_module", &reasons::PROCESS),
    ("log_format", &reasons::LOGGING),
    ("mail", &reasons::UPSTREAM_PROTOCOL),
    ("map", &reasons::CONTENT),
    ("map_hash_", &reasons::PROCESS),
    ("memcached_", &reasons::UPSTREAM_PROTOCOL),
    ("open_file_cache", &reasons::STATIC),
    ("pid", &reasons::PROCESS),
    ("preread_", &reasons::CONNECTION),
    ("proxy_", &reasons::CONNECTION),
    ("proxy_cache", &reasons::CACHING),
    ("proxy_cache_", &reasons::CACHING),
    ("proxy_hide_header", &reasons::HEADERS),
    ("proxy_next_", &reasons::QUEUES),
    ("proxy_pass_header", &reasons::HEADERS),
    ("proxy_redirect", &reasons::HEADERS),
    ("proxy_set_", &reasons::HEADERS),
    ("proxy_ssl_", &reasons::TLS_TO_SERVERS),
    ("real_ip_", &reasons::HEADERS),
    ("resolver", &reasons::DISCOVERY),
    ("return", &reasons::REDIRECTS),
    ("rewrite", &reasons::REWRITE),
    ("root", &reasons::STATIC),
    ("satisfy", &reasons::RULES),
    ("scgi_", &reasons::UPSTREAM_PROTOCOL),
    ("sendfile", &reasons::STATIC),
    ("server_names_", &reasons::PROCESS),
    ("set", &reasons::CONTENT),
    ("split_clients", &reasons::CONTENT),
    ("ssl_", &reasons::TLS_HERE),
    ("stub_status", &reasons::STATISTICS),
    ("sub_filter", &reasons::HEADERS),
];

/// The rest of the table: settings of sockets and the process, and what is like others above.
const MORE: [(&str, &LeftReason); 20] = [
    ("listen", &reasons::NO_PROXY),
    ("server_name", &reasons::NO_PROXY),
    ("send_timeout", &reasons::CONNECTION),
    ("server_tokens", &reasons::HEADERS),
    ("set_real_ip_from", &reasons::HEADERS),
    ("sendfile_", &reasons::STATIC),
    ("ssl_preread", &reasons::CONTENT),
    ("tcp_nodelay", &reasons::CONNECTION),
    ("tcp_nopush", &reasons::CONNECTION),
    ("reset_timedout_connection", &reasons::CONNECTION),
    ("try_files", &reasons::STATIC),
    ("types", &reasons::STATIC),
    ("types_", &reasons::STATIC),
    ("user", &reasons::PROCESS),
    ("userid", &reasons::COOKIES),
    ("uwsgi_", &reasons::UPSTREAM_PROTOCOL),
    ("worker_", &reasons::PROCESS),
    ("resolver_", &reasons::DISCOVERY),
    ("upstream", &reasons::UNREFERENCED),
    ("env", &reasons::PROCESS),
];

/// Why a directive has no counterpart.
pub(super) fn reason(name: &str) -> &'static LeftReason {
    let fits = |entry: &&(&str, &'static LeftReason)| match entry.0.ends_with('_') {
        true => name.starts_with(entry.0),
        false => name == entry.0,
    };
    let found = LEFT.iter().chain(&MORE).filter(fits).max_by_key(|(beginning, _)| beginning.len());
    found.map_or(&reasons::UNKNOWN, |(_, reason)| reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longest_beginning_gives_the_reason() {
        assert_eq!(reason("proxy_set_header"), &reasons::HEADERS);
        assert_eq!(reason("proxy_cache_path"), &reasons::CACHING);
        assert_eq!(reason("proxy_read_timeout"), &reasons::CONNECTION);
        assert_eq!(reason("gzip"), &reasons::COMPRESSION);
        assert_eq!(reason("no_such"), &reasons::UNKNOWN);
    }
}
