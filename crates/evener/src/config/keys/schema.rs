//! JSON Schema of evener.toml (draft 2020-12), with which editors complete and check the file.

use serde_json::{Map, Value as Json, json};

use super::tables::FILE;
use super::{ConfigKey, KeyConsumer, ValueType};
use crate::config::values::written;

/// Matches text with `${NAME}`, whose value only the daemon knows.
const VARIABLE: &str = r"\$\{";

/// Returns the schema. `describe` returns the description of a key, by the table's header (empty
/// for the file) and the key.
pub fn json(describe: &dyn Fn(&str, &str) -> Option<String>) -> Json {
    let mut schema = table("", FILE, describe);
    schema.insert("$schema".to_owned(), json!("https://json-schema.org/draft/2020-12/schema"));
    schema.insert("title".to_owned(), json!("evener.toml"));
    Json::Object(schema)
}

fn table(
    path: &str,
    keys: &[&ConfigKey],
    describe: &dyn Fn(&str, &str) -> Option<String>,
) -> Map<String, Json> {
    let is_of_names = path.starts_with("dns.name");
    let properties: Map<String, Json> = keys
        .iter()
        .filter(|key| !is_of_names || key.is_for(KeyConsumer::Names))
        .map(|key| {
            let inner = if path.is_empty() { key.name.to_owned() } else { format!("{path}.{}", key.name) };
            let mut schema = match key.value {
                ValueType::Table(keys) => Json::Object(table(&inner, keys, describe)),
                ValueType::Tables(keys) => json!({ "type": "array", "items": table(&inner, keys, describe) }),
                value => scalar(value),
            };
            if let (Some(text), Json::Object(schema)) = (describe(path, key.name), &mut schema) {
                schema.insert("description".to_owned(), json!(text));
            }
            (key.name.to_owned(), schema)
        })
        .collect();
    let mut schema = Map::new();
    schema.insert("type".to_owned(), json!("object"));
    schema.insert("properties".to_owned(), Json::Object(properties));
    schema.insert("additionalProperties".to_owned(), json!(false));
    schema
}

fn scalar(value: ValueType) -> Json {
    let mut schema = match value {
        ValueType::Flag(_) => json!({ "type": "boolean" }),
        ValueType::FlagOr(_, words) => {
            let flags = [json!(true), json!(false)].into_iter();
            json!({ "enum": flags.chain(words.iter().map(|word| json!(word))).collect::<Vec<_>>() })
        }
        ValueType::Number(least, most, _) => json!({ "type": "integer", "minimum": least, "maximum": most }),
        ValueType::Factor(least, most, _) => {
            json!({ "type": "number", "minimum": least as f64 / 100.0, "maximum": most as f64 / 100.0 })
        }
        ValueType::Share => json!({ "type": "string", "pattern": format!("^[0-9]{{1,3}} *%$|{VARIABLE}") }),
        ValueType::Time(..) => {
            json!({ "type": "string", "pattern": format!("^ *[0-9]+ *[A-Za-z]|{VARIABLE}") })
        }
        ValueType::Period(..) => {
            let time = scalar(ValueType::Time(0, 0, None));
            json!({ "anyOf": [time, { "type": "array", "items": { "type": "array", "minItems": 2, "maxItems": 2 } }] })
        }
        ValueType::Word(words, _) => {
            json!({ "anyOf": [{ "enum": words() }, { "type": "string", "pattern": VARIABLE }] })
        }
        ValueType::Text => json!({ "type": "string" }),
        ValueType::List | ValueType::Table(_) | ValueType::Tables(_) => {
            json!({ "type": ["string", "integer", "array"] })
        }
    };
    let default = match value {
        ValueType::Flag(default) | ValueType::FlagOr(default, _) => Some(json!(default)),
        ValueType::Number(_, _, default) => default.map(|default| json!(default)),
        ValueType::Factor(_, _, default) => Some(json!(default as f64 / 100.0)),
        ValueType::Time(_, _, default) | ValueType::Period(_, _, default) => {
            default.map(|default| json!(written(default)))
        }
        ValueType::Word(_, default) => default.map(|default| json!(default)),
        _ => None,
    };
    if let (Some(default), Json::Object(schema)) = (default, &mut schema) {
        schema.insert("default".to_owned(), default);
    }
    schema
}
