//! Limits the number of clients. Each client's connection occupies a slot of the limit. If all
//! slots are occupied, the source with the most slots loses a slot.
//!
//! The slots of each source are counted by [`slots_by_source`](crate::runtime::slots_by_source).

use std::future::poll_fn;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::task::unconstrained;

use crate::runtime::slots_by_source::{ClientSource, SlotsBySource, source};

/// Limit on the number of clients. Clones share the same slots.
#[derive(Clone)]
pub(crate) struct ConnectionLimit(Arc<LimitState>);

struct LimitState {
    places: Arc<Semaphore>,
    table: Mutex<SlotTable>,
}

/// Connections that may be evicted.
#[derive(Default)]
struct SlotTable {
    slots: SlotsBySource<oneshot::Sender<()>>,
    /// Number of clients that wait for a slot.
    waiting: usize,
    /// Number of waiting clients for which no connection has been evicted yet.
    owed: usize,
}

/// Slot of a client. Dropping it frees the slot.
pub(crate) struct ConnectionSlot {
    shared: Arc<LimitState>,
    source: ClientSource,
    ticket: u64,
    /// Resolves when the connection is evicted. `None` while the slot is kept
    /// ([`ConnectionSlot::keep`]).
    needed: Option<oneshot::Receiver<()>>,
    _place: Option<OwnedSemaphorePermit>,
}

/// Registers a waiting client until dropped.
struct WaitGuard<'s>(&'s LimitState);

impl ConnectionLimit {
    pub(crate) fn new(count: usize) -> ConnectionLimit {
        ConnectionLimit(Arc::new(LimitState {
            places: Arc::new(Semaphore::new(count)),
            table: Mutex::default(),
        }))
    }

    /// Returns a slot for a client. If no slot is free, another connection is evicted, and the
    /// client waits until that connection has ended.
    pub(crate) async fn acquire(&self, client: IpAddr) -> ConnectionSlot {
        // Without tokio's task budget: a task with an exhausted budget would see no free slot even
        // if there is one, and evict a client for nothing.
        let mut place = pin!(unconstrained(Arc::clone(&self.0.places).acquire_owned()));
        // The client enters the semaphore's queue before another connection is evicted. Otherwise a
        // third client could occupy the freed slot without a separate eviction.
        let mut waiting = None;
        let place = poll_fn(|context| {
            let place = place.as_mut().poll(context);
            if place.is_pending() && waiting.is_none() {
                waiting = Some(WaitGuard::begin(&self.0));
            }
            place
        });
        // The semaphore is never closed.
        let place = place.await.ok();
        drop(waiting);
        let ticket = self.0.table().slots.ticket();
        let shared = Arc::clone(&self.0);
        let mut slot = ConnectionSlot { shared, source: source(client), ticket, needed: None, _place: place };
        slot.offer();
        slot
    }
}

impl LimitState {
    fn table(&self) -> MutexGuard<'_, SlotTable> {
        // A panic leaves the table consistent.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WaitGuard<'_> {
    fn begin(shared: &LimitState) -> WaitGuard<'_> {
        let mut table = shared.table();
        table.waiting += 1;
        table.owed += 1;
        table.evict_owed();
        drop(table);
        WaitGuard(shared)
    }
}

impl Drop for WaitGuard<'_> {
    fn drop(&mut self) {
        let mut table = self.0.table();
        table.waiting -= 1;
        // Slots also become free without an eviction, so fewer evictions may be owed.
        table.owed = table.owed.min(table.waiting);
    }
}

impl ConnectionSlot {
    /// Runs `work`. Returns `None` as soon as the connection is evicted.
    pub(crate) async fn unless_evicted<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        let mut work = pin!(work);
        poll_fn(|context| match work.as_mut().poll(context) {
            Poll::Ready(done) => Poll::Ready(Some(done)),
            Poll::Pending => self.poll_evicted(context).map(|()| None),
        })
        .await
    }

    /// Ready once the connection is evicted.
    pub(crate) fn poll_evicted(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let Some(needed) = &mut self.needed else { return Poll::Pending };
        let wait = Pin::new(needed).poll(context).map(drop);
        if wait.is_ready() {
            self.needed = None;
        }
        wait
    }

    /// Protects the slot from eviction, for a bounded time. If the connection was just evicted,
    /// another connection is evicted instead.
    pub(crate) fn keep(&mut self) {
        let mut table = self.shared.table();
        if table.slots.give_back(self.source, self.ticket).is_none() && self.needed.is_some() {
            table.owed = (table.owed + 1).min(table.waiting);
            table.evict_owed();
        }
        drop(table);
        self.needed = None;
    }

    /// Marks the connection as just used. Of a source's connections, the least recently used
    /// connection is evicted first.
    pub(crate) fn renew(&mut self) {
        let mut table = self.shared.table();
        // An evicted connection stays evicted.
        if let Some(gone) = table.slots.give_back(self.source, self.ticket) {
            self.ticket = table.slots.ticket();
            table.slots.insert(self.source, self.ticket, gone);
        }
    }

    /// Allows eviction of the connection again.
    pub(crate) fn offer(&mut self) {
        let (gone, needed) = oneshot::channel();
        self.needed = Some(needed);
        let mut table = self.shared.table();
        table.slots.insert(self.source, self.ticket, gone);
        table.evict_owed();
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.shared.table().slots.give_back(self.source, self.ticket);
    }
}

