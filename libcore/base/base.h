/* base: errors and messages, memory, strings, numbers as text, clocks, hashes, random numbers,
 * exact sums. Files are in base/file.h, options in options/options.h.
 *
 * It depends only on the C library, POSIX, xxHash, jansson (json.h), zlib and zstd (unpack.h),
 * and on no other floor. No call is collective. */
#pragma once

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sysexits.h>

#define PT_VERSION "0.1.0"

#define ARRAY_LEN(a) (sizeof(a) / sizeof(*(a)))
#define PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))

/* CUDA C is C++, which has neither _Noreturn nor [static n]. */
#ifdef __cplusplus
#define NORETURN __attribute__((noreturn))
#define AT_LEAST(n) n
#else
#define NORETURN _Noreturn
#define AT_LEAST(n) static n
#endif

/* Marks a function that GPU kernels call, too. */
#ifdef __CUDACC__
#define ON_BOTH __host__ __device__
#else
#define ON_BOTH
#endif

static ON_BOTH inline int64_t min64(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

static ON_BOTH inline int64_t max64(int64_t a, int64_t b)
{
	return a > b ? a : b;
}

static ON_BOTH inline int64_t ceil_div(int64_t a, int64_t b)
{
	return (a + b - 1) / b;
}

static inline int64_t round_up(int64_t a, int64_t multiple)
{
	return ceil_div(a, multiple) * multiple;
}

/* Returns the first item of part i when n items are divided as evenly as possible. */
static inline int64_t part_begin(int64_t n, int64_t parts, int64_t i)
{
	return n / parts * i + min64(i, n % parts);
}

/* ---- err.c: exit codes, errors, messages ----------------------------------------- */

/* Exit codes besides those in <sysexits.h>: EX_USAGE 64, EX_DATAERR 65, EX_UNAVAILABLE 69, EX_IOERR
 * 74, EX_TEMPFAIL 75 ("checkpoint written, start me again"). */
enum { EX_FAILED = 1, EX_TROUBLE = 2, EX_UNDECIDED = 3 };

/* An error for the caller to report: an exit code (0: no error) and a message. Functions that read
 * untrusted input set it and return -1; on success they do not touch it. */
struct err {
	int code;
	char msg[1024];
};

/* Sets *e and returns -1, for `return err_set(...)`. */
int err_set(struct err *e, int code, const char *fmt, ...) PRINTF(3, 4);
/* Prepends text to the message, such as "FILE: ". Returns -1. */
int err_prefix(struct err *e, const char *fmt, ...) PRINTF(2, 3);
/* Prints *e. Copies its code to first->code, unless an earlier error has set that. */
void err_print_keep_first(struct err *first, const struct err *e);

/* Kinds of failure. A program's table may have a sentence of advice for each, or NULL. */
enum advice_on {
	ADVICE_MEMORY,
	ADVICE_GPU_MEMORY,
	ADVICE_PINNED_MEMORY,
	ADVICE_SHARED_MEMORY, /* shared memory of a GPU thread block */
	ADVICE_GPU,	      /* no usable GPU */
	ADVICE_RUN_IN_USE,
	ADVICE_NO_CHECKPOINT,
	ADVICE_FOREIGN_MODEL,  /* another program's model, not a checkpoint */
	ADVICE_VOCABULARY,     /* unknown size of the vocabulary */
	ADVICE_NO_DATA,	       /* no data files given */
	ADVICE_NOT_A_SHARD,    /* a data file that may be text */
	ADVICE_FILE_EXISTS,    /* an output file that exists already */
	ADVICE_NOT_UTF8,       /* text that is not UTF-8 */
	ADVICE_TOKENS,	       /* tokens where text is expected */
	ADVICE_PATTERN,	       /* unknown split pattern of a vocabulary file */
	ADVICE_TOKENIZER,      /* unsupported kind of tokenizer */
	ADVICE_VOCAB_FILES,    /* vocabulary files not given */
	ADVICE_EMPTY_SPLIT,    /* a split without documents */
	ADVICE_DOCUMENTS,      /* too many documents for one shard */
	ADVICE_WORK_DIRECTORY, /* work directory not given */
	ADVICE_BENCH_MEMORY,   /* buffers of pt-collbench */
	ADVICE_GNUPLOT,	       /* gnuplot does not start */
	ADVICE_SPOOL_LIMIT,    /* a stream longer than the limit */
	ADVICE_SPOOL_SPACE,    /* a stream longer than the free space */
	N_ADVICE
};
void advice_set(const char *const table[AT_LEAST(N_ADVICE)]); /* NULL: no advice */
/* Returns "; " and the advice, or "" without any, for the end of a message. */
const char *advice_on(enum advice_on failure);

/* Prints "NAME: rank R: message" and exits. The hook, if set, is called instead of exit() (comm
 * sets it, so that all ranks end when one does). */
NORETURN void die(int code, const char *fmt, ...) PRINTF(2, 3);
NORETURN void die_err(const struct err *e);
void die_io(const struct err *e);   /* dies if e->code is EX_IOERR, else returns */
int err_print(const struct err *e); /* prints e->msg, unless empty; returns e->code */
extern void (*die_hook)(int code);

/* Turns off messages in a child process that shares its parent's streams; die(): _exit(code). */
void silence_messages(int code);

/* Prints the place and aborts if an invariant is violated, a bug of this program. */
#define BUG_ON(cond)                                    \
	do {                                            \
		if (cond)                               \
			bug(__FILE__, __LINE__, #cond); \
	} while (0)
NORETURN void bug(const char *file, int line, const char *what);

/* Print messages to stderr: warn() on every rank; info() only where log_is_enabled(); info_wait() also
 * with --quiet, as a warning. */
void warn(const char *fmt, ...) PRINTF(1, 2);
void info(const char *fmt, ...) PRINTF(1, 2);
void info_wait(const char *fmt, ...) PRINTF(1, 2);
/* Set the program's name, this rank (all_ranks: info() prints on every rank), and --quiet. */
void log_name(const char *program);
void log_set_rank(int rank, int size, bool all_ranks);
void log_set_quiet(bool quiet);
bool log_is_enabled(void);
bool log_uses_color(FILE *f); /* true for a terminal if NO_COLOR is not set */

/* Flushes and closes stdout; a write error ends the program with EX_IOERR. */
void stdout_close(void);

/* ---- mem.c: memory --------------------------------------------------------------- */

/* Allocate like malloc() etc., but end the program if there is no memory. */
void *xmalloc(size_t n_bytes);
void *xcalloc(size_t n, size_t element_bytes);
void *xrealloc(void *p, size_t n_bytes);
char *xstrdup(const char *s);
/* Frees the memory of a pointer, as in `scoped_ptr float *x`, at the end of its scope. */
#define scoped_ptr __attribute__((cleanup(free_pointer)))
static inline void free_pointer(void *address)
{
	void *p;
	memcpy(&p, address, sizeof(p));
	free(p);
}

/* Grows an array of n elements, to which elements are added one by one, so that element n fits. */
void *xgrow(void *p, int64_t n, size_t element_bytes);
int64_t memory_available(void); /* free bytes of this host, with swap; 0: unknown */

/*
 * An arena allocates from one block of memory, each allocation aligned to a cache line, and frees
 * everything at once or down to a mark. A measuring arena (arena_measure()) has no block: it only
 * counts, and its addresses must not be accessed. So the code that will run makes the memory plan.
 */
struct arena {
	const char *name;
	char *base;
	size_t size_bytes, used_bytes, peak_bytes;
};

void arena_measure(struct arena *a, const char *name);
/* Allocates the memory of an arena; ends the program if there is not enough. */
void arena_init(struct arena *a, const char *name, size_t size_bytes);
/* Initializes an arena, or returns -1 if memory is short, where arena_init() dies. */
int arena_try_init(struct arena *a, const char *name, size_t size_bytes);
/* Initializes an arena in memory that the caller owns. It must not be released. */
void arena_init_over(struct arena *a, const char *name, void *base, size_t size_bytes);
void arena_release(struct arena *a);
/* Returns aligned memory of the arena, and raises its peak. The arena must have enough left. */
void *arena_alloc(struct arena *a, size_t n_bytes);
static inline float *arena_floats(struct arena *a, int64_t n)
{
	return (float *)arena_alloc(a, (size_t)n * sizeof(float));
}

static inline bool arena_is_measuring(const struct arena *a)
{
	return a->size_bytes == SIZE_MAX;
}

static inline size_t arena_mark(const struct arena *a)
{
	return a->used_bytes;
}

static inline void arena_reset(struct arena *a, size_t mark)
{
	a->used_bytes = mark;
}

/* ---- str.c: growing strings, text of numbers ------------------------------------- */

struct str {
	char *s; /* NULL at first, then always NUL-terminated */
	size_t len, cap;
};
void str_free(struct str *b);
/* A struct str that is freed at the end of its scope. */
#define scoped_str __attribute__((cleanup(str_free))) struct str
void str_clear(struct str *b);
void str_reserve(struct str *b, size_t n_bytes); /* reserves n_bytes more */
void str_add(struct str *b, const void *p, size_t n_bytes);
void str_puts(struct str *b, const char *s);
void str_putc(struct str *b, char c);
void str_printf(struct str *b, const char *fmt, ...) PRINTF(2, 3);
char *text_printf(const char *fmt, ...) PRINTF(1, 2); /* allocated */
bool str_ends(const struct str *b, const char *end);
bool text_ends(const char *text, const char *end);

/* A list of strings, which it owns. */
struct strs {
	char **v;
	int64_t n;
};
void strs_add(struct strs *l, const char *s);
int64_t strs_find(const struct strs *l, const char *s); /* -1: none */
void strs_sort(struct strs *l);
void strs_free(struct strs *l);
#define scoped_strs __attribute__((cleanup(strs_free))) struct strs

/* For qsort() and bsearch(): compare elements by their first member. */
int compare_texts(const void *a, const void *b);
int compare_int64(const void *a, const void *b);
int compare_doubles(const void *a, const void *b);

/* Parse a whole text; -1 also on overflow. Sizes have the suffixes K, M, G, T (powers of 1024). */
int parse_int(const char *s, int64_t *out);
int parse_size(const char *s, int64_t *out);
int parse_double(const char *s, double *out);
/* Parses a number at the beginning of [s, end) like strtod(). Returns its end, or s. */
const char *scan_double(const char *s, const char *end, double *out);
/* Returns 1 for "yes" and 0 for "no" in an environment variable, -1 if it is not set; else dies. */
int env_switch(const char *name);

enum { NUM_TEXT = 40 };
/* Write the shortest decimal text that is parsed as the same number. Return buf. */
char *text_double(char buf[AT_LEAST(NUM_TEXT)], double x);
char *text_float(char buf[AT_LEAST(NUM_TEXT)], float x);
/* Write "12.3 MiB" or "1.5 G" with three significant digits. Return buf. */
char *text_bytes(char buf[AT_LEAST(NUM_TEXT)], double n_bytes);
char *text_count(char buf[AT_LEAST(NUM_TEXT)], double n);
static inline const char *plural(int64_t n)
{
	return n == 1 ? "" : "s";
}

/* Returns the distance in units in the last place; -0 equals 0. INT64_MAX: one is NaN. */
int64_t float_ulps(float a, float b);

/* Returns the nearest of names[n] by edit distance; NULL: none is within a typing error. */
const char *nearest(const char *name, const char *const *names, int64_t n);

/* ---- clock.c --------------------------------------------------------------------- */

double clock_seconds(void);	  /* monotonic, from an arbitrary zero */
double clock_wall(void);	  /* seconds since 1970 */
void clock_sleep(double seconds); /* returns early on a signal */
/* Returns a hash of Linux's boot id, or 0. Processes with equal ids share a monotonic clock. */
uint64_t boot_id(void);
/* Writes a time as "2026-11-20T10:51:00Z". Returns buf. */
char *clock_text(char buf[AT_LEAST(NUM_TEXT)], double wall);

/* ---- hash.h: XXH3 of bytes; philox.h: counter-based random numbers ---------------- */

#include "base/hash.h"
#include "base/philox.h"

/* ---- exact.c: sums that do not depend on the order ------------------------------- */

#include "base/exact.h"

void exact_add(struct exact *x, double v);
double exact_round(const struct exact *x); /* like exact_finish(), but x is not changed */
