use std::fs;
use std::sync::Arc;

use evener_core::farm::plan::ServerName;
use evener_core::pool::OperatorState;
use proptest::prelude::*;
use toml::{Table, Value};

use super::batch::{Batch, Request, batch};
use super::order;
use super::store::Store;
use super::{
    Author, FarmDocument, FarmState, OrderError, Record, ServerFields, StateChange, StateOrder, rebase,
};
use crate::config::{self, Config, LoadedConfig};
use crate::runtime::token::Role;

const FILE: &str = r#"
[admin]
listen = "none"

[[service]]
name = "web"
address = "192.0.2.100:80"

[[service.server]]
name = "web1"
address = "192.0.2.11"

[[service.server]]
address = "192.0.2.12"
weight = 2

[[service]]
address = "192.0.2.2:8080"
method = "redirect"
server = [{ url = "http://192.0.2.31:8080" }]

[[service]]
name = "all"
address = "192.0.2.101:80"
placement = "every-host"
policy = "hash"

[[service.server]]
name = "h1"
address = "192.0.2.21"
publish = "192.0.2.101"
"#;

fn table(text: &str) -> Table {
    text.parse().unwrap()
}

fn farm_of(text: &str) -> FarmState {
    // An every-host service needs the farm's secret.
    let text = format!("farm.secret_file = \"/etc/evener/farm.key\"\n{text}");
    let config = config::parse(&text, "evener.toml").unwrap();
    let file = FarmDocument::new(table(&text), &config).unwrap();
    FarmState::new(Arc::new(file), Arc::default(), Record::default())
}

fn request(order: StateOrder) -> Request {
    let author = Author { by: "alice".into(), from: "192.0.2.7".into() };
    Request { order, author, role: Role::Admin, if_match: None, is_dry_run: false }
}

fn name(service: &str, server: &str) -> ServerName {
    ServerName { service: service.into(), server: server.into() }
}

fn weight(server: &str, weight: i64) -> StateOrder {
    let keys = vec![("weight".to_owned(), Some(Value::Integer(weight)))];
    StateOrder::ChangeServer { server: name("web", server), fields: ServerFields { keys, state: None } }
}

fn operator(server: &str, state: OperatorState) -> StateOrder {
    let fields = ServerFields { keys: Vec::new(), state: Some(StateChange::Set(state)) };
    StateOrder::ChangeServer { server: name("web", server), fields }
}

fn all(state: &FarmState, orders: impl IntoIterator<Item = StateOrder>) -> Batch {
    let requests: Vec<Request> = orders.into_iter().map(request).collect();
    look_at(state, &requests)
}

fn look_at(state: &FarmState, requests: &[Request]) -> Batch {
    batch(state, &meaning(state), requests, 1_000, &|_| Ok(()))
}

/// Parses the farm's text.
fn meaning(state: &FarmState) -> Config {
    config::parse_changed(&state.farm.text().unwrap(), &state.sources).unwrap()
}

/// Returns the farm after orders that all succeed.
fn after(state: &FarmState, orders: impl IntoIterator<Item = StateOrder>) -> FarmState {
    let batch = all(state, orders);
    for outcome in &batch.outcomes {
        assert!(outcome.is_ok(), "{outcome:?}");
    }
    batch.next.map_or_else(|| state.clone(), |next| next.state)
}

fn refused(state: &FarmState, order: StateOrder) -> OrderError {
    let batch = all(state, [order]);
    assert!(batch.next.is_none(), "a refused order changes nothing");
    batch.outcomes.into_iter().next().unwrap().unwrap_err()
}

fn weight_of(state: &FarmState, server: &str) -> Option<i64> {
    let services = state.farm.services();
    let servers = services[0].get("server")?.as_array()?;
    let found = servers.iter().find(|known| known.get("name").and_then(Value::as_str) == Some(server))?;
    found.get("weight")?.as_integer()
}

