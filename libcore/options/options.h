/* options: one table per program, from which the command line, config files and the environment are
 * parsed, and --help, manual pages and completions are generated. No call is collective. */
#pragma once

#include "base/base.h"

/* ---- options.c, option_value.c, help.c, gen.c, complete.c: the table of options --------- */

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
	OPT_ACTION, /* not stored: the parser executes it */
};

enum opt_flag {
	/* Saved with a run, and read from checkpoints, which are not trusted: never an option
	 * that names a file, a program or a device. All other options are set by the user only. */
	OPT_RUN = 1,
	OPT_ARITH = 2 | OPT_RUN,   /* determines results */
	OPT_MODEL = 4 | OPT_ARITH, /* shapes and arithmetic of the model */
	OPT_SEVERAL = 8, /* OPT_LIST: the operands that follow it are values, too */
	OPT_REPLAY = 16, /* not saved, but read from the log by a replay */
};

struct opt {
	enum opt_type type;
	char letter;	  /* short option, or 0 */
	const char *name; /* long option, config key, and PT_NAME in the environment */
	/* name of the value in help; OPT_ENUM lists its values; OPT_GROUP: the manual page of the
	 * options, such as "pt-experts", if it is not the program's */
	const char *arg;
	const char *def; /* default, as text; NULL: zero, no, or unset */
	size_t offset;	 /* offset of the value in the program's struct of options */
	unsigned flags;
	double min, max;	   /* both 0: any */
	const char *const *values; /* OPT_ENUM: names, closed by NULL */
	const char *unsupported;   /* OPT_ENUM: "WORD: what to do instead"; NULL: none */
	const char
		*files; /* completion: "" any file, ".h5" such files, "/" directories */
	/* the options that it needs, as in messages: "--a", "--a or --b", "--a word or word";
	 * checked by opts_check_needs() */
	const char *needs;
	const char *was; /* earlier name, which is read too */
	/* names in Megatron-LM, torchtitan or nanoGPT, separated by spaces, for the message about
	 * an unknown option */
	const char *elsewhere;
	const char *help;
};

/* The words of an OPT_ENUM, defined next to the enum: #define COLOR_WORDS "red", "green". */
#define OPT_WORDS(...)            \
	(const char *const[])     \
	{                         \
		__VA_ARGS__, NULL \
	}

/* The option that sets the limit of file_spool(), and the advice when the limit is exceeded. */
#define OPT_SPOOL_LIMIT(at, flags)                                                       \
	{                                                                                \
		OPT_SIZE, 0, "spool-limit", "BYTES", "64G", at, flags,                   \
			.help = "Copy at most this many bytes of a pipe to a temporary " \
				"file in TMPDIR, and at most nine tenths of the free "   \
				"space there (0: only the second limit)."                \
	}
#define SPOOL_ADVICE                                        \
	[ADVICE_SPOOL_LIMIT] = "--spool-limit allows more", \
	[ADVICE_SPOOL_SPACE] = "set TMPDIR to a directory with more space"

/* The options that were given. */
struct opt_given {
	bool row[256]; /* [table row]: set by the user, or by a file to another value than the default */
	const char *from[256]; /* a description of the file, or NULL */
};

/* The answer to a name of an option that other programs have. */
struct opt_answer {
	const char *names; /* as opt.elsewhere, or option=value; NULL closes a table */
	const char *
		lacks; /* unsupported feature, in the plural; NULL: it has another name here */
	const char *instead; /* the option that does it, or the nearest */
};

struct program {
	const char *name;
	const char *summary;	     /* as in the man page's NAME */
	const char *const *synopsis; /* lines after the program's name, closed by NULL */
	const struct opt *opts;
	size_t opts_bytes;    /* size of the struct that the offsets refer to */
	size_t given;	      /* offset of its struct opt_given; 0: it has none */
	bool one_rank;	      /* several ranks are a usage error */
	const char *operands; /* completion of operands, as opt.files; NULL: none */
	/* words for operands, or if files may follow, for the first operand; closed by NULL */
	const char *const *(*words)(void);
	/* adds completions for the value of an option; NULL: none */
	void (*offer)(const char *option, struct strs *words);
	bool settings;			   /* operands like `lr=3e-4` are options */
	void (*versions)(struct str *out); /* lines "library version", or NULL */
	const struct opt_answer *answers;  /* NULL: none */
	/* former options that saved runs may have, separated by spaces: ignored; NULL: none */
	const char *retired;
	/* kinds for --generate besides "man", closed by NULL; generate() gets the index of one */
	const char *const *kinds;
	void (*generate)(int kind, FILE *f);
	/* called with *o complete; may append a config text, such as a resumed run's options, on
	 * top of which all sources are then applied again */
	int (*base)(void *o, struct str *text, struct err *e);
};

