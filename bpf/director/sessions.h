/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * The session table: core/src/path/sessions, whose comments say why. Memory order: a
 * compare-and-exchange is a full barrier; plain loads are ordered on x86, and elsewhere the worst
 * is that one packet of a session which expired at this instant follows its slot's next owner.
 */
#ifndef EVENER_SESSIONS_H
#define EVENER_SESSIONS_H

#include "director/extent.h"
#include "director/maps.h"

#define VALUE_CLAIMED ((__u64)STATE_CLAIMED << 16)

/* Jiffies are one load; any of the clocks is a call and a loop. */
static __always_inline __u32 ticks_now(void)
{
	__u64 jiffy_ns = settings.jiffy_ns;

	if (!jiffy_ns)
		return READ_ONCE(given_now);
	return (bpf_jiffies64() * jiffy_ns) >> 20;
}

/* Client and port are turned to where they belong at once: the compiler doesn't see that what is
 * beside them is zero. */
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

/* The same in another state, until another time. */
static __always_inline __u64 moved_to(__u64 value, __u8 state, __u32 expires)
{
	return with_mark(value_of(value_server(value), state, expires), value_mark(value));
}

/* Whether x < bound, as a number and without a branch: the verifier follows each branch apart,
 * and eight places with several branches each are more ways than it walks. */
static __always_inline __u64 is_below(__u32 x, __u32 bound)
{
	__u64 difference = (__u64)x - bound;

	hide(difference);
	return difference >> 63;
}

static __always_inline __u64 is_live(__u64 value, __u32 now)
{
	/* The two states below have no bit but the lowest. */
	__u64 is_session = is_below(0, value_state(value) >> 1);
	__u64 is_left = is_below(value_expires(value) - now - 1, LIFE_MAX);

	return is_session & is_left;
}

static __always_inline __u64 is_vacant(__u64 value, __u32 now)
{
	__u64 is_claimed = is_below(value_state(value) ^ STATE_CLAIMED, 1);

	return (is_live(value, now) | is_claimed) ^ 1;
}

/* Bits of states. */
#define EMBRYONIC (1u << STATE_NEW | 1u << STATE_ANSWERED | 1u << STATE_UDP_NEW | 1u << STATE_UDP_ANSWERED)
#define ENDING (1u << STATE_HALF_CLOSED | 1u << STATE_SERVER_CLOSED | 1u << STATE_CLOSING)
#define ASSURED (1u << STATE_ESTABLISHED | 1u << STATE_UDP)

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

/* Two rounds of multiply and fold, with secret multipliers, which are odd:
 * core/src/path/sessions, FlowHash. */
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

/* Without the VIP's id, which is this host's own affair. */
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

static __always_inline __u64 ring_hash6(const struct key6 *key)
{
	return hashed6(key, key->word[2] & ~0xffffULL, settings.ring_seed);
}

/* By the lower half of a hash, or by the upper one. */
static __always_inline __u32 bucket_index(__u32 half, __u32 mask)
{
	/* Taken in one instruction, not by two shifts. */
	hide(half);
	return scale(half, settings.buckets) & mask;
}

static __always_inline struct bucket *first_bucket(__u64 hash)
{
	__u32 index = bucket_index(hash, extent_mask(EXTENT_SESSIONS));

	return bpf_map_lookup_elem(&sessions, &index);
}

