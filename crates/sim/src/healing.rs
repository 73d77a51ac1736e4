//! The end of a run: all faults end, and a while later the farm serves as it should.

use crate::check::{self, Broken, Promise};
use crate::farms::{Kind, SERVERS_MAX};
use crate::history::What;
use crate::rest;
use crate::step::CLIENTS;
use crate::web;
use crate::world::World;

/// So long after the last fault a farm of every host serves as it should, in milliseconds.
const HEALED_MS: u64 = 16_000;
/// The same of a farm with a group, whose members may join a while later.
const WEB_HEALED_MS: u64 = 20_000;
/// So long a host is gone that others take over from, in milliseconds, and so long it has when it
/// is back.
const GONE_MS: u64 = 12_000;

impl World {
    /// Lets all faults end, and what is to come of that come.
    pub(crate) fn heal(&mut self) -> Result<(), Broken> {
        self.coverage.checked(Promise::Unhealed);
        self.say(What::Healed);
        (0..SERVERS_MAX).for_each(|server| self.work(server, true));
        (0..SERVERS_MAX).for_each(|server| self.answer(server, true));
        self.part(0);
        (self.deaf, self.loss) = (0, 0);
        self.end_delays();
        self.clocks.set_right();
        web::heal(self);
        for node in 0..self.nodes.len() {
            (self.nodes[node].engine.refuse_at, self.nodes[node].dies_after) = (None, None);
            if self.nodes[node].leaves_at().is_some() {
                self.crash(node);
            }
            self.plug(node, true);
            self.start(node);
        }
        check::all(self)?;
        // Where every host decides, all go by one file.
        for node in 0..self.nodes.len() {
            let (file, now_ms) = (u8::MAX, self.now_ms);
            let orders = self.nodes[node].reload(now_ms, file);
            self.carry_out(node, orders);
        }
        if self.kind != Kind::EveryHost {
            self.pass(if self.kind == Kind::Web { WEB_HEALED_MS } else { 30_000 })?;
            check::settled(self)?;
            rest::look(self, true)?;
            if self.kind == Kind::Nat {
                rest::returns(self)?;
            }
            if self.kind == Kind::Web {
                web::settled(self)?;
                // It takes as long as all the rest.
                if self.below(3) == 0 {
                    web::returns(self)?;
                    web::settled(self)?;
                }
            }
            return Ok(());
        }
        self.pass(HEALED_MS)?;
        check::settled(self)?;
        self.lose_one()?;
        check::settled(self)
    }

    /// After all that, one host goes and comes back, and nothing else happens: connections are kept
    /// that can be.
    fn lose_one(&mut self) -> Result<(), Broken> {
        let (node, how) = (self.random.below(self.nodes.len()), self.random.below(5));
        self.say(What::Lost(node, how));
        self.hosts.begin_to_keep(self.now_ms);
        (0..CLIENTS / 2).try_for_each(|client| check::connect(self, client))?;
        match how {
            0 => self.nodes[node].kill(self.now_ms),
            1 => self.crash(node),
            2 => self.leave(node),
            3 => self.plug(node, false),
            _ => self.part(1 << node),
        }
        self.pass(GONE_MS)?;
        (0..CLIENTS / 2).try_for_each(|client| check::send(self, client))?;
        (CLIENTS / 2..CLIENTS).try_for_each(|client| check::connect(self, client))?;
        self.part(0);
        self.plug(node, true);
        self.start(node);
        self.pass(GONE_MS)?;
        (0..CLIENTS).try_for_each(|client| check::send(self, client))
    }
}
