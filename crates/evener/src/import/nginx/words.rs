//! Reasons why nginx directives have no counterpart.

use crate::import::reasons::{self, LeftReason};

/// Reasons by name. An entry that ends in `_` matches as a prefix; the longest match applies.
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
    ("error_page", &reasons::ERROR_PAGES),
    ("events", &reasons::PROCESS),
    ("expires", &reasons::HEADERS),
    ("fastcgi_", &reasons::UPSTREAM_PROTOCOL),
    ("geo", &reasons::VARIABLES),
    ("geoip_", &reasons::VARIABLES),
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
    ("map", &reasons::VARIABLES),
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
    ("resolver", &reasons::PROCESS),
    ("return", &reasons::REDIRECTS),
    ("rewrite", &reasons::REWRITE),
    ("root", &reasons::STATIC),
    ("satisfy", &reasons::RULES),
    ("scgi_", &reasons::UPSTREAM_PROTOCOL),
    ("sendfile", &reasons::STATIC),
    ("server_names_", &reasons::PROCESS),
    ("set", &reasons::VARIABLES),
    ("split_clients", &reasons::VARIABLES),
    ("ssl_", &reasons::TLS_HERE),
    ("stub_status", &reasons::STATISTICS),
    ("sub_filter", &reasons::HEADERS),
];

/// Further reasons, in the form of [`LEFT`]: settings of sockets and of the process, and variants
/// of the entries of `LEFT`.
const MORE: [(&str, &LeftReason); 76] = [
    ("access_by_lua", &reasons::RULES),
    ("content_by_lua", &reasons::CODE),
    ("fastcgi_pass", &reasons::UPSTREAM_PROTOCOL),
    ("header_filter_by_lua", &reasons::HEADERS),
    ("body_filter_by_lua", &reasons::HEADERS),
    ("balancer_by_lua", &reasons::CODE),
    ("preread_by_lua", &reasons::CODE),
    ("rewrite_by_lua", &reasons::CODE),
    ("set_by_lua", &reasons::CODE),
    ("ssl_certificate_by_lua", &reasons::TLS_HERE),
    ("init_by_lua", &reasons::PROCESS),
    ("init_worker_by_lua", &reasons::PROCESS),
    ("log_by_lua", &reasons::LOGGING),
    ("lua_", &reasons::PROCESS),
    ("js_", &reasons::CODE),
    ("limit_except", &reasons::RULES),
    ("limit_rate", &reasons::QUEUES),
    ("proxy_protocol", &reasons::PROXY_PROTOCOL),
    ("proxy_ssl", &reasons::TLS_TO_SERVERS),
    ("secure_link", &reasons::RULES),
    ("ssl", &reasons::TLS_HERE),
    ("ssl_verify_client", &reasons::RULES),
    ("ssl_client_certificate", &reasons::RULES),
    ("ssl_crl", &reasons::RULES),
    ("ssl_ocsp", &reasons::RULES),
    ("ssl_reject_handshake", &reasons::RULES),
    ("valid_referers", &reasons::RULES),
    ("proxy_pass", &reasons::NOT_MADE),
    ("underscores_in_headers", &reasons::HEADERS),
    ("ignore_invalid_headers", &reasons::HEADERS),
    ("merge_slashes", &reasons::CONTENT),
    ("etag", &reasons::STATIC),
    ("if_modified_since", &reasons::STATIC),
    ("log_not_found", &reasons::LOGGING),
    ("log_subrequest", &reasons::LOGGING),
    ("multi_accept", &reasons::PROCESS),
    ("use", &reasons::PROCESS),
    ("pcre_jit", &reasons::PROCESS),
    ("thread_pool", &reasons::PROCESS),
    ("working_directory", &reasons::PROCESS),
    ("variables_hash_", &reasons::PROCESS),
    ("lingering_", &reasons::CONNECTION),
    ("output_buffers", &reasons::CONNECTION),
    ("postpone_output", &reasons::CONNECTION),
    ("port_in_redirect", &reasons::HEADERS),
    ("server_name_in_redirect", &reasons::HEADERS),
    ("absolute_redirect", &reasons::HEADERS),
    ("more_", &reasons::HEADERS),
    ("sub_filter_", &reasons::HEADERS),
    ("uninitialized_variable_warn", &reasons::LOGGING),
    ("rewrite_log", &reasons::LOGGING),
    ("quic_", &reasons::QUIC),
    ("http3", &reasons::QUIC),
    ("http3_", &reasons::QUIC),
    ("mirror", &reasons::CONTENT),
    ("break", &reasons::CONTENT),
    ("listen", &reasons::NOT_MADE),
    ("server_name", &reasons::NOT_MADE),
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
    ("resolver_", &reasons::PROCESS),
    ("upstream", &reasons::UNREFERENCED),
    ("env", &reasons::PROCESS),
];

/// Returns why a directive has no counterpart.
pub(super) fn reason(name: &str) -> &'static LeftReason {
    // Lua code may be in a block, in a file or in a word.
    let name = ["_block", "_file"]
        .iter()
        .find_map(|end| name.strip_suffix(end))
        .filter(|name| name.contains("_by_lua"))
        .unwrap_or(name);
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
