/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * Tables of IPv4 sessions, IPv6 sessions and ports. core/src/path/sessions explains them. The same
 * code serves all three; the table is a constant in each inlined call.
 *
 * Memory order: a compare-and-exchange is a full barrier. Plain loads are ordered on x86. On other
 * machines a packet of a session that expires at that moment may follow the new session in its
 * slot.
 */
#ifndef EVENER_SESSIONS_H
#define EVENER_SESSIONS_H

#include "director/extent.h"
#include "director/maps.h"

#define VALUE_CLAIMED ((__u64)STATE_CLAIMED << 16)

/* Returns the time in ticks of 2^20 ns. Jiffies are one load, while clocks are a call and a
 * loop. */
static __always_inline __u32 ticks_now(void)
{
	__u64 jiffy_ns = settings.jiffy_ns;

	if (!jiffy_ns)
		return READ_ONCE(given_now);
	return (bpf_jiffies64() * jiffy_ns) >> 20;
}

/* Key of an IPv4 session as one word. One wider byte swap moves both client and port into position.
 * The compiler would not find this, since it doesn't know that the other bytes are zero. */
static __always_inline __u64 session_key(__be32 client, __be16 port, __u16 vip)
{
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
	return __builtin_bswap64(client) | __builtin_bswap32(port) | vip;
#else
	return (__u64)client << 32 | (__u64)port << 16 | vip;
#endif
}

static __always_inline __u64 value_of(__u16 server, __u8 state, __u32 expires)
{
	return (__u64)expires << 32 | (__u64)state << 16 | server;
}

static __always_inline __u64 with_mark(__u64 value, __u16 mark)
{
	return (value & ~((__u64)MARK_MASK << 20)) | (__u64)(mark & MARK_MASK) << 20;
}

static __always_inline __u16 value_mark(__u64 value)
{
	return value >> 20 & MARK_MASK;
}

static __always_inline __u16 value_server(__u64 value)
{
	return value;
}

static __always_inline __u8 value_state(__u64 value)
{
	return value >> 16 & 0xf;
}

static __always_inline __u32 value_expires(__u64 value)
{
	return value >> 32;
}

/* Returns a value with another state and expiry. */
static __always_inline __u64 moved_to(__u64 value, __u8 state, __u32 expires)
{
	return with_mark(value_of(value_server(value), state, expires), value_mark(value));
}

/* Returns 1 if x < bound, else 0, without a branch. The verifier checks each path, and eight slots
 * with several branches each have too many paths. */
static __always_inline __u64 is_below(__u32 x, __u32 bound)
{
	__u64 difference = (__u64)x - bound;

	hide(difference);
	return difference >> 63;
}

static __always_inline __u64 is_live(__u64 value, __u32 now)
{
	/* STATE_FREE and STATE_CLAIMED are 0 and 1. */
	__u64 is_session = is_below(0, value_state(value) >> 1);
	__u64 is_left = is_below(value_expires(value) - now - 1, LIFE_MAX);

	return is_session & is_left;
}

static __always_inline __u64 is_vacant(__u64 value, __u32 now)
{
	__u64 is_claimed = is_below(value_state(value) ^ STATE_CLAIMED, 1);

	return (is_live(value, now) | is_claimed) ^ 1;
}

/* Sets of states: bit n is state n. */
#define EMBRYONIC (1u << STATE_NEW | 1u << STATE_ANSWERED | 1u << STATE_UDP_NEW | 1u << STATE_UDP_ANSWERED)
#define ENDING (1u << STATE_HALF_CLOSED | 1u << STATE_SERVER_CLOSED | 1u << STATE_CLOSING)
#define ASSURED (1u << STATE_ESTABLISHED | 1u << STATE_UDP)
#define AFFINITY (1u << STATE_AFFINITY)
#define REPLICATED (1u << STATE_REPLICATED | 1u << STATE_UDP_REPLICATED)

static __always_inline __u32 is_active(__u64 value)
{
	return (EMBRYONIC | ASSURED) >> value_state(value) & 1;
}

static __always_inline __u32 is_assured(__u64 value)
{
	return ASSURED >> value_state(value) & 1;
}

static __always_inline __u32 is_ending(__u64 value)
{
	return ENDING >> value_state(value) & 1;
}

