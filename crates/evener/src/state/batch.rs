//! Orders that are put in force together. Each order succeeds or fails by itself.

use toml::Table;

use super::order::{self, Meaning, NewValues, OrderError, StateOrder, same_on_all_hosts, sentence};
use super::record::{Author, OperatorStates, Record};
use super::store::AuditEntry;
use super::{EditTarget, FarmDocument, FarmState, tag};
use crate::config::{self, Config, Sources};
use crate::runtime::token::Role;

/// An order with its author and conditions.
#[derive(Clone, Debug)]
pub struct Request {
    pub order: StateOrder,
    pub author: Author,
    /// Role of the author. For some orders, the required role depends on their edits.
    pub role: Role,
    /// Tags of the farms that the order may be applied to, as in the `If-Match` field.
    pub if_match: Option<String>,
    /// True if the order is only checked and its differences are returned.
    pub is_dry_run: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    pub message: String,
    /// Generation of the resulting farm. For a dry run, generation of the farm in force.
    pub generation: u64,
    pub tag: String,
    /// Changed places, with old and new values.
    pub differences: Vec<Difference>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    pub place: EditTarget,
    /// Value before the change.
    pub from: Option<toml::Value>,
    pub to: Option<toml::Value>,
}

impl Difference {
    /// True if the difference can't break a rule of the file: an operator state, or a weight within
    /// its range.
    fn keeps_rules(&self) -> bool {
        match (&self.place, &self.to) {
            (place, _) if place.is_operators() => true,
            (EditTarget::ServerKey { key, .. }, Some(toml::Value::Integer(weight))) => {
                key == "weight" && u16::try_from(*weight).is_ok()
            }
            _ => false,
        }
    }
}

/// Result of a batch of requests.
pub(crate) struct Batch {
    /// The resulting farm. `None` if no request changes anything.
    pub next: Option<NextState>,
    /// Results of the requests, in their order.
    pub outcomes: Vec<Result<Outcome, OrderError>>,
}

pub(crate) struct NextState {
    pub state: FarmState,
    pub(crate) audit: Vec<AuditEntry>,
    /// Configuration of the farm. `None` if only operator states differ.
    pub config: Option<Config>,
}

/// The farm while a batch is processed: the result of the requests so far.
#[derive(Clone)]
struct Draft<'a> {
    file: &'a FarmDocument,
    file_sum: u64,
    reader: FarmReader<'a>,
    record: Record,
    farm: FarmDocument,
    states: OperatorStates,
    config: Option<Config>,
    audit: Vec<AuditEntry>,
}

/// Processes requests. Each request applies to the result of the previous requests. `in_force` is
/// the configuration of `state`.
///
/// `look` refuses a farm whose files can't be read. It is called for each configuration that is
/// parsed.
pub(crate) fn batch(
    state: &FarmState,
    in_force: &Config,
    requests: &[Request],
    unix_ms: u64,
    look: &dyn Fn(&Config) -> Result<(), OrderError>,
) -> Batch {
    let draft = || Draft {
        file: &state.file,
        file_sum: state.file_sum,
        reader: FarmReader { sources: &state.sources, look },
        record: state.record.clone(),
        farm: state.farm.clone(),
        states: state.states.clone(),
        config: None,
        audit: Vec::new(),
    };
    // Parsing a large farm takes milliseconds. If only weights differ, no farm is parsed. If no
    // request can break a rule, only the resulting farm is parsed. After every other request, the
    // farm is parsed at once, because an undo can restore each intermediate farm.
    let together = all(draft(), requests, unix_ms, false).and_then(|(mut draft, outcomes)| {
        if draft.config.is_none() && draft.farm != state.farm {
            draft.config = Some(match reweighted(in_force, &state.farm, &draft.farm) {
                Some(config) => config,
                None => draft.reader.read(&draft.farm)?,
            });
        }
        Ok((draft, outcomes))
    });
    let (draft, outcomes) = match together {
        Ok(done) => done,
        Err(_) => match all(draft(), requests, unix_ms, true) {
            Ok(done) => done,
            // Not reached: `all` puts the error of a request into its outcome.
            Err(error) => return Batch { next: None, outcomes: vec![Err(error); requests.len()] },
        },
    };
    let is_changed = draft.record.generation != state.record.generation;
    let Draft { record, farm, states, config, audit, .. } = draft;
    let config = config.filter(|_| farm != state.farm);
    let next = is_changed.then(|| NextState { state: state.changed(record, farm, states), audit, config });
    Batch { next, outcomes }
}

