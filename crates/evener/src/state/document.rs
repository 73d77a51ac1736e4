//! The farm of a file as tables. An edit changes a place in them.

use std::sync::Arc;

use toml::{Table, Value};

use super::edit::EditTarget;
use crate::config::Config;

/// Keys of the services in a file, of the servers in a service, and of a name in either.
const SERVICES: &str = "service";
const SERVERS: &str = "server";
const NAME: &str = "name";
/// Sections and keys that may differ between the hosts of a farm.
const OWN_SECTIONS: [&str; 4] = ["engine", "admin", "log", "agent"];
const OWN_KEYS: [(&str, &str); 3] = [("farm", "secret_file"), ("farm", "orphan"), ("dns", "listen")];

/// The farm of a file. Each service and each server has a name: the written one, or the one that
/// the file's parser assigned. Clones of a document share unchanged tables.
#[derive(Clone, Debug, Default)]
pub struct FarmDocument {
    /// The file without its services, as text. As tables, many balanced names would need ten times
    /// the memory.
    rest: Arc<str>,
    services: Vec<Arc<ServiceTable>>,
}

#[derive(Clone, Debug, PartialEq)]
struct ServiceTable {
    name: String,
    /// All keys of the service except its servers.
    keys: Table,
    servers: Vec<Arc<ServerTable>>,
}

/// A service that both documents share is equal without a comparison of its contents.
impl PartialEq for FarmDocument {
    fn eq(&self, other: &FarmDocument) -> bool {
        let is_long_as = self.services.len() == other.services.len();
        let mut pairs = self.services.iter().zip(&other.services);
        self.rest == other.rest
            && is_long_as
            && pairs.all(|(one, other)| Arc::ptr_eq(one, other) || one == other)
    }
}

#[derive(Clone, Debug, PartialEq)]
struct ServerTable {
    name: String,
    keys: Table,
}

impl FarmDocument {
    /// Creates the document of a file that was parsed as `config`. Tables without a name get the
    /// name in `config`. Returns `None` if the file's services differ from the services of
    /// `config`.
    pub fn new(mut file: Table, config: &Config) -> Option<FarmDocument> {
        let (mut services, mut groups) = (config.services.iter(), config.groups.iter());
        let mut named = Vec::new();
        for mut keys in take_tables(&mut file, SERVICES)? {
            let servers = take_tables(&mut keys, SERVERS)?;
            let (name, names): (&str, Vec<&str>) = if is_group(&keys) {
                let group = &groups.next()?.group;
                (&group.name, group.members.iter().map(|member| member.name.as_str()).collect())
            } else {
                let service = services.next()?;
                (&service.name, service.servers.iter().map(|server| server.name.as_str()).collect())
            };
            if names.len() != servers.len() {
                return None;
            }
            let servers =
                servers.into_iter().zip(names).map(|(keys, name)| Arc::new(ServerTable::new(name, keys)));
            named.push(Arc::new(ServiceTable {
                name: name.to_owned(),
                servers: servers.collect(),
                keys: with_name(name, keys),
            }));
        }
        let is_whole = services.next().is_none() && groups.next().is_none();
        is_whole.then_some(FarmDocument { rest: toml::to_string(&file).ok()?.into(), services: named })
    }

    /// Returns the farm as a file's text.
    ///
    /// # Errors
    /// If the farm can't be written as TOML.
    pub fn text(&self) -> Result<String, toml::ser::Error> {
        let mut services = Table::new();
        if !self.services.is_empty() {
            services.insert(SERVICES.to_owned(), Value::Array(self.services()));
        }
        // TOML table headers have full paths, so the services can follow any other text.
        Ok(format!("{}\n{}", self.rest, toml::to_string(&services)?))
    }

    /// Returns the text that all directors of a farm share, without the sections and keys that may
    /// differ between hosts.
    pub fn common_text(&self) -> String {
        let mut file: Table = self.rest.parse().unwrap_or_default();
        OWN_SECTIONS.into_iter().for_each(|section| drop(file.remove(section)));
        for (section, key) in OWN_KEYS {
            if let Some(section) = file.get_mut(section).and_then(Value::as_table_mut) {
                section.remove(key);
            }
        }
        file.insert(SERVICES.to_owned(), Value::Array(self.services()));
        toml::to_string(&file).unwrap_or_default()
    }

    /// Returns all services, each with its servers.
    pub fn services(&self) -> Vec<Value> {
        self.services.iter().map(|service| Value::Table(service.table())).collect()
    }