static __always_inline __u32 is_affinity(__u64 value)
{
	return AFFINITY >> value_state(value) & 1;
}

/* Two rounds of multiply and fold with secret odd multipliers: core/src/path/sessions, FlowHash. */
static __always_inline __u64 hashed(__u64 key, const volatile __u64 seed[2])
{
	key *= seed[0];
	key ^= key >> 32;
	key *= seed[1];
	return key ^ key >> 32;
}

static __always_inline __u64 flow_hash(__u64 key)
{
	return hashed(key, settings.seed);
}

/* The hash excludes the VIP's id, which differs between hosts. */
static __always_inline __u64 ring_hash(__u64 key)
{
	return hashed(key & ~0xffffULL, settings.ring_seed);
}

static __always_inline __u32 scale(__u32 x, __u32 n)
{
	return ((__u64)x * n) >> 32;
}

/* An IPv4 address is mapped (RFC 4291, section 2.5.5.2). */
static __always_inline struct key6 session_key6(const struct ip *client, bool v6, __be16 port, __u16 vip)
{
	const __u64 *half = (const void *)client;
	struct key6 key = { { 0, 0xffff00000000ULL | bpf_ntohl(client->word[0]),
			      (__u64)bpf_ntohs(port) << 16 | vip } };

	if (v6) {
		key.word[0] = bpf_be64_to_cpu(half[0]);
		key.word[1] = bpf_be64_to_cpu(half[1]);
	}
	return key;
}

/* Returns the key of an IPv4 session as one word, like session_key(). */
static __always_inline __u64 word_of(const struct key6 *key)
{
	return key->word[1] << 32 | key->word[2];
}

static __always_inline __u64 hashed6(const struct key6 *key, __u64 last, const volatile __u64 seed[2])
{
	__u64 hash = key->word[0] * seed[0];

	hash ^= hash >> 32;
	hash = (hash ^ key->word[1]) * seed[1];
	hash ^= hash >> 32;
	hash = (hash ^ last) * seed[0];
	hash ^= hash >> 32;
	hash *= seed[1];
	return hash ^ hash >> 32;
}

static __always_inline __u64 flow_hash6(const struct key6 *key)
{
	return hashed6(key, key->word[2], settings.seed);
}

/* Hash of a session for the table of its IP version. */
static __always_inline __u64 session_hash(const struct key6 *key, bool v6)
{
	return v6 ? flow_hash6(key) : flow_hash(word_of(key));
}

static __always_inline __u64 session_ring_hash(const struct key6 *key, bool v6)
{
	return v6 ? hashed6(key, key->word[2] & ~0xffffULL, settings.ring_seed) : ring_hash(word_of(key));
}

/* Table of a server's pool of ports. */
static __always_inline __u32 ports_of(__u32 server)
{
	return TABLE_PORTS + server % PORT_POOLS;
}

/* Returns the bucket for one half of a hash, and stores the bucket's index. `mask` is the mask of
 * the table's extent. Ports have no extent. */
static __always_inline void *bucket_at(__u32 table, __u32 half, __u32 mask, __u32 *index)
{
	/* Makes the compiler truncate by one move and not by two shifts. */
	hide(half);
	if (table == TABLE_SESSIONS) {
		*index = scale(half, settings.buckets) & mask;
		return bpf_map_lookup_elem(&sessions, index);
	}
	if (table == TABLE_SESSIONS6) {
		*index = scale(half, settings.buckets6) & mask;
		return bpf_map_lookup_elem(&sessions6, index);
	}
	*index = (table - TABLE_PORTS) * POOL_BUCKETS + scale(half, POOL_BUCKETS);
	return bpf_map_lookup_elem(&ports, index);
}

/* Returns the bucket under the current extent. */
static __always_inline void *bucket_now(__u32 table, __u32 half, __u32 *index)
{
	return bucket_at(table, half, table < TABLE_PORTS ? extent_mask(table) : 0, index);
}

/* Returns the number of words of a key in a table. The value follows the key in a slot. */
static __always_inline __u32 key_words(__u32 table)
{
	return table == TABLE_SESSIONS ? 1 : 3;
}

