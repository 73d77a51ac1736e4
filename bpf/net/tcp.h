/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* Numbers in a TCP header: RFC 9293, section 3.1 and 3.2; RFC 7323; RFC 2018. */
#ifndef EVENER_TCP_H
#define EVENER_TCP_H

#define TCP_FIN 0x01
#define TCP_SYN 0x02
#define TCP_RST 0x04
#define TCP_ACK 0x10
#define TCP_URG 0x20

#define OPTION_END 0
#define OPTION_NOTHING 1
#define OPTION_MSS 2
#define OPTION_WINDOW_SCALE 3
#define OPTION_SACK_PERMITTED 4
#define OPTION_TIMESTAMP 8

#endif
