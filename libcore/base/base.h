/*
 * base: what every program needs and that knows nothing of training: errors, memory,
 * strings, numbers as text, options, random numbers, hashes, exact sums, safe files.
 *
 * It calls the C library, POSIX and xxHash only, and no other floor.
 */
#ifndef BASE_H
#define BASE_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>
#include <sysexits.h>

#define PT_VERSION "0.1.0"

#define ARRAY_LEN(a) (sizeof(a) / sizeof(*(a)))
#define PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))

/* CUDA C is C++, which knows neither of these. */
#ifdef __cplusplus
#define NORETURN __attribute__((noreturn))
#define AT_LEAST(n) n
#else
#define NORETURN _Noreturn
#define AT_LEAST(n) static n
#endif

/* Before a function that kernels of a GPU call too. */
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

static inline int64_t round_up(int64_t a, int64_t to)
{
	return ceil_div(a, to) * to;
}

/* First item of part i when n items are dealt to `parts` as evenly as they go. */
static inline int64_t part_begin(int64_t n, int64_t parts, int64_t i)
{
	return n / parts * i + min64(i, n % parts);
}

/* ---- err.c: exit codes, errors, messages ----------------------------------------- */

/* The exit codes are <sysexits.h>'s where it has one: EX_USAGE 64, EX_DATAERR 65,
 * EX_IOERR 74, EX_TEMPFAIL 75 ("checkpoint written, start me again"). */
enum { EX_FAILED = 1, EX_TROUBLE = 2 };

/* An error on its way up: an exit code and a message for a person. code 0: no error.
 * Functions that read foreign bytes fill one and return -1; on success they leave it
 * alone. */
struct err {
	int code;
	char msg[1024];
};

/* Fills *e and returns -1, so that a reader can say `return err_set(...)`. */
int err_set(struct err *e, int code, const char *fmt, ...) PRINTF(3, 4);
/* Puts words in front of the message: "FILE: " before what a reader said. Returns -1. */
int err_prefix(struct err *e, const char *fmt, ...) PRINTF(2, 3);

/* What to do about a failure. Only programs know options: what is below them names the kind of
 * failure, and the program has a sentence for those that it can help with. */
enum advice_on {
	ADVICE_MEMORY,
	ADVICE_GPU_MEMORY,
	ADVICE_PINNED_MEMORY,
	ADVICE_SHARED_MEMORY, /* of a GPU's thread block */
	ADVICE_GPU,	      /* none that can be used */
	ADVICE_RUN_IN_USE,
	ADVICE_NO_CHECKPOINT,
	ADVICE_VOCABULARY, /* not known */
	N_ADVICE
};
void advice_set(const char *const table[AT_LEAST(N_ADVICE)]); /* NULL in a row: none */
/* "; " and the sentence, or an empty text: the end of a message. */
const char *advice_on(enum advice_on what);

/* Prints "NAME: rank R: message" and leaves the program. The hook, when set, is called
 * instead of exit() (comm sets it, so that one rank's end is every rank's end). */
NORETURN void die(int code, const char *fmt, ...) PRINTF(2, 3);
NORETURN void die_err(const struct err *e);
/* Says it as die() does, and returns the exit code. */
int err_say(const struct err *e);
extern void (*die_hook)(int code);

/* In a child that shares its parent's files: it says and flushes nothing from here on, and
 * what would be an end with a message is _exit(code). */
void die_silently(int code);