/// Returns the configuration of a farm that differs from the farm in force only in weights. `None`
/// if the farms differ in anything else.
fn reweighted(in_force: &Config, before: &FarmDocument, after: &FarmDocument) -> Option<Config> {
    // The order of servers affects hash tables, and `differences` ignores it.
    if !before.lists_as(after) {
        return None;
    }
    let differences = before.differences(after);
    let weights = differences.iter().map(|(place, to)| match (place, to) {
        (EditTarget::ServerKey { service, server, key }, Some(toml::Value::Integer(weight)))
            if key == "weight" =>
        {
            Some((service, server, u16::try_from(*weight).ok()?))
        }
        _ => None,
    });
    let weights = weights.collect::<Option<Vec<_>>>()?;
    let mut config = in_force.clone();
    let mut weights = weights.into_iter();
    weights.all(|(service, server, weight)| config.set_weight(service, server, weight)).then_some(config)
}

type Outcomes = Vec<Result<Outcome, OrderError>>;

fn all<'a>(
    mut draft: Draft<'a>,
    requests: &[Request],
    unix_ms: u64,
    each_is_read: bool,
) -> Result<(Draft<'a>, Outcomes), OrderError> {
    let mut outcomes = Vec::new();
    for request in requests {
        let mut next = draft.clone();
        let outcome = next.follow(request, unix_ms).and_then(|mut outcome| {
            // A dry run's farm is never put in force, so the next change would get its generation.
            if request.is_dry_run {
                (outcome.generation, outcome.tag) = (draft.record.generation, draft.tag());
            }
            let is_unread = next.config.is_none() && next.farm != draft.farm;
            let is_sure = outcome.differences.iter().all(Difference::keeps_rules);
            if is_unread && (each_is_read || request.is_dry_run || !is_sure) {
                next.config = Some(next.reader.read(&next.farm)?);
            }
            Ok(outcome)
        });
        if outcome.is_ok() && !request.is_dry_run {
            draft = next;
        }
        outcomes.push(outcome);
    }
    Ok((draft, outcomes))
}

