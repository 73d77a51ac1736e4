//! End of a run: all faults end, and some time later the farm must serve everything.

use crate::check::{self, Broken, Promise};
use crate::farms::{Kind, SERVERS_MAX};
use crate::history::What;
use crate::rest;
use crate::step::CLIENTS;
use crate::web;
use crate::world::World;

/// Time after the last fault until an every-host farm must serve everything, in milliseconds.
const HEALED_MS: u64 = 16_000;
/// Time after the last fault until a farm with a group must serve everything, in milliseconds. The
/// group's members may join later.
const WEB_HEALED_MS: u64 = 20_000;
/// Time for which a host is gone, so that others take over, and time for its return, in
/// milliseconds.
const GONE_MS: u64 = 12_000;

impl World {
    /// Ends all faults and waits for the farm to recover.
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
        // In every-host placement all nodes get one file.
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
                // This check takes as long as all others together.
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

    /// Makes one host fail and return while nothing else happens, and checks that connections are
    /// kept where possible.
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