/* A broken promise inside the program: prints where, and aborts. */
#define BUG_ON(cond)                                    \
	do {                                            \
		if (cond)                               \
			bug(__FILE__, __LINE__, #cond); \
	} while (0)
NORETURN void bug(const char *file, int line, const char *what);

/* Messages go to stderr. warn() speaks on every rank, info() only where log_speaks(). */
void warn(const char *fmt, ...) PRINTF(1, 2);
void info(const char *fmt, ...) PRINTF(1, 2);
void log_name(const char *program);
void log_rank(int rank, int size, bool all_ranks);
void log_quiet(bool quiet);
bool log_speaks(void);
bool log_color(FILE *f); /* a terminal, and NO_COLOR is not set */

/* Flushes and closes stdout, and dies when what was printed could not be written. */
void stdout_close(void);

/* ---- mem.c: memory --------------------------------------------------------------- */

/* As their namesakes, but out of memory is the end of the program. */
void *xmalloc(size_t n_bytes);
void *xcalloc(size_t n, size_t n_bytes);
void *xrealloc(void *p, size_t n_bytes);
char *xstrdup(const char *s);

/* Bytes that this host can still give, swap included; 0: not known. */
int64_t memory_available(void);

/*
 * An arena hands out pieces of one block, each on a cache line; pieces are given back
 * all at once, or down to a mark. With no block (`arena_measure`) it hands out addresses
 * that must not be touched and only counts: that is how a plan is made by the very code
 * that will run.
 */
struct arena {
	const char *name;
	char *base;
	size_t size_bytes, used_bytes, peak_bytes;
};

void arena_measure(struct arena *a, const char *name);
void arena_init(struct arena *a, const char *name, size_t size_bytes);
/* The same; -1 where there is no memory, which is the end of the program otherwise. */
int arena_try(struct arena *a, const char *name, size_t size_bytes);
/* In memory of somebody else, who gives it back: the arena is not to be released. */
void arena_over(struct arena *a, const char *name, void *base, size_t size_bytes);
void arena_release(struct arena *a);
void *arena_alloc(struct arena *a, size_t n_bytes);
static inline float *arena_floats(struct arena *a, int64_t n)
{
	return (float *)arena_alloc(a, (size_t)n * sizeof(float));
}

static inline bool arena_measuring(const struct arena *a)
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
	char *s; /* always ends in a NUL once anything was added */
	size_t len, cap;
};

void str_free(struct str *b);
void str_clear(struct str *b);
void str_add(struct str *b, const void *p, size_t n_bytes);
void str_puts(struct str *b, const char *s);
void str_putc(struct str *b, char c);
void str_printf(struct str *b, const char *fmt, ...) PRINTF(2, 3);

/* A list of strings, each owned by the list. */
struct strs {
	char **v;
	int64_t n;
};

void strs_add(struct strs *l, const char *s);
void strs_free(struct strs *l);

/* The whole text must be the number: -1 on anything else, and on overflow. Sizes take
 * the suffixes K, M, G and T (1024-fold). */
int parse_int(const char *s, int64_t *out);
int parse_size(const char *s, int64_t *out);
int parse_double(const char *s, double *out);
/* A variable of the environment that is yes (1) or no (0); without it -1. Anything else ends
 * the program. */
int env_switch(const char *name);

enum { NUM_TEXT = 40 };
/* The shortest decimal text that reads back as the same number. Returns buf. */
char *text_double(char buf[AT_LEAST(NUM_TEXT)], double x);
char *text_float(char buf[AT_LEAST(NUM_TEXT)], float x);
/* "12.3 MiB", "1.5 G": three significant digits, for people. Returns buf. */
char *text_bytes(char buf[AT_LEAST(NUM_TEXT)], double n_bytes);
char *text_count(char buf[AT_LEAST(NUM_TEXT)], double n);
/* Floats between a and b, counting both zeros as one; INT64_MAX when one is not a number. */
int64_t float_ulps(float a, float b);

/* Of names[0..n), the one nearest to `name` by edit distance, or NULL when none is near
 * enough to be what a person meant. */
const char *nearest(const char *name, const char *const *names, int64_t n);

/* ---- clock.c --------------------------------------------------------------------- */

double clock_seconds(void); /* monotonic; the zero is arbitrary */
double clock_wall(void);    /* seconds since 1970 */
/* "2026-11-20T10:51:00Z". Returns buf. */
char *clock_text(char buf[AT_LEAST(NUM_TEXT)], double wall);

/* ---- opt.c, opt_value.c, help.c, gen.c: one table for one option ----------------- */

enum opt_type {
	OPT_END,    /* closes a table */
	OPT_GROUP,  /* a heading: only `name` and `help` */
	OPT_FLAG,   /* bool; --x sets it, --no-x clears it; in a config: x = yes|no */
	OPT_INT,    /* int64_t in [min, max] */
	OPT_SIZE,   /* int64_t bytes, with K, M, G, T */
	OPT_DOUBLE, /* double in [min, max] */
	OPT_STR,    /* const char *, NULL when unset */
	OPT_ENUM,   /* int: index into `values` */
	OPT_LIST,   /* struct strs: may be given many times */
	OPT_ACTION, /* no value: `act` is called and decides what follows */
};

enum opt_flag {
	OPT_ARITH =
		1, /* fixes what is computed: two runs that differ here are different */
	OPT_MODEL = 4, /* shapes and arithmetic of the model: what its weights need */
	OPT_LOCAL = 2, /* belongs to this invocation: not saved with a run */
};

