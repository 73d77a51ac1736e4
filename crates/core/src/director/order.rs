//! An order to change the tables in force. The order owns all input of the plan, so another thread
//! can carry the order out while the director continues.

use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::farm::Farm;
use crate::farm::plan::{self, MemberState, Plan, PlanError, ServiceState, Slots};
use crate::net::wire::Mac;
use crate::path::tables::Tables;
use crate::pool::policy::Fills;

/// The farm to put in force. [`Change::plan`] computes its tables on any thread.
#[derive(Clone, Debug)]
pub struct Change {
    pub(super) number: u64,
    pub(super) farm: Arc<Farm>,
    /// Members of each service, sorted like the farm's services.
    pub(super) members: Vec<Vec<MemberState>>,
    pub(super) links: Vec<(u32, Mac)>,
    pub(super) hosts: plan::Hosts,
    pub(super) slots: Slots,
    /// Plan in force, with which the new plan is compared.
    pub(super) before: Arc<Plan>,
    /// Tables of the engine. `None` if the new tables must be applied even if they are equal.
    pub(super) in_force: Option<Arc<Tables>>,
}

impl Change {
    /// Computes the plan. `fills` is a cache of computed rings, which the caller keeps for the next
    /// order.
    pub fn plan(self, fills: &mut Fills) -> Planned {
        let Change { number, farm, members, links, hosts, slots: old_slots, before, in_force } = self;
        let states =
            farm.services.iter().zip(members).map(|(service, members)| ServiceState { service, members });
        let states: Vec<ServiceState<'_>> = states.collect();
        let mut slots = old_slots.clone();
        let planned = plan::plan(&states, &links, &hosts, &mut slots, fills, Some(&before));
        // Each report of another host causes a plan. Most plans equal the one in force, and are not
        // applied.
        let is_in_force = |plan: &Plan| in_force.as_ref() == Some(&plan.tables) && *plan == *before;
        let plan = planned.map(|plan| (!is_in_force(&plan)).then_some(plan));
        let members = states.into_iter().map(|state| state.members).collect();
        Planned { number, members, plan, slots, old_slots }
    }
}

/// Plan computed for a change order.
#[derive(Clone, Debug)]
pub struct Planned {
    number: u64,
    members: Vec<Vec<MemberState>>,
    plan: Result<Option<Plan>, PlanError>,
    slots: Slots,
    old_slots: Slots,
}

impl Planned {
    /// Returns the tables to apply; `None` if equal tables are in force already.
    ///
    /// # Errors
    /// The farm has no valid plan; the tables in force stay.
    pub fn tables(&self) -> Result<Option<&Arc<Tables>>, PlanError> {
        let plan = self.plan.as_ref().map_err(PlanError::clone)?;
        Ok(plan.as_ref().map(|plan| &plan.tables))
    }

    /// Returns the answer to the order. `in_force` are the engine's current tables, `refusal` is
    /// the engine's error if it refused the plan's tables.
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

#[derive(Clone, Debug)]
pub struct Applied {
    /// Number of the change order: see [`super::Director::awaited`].
    pub number: u64,
    /// Members that the plan was computed from.
    pub(super) members: Vec<Vec<MemberState>>,
    /// New plan in force, or the reason of the refusal. `None` if an equal plan was in force
    /// before.
    pub(super) plan: Result<Option<Plan>, String>,
    pub(super) slots: Slots,
    /// Tables of the engine after the order, also after a refusal.
    pub(super) in_force: Arc<Tables>,
}