/* Returns the slot at a place. `place` is below BUCKET_SESSIONS. */
static __always_inline __u64 *slot_at(__u32 table, void *bucket, __u32 place)
{
	return (__u64 *)bucket + place * (key_words(table) + 1);
}

static __always_inline bool has_key(__u32 table, const __u64 *slot, const struct key6 *key)
{
	if (table == TABLE_SESSIONS)
		return READ_ONCE(slot[0]) == word_of(key);
	return !((READ_ONCE(slot[2]) ^ key->word[2]) | (READ_ONCE(slot[1]) ^ key->word[1]) |
		 (READ_ONCE(slot[0]) ^ key->word[0]));
}

static __always_inline void count_active(__u64 value, __s64 by)
{
	if (is_active(value))
		__sync_fetch_and_add(&active[value_server(value) % SERVER_SLOTS], by);
}

static __always_inline void count_assured(__u16 vip, __u64 value, __s64 by)
{
	if (is_assured(value))
		__sync_fetch_and_add(&shares[vip % VIP_IDS].assured, by);
}

/* Counts a session or affinity entry that is inserted (1) or removed (-1). */
static __always_inline void count_session(__u16 vip, __u64 value, __s64 by)
{
	if (is_affinity(value))
		__sync_fetch_and_add(&affinities[vip % SERVICES_MAX].entries, by);
	count_active(value, by);
	count_assured(vip, value, by);
}

struct found {
	__u64 *place;
	__u64 value;
	__u32 slot; /* number of the slot in its map */
	__u16 vip;
};

/* Returns a session's preferred slot in its bucket. It comes from the lowest bits of the hash,
 * which don't influence the choice of the bucket. */
static __always_inline __u32 home_of(__u64 hash)
{
	return hash % BUCKET_SESSIONS;
}

/* Returns the next slot in a bucket. The result is hidden from the compiler, so that it doesn't
 * create a branch for each slot. */
static __always_inline __u32 next_place(__u32 place)
{
	place = (place + 1) % BUCKET_SESSIONS;
	hide(place);
	return place % BUCKET_SESSIONS;
}

/* True if the slot has the session with this key and the session is live. Fills in `found`. */
static __always_inline bool is_session(__u32 table, __u64 *slot, const struct key6 *key, __u32 now, struct found *found)
{
	found->place = slot + key_words(table);
	found->vip = key->word[2];
	found->value = READ_ONCE(*found->place);
	return has_key(table, slot, key) && is_live(found->value, now);
}

/* True if a slot of the bucket has an IPv4 session's key. The loop is short, since an unknown flow
 * has to be compared with all slots of two buckets. */
static __always_inline bool may_have(struct bucket *bucket, __u64 key)
{
	for (int i = 0; i < BUCKET_SESSIONS; i++)
		if (READ_ONCE(bucket->slot[i].key) == key)
			return true;
	return false;
}

/* Returns the slot of the bucket that has the key, or NULL. On entry `place` is the key's preferred
 * slot, on return the slot that was found. */
static __always_inline __u64 *look_in(__u32 table, void *bucket, const struct key6 *key, __u32 *place)
{
	for (int i = 0; i < BUCKET_SESSIONS; i++) {
		if (has_key(table, slot_at(table, bucket, *place), key))
			return slot_at(table, bucket, *place);
		*place = next_place(*place);
	}
	return 0;
}

#define NOT_FOUND (~0u)

/* Arguments and result of a search. */
struct wanted {
	const struct key6 *key;
	__u64 hash;
	__u32 now;
	__u32 slot; /* place as found, or NOT_FOUND */
};

/* Returns the number of a live session's slot in the bucket for `half` of the hash, or
 * NOT_FOUND. */
static __always_inline __u32 find_half(__u32 table, const struct wanted *wanted, __u32 half, __u32 mask,
				       struct found *found)
{
	__u32 index, place = home_of(wanted->hash);
	void *bucket = bucket_at(table, half, mask, &index);
	__u64 *slot;

	if (!bucket || (table == TABLE_SESSIONS && !may_have(bucket, word_of(wanted->key))))
		return NOT_FOUND;
	slot = look_in(table, bucket, wanted->key, &place);
	if (!slot || !is_session(table, slot, wanted->key, wanted->now, found))
		return NOT_FOUND;
	return index * BUCKET_SESSIONS + place;
}