struct opt {
	enum opt_type type;
	char letter;	  /* short option, or 0 */
	const char *name; /* long option, config key, and PT_NAME in the environment */
	const char *arg; /* what the value is called in help; OPT_ENUM lists its values */
	const char *def; /* default, as text; NULL: zero, no, or unset */
	size_t offset;	 /* of the value in the program's struct of options */
	unsigned flags;
	double min, max;	   /* both 0: any */
	const char *const *values; /* OPT_ENUM: names, closed by NULL */
	const char *files; /* completion: "" any file, ".h5" such files, "/" folders */
	/* Other options without which it means nothing, as people read it: "--a", "--a or --b",
	 * "--a word or word". Checked by opts_check_needs(). */
	const char *needs;
	const char *was; /* its name in earlier versions, which is read too */
	const char *help;
};

/* The words of an OPT_ENUM, which stand beside the enum: #define COLOR_WORDS "red", "green". */
#define OPT_WORDS(...)            \
	(const char *const[])     \
	{                         \
		__VA_ARGS__, NULL \
	}

/* A bit for each row of the table: was it given on the command line or in the environment, or
 * in a file as something other than the default? */
struct opt_given {
	uint64_t bits[4];
};

struct program {
	const char *name;
	const char *summary;	     /* as in the man page's NAME */
	const char *const *synopsis; /* lines after the program's name, closed by NULL */
	const struct opt *opts;
	size_t opts_bytes;    /* size of the struct that the offsets refer to */
	size_t given;	      /* offset of its struct opt_given; 0: it has none */
	const char *operands; /* completion of operands, as opt.files; NULL: none */
	/* Words that operands may be, closed by NULL; where files may follow, the first one. */
	const char *const *(*words)(void);
	bool settings;			   /* operands like `lr=3e-4` are options */
	void (*versions)(struct str *out); /* lines "library version", or NULL */
	/* Further kinds for --generate, made from the program's other tables; -1: no such. */
	int (*generate)(const char *kind, FILE *f);
	/* Options that these go on from, such as a resumed run's: called when *o is filled
	 * in, may append a config text; then all sources are applied anew, on top of it. */
	int (*base)(void *o, struct str *text, struct err *e);
	const char *const *kinds; /* their names, closed by NULL */
};

/*
 * Fills *o from the defaults, the program's base, the file that the option "preset" names (looked for in the preset folder), the
 * file that --config names, the environment and the command line, the later winning.
 * Answers --help, --version, --print-config and --generate itself and exits 0. Returns
 * the number of operands and puts them at argv[0..); -1 with *e set on a bad option.
 */
int opts_parse(const struct program *p, void *o, int argc, char **argv, struct err *e);
/* Fills *o from the defaults and a config text only. Keys that are not known are an error,
 * or passed over. */
int opts_from_text(const struct program *p, void *o, const char *text, bool skip_unknown,
	struct err *e);
/* The options as a config text that reads back to the same values: those with all the
 * flags `want` and none of `without`. */
void opts_print(const struct program *p, const void *o, unsigned want, unsigned without,
	struct str *out);
/* Was the option given? Of programs with .given only, as the two below. */
bool opts_given(const struct program *p, const void *o, const char *name);
/* Options whose names begin so get their defaults, and were not given. */
void opts_reset(const struct program *p, void *o, const char *prefix);
/* Checks that every option that was given has the options that it needs. */
int opts_check_needs(const struct program *p, const void *o, struct err *e);
/* Writes what is made from the table: kind is man, bash, zsh or fish, presets (their
 * names), or one of the program's own. */
int opts_generate(const struct program *p, const char *kind, FILE *f);
/* Text as mdoc wants it, with a newline. */
void man_text(FILE *f, const char *s);
/* The folder of presets: $PT_SHARE, else share/ beside or above the program. */
void share_path(struct str *out, const char *below);

/* ---- conf.c: config files -------------------------------------------------------- */

/*
 * Reads `key = value` lines: '#' starts a comment at the start of a line or after a
 * blank, a value may stand in double quotes with \n \t \" \\ inside, [headings] are
 * for people and ignored. Calls set() for each; a nonzero answer ends the reading.
 */
int conf_parse(const char *text, size_t len, const char *name,
	int (*set)(void *to, const char *key, const char *value, struct err *e), void *to,
	struct err *e);
/* Appends `key = value`, quoted where the value needs it. */
void conf_print(struct str *out, const char *key, const char *value);

/* ---- file.c: reading, and writing that survives a crash -------------------------- */

