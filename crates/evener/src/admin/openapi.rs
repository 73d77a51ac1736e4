//! OpenAPI 3.1 description of the API (<https://spec.openapis.org/oas/v3.1.1>), generated from the
//! router's table.

use axum::Json;
use serde_json::{Map, Value, json};

use super::endpoints::{API_PATHS, ApiMethod, ApiPath};

/// Returns the description as a response.
pub(super) async fn description() -> Json<Value> {
    Json(document())
}

pub fn document() -> Value {
    let paths: Map<String, Value> =
        API_PATHS.iter().map(|path| (path.path.to_owned(), operations(path))).collect();
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Evener",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "The state of a farm, and its changes at run time. Every error has a sentence.",
        },
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": schemas(),
        },
        "security": [{}, {"token": []}],
    })
}

fn operations(path: &ApiPath) -> Value {
    let of = |method: &ApiMethod| (method.method.to_ascii_lowercase(), operation(path, method));
    Value::Object(path.methods.iter().map(of).collect())
}

fn operation(path: &ApiPath, method: &ApiMethod) -> Value {
    let in_path = path.path.split('{').skip(1).filter_map(|rest| rest.split_once('}')).map(|(name, _)| {
        json!({"name": name, "in": "path", "required": true, "schema": {"type": "string", "minLength": 1}})
    });
    let named = method.query.split(", ").filter(|name| !name.is_empty());
    let in_query = named.map(|name| {
        let is_required = method.method == "GET" && path.path == "/v1/trace";
        json!({"name": name, "in": "query", "required": is_required, "schema": query_schema(name)})
    });
    let mut parameters: Vec<Value> = in_path.chain(in_query).collect();
    if method.answer == "Change" && method.query == "dry_run" {
        parameters.push(json!({
            "name": "If-Match",
            "in": "header",
            "description": "The tag of the farm that the change is for.",
            "schema": {"type": "string"},
        }));
    }
    let done = if method.method == "POST" && method.body == Some("Keys") { "201" } else { "200" };
    let mut responses = Map::new();
    responses.insert(done.to_owned(), response(method.answer, method.about));
    if done == "201" {
        // Response to a dry run.
        responses.insert("200".to_owned(), response(method.answer, method.about));
    }
    if path.path.starts_with(super::endpoints::GROUPS) {
        for (status, about) in [("201", "A member is new."), ("204", "It is noted.")] {
            responses.insert(status.to_owned(), json!({"description": about}));
        }
    }
    responses.insert("default".to_owned(), response("Error", "Nothing was changed, and why."));
    let mut operation = json!({
        "summary": method.about,
        "description": format!("Takes role `{}`.", method.role.name()),
        "parameters": parameters,
        "responses": responses,
    });
    if let (Some(body), Some(object)) = (method.body, operation.as_object_mut()) {
        let content = json!({"application/json": {"schema": reference(body)}});
        object.insert("requestBody".to_owned(), json!({"required": true, "content": content}));
    }
    operation
}

fn query_schema(name: &str) -> Value {
    match name {
        "dry_run" | "follow" | "forget" => json!({"enum": ["", "true", "false", "1", "0"]}),
        "limit" | "since_seconds" => json!({"type": "integer", "minimum": 0}),
        "protocol" => json!({"enum": ["tcp", "udp"]}),
        _ => json!({"type": "string"}),
    }
}

fn response(answer: &str, about: &str) -> Value {
    let text = || json!({"schema": {"type": "string"}});
    if answer == "File" {
        let kinds = json!({"text/javascript": text(), "text/css": text()});
        return json!({"description": about, "content": kinds});
    }
    let (kind, schema) = match answer {
        "Text" => ("text/plain", json!({"type": "string"})),
        "Page" => ("text/html", json!({"type": "string"})),
        "Stream" => ("text/event-stream", json!({"type": "string"})),
        name => ("application/json", reference(name)),
    };
    json!({"description": about, "content": {kind: {"schema": schema}}})
}

fn reference(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

fn schemas() -> Value {
    let text = || json!({"type": "string"});
    let number = || json!({"type": "integer", "minimum": 0});
    let keys = json!({"type": "object", "description": "Keys of evener.toml with their values."});
    json!({
        "Object": {"type": "object"},
        "List": {"type": "array", "items": {"type": "object"}},
        "Keys": keys,
        "ServerKeys": {
            "type": "object",
            "description": "Keys of evener.toml with their values; null removes one.",
            "properties": {
                "weight": {"type": ["integer", "null"], "minimum": 0, "maximum": u16::MAX},
                "drain": {"type": "boolean"},
                "maintenance": {"type": "boolean"},
            },
        },
        "Director": {
            "type": "object",
            "required": ["drain"],
            "properties": {"drain": {"type": "boolean"}},
        },
        "State": {
            "type": "object",
            "required": ["service"],
            "properties": {
                "tag": {"type": ["string", "null"]},
                "service": {"type": "array", "items": {"type": "object"}},
                "states": {
                    "type": ["object", "null"],
                    "additionalProperties": {"enum": ["drain", "maintenance"]},
                },
            },
        },
        "Change": {
            "type": "object",
            "required": ["message", "tag", "generation", "dry_run", "differences"],
            "properties": {
                "message": text(),
                "tag": text(),
                "generation": number(),
                "dry_run": {"type": "boolean"},
                "differences": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "required": ["service", "from", "to"],
                        "properties": {"service": text(), "server": text(), "key": text(), "from": {}, "to": {}},
                    },
                },
            },
        },
        "Changes": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["generation", "time", "by", "from", "message"],
                "properties": {
                    "generation": number(), "time": text(), "by": text(), "from": text(), "message": text(),
                },
            },
        },
        "Members": {
            "oneOf": [{"type": "object"}, {"type": "array", "items": {"type": "object"}}],
        },
        "Report": {
            "type": "object",
            "required": ["url", "load"],
            "properties": {"url": text(), "load": {"type": "number"}, "time": {"type": "number"}},
        },
        "Message": {"type": "object", "properties": {"message": text()}},
        "Error": {"type": "object", "required": ["error"], "properties": {"error": text()}},
    })
}
