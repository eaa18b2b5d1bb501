/*
 * options: one table for each program, from which the command line, config files and the environment
 * are parsed, and --help, manual pages and completions are generated. No call is collective.
 */
#pragma once

#include "base/base.h"

/* ---- options.c, option_value.c, help.c, gen.c, complete.c: one table for one option ----- */

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
	/* It is the run's: saved with it, and read from its checkpoints, which may be anybody's. So no option
	 * that names a file, a program or a device is; all that are not are only the user's. */
	OPT_RUN = 1,
	OPT_ARITH = 2 | OPT_RUN, /* determines results */
	OPT_MODEL =
		4 |
		OPT_ARITH, /* shapes and arithmetic of the model, which its weights need */
	OPT_SEVERAL = 8,   /* OPT_LIST: the operands that follow it are its values too */
	/* Only the user's, but who computes a run again takes it from its log: data, layout, device. */
	OPT_REPLAY = 16,
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
	const char *unsupported;   /* OPT_ENUM: "WORD: what to do instead"; NULL: none */
	const char *files; /* completion: "" any file, ".h5" such files, "/" folders */
	/* The options that it needs, as in messages: "--a", "--a or --b", "--a word or word".
	 * Checked by opts_check_needs(). */
	const char *needs;
	const char *was; /* its earlier name, which is read too */
	/* What Megatron-LM, torchtitan or nanoGPT call it, separated by spaces: for the message
	 * about an unknown option. */
	const char *elsewhere;
	const char *help;
};

/* The words of an OPT_ENUM, which stand beside the enum: #define COLOR_WORDS "red", "green". */
#define OPT_WORDS(...)            \
	(const char *const[])     \
	{                         \
		__VA_ARGS__, NULL \
	}

/* The limit of file_spool(), an option of programs that read streams; and advice about it. */
#define OPT_SPOOL_LIMIT(at, flags)                                                 \
	{                                                                          \
		OPT_SIZE, 0, "spool-limit", "BYTES", "64G", at, flags,             \
			.help = "Copy at most this much of a pipe to a temporary " \
				"file in TMPDIR, and never more than nine tenths " \
				"of the free space (0: no other limit)."           \
	}
#define SPOOL_ADVICE                                        \
	[ADVICE_SPOOL_LIMIT] = "--spool-limit allows more", \
	[ADVICE_SPOOL_ROOM] = "TMPDIR can name a folder with more room"

/* For each row of the table: was it given on the command line or in the environment, or in a file as
 * something other than the default? And which file, in words; NULL: no file, or the default. */
struct opt_given {
	bool row[256];
	const char *from[256];
};

/* What to tell a user who asks for something by a name that no option has. */
struct opt_answer {
	const char *names; /* as opt.elsewhere, or option=value; NULL closes a table */
	const char *
		lacks; /* what is not supported, in the plural; NULL: it is done in another way */
	const char *instead; /* what does it, or is nearest to it */
};

struct program {
	const char *name;
	const char *summary;	     /* as in the man page's NAME */
	const char *const *synopsis; /* lines after the program's name, closed by NULL */
	const struct opt *opts;
	size_t opts_bytes;    /* size of the struct that the offsets refer to */
	size_t given;	      /* offset of its struct opt_given; 0: it has none */
	bool one_rank;	      /* it is a usage error if a launcher starts several */
	const char *operands; /* completion of operands, as opt.files; NULL: none */
	/* Words that operands may be, closed by NULL; where files may follow, the first one. */
	const char *const *(*words)(void);
	/* Adds words that the value of an option may be, for completions; NULL: none. */
	void (*offer)(const char *option, struct strs *words);
	bool settings;			   /* operands like `lr=3e-4` are options */
	void (*versions)(struct str *out); /* lines "library version", or NULL */
	const struct opt_answer *answers;  /* NULL: none */
	/* Further kinds for --generate, made from the program's other tables, closed by NULL;
	 * `kind` is the index of one. */
	const char *const *kinds;
	void (*generate)(int kind, FILE *f);
	/* Called with *o complete, it may append a config text, such as a resumed run's options;
	 * then all sources are applied again, on top of that text. */
	int (*base)(void *o, struct str *text, struct err *e);
};