/* Reads a whole file; a bound keeps a hostile one from taking the memory. */
int file_read(const char *path, size_t max_bytes, struct str *out, struct err *e);
/* The rest of an open one, which messages call `name`. */
int file_read_rest(
	int fd, const char *name, size_t max_bytes, struct str *out, struct err *e);
int file_make_folder(const char *path, struct err *e); /* as mkdir -p */
bool file_exists(const char *path);
/* Loops until all is written or read; -1 with errno set (0 for an early end). */
int write_all(int fd, const void *p, size_t n_bytes);
int pwrite_all(int fd, const void *p, size_t n_bytes, int64_t at);
int pread_all(int fd, void *p, size_t n_bytes, int64_t at);
/* Copies the whole of file descriptor `from` to `to`, from where each stands. */
int copy_all(int from, int to);
/* A symbolic link in the place of what is at `path`, at once and for good. */
int file_link(const char *target, const char *path, struct err *e);
/* Is there room for so many bytes more where `path` is to be? What is not known is yes. */
int file_room(const char *path, int64_t n_bytes, struct err *e);
/* Locks a file for writing, against other processes, on all hosts where the file system can;
 * the lock ends when *fd is closed, or with the process, however that ends. 0, or an errno:
 * EAGAIN when another process has it. With `make` the file need not be there. */
int file_lock(const char *path, bool make, int *fd);

/* A file that appears under its name only when it is complete: it is written as
 * NAME.tmp, synced, renamed, and the folder is synced. */
struct durable {
	char *path, *tmp;
	bool keeps; /* an error, when a file of that name has come meanwhile */
};

/* All ranks know the temporary name, and what a killed program left is written over. */
void durable_begin(struct durable *d, const char *path);
/* A name of this process alone, NAME.xxxxxx.tmp, which is made: nobody else gets it. */
int durable_begin_own(struct durable *d, const char *path, struct err *e);
int durable_commit(struct durable *d, struct err *e);
/* All of them under their names, while nobody else who asks for the same does so in the folder
 * of the first: files that belong together do not mix with another program's. */
int durable_commit_all(struct durable *const *d, int64_t n, struct err *e);
void durable_abort(struct durable *d);	/* removes the temporary file */
void durable_forget(struct durable *d); /* another rank looks after the files */

/* ---- doomed.c: files that must not outlive the program --------------------------- */

/* The file goes when a signal or exit() ends the program, unless it is spared before. Signals
 * that the program handles, or ignores, are left to it. One thread at a time. */
void file_doom(const char *path);
void file_spare(const char *path);
void file_remove(const char *path);
/* Makes a file that is doomed from its first moment: -1 when there is one already. `path` may
 * be a template as mkostemp's. */
int file_make_doomed(char *path, bool pattern);
/* All of them, now: for handlers of signals that end the program. */
void file_remove_doomed(void);
/* A new file in $TMPDIR (or /tmp) for a stream that must be seekable, and may be larger than
 * memory. `path` receives its name, which is doomed: the caller removes it. Returns a
 * descriptor. */
int file_temporary(char path[AT_LEAST(4096)], struct err *e);
const char *file_temporary_folder(void);
/* Such a file that holds the rest of the stream `from`, which messages call `name`. */
int file_spool(int from, const char *name, char path[AT_LEAST(4096)], struct err *e);

/* ---- hash.c ---------------------------------------------------------------------- */

uint64_t hash_bytes(const void *p, size_t n_bytes, uint64_t seed); /* XXH3, 64 bits */
static ON_BOTH inline uint64_t hash_mix(uint64_t x)
{ /* the finaliser of SplitMix64 (Steele, Lea, Flood 2014) */
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	return x ^ x >> 31;
}

uint64_t hash_str(const char *s);
const char *hash_version(void);
/* Streaming, for bytes that pass by in pieces. */
struct hash_state;
struct hash_state *hash_open(void);
void hash_add(struct hash_state *h, const void *p, size_t n_bytes);
uint64_t hash_close(struct hash_state *h); /* frees it */

/* ---- philox.h: counter-based random numbers -------------------------------------- */

#include "base/philox.h"

/* ---- exact.c: sums that no order of adding can change ---------------------------- */

#include "base/exact.h"

void exact_add(struct exact *x, double v);
/* The sum, rounded once to the nearest double, ties to even. */
double exact_round(const struct exact *x);

/* ---- progress.c: a bar on a terminal --------------------------------------------- */

struct progress {
	const char *title;
	double total, start, last;
	bool shown;
};

void progress_begin(struct progress *p, const char *title, double total);
void progress_update(struct progress *p, double done, const char *note);
void progress_end(struct progress *p);

#endif