#[test]
fn document_has_names_and_reads_as_the_same_farm() {
    let state = farm_of(FILE);
    assert_eq!(state.farm.names().collect::<Vec<_>>(), ["web", "192.0.2.2:8080", "all"]);
    assert_eq!(state.farm.server_names("web").unwrap().collect::<Vec<_>>(), ["web1", "192.0.2.12"]);
    let again = config::parse(&state.farm.text().unwrap(), "x").unwrap();
    let first = format!("farm.secret_file = \"/etc/evener/farm.key\"\n{FILE}");
    assert_eq!(again, config::parse(&first, "x").unwrap());
}

#[test]
fn drain_of_the_director_outlives_restarts_and_reloads_and_can_be_undone() {
    let file = farm_of(FILE);
    let drained = after(&file, [StateOrder::DrainDirector(true), operator("web1", OperatorState::Drain)]);
    assert!(drained.states.is_director_drained);
    assert_eq!(drained.farm, file.farm, "no service differs");
    let stored = serde_json::to_string(&drained.record).unwrap();
    let started = FarmState::new(file.file.clone(), Arc::default(), serde_json::from_str(&stored).unwrap());
    assert_eq!(started.states, drained.states);
    let mut record = drained.record.clone();
    assert!(record.rebase(&farm_of(&FILE.replace("192.0.2.12", "192.0.2.13")).file).is_empty());
    assert!(record.operator_states().is_director_drained);
    let again = all(&drained, [StateOrder::DrainDirector(true)]);
    assert!(again.next.is_none(), "it is drained already");
    let servers_only =
        after(&drained, [StateOrder::Replace { services: file.farm.services(), states: None }]);
    assert!(servers_only.states.is_director_drained, "the farm has other services, and not another director");
    let undone = after(&after(&drained, [StateOrder::Undo(None)]), [StateOrder::Undo(None)]);
    assert_eq!(undone.states, super::OperatorStates::default());
    let ended = after(&drained, [StateOrder::DrainDirector(false)]);
    assert!(!ended.states.is_director_drained && ended.states.servers.len() == 1);
}

#[test]
fn changes_are_undone_one_by_one_back_to_the_file() {
    let file = farm_of(FILE);
    let added = table("name = \"web3\"\naddress = \"192.0.2.13\"");
    let steps = [
        weight("web1", 3),
        weight("web1", 5),
        operator("web1", OperatorState::Drain),
        StateOrder::AddServer { service: "web".into(), keys: added },
        StateOrder::RemoveServer(name("web", "web1")),
        StateOrder::RemoveService("192.0.2.2:8080".into()),
    ];
    let mut farms = vec![file.clone()];
    for step in steps {
        farms.push(after(farms.last().unwrap(), [step]));
    }
    assert_eq!((weight_of(&farms[1], "web1"), weight_of(&farms[2], "web1")), (Some(3), Some(5)));
    assert_eq!(farms[3].states.servers[&name("web", "web1")], OperatorState::Drain);
    assert_eq!(farms[5].states.servers.len(), 0, "a removed server leaves no state behind");
    assert_eq!(farms[6].farm.names().collect::<Vec<_>>(), ["web", "all"]);
    let mut now = farms.pop().unwrap();
    while let Some(before) = farms.pop() {
        let generation = now.record.generation;
        now = after(&now, [StateOrder::Undo(None)]);
        assert_eq!((&now.farm, &now.states), (&before.farm, &before.states));
        assert_eq!(now.record.generation, generation + 1, "undoing is a change too");
    }
    assert_eq!((&now.farm, now.overrides.len()), (&*file.file, 0));
    assert!(matches!(refused(&now, StateOrder::Undo(None)), OrderError::Conflict(_)));
}

