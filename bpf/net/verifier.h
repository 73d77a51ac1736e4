/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * The forms in which bounds reach the verifier of every kernel from 6.1 on. A compare in C is not
 * enough: clang may compare a copy of the value, and use the value itself, of which the verifier
 * then knows nothing. STYLE.md says which form serves where.
 */
#ifndef EVENER_VERIFIER_H
#define EVENER_VERIFIER_H

#include <linux/types.h>

/*
 * Hides the value of a variable from the compiler: it keeps checks that it could prove needless,
 * and uses the register that was checked.
 */
#define hide(x) asm volatile("" : "+r"(x))

/*
 * Hides the value of a variable from the verifier, which then follows the code behind once and not
 * once for each value. `unknown` is a number that the verifier doesn't know.
 */
#define forget(x, unknown)        \
	({                        \
		(x) ^= (unknown); \
		hide(x);          \
		(x) ^= (unknown); \
	})

/* The value as a number of 64 bits, of which the verifier knows that it is at most `max`, a
 * constant: a larger one becomes `max`. */
#define at_most(x, max)                                       \
	({                                                    \
		__u64 bound_ = (x);                           \
		asm volatile("if %0 <= %1 goto +1\n\t%0 = %1" \
			     : "+r"(bound_)                   \
			     : "i"((__s32)(max)));            \
		bound_;                                       \
	})

/* Likewise at least `min`, and at most `max`. */
#define clamp(x, min, max)                                    \
	({                                                    \
		__u64 low_ = (x);                             \
		asm volatile("if %0 >= %1 goto +1\n\t%0 = %1" \
			     : "+r"(low_)                     \
			     : "i"((__s32)(min)));            \
		at_most(low_, max);                           \
	})

/*
 * The sum of two numbers. If they have no bit in common, the compiler makes an OR of a plain sum,
 * and of that the verifier of Linux 6.1 knows no bounds.
 */
#define sum(x, y)             \
	({                    \
		__u64 term_ = (x); \
		hide(term_);  \
		term_ + (y);  \
	})

/* The address of a member behind a check for NULL, which the compiler must not take before. */
#define member_of(pointer, member) \
	({                         \
		hide(pointer);     \
		&(pointer)->member; \
	})

#endif
