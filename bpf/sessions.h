/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * The session table: core/src/sessions.rs, whose comments say why. Memory order: a compare-and-exchange is
 * a full barrier; plain loads are ordered on x86, and elsewhere the worst is that one packet of a session
 * which expired at this instant follows its slot's next owner.
 */
#ifndef EVENER_SESSIONS_H
#define EVENER_SESSIONS_H

#include "maps.h"
#include "scratch.h"

#define READ_ONCE(x) (*(const volatile typeof(x) *)&(x))
#define WRITE_ONCE(x, to) (*(volatile typeof(x) *)&(x) = (to))

#define VALUE_CLAIMED ((__u64)STATE_CLAIMED << 16)

/* Jiffies are one load; any of the clocks is a call and a loop. */
static __always_inline __u32 ticks_now(void)
{
	return (bpf_jiffies64() * settings.jiffy_ns) >> 20;
}

static __always_inline __u64 session_key(__be32 client, __be16 port, __u16 vip)
{
	return (__u64)bpf_ntohl(client) << 32 | (__u64)bpf_ntohs(port) << 16 | vip;
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

/* Whether x < bound, as a number and without a branch: the verifier follows each branch apart, and eight
 * places with several branches each are more ways than it walks. */
static __always_inline __u64 is_below(__u32 x, __u32 bound)
{
	__u64 difference = (__u64)x - bound;

	hide(difference);
	return difference >> 63;
}

static __always_inline __u64 is_live(__u64 value, __u32 now)
{
	__u64 is_session = is_below(value_state(value) - STATE_NEW, STATE_UDP - STATE_NEW + 1);
	__u64 is_left = is_below(value_expires(value) - now - 1, 0x7fffffff);

	return is_session & is_left;
}

static __always_inline __u64 is_vacant(__u64 value, __u32 now)
{
	__u64 is_claimed = is_below(value_state(value) ^ STATE_CLAIMED, 1);

	return (is_live(value, now) | is_claimed) ^ 1;
}

static __always_inline bool is_active(__u64 value)
{
	__u8 state = value_state(value);

	return state == STATE_NEW || state == STATE_ESTABLISHED || state == STATE_UDP;
}

/* Two rounds of multiply and fold, with secret odd multipliers: core/src/sessions.rs, FlowHash. */
static __always_inline __u64 hashed(__u64 key, const volatile __u64 seed[2])
{
	key *= seed[0] | 1;
	key ^= key >> 32;
	key *= seed[1] | 1;
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
	__u64 hash = key->word[0] * (seed[0] | 1);

	hash ^= hash >> 32;
	hash = (hash ^ key->word[1]) * (seed[1] | 1);
	hash ^= hash >> 32;
	hash = (hash ^ last) * (seed[0] | 1);
	hash ^= hash >> 32;
	hash *= seed[1] | 1;
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

static __always_inline struct bucket *first_bucket(__u64 hash)
{
	__u32 index = scale(hash, settings.buckets);

	return bpf_map_lookup_elem(&sessions, &index);
}

static __always_inline struct bucket *second_bucket(__u64 hash)
{
	__u32 index = scale(hash >> 32, settings.buckets);

	return bpf_map_lookup_elem(&sessions, &index);
}

static __always_inline void count_active(__u64 value, __s64 by)
{
	if (is_active(value))
		__sync_fetch_and_add(&active[value_server(value) % SERVER_SLOTS], by);
}

struct found {
	__u64 *place;
	__u64 value;
};

static __always_inline bool find_in(struct bucket *bucket, __u64 key, __u32 now, struct found *found)
{
	/* The verifier would follow everything behind the loop once for each place: a number that it can't
	 * tell is added to the place and taken away again, and one walk does for all. */
	__u32 unknown = now, place;
	struct session *slot;

	hide(unknown);
	for (int i = 0; i < BUCKET_SESSIONS; i++) {
		place = unknown + i;
		if (READ_ONCE(bucket->slot[i].key) == key)
			goto match;
	}
	return false;
match:
	slot = &bucket->slot[(place - now) % BUCKET_SESSIONS];
	found->place = &slot->value;
	found->value = READ_ONCE(slot->value);
	return READ_ONCE(slot->key) == key && is_live(found->value, now);
}

static __always_inline bool find_session(__u64 key, __u64 hash, __u32 now, struct found *found)
{
	struct bucket *bucket = first_bucket(hash);

	if (bucket && find_in(bucket, key, now, found))
		return true;
	bucket = second_bucket(hash);
	return bucket && find_in(bucket, key, now, found);
}

static __always_inline bool change_session(struct found *found, __u64 to)
{
	if (__sync_val_compare_and_swap(found->place, found->value, to) != found->value)
		return false;
	if (is_active(found->value) != is_active(to) || value_server(found->value) != value_server(to)) {
		count_active(found->value, -1);
		count_active(to, 1);
	}
	return true;
}

static __always_inline __u32 room(struct bucket *bucket, __u32 now)
{
	__u32 vacant = 0;

	for (int i = 0; i < BUCKET_SESSIONS; i++)
		vacant += is_vacant(READ_ONCE(bucket->slot[i].value), now);
	return vacant;
}

static __always_inline bool claim(struct session *slot, __u32 now)
{
	__u64 value = READ_ONCE(slot->value);

	if (!is_vacant(value, now) || __sync_val_compare_and_swap(&slot->value, value, VALUE_CLAIMED) != value)
		return false;
	count_active(value, -1);
	return true;
}

static __always_inline bool insert_in(struct bucket *bucket, __u64 key, __u64 value, __u32 now)
{
	for (int i = 0; i < BUCKET_SESSIONS; i++) {
		struct session *slot = &bucket->slot[i];

		if (claim(slot, now)) {
			WRITE_ONCE(slot->key, key);
			WRITE_ONCE(slot->value, value);
			count_active(value, 1);
			return true;
		}
	}
	return false;
}

/* Not inlined: a new session is the rarer case, and the verifier checks it once. */
__attribute__((noinline)) int insert_session(__u64 key, __u64 hash, __u64 value, __u32 now)
{
	struct bucket *first = first_bucket(hash);
	struct bucket *second = second_bucket(hash);
	__u32 room1, room2;

	if (!first || !second)
		return false;
	room1 = room(first, now);
	room2 = room(second, now);
	if (room1 < BUCKET_SESSIONS / 2 && room2 > room1) {
		struct bucket *fuller = first;

		first = second;
		second = fuller;
	}
	return insert_in(first, key, value, now) || insert_in(second, key, value, now);
}

/*
 * The same for keys of three words, in `sessions6` or in one pool of `ports`.
 */
enum table6 {
	TABLE_SESSIONS6,
	TABLE_PORTS,
};

static __always_inline struct bucket6 *bucket6_at(enum table6 table, __u32 pool, __u32 hash, __u32 *index)
{
	if (table == TABLE_SESSIONS6) {
		*index = scale(hash, settings.buckets6);
		return bpf_map_lookup_elem(&sessions6, index);
	}
	*index = pool * POOL_BUCKETS + scale(hash, POOL_BUCKETS);
	return bpf_map_lookup_elem(&ports, index);
}

static __always_inline bool has_key6(const struct session6 *slot, const struct key6 *key)
{
	__u64 differs = (READ_ONCE(slot->key[2]) ^ key->word[2]) | (READ_ONCE(slot->key[1]) ^ key->word[1]) |
			(READ_ONCE(slot->key[0]) ^ key->word[0]);

	return !differs;
}

/* The place in the bucket, or BUCKET_SESSIONS. */
static __always_inline __u32 find_in6(struct bucket6 *bucket, const struct key6 *key, __u32 now, struct found *found)
{
	__u32 unknown = now, place;
	struct session6 *slot;

	hide(unknown);
	for (int i = 0; i < BUCKET_SESSIONS; i++) {
		place = unknown + i;
		if (has_key6(&bucket->slot[i], key))
			goto match;
	}
	return BUCKET_SESSIONS;
match:
	place = (place - now) % BUCKET_SESSIONS;
	slot = &bucket->slot[place];
	found->place = &slot->value;
	found->value = READ_ONCE(slot->value);
	return has_key6(slot, key) && is_live(found->value, now) ? place : BUCKET_SESSIONS;
}

#define NOT_FOUND (~0u)

/* The number of the slot in its map, or NOT_FOUND. */
static __always_inline __u32 find6(enum table6 table, __u32 pool, const struct key6 *key, __u64 hash, __u32 now,
				   struct found *found)
{
	__u32 index, place;
	struct bucket6 *bucket = bucket6_at(table, pool, hash, &index);

	if (!bucket)
		return NOT_FOUND;
	place = find_in6(bucket, key, now, found);
	if (place < BUCKET_SESSIONS)
		return index * BUCKET_SESSIONS + place;
	bucket = bucket6_at(table, pool, hash >> 32, &index);
	if (!bucket)
		return NOT_FOUND;
	place = find_in6(bucket, key, now, found);
	return place < BUCKET_SESSIONS ? index * BUCKET_SESSIONS + place : NOT_FOUND;
}

static __always_inline __u32 room6(struct bucket6 *bucket, __u32 now)
{
	__u32 vacant = 0;

	for (int i = 0; i < BUCKET_SESSIONS; i++)
		vacant += is_vacant(READ_ONCE(bucket->slot[i].value), now);
	return vacant;
}

/* Ports don't count: the session that they belong to does. */
static __always_inline bool claim6(struct session6 *slot, __u32 now, bool counts)
{
	__u64 value = READ_ONCE(slot->value);

	if (!is_vacant(value, now) || __sync_val_compare_and_swap(&slot->value, value, VALUE_CLAIMED) != value)
		return false;
	if (counts)
		count_active(value, -1);
	return true;
}

static __always_inline __u32 insert_in6(struct bucket6 *bucket, const struct key6 *key, __u64 value, __u32 now,
					bool counts)
{
	for (int i = 0; i < BUCKET_SESSIONS; i++) {
		struct session6 *slot = &bucket->slot[i];

		if (claim6(slot, now, counts)) {
			WRITE_ONCE(slot->key[0], key->word[0]);
			WRITE_ONCE(slot->key[1], key->word[1]);
			WRITE_ONCE(slot->key[2], key->word[2]);
			WRITE_ONCE(slot->value, value);
			if (counts)
				count_active(value, 1);
			return i;
		}
	}
	return BUCKET_SESSIONS;
}

static __always_inline __u32 insert6(enum table6 table, __u32 pool, const struct key6 *key, __u64 hash, __u64 value,
				     __u32 now)
{
	bool counts = table == TABLE_SESSIONS6;
	__u32 index1, index2, place;
	struct bucket6 *first = bucket6_at(table, pool, hash, &index1);
	struct bucket6 *second = bucket6_at(table, pool, hash >> 32, &index2);
	__u32 room1, room2;

	if (!first || !second)
		return NOT_FOUND;
	room1 = room6(first, now);
	room2 = room6(second, now);
	if (room1 < BUCKET_SESSIONS / 2 && room2 > room1) {
		struct bucket6 *fuller = first;
		__u32 index = index1;

		first = second;
		second = fuller;
		index1 = index2;
		index2 = index;
	}
	place = insert_in6(first, key, value, now, counts);
	if (place < BUCKET_SESSIONS)
		return index1 * BUCKET_SESSIONS + place;
	place = insert_in6(second, key, value, now, counts);
	return place < BUCKET_SESSIONS ? index2 * BUCKET_SESSIONS + place : NOT_FOUND;
}

__attribute__((noinline)) int insert_session6(const struct key6 *key, __u64 hash, __u64 value, __u32 now)
{
	return key && insert6(TABLE_SESSIONS6, 0, key, hash, value, now) != NOT_FOUND;
}

/* The port's number, or 0. */
__attribute__((noinline)) int take_port(const struct key6 *key, __u64 hash, __u64 value, __u32 now)
{
	__u32 pool = value_server(value) % PORT_POOLS, number;

	if (!key)
		return 0;
	number = insert6(TABLE_PORTS, pool, key, hash, value, now);
	return number == NOT_FOUND ? 0 : FIRST_PORT + number - pool * PORTS;
}

#endif