#[test]
fn orders_that_break_the_files_rules_are_refused_alone() {
    let file = farm_of(FILE);
    let twice = table("name = \"web9\"\naddress = \"192.0.2.11\"");
    let add = |keys| StateOrder::AddServer { service: "web".into(), keys };
    let batch = all(&file, [weight("web1", 3), add(twice), weight("web1", 70_000), weight("192.0.2.12", 4)]);
    let is_good: Vec<bool> = batch.outcomes.iter().map(Result::is_ok).collect();
    assert_eq!(is_good, [true, false, false, true]);
    let next = batch.next.unwrap().state;
    assert_eq!((weight_of(&next, "web1"), weight_of(&next, "192.0.2.12")), (Some(3), Some(4)));
    assert_eq!(next.record.changes.len(), 2);
    let error = batch.outcomes[1].clone().unwrap_err();
    assert!(matches!(&error, OrderError::Invalid(why) if why.contains("192.0.2.11")), "{error}");
    let named_twice = refused(&file, add(table("name = \"web1\"\naddress = \"192.0.2.19\"")));
    assert!(matches!(named_twice, OrderError::Conflict(_)), "{named_twice}");
    for gone in [weight("web7", 1), StateOrder::RemoveService("wbe".into())] {
        let error = refused(&file, gone);
        assert!(
            matches!(&error, OrderError::NotFound(why) if why.contains("web1") || why.contains("did you mean web?")),
            "{error}"
        );
    }
    let nothing = StateOrder::Replace { services: Vec::new(), states: None };
    assert!(matches!(refused(&file, nothing), OrderError::Invalid(_)));
}

#[test]
fn requests_with_too_many_services_or_servers_are_refused_before_they_are_read() {
    let file = farm_of(FILE);
    let list = |count: usize| vec![Value::Table(Table::new()); count];
    let with_servers = |count| Table::from_iter([("server".to_owned(), Value::Array(list(count)))]);
    let half = Value::Table(with_servers(order::SERVERS / 2 + 1));
    let replace = |services| StateOrder::Replace { services, states: None };
    let too_many = [
        (replace(list(order::SERVICES + 1)), "4097 services"),
        (replace(vec![half.clone(), half]), "65536 servers"),
        (StateOrder::AddService(with_servers(order::SERVERS + 1)), "65536 servers"),
    ];
    for (order, count) in too_many {
        let error = refused(&file, order);
        assert!(
            matches!(&error, OrderError::Invalid(why) if why.contains(count) && why.contains("send fewer")),
            "{error}"
        );
    }
}

#[test]
fn tables_of_hosts_that_decide_for_themselves_stay_alike() {
    let file = farm_of(FILE);
    let change = |key: &str, value| {
        let fields = ServerFields { keys: vec![(key.into(), Some(value))], state: None };
        StateOrder::ChangeServer { server: name("all", "h1"), fields }
    };
    for order in [change("backup", Value::Boolean(true)), StateOrder::RemoveService("all".into())] {
        let error = refused(&file, order);
        assert!(matches!(&error, OrderError::Conflict(why) if why.contains("all hosts")), "{error}");
    }
    let fields = ServerFields { keys: Vec::new(), state: Some(StateChange::Set(OperatorState::Drain)) };
    after(&file, [StateOrder::ChangeServer { server: name("all", "h1"), fields }]);
    // A host reports these to the others.
    let own = [("weight", 3), ("max_connections", 9)];
    after(&file, own.map(|(key, value)| change(key, Value::Integer(value))));
}

/// A change can require the tag of the farm that the dry run was for.
#[test]
fn dry_run_names_the_farm_that_it_is_for() {
    let file = farm_of(FILE);
    let dry = Request { is_dry_run: true, ..request(weight("web1", 3)) };
    let outcome = look_at(&file, &[dry]).outcomes.remove(0).unwrap();
    assert_eq!((&outcome.tag, outcome.generation), (&file.tag, file.record.generation));
    assert_eq!(outcome.differences.len(), 1);
    let on = |state: &FarmState| {
        let request = Request { if_match: Some(outcome.tag.clone()), ..request(weight("web1", 3)) };
        look_at(state, &[request]).outcomes.remove(0)
    };
    assert!(on(&file).is_ok());
    let others = after(&file, [weight("web1", 9)]);
    assert!(matches!(on(&others), Err(OrderError::Stale { .. })));
}