static __always_inline long look_again_in(__u32 table, __u32 turn, struct wanted *wanted)
{
	struct found found = {};

	wanted->slot = find_half(table, wanted, half_in_turn(wanted->hash, turn), mask_in_turn(table, turn), &found);
	return wanted->slot != NOT_FOUND;
}

static long look_again(__u32 turn, void *arg)
{
	return look_again_in(TABLE_SESSIONS, turn, arg);
}

static long look_again6(__u32 turn, void *arg)
{
	return look_again_in(TABLE_SESSIONS6, turn, arg);
}

/* Returns the number of a session's slot while the table is resized, or NOT_FOUND. Not inlined: the
 * verifier checks this code only once. */
__attribute__((noinline)) __u32 find_moving(__u32 table, const struct key6 *key, __u64 hash, __u32 now)
{
	struct wanted wanted = { .key = key, .hash = hash, .now = now, .slot = NOT_FOUND };

	if (!key)
		return NOT_FOUND;
	if (table == TABLE_SESSIONS)
		bpf_loop(MOVING_TURNS, look_again, &wanted, 0);
	else
		bpf_loop(MOVING_TURNS, look_again6, &wanted, 0);
	return wanted.slot;
}

/* Returns the slot with a number, or NULL. */
static __always_inline __u64 *slot_by_number(__u32 table, __u32 number)
{
	__u32 index = number / BUCKET_SESSIONS;
	void *bucket = table == TABLE_SESSIONS ? bpf_map_lookup_elem(&sessions, &index) :
						 bpf_map_lookup_elem(&sessions6, &index);

	return bucket ? slot_at(table, bucket, number % BUCKET_SESSIONS) : 0;
}

/* Returns the address of the value of the slot with a number, or NULL. */
static __always_inline __u64 *value_by_number(__u32 table, __u32 number)
{
	__u64 *slot = slot_by_number(table, number);

	return slot ? slot + key_words(table) : 0;
}

/* Finds a live session, or the port that is allocated to a session. Returns false if there is no
 * such entry. */
static __always_inline bool find(__u32 table, const struct key6 *key, __u64 hash, __u32 now, struct found *found)
{
	struct wanted wanted = { .key = key, .hash = hash, .now = now };
	__u32 mask = table < TABLE_PORTS ? extent_mask(table) : 0;
	__u64 *slot;

	found->slot = find_half(table, &wanted, hash, mask, found);
	if (found->slot == NOT_FOUND)
		found->slot = find_half(table, &wanted, hash >> 32, mask, found);
	if (found->slot != NOT_FOUND)
		return true;
	if (table >= TABLE_PORTS || !is_moving(table))
		return false;
	found->slot = find_moving(table, key, hash, now);
	slot = found->slot == NOT_FOUND ? 0 : slot_by_number(table, found->slot);
	return slot && is_session(table, slot, key, now, found);
}

static __always_inline bool find_session(const struct key6 *key, bool v6, __u64 hash, __u32 now, struct found *found)
{
	return v6 ? find(TABLE_SESSIONS6, key, hash, now, found) : find(TABLE_SESSIONS, key, hash, now, found);
}

static __always_inline bool change_session(struct found *found, __u64 to)
{
	if (__sync_val_compare_and_swap(found->place, found->value, to) != found->value)
		return false;
	if (is_active(found->value) != is_active(to) || value_server(found->value) != value_server(to)) {
		count_active(found->value, -1);
		count_active(to, 1);
	}
	if (is_assured(found->value) != is_assured(to)) {
		count_assured(found->vip, found->value, -1);
		count_assured(found->vip, to, 1);
	}
	return true;
}

static __always_inline __u32 vacant(__u32 table, void *bucket, __u32 now)
{
	__u32 vacant = 0;

	for (int i = 0; i < BUCKET_SESSIONS; i++)
		vacant += is_vacant(READ_ONCE(slot_at(table, bucket, i)[key_words(table)]), now);
	return vacant;
}

/* Claims a slot. Returns false if the slot isn't vacant. Ports aren't counted, since their sessions
 * are. */
