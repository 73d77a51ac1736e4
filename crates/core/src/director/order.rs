//! An order to change what is in force: all that a plan is made of, so that whoever carries it out
//! needs the director no more, and the director goes on meanwhile.

use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::farm::Farm;
use crate::farm::plan::{self, MemberState, Plan, PlanError, ServiceState, Slots};
use crate::net::wire::Mac;
use crate::path::tables::Tables;
use crate::pool::policy::Fills;

/// The farm as it is to be in force. [`Change::plan`] makes tables of it, anywhere and at any time.
#[derive(Clone, Debug)]
pub struct Change {
    pub(super) number: u64,
    pub(super) farm: Arc<Farm>,
    /// Those of each service, in the order of the farm.
    pub(super) members: Vec<Vec<MemberState>>,
    pub(super) links: Vec<(u32, Mac)>,
    pub(super) hosts: plan::Hosts,
    pub(super) slots: Slots,
    /// The plan that it is compared with.
    pub(super) before: Arc<Plan>,
    /// The engine's tables; `None` where it is to be given tables in any case.
    pub(super) in_force: Option<Arc<Tables>>,
}

impl Change {
    /// Makes the plan. `fills` makes no difference but to the time it takes: whoever carries orders
    /// out keeps them for the next one.
    pub fn plan(self, fills: &mut Fills) -> Planned {
        let Change { number, farm, members, links, hosts, slots: old_slots, before, in_force } = self;
        let states =
            farm.services.iter().zip(members).map(|(service, members)| ServiceState { service, members });
        let states: Vec<ServiceState<'_>> = states.collect();
        let mut slots = old_slots.clone();
        let planned = plan::plan(&states, &links, &hosts, &mut slots, fills, Some(&before));
        // Most of what hosts tell each other changes no table.
        let is_in_force = |plan: &Plan| in_force.as_ref() == Some(&plan.tables) && *plan == *before;
        let plan = planned.map(|plan| (!is_in_force(&plan)).then_some(plan));
        let members = states.into_iter().map(|state| state.members).collect();
        Planned { number, members, plan, slots, old_slots }
    }
}

/// A plan that was made for an order.
#[derive(Clone, Debug)]
pub struct Planned {
    number: u64,
    members: Vec<Vec<MemberState>>,
    plan: Result<Option<Plan>, PlanError>,
    slots: Slots,
    old_slots: Slots,
}

impl Planned {
    /// The tables that the engine is to put in force; `None` where it has them already.
    ///
    /// # Errors
    /// There are none for this farm: what was in force stays.
    pub fn tables(&self) -> Result<Option<&Arc<Tables>>, PlanError> {
        let plan = self.plan.as_ref().map_err(PlanError::clone)?;
        Ok(plan.as_ref().map(|plan| &plan.tables))
    }

    /// The answer to the order: what the engine holds now, and why it has refused the tables, if it
    /// has.
    pub fn answer(self, in_force: Arc<Tables>, refusal: Option<String>) -> Applied {
        let Planned { number, members, plan, slots, old_slots } = self;
        let plan = match refusal {
            Some(refusal) => Err(refusal),
            None => plan.map_err(|error| error.to_string()),
        };
        let slots = if plan.is_ok() { slots } else { old_slots };
        Applied { number, members, plan, slots, in_force }
    }
}

/// The result of an order.
#[derive(Clone, Debug)]
pub struct Applied {
    /// Which: see [`super::Director::awaited`].
    pub number: u64,
    /// Of whom the plan was made.
    pub(super) members: Vec<Vec<MemberState>>,
    /// The plan in force now, or why it isn't in force; `None` where it was so already.
    pub(super) plan: Result<Option<Plan>, String>,
    pub(super) slots: Slots,
    /// The engine's tables, whatever the result.
    pub(super) in_force: Arc<Tables>,
}