#[test]
fn one_of_drain_and_maintenance_leaves_the_other() {
    use OperatorState::{Drain, Maintenance, Ready};
    let cases = [
        ((Some(true), None), [Drain, Drain, Maintenance]),
        ((Some(false), None), [Ready, Ready, Ready]),
        ((None, Some(true)), [Maintenance, Maintenance, Maintenance]),
        ((None, Some(false)), [Ready, Drain, Ready]),
        ((Some(true), Some(false)), [Drain, Drain, Drain]),
        ((Some(true), Some(true)), [Maintenance, Maintenance, Maintenance]),
        ((Some(false), Some(false)), [Ready, Ready, Ready]),
    ];
    for ((drain, maintenance), wanted) in cases {
        let state = StateChange::of(drain, maintenance);
        let fields = ServerFields { keys: Vec::new(), state };
        let order = StateOrder::ChangeServer { server: name("web", "web1"), fields };
        let states = [Ready, Drain, Maintenance].map(|before| {
            let before = after(&farm_of(FILE), [operator("web1", before)]);
            let states = after(&before, [order.clone()]).states;
            states.servers.get(&name("web", "web1")).copied().unwrap_or_default()
        });
        assert_eq!(states, wanted, "drain {drain:?}, maintenance {maintenance:?}");
    }
    assert_eq!(StateChange::of(None, None), None);
}