static __always_inline bool claim(__u32 table, __u64 *slot, __u32 now)
{
	/* The last word of a key has the VIP id. */
	__u64 *place = slot + key_words(table), vip = READ_ONCE(place[-1]), value = READ_ONCE(*place);

	if (!is_vacant(value, now) || __sync_val_compare_and_swap(place, value, VALUE_CLAIMED) != value)
		return false;
	if (table < TABLE_PORTS)
		count_session(vip, value, -1);
	return true;
}

static __always_inline void fill(__u32 table, __u64 *slot, const struct key6 *key, __u64 value)
{
	if (table == TABLE_SESSIONS) {
		WRITE_ONCE(slot[0], word_of(key));
	} else {
		WRITE_ONCE(slot[0], key->word[0]);
		WRITE_ONCE(slot[1], key->word[1]);
		WRITE_ONCE(slot[2], key->word[2]);
	}
	WRITE_ONCE(slot[key_words(table)], value);
	if (table < TABLE_PORTS)
		count_session(key->word[2], value, 1);
}

/* A new session, or allocation of a port. */
struct entry {
	const struct key6 *key;
	__u64 hash;
	__u64 value;
	__u32 now;
};

/* Inserts an entry in a bucket. Returns the number of its slot in the bucket, or BUCKET_SESSIONS if
 * the bucket is full. */
static __always_inline __u32 insert_in(__u32 table, void *bucket, const struct entry *entry)
{
	__u32 place = home_of(entry->hash);

	for (int i = 0; i < BUCKET_SESSIONS; i++, place = next_place(place)) {
		__u64 *slot = slot_at(table, bucket, place);

		if (claim(table, slot, entry->now)) {
			fill(table, slot, entry->key, entry->value);
			return place;
		}
	}
	return BUCKET_SESSIONS;
}

/* Inserts an entry in the emptier one of its buckets. For an affinity entry, a bucket is full when
 * it is half full. Returns the number of its slot, or NOT_FOUND. */
static __always_inline __u32 insert(__u32 table, const struct entry *entry)
{
	__u32 index1, index2, place, vacant1, vacant2;
	void *first = bucket_now(table, entry->hash, &index1);
	void *second = bucket_now(table, entry->hash >> 32, &index2);

	if (!first || !second)
		return NOT_FOUND;
	vacant1 = vacant(table, first, entry->now);
	/* Usually the first bucket is not half full, and the second isn't read. */
	vacant2 = vacant1 < BUCKET_SESSIONS / 2 ? vacant(table, second, entry->now) : 0;
	if (vacant2 > vacant1) {
		void *fuller = first;
		__u32 index = index1;

		first = second;
		second = fuller;
		index1 = index2;
		index2 = index;
		vacant1 = vacant2;
	}
	if (is_affinity(entry->value) && vacant1 < BUCKET_SESSIONS / 2)
		return NOT_FOUND;
	place = insert_in(table, first, entry);
	if (place < BUCKET_SESSIONS)
		return index1 * BUCKET_SESSIONS + place;
	place = insert_in(table, second, entry);
	return place < BUCKET_SESSIONS ? index2 * BUCKET_SESSIONS + place : NOT_FOUND;
}

/* insert() for each of the tables. Not inlined: few packets open a session, and the verifier checks
 * each function only once. */
__attribute__((noinline)) int insert_session(const struct key6 *key, __u64 hash, __u64 value, __u32 now)
{
	struct entry entry = { key, hash, value, now };

	return key && insert(TABLE_SESSIONS, &entry) != NOT_FOUND;
}

__attribute__((noinline)) int insert_session6(const struct key6 *key, __u64 hash, __u64 value, __u32 now)
{
	struct entry entry = { key, hash, value, now };

	return key && insert(TABLE_SESSIONS6, &entry) != NOT_FOUND;
}

/* Allocates a vacant port. Returns its number in `ports`, or NOT_FOUND. */
__attribute__((noinline)) __u32 insert_port(const struct key6 *key, __u64 hash, __u64 value, __u32 now)
{
	struct entry entry = { key, hash, value, now };

	return key ? insert(ports_of(value_server(value)), &entry) : NOT_FOUND;
}

/* Rank of sessions that are never evicted. The session with the lowest rank is evicted first. */
#define STAYS (~0ULL)
#define NO_SOURCE (~0ULL)

/* Returns the network of a client: IPv4 /24 or IPv6 /56. IPv4 addresses are mapped in keys of three
 * words. */
