/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* Reader of a message's head: message.h. */
#ifndef EVENER_SERVER_HEAD_H
#define EVENER_SERVER_HEAD_H

#include <linux/types.h>

/* Bytes that are read at once. */
#define MESSAGE_MAX 4096
/* Longer than a field's name and what is compared of its value. */
#define MESSAGE_PAD 40
/* Places where a message is read: an arriving segment interrupts a leaving one. */
enum message_place {
	MESSAGE_IN = 0,
	MESSAGE_OUT = 1,
	MESSAGE_PLACES,
};

/* The data of one segment, or of some that follow each other, as far as it is read: message.h. */
struct message {
	__u32 at, len; /* offset of the reader, and its end */
	__u32 line; /* beginning of the line */
	__u32 field; /* the line's */
	__u32 value; /* beginning of the field's value */
	__u32 head_len; /* 0: the head has no end here */
	__u32 lengths; /* fields that say one */
	__u32 codings; /* fields that say how the body is encoded, which is in chunks */
	__u32 digits;
	__u32 closes; /* true if no other message follows */
	__u32 odd; /* something unusual is in the line that is read, or in one before */
	__u32 before; /* the byte before */
	__u64 length;
	/* Twice, since the verifier takes for possible that as much is added as there may be. */
	__u8 byte[MESSAGE_MAX + MESSAGE_MAX + MESSAGE_PAD];
};

#endif
