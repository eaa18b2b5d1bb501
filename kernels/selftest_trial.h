/* Shared by selftest.c and selftest_*.c only: a call that is tried on both devices. */
#ifndef KERNELS_SELFTEST_TRIAL_H
#define KERNELS_SELFTEST_TRIAL_H

#include "kernels/selftest.h"

/* The GPU, and the CPU that it is held to. */
enum side { GPU, CPU, SIDES };

struct trial {
	const struct kernel_call *c;
	struct device *d[SIDES];
	struct arena *memory[SIDES];
	bool measures; /* only how much memory it takes: both are planning devices */
	const float
		*random; /* a table of normal numbers, and where in it the next begin */
	int64_t at;
	float *staging[SIDES]; /* for conversions */
	double allowed, worst; /* error */
	double cpu_seconds;
	struct err *e;
};

/* A matrix on both. The CPU has it as fp32, whatever the type; and of operands of matmuls
 * fewer rows, which the GPU has again and again. Vectors and integers are such matrices, too. */
struct pair {
	struct mat m[SIDES];
};

/* `n` where it is not more than `most`; else the most that is as far from a multiple of 128 as n
 * is, since ends are where kernels go wrong; or `most`, where there is no such number. */
int64_t fewer(int64_t n, int64_t most);
/* As many rows of it as make a matrix that takes milliseconds. */
int64_t fewer_rows(struct mat like);
struct mat with_rows(struct mat like, int64_t rows);

/* NULL where `like` is. */
struct pair pair_random(struct trial *, struct mat like, double scale);
/* The GPU's rows are the first `rows` again and again; it has them after pair_send(). */
struct pair pair_again(struct trial *, struct mat like, int64_t rows, double scale);
struct pair pair_blank(struct trial *, struct mat like); /* a result: NaN */
struct pair pair_bytes(struct trial *, const void *bytes, size_t n_bytes);
struct pair pair_ints(struct trial *, int64_t n, int64_t low, int64_t high);
struct pair pair_vector(struct trial *, int64_t n, double scale);
struct pair pair_blank_vector(struct trial *, int64_t n);
/* The GPU gets the CPU's numbers; the CPU keeps what they are when they are stored as there. */
void pair_send(struct trial *, struct pair);

/* The GPU has in it what the CPU has, within what is allowed. */
void trial_check(struct trial *, const char *what, struct pair);
void trial_check_within(struct trial *, const char *what, struct pair, double allowed);

/* BOTH(t, name, args...): the kernel on both; in args `s` is the side. */
#define BOTH(t, name, ...)                                                   \
	do {                                                                 \
		for (enum side s = GPU; s < SIDES; s++) {                    \
			double begin = clock_seconds();                      \
			(t)->d[s]->k->name((t)->d[s], __VA_ARGS__);          \
			if (s == CPU)                                        \
				(t)->cpu_seconds += clock_seconds() - begin; \
		}                                                            \
	} while (0)

/* A row of the table: how a kernel is tried, and the error that it may have: `exact` where it
 * computes in fp32, and so many times the rounding of the type of fewest bits that it is given. */
struct trial_row {
	void (*try)(struct trial *);
	double exact, roundings;
};
extern const struct trial_row trial_rows[N_KERNELS];

/* selftest_layers.c, selftest_attn.c, selftest_state.c */
#define KERNEL(type, name, ...) void try_##name(struct trial *);
#include "kernels/list.h"

#endif