static __always_inline __u64 source_of(__u32 table, const __u64 *key)
{
	if (table == TABLE_SESSIONS)
		return key[0] >> 40;
	return (key[0] ? key[0] : key[1]) >> 8;
}

/* Returns the number of embryonic sessions, including the new one, whose client is in another
 * network than `source`. It has no branch, like is_below(). */
static __always_inline __u64 others(const struct weighed *first, __u64 source)
{
	__u64 count = 0;

	for (int i = 0; i <= 2 * BUCKET_SESSIONS; i++) {
		__u64 differs = first->sources[i] ^ source;

		differs |= -differs;
		hide(differs);
		count += differs >> 63;
	}
	return count;
}

static __always_inline bool is_short(__u16 vip)
{
	const struct share *share = &shares[vip % VIP_IDS];

	return READ_ONCE(share->assured) < READ_ONCE(share->own);
}

/* Returns the rank of a session for eviction. The session with the lowest rank is evicted first.
 * Embryonic sessions come first, beginning with those of the network that has most of them. They
 * are followed by replicated sessions, affinity entries, ending sessions, then by assured sessions
 * of VIPs above their share. Within a class the session with the shortest remaining lifetime comes
 * first. */
static __always_inline __u64 rank(const struct weighed *first, __u64 value, __u16 vip, __u64 source)
{
	const struct share *share = &shares[vip % VIP_IDS];
	__u64 left = value_expires(value) - first->now, bit = 1u << value_state(value);

	if (!(bit & first->may_go))
		return STAYS;
	if (bit & EMBRYONIC)
		return others(first, source) << 32 | left;
	if (bit & REPLICATED)
		return 1ULL << 38 | left;
	if (bit & AFFINITY)
		return 1ULL << 39 | left;
	if (bit & ENDING)
		return 1ULL << 40 | left;
	if (bit & ASSURED && first->takes && READ_ONCE(share->assured) > READ_ONCE(share->own))
		return 2ULL << 40 | left;
	return STAYS;
}

/* Search for the session to evict in two full buckets. */
struct going {
	void *one, *other;
	struct weighed *first;
};

/* Starts the search for a new entry. False if a map lookup failed. */
static __always_inline bool begin_going(struct going *going, __u32 table, const struct entry *entry)
{
	const struct key6 *key = entry->key;
	__u64 word = word_of(key);
	struct scratch *at = scratch_here();

	if (!going->one || !going->other || !at)
		return false;
	going->first = &at->weighed;
	going->first->rank = STAYS;
	going->first->now = entry->now;
	going->first->may_go = is_affinity(entry->value) ? AFFINITY : EMBRYONIC | REPLICATED | AFFINITY | ENDING | ASSURED;
	going->first->place = 0;
	/* Ports have no shares. */
	going->first->takes = table < TABLE_PORTS && is_short(key->word[2]);
	going->first->sources[2 * BUCKET_SESSIONS] = source_of(table, table == TABLE_SESSIONS ? &word : key->word);
	return true;
}

static __always_inline __u64 *slot_of(__u32 table, const struct going *going, __u32 place)
{
	return slot_at(table, place < BUCKET_SESSIONS ? going->one : going->other, place % BUCKET_SESSIONS);
}

/* Copy of a slot. Other CPUs may change the slot while it is read. */
struct slot_copy {
	__u64 source;
	__u64 value;
	__u16 vip;
	bool is_whole; /* the key was the same before and after the value was read */
};

static __always_inline struct slot_copy read_slot(__u32 table, const struct going *going, __u32 place)
{
	__u64 *slot = slot_of(table, going, place), key[3] = {}, differs = 0;
	struct slot_copy copy;

	for (int i = 0; i < key_words(table); i++)
		key[i] = READ_ONCE(slot[i]);
	copy.value = READ_ONCE(slot[key_words(table)]);
	for (int i = 0; i < key_words(table); i++)
		differs |= READ_ONCE(slot[i]) ^ key[i];
	copy.is_whole = !differs;
	copy.source = source_of(table, key);
	copy.vip = key[key_words(table) - 1];
	return copy;
}

