/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * Macros by which the verifiers of Linux 6.1 and later learn the bounds of values. A comparison in
 * C isn't enough: clang may compare a copy and use the original, whose bounds the verifier doesn't
 * know. STYLE.md explains when to use which macro.
 */
#ifndef EVENER_VERIFIER_H
#define EVENER_VERIFIER_H

#include <linux/types.h>

/*
 * Hides the value of a variable from the compiler, so that it doesn't remove checks that it
 * considers redundant, and uses the checked register.
 */
#define hide(x) asm volatile("" : "+r"(x))

/*
 * Hides the value of a variable from the verifier, so that it checks the following code once and
 * not once for each value. `unknown` is any number that the verifier doesn't know.
 */
#define forget(x, unknown)        \
	({                        \
		(x) ^= (unknown); \
		hide(x);          \
		(x) ^= (unknown); \
	})

/* Returns the minimum of x and the constant `max`, as a 64-bit number with bounds that the verifier
 * knows. */
#define at_most(x, max)                                       \
	({                                                    \
		__u64 bound_ = (x);                           \
		asm volatile("if %0 <= %1 goto +1\n\t%0 = %1" \
			     : "+r"(bound_)                   \
			     : "i"((__s32)(max)));            \
		bound_;                                       \
	})

/* Returns x limited to the range from `min` to `max`, both constants, like at_most(). */
#define clamp(x, min, max)                                    \
	({                                                    \
		__u64 low_ = (x);                             \
		asm volatile("if %0 >= %1 goto +1\n\t%0 = %1" \
			     : "+r"(low_)                     \
			     : "i"((__s32)(min)));            \
		at_most(low_, max);                           \
	})

/*
 * Returns the sum of two numbers. If they have no bit in common, the compiler would replace the
 * addition by an OR, whose bounds the verifier of Linux 6.1 doesn't track.
 */
#define sum(x, y)             \
	({                    \
		__u64 term_ = (x); \
		hide(term_);  \
		term_ + (y);  \
	})

/* Returns the address of a member of a pointer that was checked for NULL. Keeps the compiler from
 * computing it before the check. */
#define member_of(pointer, member) \
	({                         \
		hide(pointer);     \
		&(pointer)->member; \
	})

#endif
