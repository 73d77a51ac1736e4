/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* The session table for keys of three words: IPv6 sessions, and ports. */
#ifndef EVENER_SESSIONS6_H
#define EVENER_SESSIONS6_H

#include "director/sessions.h"

/*
 * The same for keys of three words, in `sessions6` or in one pool of `ports`.
 */
enum table6 {
	TABLE_SESSIONS6,
	TABLE_PORTS,
};

static __always_inline __u32 bucket6_index(__u32 half, __u32 mask)
{
	return scale(half, settings.buckets6) & mask;
}

static __always_inline struct bucket6 *bucket6_at(enum table6 table, __u32 pool, __u32 hash, __u32 *index)
{
	if (table == TABLE_SESSIONS6) {
		*index = bucket6_index(hash, extent_mask(EXTENT_SESSIONS6));
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

/* Whether this session stands there, and lives. */
static __always_inline bool is_session6(struct session6 *slot, const struct key6 *key, __u32 now, struct found *found)
{
	found->place = &slot->value;
	found->vip = key->word[2];
	found->value = READ_ONCE(slot->value);
	return has_key6(slot, key) && is_live(found->value, now);
}

/* The place in the bucket, or BUCKET_SESSIONS. */
static __always_inline __u32 find_in6(struct bucket6 *bucket, const struct key6 *key, __u32 home, __u32 now,
				      struct found *found)
{
	__u32 place = home;

	for (int i = 0; i < BUCKET_SESSIONS; i++) {
		if (has_key6(&bucket->slot[place], key))
			goto match;
		place = next_place(place);
	}
	return BUCKET_SESSIONS;
match:
	return is_session6(&bucket->slot[place], key, now, found) ? place : BUCKET_SESSIONS;
}

/* The number of the slot in its map, or NOT_FOUND. */
static __always_inline __u32 find_now6(enum table6 table, __u32 pool, const struct key6 *key, __u64 hash, __u32 now,
				       struct found *found)
{
	__u32 index, place;
	struct bucket6 *bucket = bucket6_at(table, pool, hash, &index);

	if (!bucket)
		return NOT_FOUND;
	place = find_in6(bucket, key, home_of(hash), now, found);
	if (place < BUCKET_SESSIONS)
		return index * BUCKET_SESSIONS + place;
	bucket = bucket6_at(table, pool, hash >> 32, &index);
	if (!bucket)
		return NOT_FOUND;
	place = find_in6(bucket, key, home_of(hash), now, found);
	return place < BUCKET_SESSIONS ? index * BUCKET_SESSIONS + place : NOT_FOUND;
}

static long look_again6(__u32 turn, void *arg)
{
	struct looking *looking = arg;
	__u32 index = bucket6_index(half_in_turn(looking->hash, turn), mask_in_turn(EXTENT_SESSIONS6, turn)), place;
	struct bucket6 *bucket = bpf_map_lookup_elem(&sessions6, &index);
	struct found found = {};

	if (!bucket)
		return 0;
	place = find_in6(bucket, looking->key6, home_of(looking->hash), looking->now, &found);
	if (place >= BUCKET_SESSIONS)
		return 0;
	looking->slot = index * BUCKET_SESSIONS + place;
	return 1;
}

/* As find_moving(). */
__attribute__((noinline)) __u32 find_moving6(const struct key6 *key, __u64 hash, __u32 now)
{
	struct looking looking = { .key6 = key, .hash = hash, .now = now, .slot = NOT_FOUND };

	if (!key)
		return NOT_FOUND;
	bpf_loop(MOVING_TURNS, look_again6, &looking, 0);
	return looking.slot;
}

/* A slot of `sessions6` by its number, or NULL. */
static __always_inline struct session6 *session6_at(__u32 number)
{
	__u32 index = number / BUCKET_SESSIONS;
	struct bucket6 *bucket = bpf_map_lookup_elem(&sessions6, &index);

	return bucket ? &bucket->slot[number % BUCKET_SESSIONS] : 0;
}

static __always_inline __u32 find6(enum table6 table, __u32 pool, const struct key6 *key, __u64 hash, __u32 now,
				   struct found *found)
{
	__u32 number = find_now6(table, pool, key, hash, now, found);
	struct session6 *slot;

	if (number != NOT_FOUND || table != TABLE_SESSIONS6 || !is_moving(EXTENT_SESSIONS6))
		return number;
	number = find_moving6(key, hash, now);
	slot = number == NOT_FOUND ? 0 : session6_at(number);
	return slot && is_session6(slot, key, now, found) ? number : NOT_FOUND;
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
	__u64 vip = READ_ONCE(slot->key[2]), value = READ_ONCE(slot->value);

	if (!is_vacant(value, now) || __sync_val_compare_and_swap(&slot->value, value, VALUE_CLAIMED) != value)
		return false;
	if (counts)
		count_session(vip, value, -1);
	return true;
}

static __always_inline void fill6(struct session6 *slot, const struct key6 *key, __u64 value, bool counts)
{
	WRITE_ONCE(slot->key[0], key->word[0]);
	WRITE_ONCE(slot->key[1], key->word[1]);
	WRITE_ONCE(slot->key[2], key->word[2]);
	WRITE_ONCE(slot->value, value);
	if (counts)
		count_session(key->word[2], value, 1);
}

static __always_inline __u32 insert_in6(struct bucket6 *bucket, const struct key6 *key, __u32 home, __u64 value,
					__u32 now, bool counts)
{
	__u32 place = home;

	for (int i = 0; i < BUCKET_SESSIONS; i++, place = next_place(place)) {
		struct session6 *slot = &bucket->slot[place];

		if (claim6(slot, now, counts)) {
			fill6(slot, key, value, counts);
			return place;
		}
	}
	return BUCKET_SESSIONS;
}

static __always_inline struct session6 *slot6_of(const struct going *going, __u32 place)
{
	struct bucket6 *bucket = place < BUCKET_SESSIONS ? going->one : going->other;

	return &bucket->slot[place % BUCKET_SESSIONS];
}

static long note_slot6(__u32 place, void *arg)
{
	struct going *going = arg;
	struct session6 *slot = slot6_of(going, place);
	struct key6 key = { { READ_ONCE(slot->key[0]), READ_ONCE(slot->key[1]), READ_ONCE(slot->key[2]) } };
	__u64 value = READ_ONCE(slot->value);

	note_source(going->first, place, value, source_of6(&key), has_key6(slot, &key));
	return 0;
}

static long weigh_slot6(__u32 place, void *arg)
{
	struct going *going = arg;
	struct session6 *slot = slot6_of(going, place);
	struct key6 key = { { READ_ONCE(slot->key[0]), READ_ONCE(slot->key[1]), READ_ONCE(slot->key[2]) } };
	__u64 value = READ_ONCE(slot->value);

	weigh(going->first, place, value, key.word[2], source_of6(&key), has_key6(slot, &key));
	return 0;
}

/* The number of the slot in its map, or NOT_FOUND. */
__attribute__((noinline)) __u32 replace6(__u32 table, const struct key6 *key, __u64 hash, __u64 value, __u32 now)
{
	__u32 pool = value_server(value) % PORT_POOLS, index1, index2;
	bool counts = table == TABLE_SESSIONS6;
	struct going going = {};
	struct session6 *slot;
	__u32 place;

	if (!key)
		return NOT_FOUND;
	going.one = bucket6_at(table, pool, hash, &index1);
	going.other = bucket6_at(table, pool, hash >> 32, &index2);
	/* Ports have no shares. */
	if (!begin_going(&going, key->word[2], source_of6(key), counts, now))
		return NOT_FOUND;
	bpf_loop(2 * BUCKET_SESSIONS, note_slot6, &going, 0);
	bpf_loop(2 * BUCKET_SESSIONS, weigh_slot6, &going, 0);
	place = going.first->place;
	slot = slot6_of(&going, place);
	if (!displace(going.first, &slot->value))
		return NOT_FOUND;
	if (counts)
		count_session(going.first->vip, going.first->value, -1);
	fill6(slot, key, value, counts);
	return (place < BUCKET_SESSIONS ? index1 : index2) * BUCKET_SESSIONS + place % BUCKET_SESSIONS;
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
	room2 = room1 < BUCKET_SESSIONS / 2 ? room6(second, now) : 0;
	if (room2 > room1) {
		struct bucket6 *fuller = first;
		__u32 index = index1;

		first = second;
		second = fuller;
		index1 = index2;
		index2 = index;
	}
	place = insert_in6(first, key, home_of(hash), value, now, counts);
	if (place < BUCKET_SESSIONS)
		return index1 * BUCKET_SESSIONS + place;
	place = insert_in6(second, key, home_of(hash), value, now, counts);
	return place < BUCKET_SESSIONS ? index2 * BUCKET_SESSIONS + place : NOT_FOUND;
}

__attribute__((noinline)) int insert_session6(const struct key6 *key, __u64 hash, __u64 value, __u32 now)
{
	return key && insert6(TABLE_SESSIONS6, 0, key, hash, value, now) != NOT_FOUND;
}

/* The number in its map of a vacant port that was taken, or NOT_FOUND. */
__attribute__((noinline)) __u32 insert_port(const struct key6 *key, __u64 hash, __u64 value, __u32 now)
{
	if (!key)
		return NOT_FOUND;
	return insert6(TABLE_PORTS, value_server(value) % PORT_POOLS, key, hash, value, now);
}

/* The port's number, or 0. */
static __always_inline __u16 allocate_port(const struct key6 *key, __u64 hash, __u64 value, __u32 now)
{
	__u32 pool = value_server(value) % PORT_POOLS, number = insert_port(key, hash, value, now);

	for (int i = 0; i < 2; i++)
		if (number == NOT_FOUND)
			number = replace6(TABLE_PORTS, key, hash, value, now);
	return number == NOT_FOUND ? 0 : FIRST_PORT + number - pool * PORTS;
}

#endif