#[test]
fn refused_record_is_taken_back_and_refused_files_are_kept() {
    let folder = std::env::temp_dir().join(format!("evener-store-{}", std::process::id()));
    let store = Store::new(&folder);
    let before = after(&farm_of(FILE), [weight("web1", 3)]).record;
    let refused = after(&farm_of(FILE), [weight("web1", 3), weight("web1", 4)]).record;
    store.write(&refused).unwrap();
    store.write_back(&before);
    assert_eq!(store.read().unwrap(), before);
    let names: Vec<_> = (0..2)
        .map(|_| {
            store.write(&refused).unwrap();
            store.set_aside().unwrap()
        })
        .collect();
    assert_ne!(names[0], names[1]);
    assert!(names.iter().all(|name| name.exists()));
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn stale_requests_and_lower_roles_are_refused() {
    let file = farm_of(FILE);
    let now = after(&file, [weight("web1", 3)]);
    let by = |role, order, tag: Option<&str>| {
        let request = Request { role, if_match: tag.map(str::to_owned), ..request(order) };
        look_at(&now, &[request]).outcomes.remove(0)
    };
    assert!(matches!(by(Role::Admin, weight("web1", 4), Some(&file.tag)), Err(OrderError::Stale { .. })));
    for good in [now.tag.clone(), format!("\"{}\"", now.tag), "*".into(), format!("\"x\", \"{}\"", now.tag)] {
        assert!(by(Role::Admin, weight("web1", 4), Some(&good)).is_ok(), "{good}");
    }
    assert!(by(Role::Operate, weight("web1", 4), None).is_ok());
    assert!(
        by(Role::Operate, StateOrder::Undo(None), None).is_ok(),
        "a weight is undone by who may change it"
    );
    let remove = StateOrder::RemoveServer(name("web", "web1"));
    assert!(matches!(by(Role::Operate, remove.clone(), None), Err(OrderError::Forbidden(_))));
    let now = after(&now, [remove]);
    let undo = Request { role: Role::Operate, ..request(StateOrder::Undo(None)) };
    let undone = look_at(&now, &[undo]).outcomes.remove(0);
    assert!(matches!(undone, Err(OrderError::Forbidden(_))), "{undone:?}");
}

#[test]
fn dry_run_says_what_differs_and_changes_nothing() {
    let file = farm_of(FILE);
    let dry = |order| {
        let request = Request { is_dry_run: true, ..request(order) };
        let batch = look_at(&file, &[request]);
        assert!(batch.next.is_none());
        batch.outcomes.into_iter().next().unwrap()
    };
    let outcome = dry(weight("192.0.2.12", 9)).unwrap();
    let [difference] = &outcome.differences[..] else { panic!("{outcome:?}") };
    assert_eq!((&difference.from, &difference.to), (&Some(Value::Integer(2)), &Some(Value::Integer(9))));
    assert!(dry(weight("web1", 70_000)).is_err(), "the file's rules are asked, too");
    assert!(dry(weight("192.0.2.12", 2)).unwrap().differences.is_empty());
}

#[test]
fn whole_farms_are_replaced_by_what_differs() {
    let file = farm_of(FILE);
    let mut services = file.farm.services();
    let same = StateOrder::Replace { services: services.clone(), states: None };
    assert!(all(&file, [same]).next.is_none(), "nothing differs");
    let servers = services[0].get_mut("server").unwrap().as_array_mut().unwrap();
    servers.remove(0);
    servers.push(Value::Table(table("address = \"192.0.2.14\"")));
    let states = [(name("web", "192.0.2.12"), OperatorState::Maintenance)].into();
    let next = after(&file, [StateOrder::Replace { services, states: Some(states) }]);
    assert_eq!(next.farm.server_names("web").unwrap().collect::<Vec<_>>(), ["192.0.2.12", "192.0.2.14"]);
    assert_eq!(next.states.servers.len(), 1);
    assert_eq!(next.record.changes.len(), 1, "it is undone at once");
    assert_eq!(after(&next, [StateOrder::Undo(None)]).farm, *file.file);
}

#[test]
fn reload_keeps_changes_but_where_the_file_itself_has_changed() {
    let text = format!("farm.secret_file = \"/etc/evener/farm.key\"\n{FILE}");
    let file = farm_of(FILE);
    let added = table("name = \"web3\"\naddress = \"192.0.2.13\"");
    let add = StateOrder::AddServer { service: "web".into(), keys: added };
    let drain = operator("web1", OperatorState::Drain);
    let now = after(&file, [weight("web1", 3), weight("192.0.2.12", 7), add, drain]);
    let again = |text: &str| {
        let config = config::parse(text, "evener.toml").unwrap();
        let file = LoadedConfig { config, tables: table(text), sources: Arc::default() };
        rebase(file, now.record.clone()).map_err(|problems| problems.to_string())
    };
    let same = again(&text.replace("listen = \"none\"", "")).unwrap();
    assert_eq!((same.dropped.len(), &same.state.farm.server_names("web").unwrap().count()), (0, &3));
    assert_eq!(same.config.services[0].servers[0].weight, 3);
    let other = again(&text.replace("weight = 2", "weight = 1")).unwrap();
    let places: Vec<String> = other.dropped.iter().map(|edit| edit.place.to_string()).collect();
    assert_eq!(places, ["web/192.0.2.12: weight"]);
    assert_eq!(other.config.services[0].servers[1].weight, 1);
    assert_eq!(other.state.states.servers.len(), 1, "what operators say of servers stays");
    let taken = text
        .replace("name = \"web1\"\naddress = \"192.0.2.11\"", "name = \"web3\"\naddress = \"192.0.2.11\"");
    let taken = again(&taken).unwrap();
    assert_eq!(taken.dropped.len(), 2, "the file has a server of that name now, and web1 no more");
    let clash = again(&text.replace("192.0.2.11", "192.0.2.13"));
    assert!(clash.is_err_and(|why| why.contains("192.0.2.13")), "both have the address now");
}

#[test]
fn undo_names_the_state_that_results() {
    let file = farm_of(FILE);
    let now =
        after(&file, [operator("web1", OperatorState::Maintenance), operator("web1", OperatorState::Ready)]);
    let undone = all(&now, [StateOrder::Undo(None)]).outcomes.remove(0).unwrap();
    let wanted = "web/web1 is in state maintenance (undone: web/web1 is in state ready by alice)";
    assert_eq!(undone.message, wanted);
}

/// Balanced names are numbered by the name files that were read with the file in force. Zones refer
/// to names by these numbers.
#[test]
fn run_time_change_keeps_names_whose_file_was_replaced() {
    let folder = std::env::temp_dir().join(format!("evener-state-names-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let (path, names) = (folder.join("evener.toml"), folder.join("names.toml"));
    let name = |name: &str| format!("[[dns.name]]\nname = \"{name}\"\nservices = [\"web\"]\n");
    let dns = "[dns]\nlisten = [\"192.0.2.53:53\"]\nnames_from = [\"names.toml\"]\n\
               [[dns.zone]]\nname = \"example.com\"\n";
    fs::write(&path, format!("farm.secret_file = \"/etc/evener/farm.key\"\n{FILE}\n{dns}")).unwrap();
    fs::write(&names, name("bank.example.com") + &name("shop.example.com")).unwrap();
    let file = config::load_tables(&path).unwrap();
    let before = file.config.dns.names.clone();
    let now = rebase(file, Record::default()).unwrap().state;
    let changed = |now: &FarmState, order| {
        let next = all(now, [order]).next.unwrap();
        (next.config.unwrap().dns.names, next.state)
    };
    for text in [name("new.example.com") + &name("bank.example.com"), "[[dns.name".to_owned()] {
        fs::write(&names, text).unwrap();
        let (names, next) = changed(&now, weight("web1", 3));
        assert_eq!(names, before);
        assert_eq!(changed(&next, StateOrder::Undo(None)).0, before);
    }
    fs::remove_dir_all(&folder).unwrap();
    assert_eq!(changed(&now, weight("web1", 4)).0, before);
}

#[test]
fn change_is_undone_by_its_number_unless_a_later_one_changed_its_place() {
    let file = farm_of(FILE);
    let steps = [weight("web1", 3), operator("web1", OperatorState::Drain), weight("192.0.2.12", 7)];
    let now = steps.into_iter().fold(file.clone(), |now, step| after(&now, [step]));
    let numbers = |now: &FarmState| now.record.changes.iter().map(|one| one.number).collect::<Vec<_>>();
    assert_eq!(numbers(&now), [1, 2, 3]);
    let undone = after(&now, [StateOrder::Undo(Some(1))]);
    assert_eq!((weight_of(&undone, "web1"), weight_of(&undone, "192.0.2.12")), (None, Some(7)));
    assert_eq!((numbers(&undone), undone.states.servers.len()), (vec![2, 3], 1));
    assert!(matches!(refused(&undone, StateOrder::Undo(Some(1))), OrderError::NotFound(_)), "it is gone");

    let later = after(&now, [weight("web1", 5)]);
    let why = refused(&later, StateOrder::Undo(Some(1))).to_string();
    assert!(why.contains("change 4") && why.contains("web/web1: weight"), "{why}");
    let removed = after(&now, [StateOrder::RemoveServer(name("web", "web1"))]);
    assert!(matches!(refused(&removed, StateOrder::Undo(Some(1))), OrderError::Conflict(_)));
    let both = [StateOrder::Undo(Some(4)), StateOrder::Undo(Some(1))];
    assert_eq!(weight_of(&after(&later, both), "web1"), None);
}

/// A farm that differs only in weights is not parsed again.
#[test]
fn weights_are_as_the_text_of_the_farm_has_them() {
    let file = farm_of(FILE);
    let services = ["web", "192.0.2.2:8080"];
    let servers = services.map(|service| {
        let servers = file.farm.server_names(service).unwrap();
        servers.map(|server| name(service, server)).collect::<Vec<_>>()
    });
    let servers: Vec<ServerName> = servers.into_iter().flatten().collect();
    assert_eq!(servers.len(), 3);
    let orders = servers.into_iter().zip(7..).map(|(server, value)| {
        let keys = vec![("weight".to_owned(), Some(Value::Integer(value)))];
        StateOrder::ChangeServer { server, fields: ServerFields { keys, state: None } }
    });
    let orders: Vec<StateOrder> = orders.collect();
    for some in [&orders[..1], &orders[2..], &orders] {
        let next = all(&file, some.to_vec()).next.unwrap();
        let config = next.config.unwrap();
        assert_eq!(config, meaning(&next.state));
        assert_ne!(config, meaning(&file));
    }
}

#[test]
fn oldest_changes_become_one_that_stays() {
    let mut now = farm_of(FILE);
    for number in 0..1_100 {
        let orders = [weight(if number % 2 == 0 { "web1" } else { "192.0.2.12" }, number)];
        now = after(&now, orders);
    }
    assert_eq!((now.record.changes.len(), now.record.is_cut), (1_000, true));
    assert_eq!((weight_of(&now, "web1"), weight_of(&now, "192.0.2.12")), (Some(1_098), Some(1_099)));
    assert_eq!(now.record.changes[0].edits.len(), 2, "one value a place is enough");
    for _ in 1..1_000 {
        now = after(&now, [StateOrder::Undo(None)]);
    }
    let error = refused(&now, StateOrder::Undo(None));
    assert!(matches!(&error, OrderError::Conflict(why) if why.contains("--forget")), "{error}");
}

fn any_order() -> impl Strategy<Value = StateOrder> {
    let server = prop_oneof![Just("web1"), Just("192.0.2.12"), Just("web3")];
    let state =
        prop_oneof![Just(OperatorState::Ready), Just(OperatorState::Drain), Just(OperatorState::Maintenance)];
    prop_oneof![
        (server.clone(), 0..70_000i64).prop_map(|(server, value)| weight(server, value)),
        (server.clone(), state).prop_map(|(server, state)| operator(server, state)),
        server.clone().prop_map(|server| StateOrder::RemoveServer(name("web", server))),
        (server, 11..15u8).prop_map(|(server, last)| {
            let keys = table(&format!("name = \"{server}\"\naddress = \"192.0.2.{last}\""));
            StateOrder::AddServer { service: "web".into(), keys }
        }),
        proptest::option::of(1..9u64).prop_map(StateOrder::Undo),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Orders have the same result in one batch and one by one. The farm matches its record, and
    /// the record survives a write and a read.
    #[test]
    fn batches_are_as_good_as_single_orders(orders in proptest::collection::vec(any_order(), 1..12)) {
        let file = farm_of(FILE);
        let together = all(&file, orders.clone());
        let mut single = file.clone();
        for (order, outcome) in orders.into_iter().zip(&together.outcomes) {
            let mut one = all(&single, [order]);
            prop_assert_eq!(one.outcomes.remove(0).is_ok(), outcome.is_ok());
            if let Some(next) = one.next {
                single = next.state;
            }
        }
        if let Some(next) = &together.next && let Some(config) = &next.config {
            prop_assert_eq!(config, &meaning(&next.state));
        }
        let together = together.next.map_or(file.clone(), |next| next.state);
        prop_assert_eq!((&together.farm, &together.states), (&single.farm, &single.states));
        prop_assert_eq!(&together.tag, &single.tag);
        let written = serde_json::to_string(&together.record).unwrap();
        let read: Record = serde_json::from_str(&written).unwrap();
        let restored = FarmState::new(Arc::clone(&file.file), Arc::default(), read);
        prop_assert_eq!((restored.farm, restored.states), (together.farm, together.states));
    }
}