/* Fills *o from the defaults, the program's base, the presets, the config file, the environment
 * and the command line; later sources win. Answers --help, --version, --print-config, --generate
 * and --complete, and exits with 0. Moves the operands to argv[0..) and returns their number; -1
 * with *e set on an invalid option. argv[argc] must be NULL, as in main(). */
int opts_parse(const struct program *p, void *o, int argc, char **argv, struct err *e);
/* Calls log_name() and opts_parse(), and exits on an invalid option. */
int opts_parse_or_die(const struct program *p, void *o, int argc, char **argv);
/* Fills *o from the defaults and a config text. `saved`: a run saved the text, so options without
 * OPT_RUN are an error, as unknown ones are. */
int opts_from_text(
	const struct program *p, void *o, const char *text, bool saved, struct err *e);
/* Frees the texts and lists of *o. */
void opts_free(const struct program *p, void *o);
/* Returns the flags of an option by its name or earlier name; 0 if there is none. */
unsigned opts_flags(const struct program *p, const char *name);
/* Sets the error "unknown WHAT 'NAME'", with the nearest of names[n] as a suggestion. */
int opts_unknown_error(const char *what, const char *name, const char *const *names,
	int64_t n, struct err *e);
/* Sets the error about an unknown key, for a program without file operands: opts_parse() leaves
 * key=value as an operand if the key has a dot or a slash. */
int opts_unknown_key_error(const struct program *p, const char *word, struct err *e);
/* Prints the options that have all of with_flags and none of without_flags, as a config text that
 * reads back to the same values. All options, and all with OPT_RUN, get their headings. */
void opts_print(const struct program *p, const void *o, unsigned with_flags,
	unsigned without_flags, struct str *out);
/* Returns true if the environment sets an option of this name, of any program. */
bool opts_in_environment(const char *name);

/* The calls from here to opts_note_idle() are for programs with .given. */

/* Returns true if the option was given. */
bool opts_given(const struct program *p, const void *o, const char *name);
/* Sets options whose names begin with the prefix to their defaults, as if not given. */
void opts_reset(const struct program *p, void *o, const char *prefix);
/* Appends to a usage message the files that the options in it are from. */
void opts_add_origins(const struct program *p, const void *o, struct err *e);
/* Checks that every option that was given has the options that it needs. */
int opts_check_needs(const struct program *p, const void *o, struct err *e);
/* Options without effect. */
struct opt_idle {
	bool idle;	     /* the condition under which they have no effect */
	const char *options; /* names, separated by spaces */
	const char *why;
};
/* Prints "note: --a and --b have no effect: WHY" for each idle row with options that were given
 * with another value than the default. It is not an error, since scripts try options on many
 * layouts. */
void opts_note_idle(
	const struct program *p, const void *o, const struct opt_idle *rows, size_t n);
/* Writes text that is generated from the program's tables: "man", or one of its own kinds.
 * Returns -1 for an unknown kind. */
int opts_generate(const struct program *p, const char *kind, FILE *f);
/* Writes text as mdoc, with a newline. */
void man_text(FILE *f, const char *s);
/* Sets *e to "WHAT: 'NAME' is none of A, B; did you mean 'B'?", without "WHAT: " if NULL, and
 * returns -1. */
int err_none_of(struct err *e, const char *what, const char *name,
	const char *const *names, int64_t n);
/* Writes "; did you mean 'NAME'?" with the nearest of the names, or an empty text. Returns buf. */
enum { DID_YOU_MEAN = 128 };
char *did_you_mean(char buf[AT_LEAST(DID_YOU_MEAN)], const char *name,
	const char *const *names, int64_t n);

/* ---- conf.c: config files -------------------------------------------------------- */

/* Reads `key = value` lines, and calls set() for each until it returns nonzero. '#' starts a
 * comment at the start of a line or after a blank. A value may be in double quotes, with \n \t \"
 * \\ inside. [headings] are ignored. */
int conf_parse(const char *text, size_t len, const char *name,
	int (*set)(void *to, const char *key, const char *value, struct err *e), void *to,
	struct err *e);
struct conf_text {
	const struct str *text;
	const char *name; /* in messages */
};
/* Compares two texts, and appends a line "HEAD KEY MID A SEP B" for each key with
 * different values; '-' stands for a missing key. */
int conf_diff(const struct conf_text *a, const struct conf_text *b, const char *head,
	const char *mid, const char *sep, struct str *out, struct err *e);
/* Appends `key = value`, quoted where the value needs it. */
void conf_print(struct str *out, const char *key, const char *value);