impl Draft<'_> {
    /// Applies a request to the draft. If the request fails, the draft is unusable.
    fn follow(&mut self, request: &Request, unix_ms: u64) -> Result<Outcome, OrderError> {
        let before = (self.farm.clone(), self.states.clone());
        // The configuration belongs to the previous farm.
        self.config = None;
        if let Some(wanted) = &request.if_match {
            let now = self.tag();
            let mut tags = wanted.split(',').map(|tag| tag.trim().trim_matches('"'));
            if !tags.any(|tag| tag == now || tag == "*") {
                return Err(OrderError::Stale { now, wanted: wanted.clone() });
            }
        }
        let (edits, message) = match &request.order {
            StateOrder::Undo(number) => self.undo(*number)?,
            order => {
                let edits = self.edits(order)?;
                let message = sentence(&edits, &self.farm, self.file);
                self.make(&edits);
                (edits, message)
            }
        };
        same_on_all_hosts(&edits, &before.0, &self.farm)?;
        may(request.role, &edits)?;
        let author = &request.author;
        if !edits.is_empty() && !matches!(request.order, StateOrder::Undo(_)) {
            self.record.add(unix_ms, author.clone(), message.clone(), edits.clone(), self.file);
        }
        if !edits.is_empty() {
            let (generation, author) = (self.record.generation, author.clone());
            self.audit.push(AuditEntry { unix_ms, author, generation, message: message.clone() });
        }
        let value = |place: &EditTarget| before.1.at(place).or_else(|| before.0.at(place));
        let differences =
            edits.into_iter().map(|(place, to)| Difference { from: value(&place), place, to }).collect();
        Ok(Outcome { message, generation: self.record.generation, tag: self.tag(), differences })
    }

    /// Returns the edits of an order that change a value or an operator state.
    fn edits(&mut self, order: &StateOrder) -> Result<NewValues, OrderError> {
        let edits = match order::meaning(order, &self.farm, &self.states)? {
            Meaning::Edits(edits) => edits,
            Meaning::File(file, states) => {
                let (read, config) = self.reader.read_tables(file)?;
                let mut edits = self.farm.differences(&read);
                self.config = Some(config);
                edits.extend(states);
                edits
            }
        };
        let differs = |(place, value): &(EditTarget, Option<toml::Value>)| {
            self.states.at(place).or_else(|| self.farm.at(place)) != *value
        };
        Ok(edits.into_iter().filter(differs).collect())
    }

    fn make(&mut self, edits: &NewValues) {
        for (place, value) in edits {
            self.states.put(place, value.as_ref());
            self.farm.put(place, value.as_ref());
        }
    }

    fn undo(&mut self, number: Option<u64>) -> Result<(NewValues, String), OrderError> {
        let undone = self.record.undo(number)?;
        let farm = self.record.farm(self.file);
        let states = self.record.operator_states();
        let mut edits = self.farm.differences(&farm);
        edits.extend(order::state_edits(&self.states, &states));
        // Describes the resulting state, since "undone: s1 is in state ready" reads as if the
        // server were ready.
        let now = sentence(&edits, &self.farm, self.file);
        (self.farm, self.states) = (farm, states);
        let message = format!("{now} (undone: {} by {})", undone.message, undone.author.by);
        Ok((edits, message))
    }

    fn tag(&self) -> String {
        tag(self.record.generation, self.file_sum)
    }
}

/// Checks that a role may make these edits.
fn may(role: Role, edits: &NewValues) -> Result<(), OrderError> {
    match edits.iter().find(|(place, _)| place.needs() > role) {
        None => Ok(()),
        Some((place, _)) => Err(OrderError::Forbidden(format!(
            "changing {place} takes role {}, and yours is {}",
            place.needs().name(),
            role.name()
        ))),
    }
}

/// Parses farms by all rules of the file. `look` checks the files that a farm names.
#[derive(Clone, Copy)]
struct FarmReader<'a> {
    sources: &'a Sources,
    look: &'a dyn Fn(&Config) -> Result<(), OrderError>,
}

impl FarmReader<'_> {
    fn read(self, farm: &FarmDocument) -> Result<Config, OrderError> {
        let invalid = |error: toml::ser::Error| OrderError::Invalid(error.to_string());
        self.read_text(&farm.text().map_err(invalid)?)
    }

    fn read_tables(self, file: Table) -> Result<(FarmDocument, Config), OrderError> {
        let text = toml::to_string(&file).map_err(|error| OrderError::Invalid(error.to_string()))?;
        let config = self.read_text(&text)?;
        let farm = FarmDocument::new(file, &config);
        let farm = farm.ok_or_else(|| OrderError::Invalid("`service` is no list of tables".to_owned()))?;
        Ok((farm, config))
    }

    fn read_text(self, text: &str) -> Result<Config, OrderError> {
        let config = config::parse_changed(text, self.sources).map_err(|problems| {
            let sentences: Vec<String> =
                problems.reports().map(|problem| format!("{}; {}", problem.message, problem.help)).collect();
            OrderError::Invalid(sentences.join(". "))
        })?;
        if !config.has_services() {
            return Err(OrderError::Invalid("nothing would be left to serve".to_owned()));
        }
        (self.look)(&config)?;
        Ok(config)
    }
}
