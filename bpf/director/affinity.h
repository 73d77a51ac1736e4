/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* Affinity of clients to servers: core/src/path/affinity.rs. */
#ifndef EVENER_AFFINITY_H
#define EVENER_AFFINITY_H

#include "director/flow.h"
#include "director/select.h"

/* True if clients of a VIP have affinity entries. With PICK_HASH the hash needs none. */
static __always_inline bool has_affinity_entries(const struct vip *vip)
{
	return vip->flags & VIP_AFFINITY && vip->pick != PICK_HASH;
}

/* Sets the key of the affinity entry of a flow's client. */
static __always_inline void set_client(struct client_entry *client, const struct flow *flow)
{
	const struct affinity *affinity = &clients[flow->vip->id % VIP_IDS];

	client->key.word[0] = flow->key->word[0] & affinity->mask[0];
	client->key.word[1] = flow->key->word[1] & affinity->mask[1];
	client->key.word[2] = (__u64)affinity->tag << 16 | AFFINITY_KEY | flow->vip->service;
	client->now = flow->now;
	client->v6 = flow->v6;
}

/* Returns the entry of a server that accepts new sessions, or NULL. */
static __always_inline struct server *accepting_server(__u32 slot)
{
	struct server *server = present_server(slot);

	return server && server->flags & SERVER_UP && server->weight ? server : 0;
}

/* Returns the server of the former sessions of a client, or NO_SERVER. Not inlined: only the first
 * packet of a session needs it. */
__attribute__((noinline)) int former_server(const struct client_entry *client)
{
	struct found found = {};
	__u16 server;

	if (!client || !find_session(&client->key, client->v6, session_hash(&client->key, client->v6), client->now, &found))
		return NO_SERVER;
	server = value_server(found.value);
	return accepting_server(server) && !is_full(server) ? server : NO_SERVER;
}

/* Notes that a flow's client has completed a handshake with a server. record_client() follows at
 * the end of the slow path, where it has enough stack. */
static __always_inline void note_client(struct client_entry *client, const struct flow *flow, __u16 server)
{
	set_client(client, flow);
	client->value = value_of(server, STATE_AFFINITY, flow->now + clients[flow->vip->id % VIP_IDS].lifetime);
}

/* Records the server of a client who has completed a handshake. The server of an earlier session
 * stays recorded while it accepts new sessions. Not inlined, like former_server(). */
__attribute__((noinline)) int record_client(struct client_entry *client)
{
	struct flow entry = {};
	struct found found = {};
	__u64 value;

	if (!client)
		return 0;
	entry.key = &client->key;
	entry.v6 = client->v6;
	entry.now = client->now;
	entry.hash = session_hash(&client->key, client->v6);
	value = client->value;
	if (!find_flow(&entry, &found))
		return insert_flow(&entry, value);
	if (accepting_server(value_server(found.value))) {
		if ((__s32)(value_expires(value) - value_expires(found.value)) <= AFFINITY_STEP)
			return 0;
		value = value_of(value_server(found.value), STATE_AFFINITY, value_expires(value));
	}
	return change_session(&found, value);
}

#endif