    /// Returns the file with these services. Some services may have no name yet, so the result is
    /// not a document.
    pub fn with_services(&self, services: Vec<Value>) -> Table {
        let mut file: Table = self.rest.parse().unwrap_or_default();
        if !services.is_empty() {
            file.insert(SERVICES.to_owned(), Value::Array(services));
        }
        file
    }

    pub fn names(&self) -> impl Iterator<Item = &str> + Clone {
        self.services.iter().map(|service| service.name.as_str())
    }

    /// Returns the names of a service's servers. `None` if the service does not exist.
    pub fn server_names(&self, service: &str) -> Option<impl Iterator<Item = &str> + Clone> {
        Some(self.service(service)?.names())
    }

    /// True if both documents list the same services and servers in the same order.
    pub fn lists_as(&self, other: &FarmDocument) -> bool {
        let mut pairs = self.services.iter().zip(&other.services);
        self.names().eq(other.names())
            && pairs.all(|(one, other)| Arc::ptr_eq(one, other) || one.names().eq(other.names()))
    }

    /// True if the service's placement is `every-host`.
    pub fn is_on_every_host(&self, service: &str) -> bool {
        let placement = self.service(service).and_then(|service| service.keys.get("placement"));
        placement.and_then(Value::as_str) == Some("every-host")
    }

    /// Returns the method of a service, as written.
    pub fn method(&self, service: &str) -> Option<&str> {
        self.service(service)?.keys.get("method")?.as_str()
    }

    /// Returns the value at a place. `None` if the place has no value, or is an operator state.
    pub fn at(&self, place: &EditTarget) -> Option<Value> {
        match place {
            EditTarget::Service { service } => Some(Value::Table(self.service(service)?.table())),
            EditTarget::ServiceKey { service, key } => self.service(service)?.keys.get(key).cloned(),
            EditTarget::Server { service, server } => {
                Some(Value::Table(self.service(service)?.server(server)?.keys.clone()))
            }
            EditTarget::ServerKey { service, server, key } => {
                self.service(service)?.server(server)?.keys.get(key).cloned()
            }
            EditTarget::Operator { .. } | EditTarget::Director => None,
        }
    }

    /// Sets the value at a place, or removes the place if there is no value. Ignores operator
    /// states. Returns false if the service or server of the place does not exist, or if the value
    /// has the wrong type.
    pub fn put(&mut self, place: &EditTarget, value: Option<&Value>) -> bool {
        match place {
            EditTarget::Service { service } => match value {
                None => remove(&mut self.services, |known| known.name == *service),
                Some(Value::Table(table)) => {
                    let table = ServiceTable::of(service, table.clone());
                    table.is_some_and(|table| {
                        put(&mut self.services, Arc::new(table), |known| known.name == *service);
                        true
                    })
                }
                Some(_) => false,
            },
            EditTarget::ServiceKey { service, key } => {
                self.service_mut(service).is_some_and(|service| put_key(&mut service.keys, key, value))
            }
            EditTarget::Server { service, server } => {
                self.service_mut(service).is_some_and(|service| match value {
                    None => remove(&mut service.servers, |known| known.name == *server),
                    Some(Value::Table(table)) => {
                        let table = ServerTable::new(server, table.clone());
                        put(&mut service.servers, Arc::new(table), |known| known.name == *server);
                        true
                    }
                    Some(_) => false,
                })
            }
            EditTarget::ServerKey { service, server, key } => {
                let server = self.service_mut(service).and_then(|service| service.server_mut(server));
                server.is_some_and(|server| put_key(&mut server.keys, key, value))
            }
            EditTarget::Operator { .. } | EditTarget::Director => true,
        }
    }

    /// Returns the edits that turn this document into `other`. A different order of services or
    /// servers is no difference.
    pub fn differences(&self, other: &FarmDocument) -> Vec<(EditTarget, Option<Value>)> {
        let gone = self.services.iter().filter(|known| other.service(&known.name).is_none());
        let mut edits: Vec<_> =
            gone.map(|known| (EditTarget::Service { service: known.name.clone() }, None)).collect();
        for new in &other.services {
            match self.service(&new.name) {
                None => {
                    let place = EditTarget::Service { service: new.name.clone() };
                    edits.push((place, Some(Value::Table(new.table()))));
                }
                Some(old) if std::ptr::eq(old, &**new) => {}
                Some(old) => old.differences(new, &mut edits),
            }
        }
        edits
    }

    fn service(&self, name: &str) -> Option<&ServiceTable> {
        self.services.iter().find(|service| service.name == name).map(|service| &**service)
    }

