/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* IP headers of both versions, and invalid source addresses: core/src/net/ip.rs. */
#ifndef EVENER_IP_H
#define EVENER_IP_H

#include <linux/in.h>
#include <linux/in6.h>
#include <linux/types.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include <stdbool.h>

#define IPV4_DONT_FRAGMENT 0x4000
#define IPV4_MORE_FRAGMENTS 0x2000
#define IPV4_FRAGMENT_OFFSET 0x1fff
/* Maximum number of extension headers. */
#define EXTENSIONS_MAX 6
/* Maximum length of an extension header, in bytes (RFC 8200, section 4.3). */
#define EXTENSION_LEN_MAX 2048
#define PACKET_MAX 65535
/* Highest offset of a transport header in a frame, in bytes. It is a power of two less one. */
#define L4_MAX 0x3fff

/* Address of either version, in network byte order. In a director's program an IPv4 address is in
 * the first word, and the others are zero. In a server's program it is IPv4-mapped. */
struct ip {
	__be32 word[4];
};

/* Returns an IPv4-mapped address (RFC 4291, section 2.5.5.2). */
static __always_inline struct ip mapped(__be32 ipv4)
{
	return (struct ip){ { 0, 0, bpf_htonl(0xffff), ipv4 } };
}

static __always_inline bool same_ip(const struct ip *a, const struct ip *b)
{
	const __u64 *x = (const void *)a, *y = (const void *)b;

	return ((x[0] ^ y[0]) | (x[1] ^ y[1])) == 0;
}

/* True for an invalid source address (RFC 1812, section 5.3.7). */
static __always_inline bool is_martian(__be32 address)
{
	__u8 first = bpf_ntohl(address) >> 24;

	return first == 0 || first == 127 || first >= 224;
}

/* True for an invalid source address (RFC 4291): unspecified, loopback, IPv4-compatible or -mapped,
 * multicast. */
static __always_inline bool is_martian6(const struct ip *address)
{
	const __be32 *word = address->word;

	if ((word[0] | word[1]) == 0 && (word[2] & bpf_htonl(0xffff0000)) == 0)
		return true;
	return (word[0] & bpf_htonl(0xff000000)) == bpf_htonl(0xff000000);
}

/* True for a link-local address (RFC 4291, section 2.5.6). */
static __always_inline bool is_link_local(const struct ip *address)
{
	return (address->word[0] & bpf_htonl(0xffc00000)) == bpf_htonl(0xfe800000);
}

/* Identification and range of a fragment. Offset and end are in units of eight bytes. */
struct fragment {
	__u32 id;
	__u16 offset;
	__u16 end;
};

/* Stores identification and range of a fragment with `len` bytes of payload. False if the range is
 * invalid. */
static __always_inline bool note_fragment(struct fragment *fragment, __u32 id, __u32 offset, bool more, __u32 len)
{
	__u32 end = offset * 8 + len;

	if (len == 0 || end > PACKET_MAX || (more && len % 8))
		return false;
	fragment->id = id;
	fragment->offset = offset;
	fragment->end = (end + 7) / 8;
	return true;
}

/* core/src/net/ip.rs, Fault */
enum fault {
	FAULT_NONE,
	FAULT_FOREIGN,
	FAULT_TRUNCATED,
	FAULT_EXTENSIONS,
	FAULT_LENGTH,
};

/* First eight bytes of an extension header. `id` is the identification of a fragment header. */
struct extension {
	__u8 next, len, kind, left;
	__be32 id;
};

/* State of the walk through extension headers. `protocol` and `l4` are type and offset of the next
 * header. */
struct walked {
	__u32 l4;
	__u8 protocol;
	__u8 fault; /* enum fault */
	__u8 is_fragment;
	struct fragment fragment;
};

static __always_inline bool is_extension(__u8 protocol)
{
	return protocol == IPPROTO_HOPOPTS || protocol == IPPROTO_ROUTING || protocol == IPPROTO_DSTOPTS ||
	       protocol == IPPROTO_FRAGMENT || protocol == IPPROTO_AH;
}

/* True if the next header is an extension header that must be read, or false with a fault if there
 * are too many. `number` counts the extension headers of the packet from 0. A later fragment has no
 * extension header after its fragment header. */
static __always_inline bool begin_extension(struct walked *walked, __u32 number)
{
	if (!is_extension(walked->protocol) || (walked->is_fragment && walked->fragment.offset))
		return false;
	if ((walked->protocol == IPPROTO_HOPOPTS && number) || number >= EXTENSIONS_MAX)
		walked->fault = FAULT_EXTENSIONS;
	return !walked->fault;
}

/* Reads an extension header. `behind` is the number of bytes of the packet that follow the first
 * eight bytes of the header. Returns the length of the header, or 0 if it is invalid. */
static __always_inline __u32 step_over(struct walked *walked, const struct extension *header, __u32 behind)
{
	__u8 is = walked->protocol;

	walked->protocol = header->next;
	if (is == IPPROTO_FRAGMENT) {
		__u32 word = header->kind << 8 | header->left;

		if (walked->is_fragment) {
			walked->fault = FAULT_EXTENSIONS;
			return 0;
		}
		/* A fragment that is the whole packet is no fragment (RFC 6946). */
		if (word & ~6u) {
			if (!note_fragment(&walked->fragment, bpf_ntohl(header->id), word >> 3, word & 1, behind)) {
				walked->fault = FAULT_LENGTH;
				return 0;
			}
			walked->is_fragment = true;
		}
		return sizeof(*header);
	}
	/* Type 0 is deprecated (RFC 5095). If segments are left, the packet's destination address
	 * isn't the final one. */
	if (is == IPPROTO_ROUTING && (header->kind == 0 || header->left != 0)) {
		walked->fault = header->kind == 0 ? FAULT_EXTENSIONS : FAULT_FOREIGN;
		return 0;
	}
	/* The length is in units of four bytes minus 2, and a multiple of eight bytes in IPv6 (RFC
	 * 4302, section 2.2). */
	if (is == IPPROTO_AH) {
		if (header->len < 2 || header->len & 1) {
			walked->fault = FAULT_EXTENSIONS;
			return 0;
		}
		return (header->len + 2) * 4;
	}
	return (header->len + 1) * 8;
}

#endif
