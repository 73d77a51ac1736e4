/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* State of the parser in message.h. */
#ifndef EVENER_SERVER_HEAD_H
#define EVENER_SERVER_HEAD_H

#include <linux/types.h>

/* Maximum length of a head, in bytes. */
#define MESSAGE_MAX 4096
/* Greater than the length of a field name and the compared part of its value, in bytes. */
#define MESSAGE_PAD 40
/* Buffers for messages. There are two, since the program for a received segment may interrupt the
 * program for a sent one. */
enum message_place {
	MESSAGE_IN = 0,
	MESSAGE_OUT = 1,
	MESSAGE_PLACES,
};

/* Data of one or more consecutive segments, and the state of the parser: message.h. */
struct message {
	__u32 at, len; /* offset of the next byte, and number of bytes */
	__u32 line; /* offset of the current line */
	__u32 field; /* FIELD_* of the current line */
	__u32 value; /* offset of the field's value */
	__u32 head_len; /* 0: the head is incomplete */
	__u32 lengths; /* number of Content-Length fields */
	__u32 codings; /* number of Transfer-Encoding fields */
	__u32 digits; /* number of digits of the length */
	__u32 closes; /* the Connection field has "close" */
	__u32 odd; /* the head has an unusual line */
	__u32 before; /* previous byte */
	__u64 length;
	/* The second MESSAGE_MAX is for the verifier: it adds the maxima of offset and length. */
	__u8 byte[MESSAGE_MAX + MESSAGE_MAX + MESSAGE_PAD];
};

#endif