impl SlotTable {
    /// Evicts as many connections as are owed, or all that may be evicted.
    fn evict_owed(&mut self) {
        while self.owed > 0 {
            let Some((_, gone)) = self.slots.take_away() else { return };
            // A connection without a receiver is ending already.
            let _ = gone.send(());
            self.owed -= 1;
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::future::pending;
    use std::task::{Wake, Waker};

    use tokio::task::JoinHandle;

    use super::*;

    fn client(address: &str) -> IpAddr {
        address.parse().unwrap()
    }

    /// Thread with a connection that ends as soon as it is evicted, and with a client that acquires
    /// any free slot.
    struct OtherThread {
        limit: ConnectionLimit,
        evicted: Mutex<Option<OwnedSemaphorePermit>>,
        taken: Mutex<Option<OwnedSemaphorePermit>>,
    }

    impl Wake for OtherThread {
        fn wake(self: Arc<Self>) {
            drop(self.evicted.lock().unwrap().take());
            *self.taken.lock().unwrap() = Arc::clone(&self.limit.0.places).try_acquire_owned().ok();
        }
    }

    #[tokio::test]
    async fn place_of_an_evicted_connection_goes_to_the_client_it_was_evicted_for() {
        let limit = ConnectionLimit::new(1);
        let mut slot = limit.acquire(client("192.0.2.1")).await;
        let evicted = Mutex::new(slot._place.take());
        let other = Arc::new(OtherThread { limit: limit.clone(), evicted, taken: Mutex::default() });
        let waker = Waker::from(Arc::clone(&other));
        assert!(slot.poll_evicted(&mut Context::from_waker(&waker)).is_pending());
        let mut waiting = pin!(limit.acquire(client("192.0.2.2")));
        let mut context = Context::from_waker(Waker::noop());
        assert!(waiting.as_mut().poll(&mut context).is_pending());
        assert!(other.taken.lock().unwrap().is_none(), "the place belongs to the waiting client");
        assert!(waiting.poll(&mut context).is_ready());
    }

    /// True if the connection is evicted, without waiting.
    fn is_needed(slot: &mut ConnectionSlot) -> bool {
        slot.needed.as_mut().is_some_and(|needed| needed.try_recv().is_ok())
    }

    /// Holds the slot until the connection is evicted.
    fn sit(mut slot: ConnectionSlot) -> JoinHandle<()> {
        tokio::spawn(async move { slot.unless_evicted(pending::<()>()).await.unwrap_or_default() })
    }

    #[tokio::test]
    async fn task_without_budget_evicts_nobody_while_places_are_free() {
        // A task's budget is 128 operations.
        const CLIENTS: usize = 1_000;
        let limit = ConnectionLimit::new(CLIENTS);
        let mut slots = Vec::new();
        for _ in 0..CLIENTS {
            slots.push(limit.acquire(client("192.0.2.1")).await);
        }
        assert!(!slots.iter_mut().any(is_needed));
    }

    #[tokio::test]
    async fn source_with_most_slots_loses_its_oldest() {
        let limit = ConnectionLimit::new(5);
        let mut greedy = Vec::new();
        for _ in 0..3 {
            greedy.push(sit(limit.acquire(client("203.0.113.7")).await));
        }
        let first = sit(limit.acquire(client("203.0.113.8")).await);
        let second = sit(limit.acquire(client("203.0.113.9")).await);
        // a client acquires the slot: another client, or the evicted one again
        let mut late = vec![limit.acquire(client("203.0.113.8")).await];
        assert_eq!(greedy.iter().map(JoinHandle::is_finished).collect::<Vec<_>>(), [true, false, false]);
        late.push(limit.acquire(client("203.0.113.10")).await);
        assert_eq!(greedy.iter().map(JoinHandle::is_finished).collect::<Vec<_>>(), [true, true, false]);
        // 203.0.113.8 holds two slots by now, and its older connection is evicted
        late.push(limit.acquire(client("203.0.113.7")).await);
        assert!(first.is_finished() && !second.is_finished() && !greedy[2].is_finished());
        assert!(!late.iter_mut().any(is_needed));
        assert_eq!(limit.0.places.available_permits(), 0);
    }

    #[tokio::test]
    async fn among_equals_the_slowest_goes() {
        let limit = ConnectionLimit::new(3);
        let mut sitting = Vec::new();
        for last in [3, 1, 2] {
            sitting.push(sit(limit.acquire(IpAddr::from([203, 0, 113, last])).await));
        }
        let mut late = Vec::new();
        for turn in 0..3 {
            late.push(sit(limit.acquire(IpAddr::from([203, 0, 113, 10 + turn])).await));
            let gone: Vec<bool> = sitting.iter().map(JoinHandle::is_finished).collect();
            assert_eq!(gone, [0, 1, 2].map(|at| at <= turn), "in the order in which they came");
        }
    }

    #[tokio::test]
    async fn of_a_source_the_one_that_was_of_no_use_for_longest_goes() {
        let limit = ConnectionLimit::new(3);
        let mut held = Vec::new();
        for _ in 0..3 {
            held.push(limit.acquire(client("203.0.113.7")).await);
        }
        held[0].renew();
        held[1].renew();
        let late = tokio::spawn({
            let limit = limit.clone();
            async move { limit.acquire(client("203.0.113.8")).await }
        });
        tokio::task::yield_now().await;
        assert_eq!(held.iter_mut().map(is_needed).collect::<Vec<_>>(), [false, false, true]);
        held[2].renew();
        drop(held.pop());
        late.await.unwrap();
    }

    #[tokio::test]
    async fn a_network_of_ipv6_is_one_source() {
        let limit = ConnectionLimit::new(3);
        let same = ["2001:db8:0:1::1", "2001:db8:0:1:ffff::2"].map(client);
        let other = sit(limit.acquire(client("2001:db8:0:2::1")).await);
        let (first, second) = (sit(limit.acquire(same[0]).await), sit(limit.acquire(same[1]).await));
        let _late = limit.acquire(client("::ffff:203.0.113.7")).await;
        assert!(first.is_finished() && !second.is_finished() && !other.is_finished());
    }

    #[tokio::test]
    async fn kept_slot_is_not_evicted_until_offered_again() {
        let limit = ConnectionLimit::new(2);
        let address = client("203.0.113.7");
        let (mut kept, mut offered) = (limit.acquire(address).await, limit.acquire(address).await);
        kept.keep();
        let late = tokio::spawn({
            let limit = limit.clone();
            async move { limit.acquire(client("203.0.113.8")).await }
        });
        tokio::task::yield_now().await;
        assert!(offered.unless_evicted(pending::<()>()).await.is_none());
        // the evicted client is slow to leave, and all other clients are busy
        let later = tokio::spawn({
            let limit = limit.clone();
            async move { limit.acquire(client("203.0.113.9")).await }
        });
        tokio::task::yield_now().await;
        kept.offer();
        assert!(is_needed(&mut kept), "somebody waits for it");
        drop((kept, offered));
        let (late, later) = (late.await.unwrap(), later.await.unwrap());
        drop((late, later));
        let table = limit.0.table();
        assert!(table.slots.is_empty());
        assert_eq!((table.waiting, table.owed, limit.0.places.available_permits()), (0, 0, 2));
    }

    #[tokio::test]
    async fn slot_that_ignores_eviction_makes_next_one_evicted() {
        let limit = ConnectionLimit::new(2);
        let (mut first, mut second) =
            (limit.acquire(client("203.0.113.7")).await, limit.acquire(client("203.0.113.8")).await);
        let late = tokio::spawn({
            let limit = limit.clone();
            async move { limit.acquire(client("203.0.113.9")).await }
        });
        tokio::task::yield_now().await;
        first.keep();
        assert!(is_needed(&mut second));
        drop(second);
        late.await.unwrap();
    }

    #[tokio::test]
    async fn cancelled_wait_evicts_no_slot() {
        let limit = ConnectionLimit::new(1);
        let mut kept = limit.acquire(client("203.0.113.7")).await;
        kept.keep();
        let late = tokio::spawn({
            let limit = limit.clone();
            async move { limit.acquire(client("203.0.113.8")).await }
        });
        tokio::task::yield_now().await;
        late.abort();
        assert!(late.await.is_err());
        kept.offer();
        assert!(!is_needed(&mut kept));
    }
}