    fn service_mut(&mut self, name: &str) -> Option<&mut ServiceTable> {
        self.services.iter_mut().find(|service| service.name == name).map(Arc::make_mut)
    }
}

impl ServiceTable {
    fn of(name: &str, mut table: Table) -> Option<ServiceTable> {
        let servers = take_tables(&mut table, SERVERS)?;
        let named = servers.into_iter().map(|keys| {
            let name = keys.get(NAME)?.as_str()?.to_owned();
            Some(Arc::new(ServerTable { name, keys }))
        });
        let servers = named.collect::<Option<Vec<Arc<ServerTable>>>>()?;
        Some(ServiceTable { name: name.to_owned(), keys: with_name(name, table), servers })
    }

    fn table(&self) -> Table {
        let mut table = self.keys.clone();
        if !self.servers.is_empty() {
            let servers = self.servers.iter().map(|server| Value::Table(server.keys.clone()));
            table.insert(SERVERS.to_owned(), Value::Array(servers.collect()));
        }
        table
    }

    fn names(&self) -> impl Iterator<Item = &str> + Clone {
        self.servers.iter().map(|server| server.name.as_str())
    }

    fn server(&self, name: &str) -> Option<&ServerTable> {
        self.servers.iter().find(|server| server.name == name).map(|server| &**server)
    }

    fn server_mut(&mut self, name: &str) -> Option<&mut ServerTable> {
        self.servers.iter_mut().find(|server| server.name == name).map(Arc::make_mut)
    }

    fn differences(&self, new: &ServiceTable, edits: &mut Vec<(EditTarget, Option<Value>)>) {
        let service = || self.name.clone();
        for (key, value) in different_keys(&self.keys, &new.keys) {
            edits.push((EditTarget::ServiceKey { service: service(), key }, value));
        }
        for old in self.servers.iter().filter(|old| new.server(&old.name).is_none()) {
            edits.push((EditTarget::Server { service: service(), server: old.name.clone() }, None));
        }
        for server in &new.servers {
            let name = || server.name.clone();
            match self.server(&server.name) {
                None => {
                    let place = EditTarget::Server { service: service(), server: name() };
                    edits.push((place, Some(Value::Table(server.keys.clone()))));
                }
                Some(old) if std::ptr::eq(old, &**server) => {}
                Some(old) => {
                    edits.extend(different_keys(&old.keys, &server.keys).into_iter().map(|(key, value)| {
                        (EditTarget::ServerKey { service: service(), server: name(), key }, value)
                    }))
                }
            }
        }
    }
}

impl ServerTable {
    fn new(name: &str, keys: Table) -> ServerTable {
        ServerTable { name: name.to_owned(), keys: with_name(name, keys) }
    }
}

fn with_name(name: &str, mut keys: Table) -> Table {
    keys.insert(NAME.to_owned(), Value::String(name.to_owned()));
    keys
}

fn is_group(keys: &Table) -> bool {
    keys.get("method").and_then(Value::as_str) == Some(evener_core::farm::REDIRECT)
}

/// Removes an array of tables from a table. A missing array is empty. Returns `None` if the value
/// has another type.
fn take_tables(table: &mut Table, key: &str) -> Option<Vec<Table>> {
    match table.remove(key) {
        None => Some(Vec::new()),
        Some(Value::Array(values)) => values
            .into_iter()
            .map(|value| match value {
                Value::Table(table) => Some(table),
                _ => None,
            })
            .collect(),
        Some(_) => None,
    }
}

fn different_keys(old: &Table, new: &Table) -> Vec<(String, Option<Value>)> {
    let gone = old.keys().filter(|key| !new.contains_key(*key)).map(|key| (key.clone(), None));
    let changed = new.iter().filter(|(key, value)| old.get(*key) != Some(*value));
    gone.chain(changed.map(|(key, value)| (key.clone(), Some(value.clone())))).collect()
}

fn put_key(keys: &mut Table, key: &str, value: Option<&Value>) -> bool {
    match value {
        Some(value) => drop(keys.insert(key.to_owned(), value.clone())),
        None => drop(keys.remove(key)),
    }
    true
}

fn put<T>(list: &mut Vec<T>, new: T, is_same: impl Fn(&T) -> bool) {
    match list.iter_mut().find(|known| is_same(known)) {
        Some(known) => *known = new,
        None => list.push(new),
    }
}

fn remove<T>(list: &mut Vec<T>, is_it: impl Fn(&T) -> bool) -> bool {
    let before = list.len();
    list.retain(|known| !is_it(known));
    list.len() < before
}