/*
 * Fills *o from the defaults, the program's base, the presets, the config file, the environment and
 * the command line; later sources win. Answers --help, --version, --print-config, --generate and
 * --complete, and exits with 0. Returns the number of operands, which are moved to argv[0..); -1 with *e set on an
 * invalid option. argv[argc] must be NULL, as main() has it.
 */
int opts_parse(const struct program *p, void *o, int argc, char **argv, struct err *e);
/* Also names the program in messages; a bad option ends it. */
int opts_parse_or_die(const struct program *p, void *o, int argc, char **argv);
/* Fills *o from the defaults and a config text only. `saved`: by a run, so other options than those
 * of a run are an error, as unknown ones are. */
int opts_from_text(
	const struct program *p, void *o, const char *text, bool saved, struct err *e);
/* Frees the texts and lists of *o. */
void opts_free(const struct program *p, void *o);
/* The flags of the option that is called so, or was; 0 if there is none. */
unsigned opts_flags(const struct program *p, const char *name);
/* Sets an error: the `what` `name` is unknown, but names[n] may have one that was meant. */
int opts_unknown(const char *what, const char *name, const char *const *names, int64_t n,
	struct err *e);
/* Sets an error: a program that takes no files has no option of that name, of key=value, which opts_parse() left as
 * an operand because of a dot or a slash. */
int opts_unknown_key(const struct program *p, const char *word, struct err *e);
/* The options as a config text that reads back to the same values: those with all the flags `want`
 * and none of `without`. All options, and all of a run (OPT_RUN), have their headings. */
void opts_print(const struct program *p, const void *o, unsigned want, unsigned without,
	struct str *out);
/* Does the environment have the option, perhaps for another program? */
bool opts_in_environment(const char *name);
/* Was the option given? Only for programs with .given, as the three below. */
bool opts_given(const struct program *p, const void *o, const char *name);
/* Sets options whose names begin with the prefix to their defaults, as if not given. */
void opts_reset(const struct program *p, void *o, const char *prefix);
/* Appends to a message about usage which file those options are from that it names and that the user did
 * not give. Only for programs with .given. */
void opts_blame(const struct program *p, const void *o, struct err *e);
/* Checks that every option that was given has the options that it needs. */
int opts_check_needs(const struct program *p, const void *o, struct err *e);
/* Options, separated by spaces, that change nothing where the condition holds, and why. */
struct opt_idle {
	bool idle;
	const char *options, *why;
};
/* Says of each row which of its options were given, with another value than the default: "note: --a and
 * --b have no effect: WHY". No error, since scripts try options on many layouts. */
void opts_note_idle(
	const struct program *p, const void *o, const struct opt_idle *rows, size_t n);
/* Writes text of a kind, which is generated from the program's tables: man, or one of its own kinds.
 * -1: unknown kind. */
int opts_generate(const struct program *p, const char *kind, FILE *f);
/* Text as mdoc wants it, with a newline. */
void man_text(FILE *f, const char *s);
/* Fills *e with "WHAT: 'NAME' is none of A, B; did you mean 'B'?", and returns -1. */
int err_none_of(struct err *e, const char *what, const char *name,
	const char *const *names, int64_t n);
/* "; did you mean 'NAME'?" for the nearest of the names, or an empty text. Returns buf. */
enum { DID_YOU_MEAN = 128 };
char *did_you_mean(char buf[AT_LEAST(DID_YOU_MEAN)], const char *name,
	const char *const *names, int64_t n);

/* ---- conf.c: config files -------------------------------------------------------- */

/*
 * Reads `key = value` lines: '#' starts a comment at the start of a line or after a
 * blank, a value may stand in double quotes with \n \t \" \\ inside, [headings] are
 * for people and ignored. Calls set() for each; a nonzero answer ends the reading.
 */
int conf_parse(const char *text, size_t len, const char *name,
	int (*set)(void *to, const char *key, const char *value, struct err *e), void *to,
	struct err *e);
/* Compares two texts, and appends a line "BEFORE KEY BEHIND A BETWEEN B" for each key whose values
 * differ; '-' stands for an absent key. */
struct conf_text {
	const struct str *text;
	const char *name; /* in messages */
};
int conf_diff(const struct conf_text *a, const struct conf_text *b, const char *before,
	const char *behind, const char *between, struct str *out, struct err *e);
/* Appends `key = value`, quoted where the value needs it. */
void conf_print(struct str *out, const char *key, const char *value);