static __always_inline long note_source(__u32 table, __u32 place, const struct going *going)
{
	struct slot_copy copy = read_slot(table, going, place);
	bool counts = copy.is_whole && EMBRYONIC >> value_state(copy.value) & 1;

	going->first->sources[place % (2 * BUCKET_SESSIONS)] = counts ? copy.source : NO_SOURCE;
	return 0;
}

/* Compares a slot's session with the candidate. A slot that changed while it was read isn't
 * evicted. */
static __always_inline long weigh(__u32 table, __u32 place, const struct going *going)
{
	struct slot_copy copy = read_slot(table, going, place);
	struct weighed *first = going->first;
	__u64 its = copy.is_whole ? rank(first, copy.value, copy.vip, copy.source) : STAYS;

	if (its >= first->rank)
		return 0;
	first->rank = its;
	first->value = copy.value;
	first->place = place;
	first->vip = copy.vip;
	return 0;
}

static long note_source4(__u32 place, void *arg)
{
	return note_source(TABLE_SESSIONS, place, arg);
}

static long note_source6(__u32 place, void *arg)
{
	return note_source(TABLE_SESSIONS6, place, arg);
}

static long weigh4(__u32 place, void *arg)
{
	return weigh(TABLE_SESSIONS, place, arg);
}

static long weigh6(__u32 place, void *arg)
{
	return weigh(TABLE_SESSIONS6, place, arg);
}

/* Claims the slot of the candidate for eviction. Returns false if no session may be evicted, or
 * another CPU has changed the candidate. */
static __always_inline bool claim_candidate(const struct weighed *first, __u64 *place)
{
	return first->rank != STAYS &&
	       __sync_val_compare_and_swap(place, first->value, VALUE_CLAIMED) == first->value;
}

/* Inserts an entry by evicting another one. Returns the number of its slot, or NOT_FOUND. */
static __always_inline __u32 replace_in(__u32 table, const struct entry *entry)
{
	struct going going = {};
	__u32 index1, index2, place;
	__u64 *slot;

	going.one = bucket_now(table, entry->hash, &index1);
	going.other = bucket_now(table, entry->hash >> 32, &index2);
	if (!begin_going(&going, table, entry))
		return NOT_FOUND;
	if (table == TABLE_SESSIONS) {
		bpf_loop(2 * BUCKET_SESSIONS, note_source4, &going, 0);
		bpf_loop(2 * BUCKET_SESSIONS, weigh4, &going, 0);
	} else {
		bpf_loop(2 * BUCKET_SESSIONS, note_source6, &going, 0);
		bpf_loop(2 * BUCKET_SESSIONS, weigh6, &going, 0);
	}
	place = going.first->place;
	slot = slot_of(table, &going, place);
	if (!claim_candidate(going.first, slot + key_words(table)))
		return NOT_FOUND;
	if (table < TABLE_PORTS)
		count_session(going.first->vip, going.first->value, -1);
	if (is_affinity(going.first->value))
		__sync_fetch_and_add(&affinities[going.first->vip % SERVICES_MAX].evicted, 1);
	fill(table, slot, entry->key, entry->value);
	return (place < BUCKET_SESSIONS ? index1 : index2) * BUCKET_SESSIONS + place % BUCKET_SESSIONS;
}

/* replace_in() for all tables. Not inlined: only full buckets need it. */
__attribute__((noinline)) __u32 replace(__u32 table, const struct key6 *key, __u64 hash, __u64 value, __u32 now)
{
	struct entry entry = { key, hash, value, now };

	if (!key)
		return NOT_FOUND;
	if (table == TABLE_SESSIONS)
		return replace_in(TABLE_SESSIONS, &entry);
	if (table == TABLE_SESSIONS6)
		return replace_in(TABLE_SESSIONS6, &entry);
	return replace_in(ports_of(value_server(value)), &entry);
}

/* Allocates a source port for a session. Returns the port, or 0. */
static __always_inline __u16 allocate_port(const struct key6 *key, __u64 hash, __u64 value, __u32 now)
{
	__u32 pool = value_server(value) % PORT_POOLS, number = insert_port(key, hash, value, now);

	for (int i = 0; i < 2; i++)
		if (number == NOT_FOUND)
			number = replace(TABLE_PORTS, key, hash, value, now);
	return number == NOT_FOUND ? 0 : FIRST_PORT + number - pool * PORTS;
}

#endif