static __always_inline struct bucket *second_bucket(__u64 hash)
{
	__u32 index = bucket_index(hash >> 32, extent_mask(EXTENT_SESSIONS));

	return bpf_map_lookup_elem(&sessions, &index);
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

/* A session that comes or goes. */
static __always_inline void count_session(__u16 vip, __u64 value, __s64 by)
{
	count_active(value, by);
	count_assured(vip, value, by);
}

struct found {
	__u64 *place;
	__u64 value;
	__u32 slot; /* in its map */
	__u16 vip;
};

/* Where in its bucket a session is looked for first, and then round: the lowest bits of its
 * hash, by which no bucket is named. */
static __always_inline __u32 home_of(__u64 hash)
{
	return hash % BUCKET_SESSIONS;
}

/* The next place; hidden, so that the compiler makes no case of each, which the verifier would
 * follow apart. */
static __always_inline __u32 next_place(__u32 place)
{
	place = (place + 1) % BUCKET_SESSIONS;
	hide(place);
	return place % BUCKET_SESSIONS;
}

/* The key's place in the bucket, or NULL. */
static __always_inline struct session *place_in(struct bucket *bucket, __u64 key, __u32 home, __u32 *place)
{
	*place = home;
	for (int i = 0; i < BUCKET_SESSIONS; i++) {
		if (READ_ONCE(bucket->slot[*place].key) == key)
			return &bucket->slot[*place];
		*place = next_place(*place);
	}
	return 0;
}

/* Whether some place has the key, in few instructions: a flow that isn't known has none of
 * sixteen. */
static __always_inline bool may_have(struct bucket *bucket, __u64 key)
{
	for (int i = 0; i < BUCKET_SESSIONS; i++)
		if (READ_ONCE(bucket->slot[i].key) == key)
			return true;
	return false;
}

/* Whether this session stands there, and lives. */
static __always_inline bool is_session(struct session *slot, __u64 key, __u32 now, struct found *found)
{
	found->place = &slot->value;
	found->vip = key;
	found->value = READ_ONCE(slot->value);
	return READ_ONCE(slot->key) == key && is_live(found->value, now);
}

static __always_inline bool find_in(struct bucket *bucket, __u64 key, __u32 home, __u32 now, struct found *found)
{
	__u32 place;
	struct session *slot;

	if (!may_have(bucket, key))
		return false;
	slot = place_in(bucket, key, home, &place);
	if (!slot)
		return false;
	found->slot += place;
	return is_session(slot, key, now, found);
}

static __always_inline bool find_half(__u64 key, __u32 half, __u32 home, __u32 mask, __u32 now, struct found *found)
{
	__u32 index = bucket_index(half, mask);
	struct bucket *bucket = bpf_map_lookup_elem(&sessions, &index);

	found->slot = index * BUCKET_SESSIONS;
	return bucket && find_in(bucket, key, home, now, found);
}

struct looking {
	const struct key6 *key6;
	__u64 key;
	__u64 hash;
	__u32 now;
	__u32 slot;
};

static long look_again(__u32 turn, void *arg)
{
	struct looking *looking = arg;
	__u32 half = half_in_turn(looking->hash, turn), mask = mask_in_turn(EXTENT_SESSIONS, turn);
	struct found found = {};

	if (!find_half(looking->key, half, home_of(looking->hash), mask, looking->now, &found))
		return 0;
	looking->slot = found.slot;
	return 1;
}

#define NOT_FOUND (~0u)

/* The slot of a session that is on its way, or NOT_FOUND. Not inlined: the verifier checks it
 * once. */
__attribute__((noinline)) __u32 find_moving(__u64 key, __u64 hash, __u32 now)
{
	struct looking looking = { .key = key, .hash = hash, .now = now, .slot = NOT_FOUND };

	bpf_loop(MOVING_TURNS, look_again, &looking, 0);
	return looking.slot;
}

/* A slot by its number, or NULL. */
static __always_inline struct session *session_at(__u32 number)
{
	__u32 index = number / BUCKET_SESSIONS;
	struct bucket *bucket = bpf_map_lookup_elem(&sessions, &index);

	return bucket ? &bucket->slot[number % BUCKET_SESSIONS] : 0;
}

static __always_inline bool find_session(__u64 key, __u64 hash, __u32 now, struct found *found)
{
	__u32 mask = extent_mask(EXTENT_SESSIONS);
	struct session *slot;

	if (find_half(key, hash, home_of(hash), mask, now, found) ||
	    find_half(key, hash >> 32, home_of(hash), mask, now, found))
		return true;
	if (!is_moving(EXTENT_SESSIONS))
		return false;
	found->slot = find_moving(key, hash, now);
	slot = found->slot == NOT_FOUND ? 0 : session_at(found->slot);
	return slot && is_session(slot, key, now, found);
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

static __always_inline __u32 vacant(struct bucket *bucket, __u32 now)
{
	__u32 vacant = 0;

	for (int i = 0; i < BUCKET_SESSIONS; i++)
		vacant += is_vacant(READ_ONCE(bucket->slot[i].value), now);
	return vacant;
}

static __always_inline bool claim(struct session *slot, __u32 now)
{
	__u64 key = READ_ONCE(slot->key), value = READ_ONCE(slot->value);

	if (!is_vacant(value, now) || __sync_val_compare_and_swap(&slot->value, value, VALUE_CLAIMED) != value)
		return false;
	count_session(key, value, -1);
	return true;
}

static __always_inline void fill(struct session *slot, __u64 key, __u64 value)
{
	WRITE_ONCE(slot->key, key);
	WRITE_ONCE(slot->value, value);
	count_session(key, value, 1);
}

static __always_inline bool insert_in(struct bucket *bucket, __u64 key, __u32 home, __u64 value, __u32 now)
{
	__u32 place = home;

	for (int i = 0; i < BUCKET_SESSIONS; i++, place = next_place(place)) {
		struct session *slot = &bucket->slot[place];

		if (claim(slot, now)) {
			fill(slot, key, value);
			return true;
		}
	}
	return false;
}

/* The order of eviction where room is short: the least goes first. */
#define STAYS (~0ULL)
#define NO_SOURCE (~0ULL)

/* The network that a client is in: an IPv4 /24, an IPv6 /56. */
static __always_inline __u64 source_of(__u64 key)
{
	return key >> 40;
}

static __always_inline __u64 source_of6(const struct key6 *key)
{
	/* An IPv4 client's address is mapped. */
	return (key->word[0] ? key->word[0] : key->word[1]) >> 8;
}

/* Of embryonic sessions and the newcomer, how many are of another source: without a branch, as
 * is_below(). */
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

/* By class, of embryonic ones by how many its source has, and then by what is left of its time. */
static __always_inline __u64 rank(const struct weighed *first, __u64 value, __u16 vip, __u64 source)
{
	const struct share *share = &shares[vip % VIP_IDS];
	__u64 left = value_expires(value) - first->now, bit = 1u << value_state(value);

	if (bit & EMBRYONIC)
		return others(first, source) << 32 | left;
	if (bit & ENDING)
		return 1ULL << 40 | left;
	if (bit & ASSURED && first->takes && READ_ONCE(share->assured) > READ_ONCE(share->own))
		return 2ULL << 40 | left;
	return STAYS;
}

/* The search for the session that goes first, in two full buckets. */
struct going {
	void *one, *other;
	struct weighed *first;
};

/* Begins the search in two buckets, for a session of `vip`; whether it can. */
static __always_inline bool begin_going(struct going *going, __u16 vip, __u64 source, bool has_shares, __u32 now)
{
	struct scratch *at = scratch_here();

	if (!going->one || !going->other || !at)
		return false;
	going->first = &at->weighed;
	going->first->rank = STAYS;
	going->first->now = now;
	going->first->place = 0;
	going->first->takes = has_shares && is_short(vip);
	going->first->sources[2 * BUCKET_SESSIONS] = source;
	return true;
}

static __always_inline void note_source(struct weighed *first, __u32 place, __u64 value, __u64 source, bool is_whole)
{
	bool counts = is_whole && EMBRYONIC >> value_state(value) & 1;

	first->sources[place % (2 * BUCKET_SESSIONS)] = counts ? source : NO_SOURCE;
}

/* A slot that changed hands meanwhile is nobody's to take. */
static __always_inline void weigh(struct weighed *first, __u32 place, __u64 value, __u16 vip, __u64 source,
				  bool is_whole)
{
	__u64 its = is_whole ? rank(first, value, vip, source) : STAYS;

	if (its >= first->rank)
		return;
	first->rank = its;
	first->value = value;
	first->place = place;
	first->vip = vip;
}

static __always_inline struct session *slot_of(const struct going *going, __u32 place)
{
	struct bucket *bucket = place < BUCKET_SESSIONS ? going->one : going->other;

	return &bucket->slot[place % BUCKET_SESSIONS];
}

static long note_slot(__u32 place, void *arg)
{
	struct going *going = arg;
	struct session *slot = slot_of(going, place);
	__u64 key = READ_ONCE(slot->key), value = READ_ONCE(slot->value);

	note_source(going->first, place, value, source_of(key), READ_ONCE(slot->key) == key);
	return 0;
}

static long weigh_slot(__u32 place, void *arg)
{
	struct going *going = arg;
	struct session *slot = slot_of(going, place);
	__u64 key = READ_ONCE(slot->key), value = READ_ONCE(slot->value);

	weigh(going->first, place, value, key, source_of(key), READ_ONCE(slot->key) == key);
	return 0;
}

/* Claims the place that was found; false where all stay, or another CPU was faster. */
static __always_inline bool displace(const struct weighed *first, __u64 *place)
{
	return first->rank != STAYS &&
	       __sync_val_compare_and_swap(place, first->value, VALUE_CLAIMED) == first->value;
}

/* Notes a session in the place of another one. Not inlined: only where there is no room. */
__attribute__((noinline)) int replace_session(__u64 key, __u64 hash, __u64 value, __u32 now)
{
	struct going going = { .one = first_bucket(hash), .other = second_bucket(hash) };
	struct session *slot;

	if (!begin_going(&going, key, source_of(key), true, now))
		return false;
	bpf_loop(2 * BUCKET_SESSIONS, note_slot, &going, 0);
	bpf_loop(2 * BUCKET_SESSIONS, weigh_slot, &going, 0);
	slot = slot_of(&going, going.first->place);
	if (!displace(going.first, &slot->value))
		return false;
	count_session(going.first->vip, going.first->value, -1);
	fill(slot, key, value);
	return true;
}

/* Notes a session where there is room. Not inlined: a new session is the rarer case, and the
 * verifier checks it once. */
__attribute__((noinline)) int insert_session(__u64 key, __u64 hash, __u64 value, __u32 now)
{
	struct bucket *first = first_bucket(hash);
	struct bucket *second = second_bucket(hash);
	__u32 vacant1, vacant2;

	if (!first || !second)
		return false;
	vacant1 = vacant(first, now);
	/* The common case asks no further. */
	vacant2 = vacant1 < BUCKET_SESSIONS / 2 ? vacant(second, now) : 0;
	if (vacant2 > vacant1) {
		struct bucket *fuller = first;

		first = second;
		second = fuller;
	}
	return insert_in(first, key, home_of(hash), value, now) || insert_in(second, key, home_of(hash), value, now);
}

#endif
