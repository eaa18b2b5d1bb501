/* A trial, which runs a kernel call on both devices: for selftest*.c and tests/support/trials.c. */
#pragma once

#include "kernels/selftest.h"

/* The GPU under test, and the CPU as the reference. */
enum side { GPU, CPU, SIDES };

/* A matrix on both sides; vectors and integers are matrices too. The CPU's matrix is fp32, whatever
 * the type. For matmuls it has fewer rows and columns, which the GPU's matrix repeats. */
struct trial_pair {
	struct mat m[SIDES];
};

/* A result to check. */
struct trial_result {
	char what[16];
	struct trial_pair x;
};

/* MAX_TRIAL_ELEMENTS: of a matrix, approximately, so that kernels take milliseconds. */
enum { STAGED = SELFTEST_STAGED, MAX_TRIAL_ELEMENTS = 1 << 20 };

enum { MAX_RESULTS = 5, MAX_OPERANDS = ARRAY_LEN(((struct kernel_call *)0)->m) };

/* Fences: bytes after the end of each GPU matrix, checked when the trial ends. */
enum { FENCE_BYTES = 128, MAX_FENCES = 64 };

/* The tolerance of a kernel's results: `exact` for fp32 arithmetic, plus `roundings` times the
 * rounding error of the call's least precise type. `stored`: rounding a 16-bit result to its type
 * does not count as an error. */
struct tolerance {
	double exact, roundings;
	bool stored;
};

struct trial {
	const struct kernel_call *c;
	struct device *d[SIDES];
	struct arena *memory[SIDES];
	void (*turn)(struct device *); /* NULL, or called before each kernel of BOTH() */
	bool measures;	       /* measure memory only: both sides are planning devices */
	int64_t n_random;      /* random numbers used so far */
	double numbers;	       /* elements generated for the CPU, and elements compared */
	float *staging[SIDES]; /* for conversions */
	struct trial_pair m[MAX_OPERANDS]; /* the matrices of the call: make_operands() */
	struct trial_result results[MAX_RESULTS]; /* to check in the next BOTH() */
	int n_results;
	double allowed, worst; /* maximum error allowed; largest error / allowed so far */
	bool stored;	       /* tolerance.stored */
	char *fences[MAX_FENCES];
	int n_fences;
	double cpu_seconds;
	struct err *e;
};

/* Returns n if it is at most `max`; otherwise the largest number up to `max` that is congruent to n
 * modulo 128, since kernels fail at the ends of tiles; or `max` if there is none. */
int64_t limit_size(int64_t n, int64_t max);
/* Returns the number of rows to test. */
int64_t limit_rows(struct mat like);
struct mat with_rows(struct mat like, int64_t rows);
/* Returns the shape of matrix i of the call, with at most MAX_TRIAL_ELEMENTS columns except for
 * matmuls; small_shape() also limits it to limit_rows(). */
struct mat call_shape(const struct trial *, int i);
struct mat small_shape(const struct trial *, int i);

/* Makes matrices of the shape of `like` with random elements; NULL if like.p is NULL. */
struct trial_pair pair_random(struct trial *, struct mat like, double scale);
/* pair_random() with rows and columns that repeat on the GPU; pair_send() must follow. */
struct trial_pair pair_repeated(
	struct trial *, struct mat like, int64_t rows, int64_t cols, double scale);
struct trial_pair pair_blank(struct trial *, struct mat like); /* for results: NaN */
struct trial_pair pair_blank_rows(
	struct trial *, struct mat like, int64_t rows); /* rows of the CPU's matrix */
/* Makes a blank GPU matrix with the rows and the type of `like`, and `cols` columns. */
struct mat blank_with_columns(struct trial *, struct mat like, int64_t cols);
struct trial_pair pair_bytes(struct trial *, const void *bytes, size_t n_bytes);
struct trial_pair pair_ints(struct trial *, int64_t n, int64_t low, int64_t high);
struct trial_pair pair_vector(struct trial *, int64_t n, double scale);
struct trial_pair pair_blank_vector(struct trial *, int64_t n);
/* Copies the CPU's matrix to the GPU, and rounds both to the type that the GPU stores. */
void pair_send(struct trial *, struct trial_pair);
/* Copies the GPU's matrix to the CPU's matrix, which has the same shape. */
void pair_receive(struct trial *, struct trial_pair);

/* Makes the matrices t->m[] of the call, in the order of `names` ("-": not this one), with few
 * rows and random elements. Names with a suffix are results: "+" for random elements that the
 * kernel changes, "!" for blank ones. */
void make_operands(struct trial *, const char *names);
/* make_operands() with this number of rows, except for vectors. */
void make_operands_with_rows(struct trial *, const char *names, int64_t rows);
int64_t operand_rows(const struct trial *, int i); /* rows of t->m[i] on the CPU */
#define M(i) t->m[i].m[s]			   /* matrix i on side s, for BOTH() */

/* Makes the next BOTH() check x, and returns x; `what` is its name in messages. */
struct trial_pair add_result(struct trial *, const char *what, struct trial_pair x);
struct trial_pair add_vector(struct trial *, const char *what, int64_t n); /* blank */
/* Fails the trial if the GPU's matrix differs from the CPU's by more than the tolerance. */
void trial_check(struct trial *, const char *what, struct trial_pair);
void trial_check_within(
	struct trial *, const char *what, struct trial_pair, double allowed);
void trial_check_results(struct trial *);
/* Fails the trial if a kernel wrote past the end of a matrix. */
void check_fences(struct trial *);
/* Appends the call's kernel, shapes and flags; calls with equal texts are duplicates. */
void append_call_text(struct str *out, const struct kernel_call *);

/* BOTH(t, name, args...): calls the kernel on both sides and checks the results. In args, `s` is
 * the side. */
#define BOTH(t, name, ...)                                                   \
	do {                                                                 \
		for (enum side s = GPU; s < SIDES; s++) {                    \
			double begin = clock_seconds();                      \
			if ((t)->turn)                                       \
				(t)->turn((t)->d[s]);                        \
			(t)->d[s]->k->name((t)->d[s], __VA_ARGS__);          \
			if (s == CPU)                                        \
				(t)->cpu_seconds += clock_seconds() - begin; \
		}                                                            \
		trial_check_results(t);                                      \
	} while (0)

/* Defines the trial of a kernel with the matrices of make_operands() and these arguments. */
#define TRIAL(name, names, ...)             \
	void try_##name(struct trial *t)    \
	{                                   \
		make_operands(t, names);    \
		BOTH(t, name, __VA_ARGS__); \
	}

/* The dropout of a call on both sides. */
struct dropouts {
	struct dropout d[SIDES];
};
/* Makes the dropout of the call, for `rows` rows. */
struct dropouts make_dropouts(struct trial *, int64_t rows);

/* Runs one call, with d[], memory[] and e set; trial_begin(), called once, allocates staging[]. */
void trial_begin(struct trial *);
void trial_run(struct trial *, const struct kernel_call *, const struct tolerance *);

extern const struct tolerance tolerances[N_KERNELS];
extern void (*const trials[N_KERNELS])(struct trial *);

/* selftest_layers.c, selftest_attn.c, selftest_experts.c, selftest_state.c */
#define KERNEL(type, name, ...) void try_##name(struct trial *);
#include "kernels/list.h"
