/* The parser of options: the command line, config files, presets and the environment. */
#include "base/launch.h"
#include "base/file.h"
#include "options/options_internal.h"

#include <ctype.h>
#include <getopt.h>
#include <unistd.h>

/* The options of every program. */
static const struct opt common_opts[] = {
	{OPT_GROUP, .name = "Common"},
	{OPT_ACTION, 0, "config", "FILE", .files = "", .help = "Read options from FILE."},
	{OPT_ACTION, 0, "print-config",
		.help = "Print the options in force as a config file, and exit."},
	{OPT_ACTION, 'q', "quiet", .help = "Print only results, warnings and errors."},
	{OPT_ACTION, 'h', "help", .help = "Print this help, and exit."},
	{OPT_ACTION, 'V', "version",
		.help = "Print the versions of the program and its libraries, and exit."},
	{OPT_ACTION, 0, "generate", "KIND",
		.help = "Print documentation that is generated from the options of the program, and exit. "
			"man: the text of the manual page. Some programs have more kinds."},
	{OPT_ACTION, 0, "complete", "WORD...",
		.help = "Print the completions of the last word of a command line, for shells, and exit. "
			"--complete must be the first argument."},
	{OPT_END},
};

struct parse {
	const struct program *p;
	const struct opt **all; /* [n]: the program's options and the common ones */
	int n;
	char *o;
	bool *list_begun; /* this source has already replaced the list */
	bool by_user;	  /* this source is the command line or the environment */
	const char *
		from; /* description of the file, for opts_add_origins(); NULL: no file */
	const char *config; /* --config, or PT_CONFIG */
	bool saved;	    /* this source was saved by a run */
	bool print_config, quiet;
	const char *generate;
};

const struct opt *opt_next(const struct program *p, const struct opt *at)
{
	if (!at)
		return p->opts->type == OPT_END ? common_opts : p->opts;
	at++;
	bool in_common = at > common_opts && at < common_opts + ARRAY_LEN(common_opts);
	if (at->type != OPT_END)
		return at;
	return in_common ? NULL : common_opts;
}

/* Returns the index of an option; -1: none. *negated: it was named as no-NAME. */
static int find_option(const struct parse *s, const char *name, bool *negated)
{
	*negated = false;
	for (int i = 0; i < s->n; i++)
		if (opt_has_name(s->all[i], name))
			return i;
	if (strncmp(name, "no-", 3))
		return -1;
	for (int i = 0; i < s->n; i++) {
		if (s->all[i]->type == OPT_FLAG && opt_has_name(s->all[i], name + 3)) {
			*negated = true;
			return i;
		}
	}
	return -1;
}

/* Returns true if a list, separated by spaces, has the name, written with '-' or '_'. */
static bool list_has_name(const char *list, const char *name)
{
	size_t len = strlen(name);
	for (const char *w = list; w && *w; w += strcspn(w, " "), w += *w == ' ') {
		size_t i = 0;
		while (i < len && (name[i] == '_' ? '-' : name[i]) == w[i])
			i++;
		if (i == len && strcspn(w, " ") == len)
			return true;
	}
	return false;
}

static const struct opt_answer *find_answer(const struct program *p, const char *name)
{
	const struct opt_answer *a = p->answers;
	while (a && a->names && !list_has_name(a->names, name))
		a++;
	return a && a->names ? a : NULL;
}

/* Sets the error about an unknown option (dashes: "--") or key (dashes: ""), with a suggestion. */
static int unknown_name_error(const struct parse *s, const char *kind, const char *dashes,
	const char *name, int code, struct err *e)
{
	const char *names[256];
	int n = 0;
	bool is_negated = *dashes && !strncmp(name, "no-", 3); /* only for flags */
	const char *near = NULL, *word = is_negated ? name + 3 : name;
	const char *dot = strrchr(word, '.');
	word = dot ? dot + 1 : word; /* training.seq_len */
	for (int i = 0; i < s->n && n < (int)ARRAY_LEN(names); i++) {
		if ((is_negated && s->all[i]->type != OPT_FLAG) ||
			(!*dashes && s->all[i]->type == OPT_ACTION))
			continue;
		names[n++] = s->all[i]->name;
		if (list_has_name(s->all[i]->elsewhere, word))
			near = s->all[i]->name;
	}
	const struct opt_answer *a = near ? NULL : find_answer(s->p, word);
	if (a && a->lacks)
		return err_set(e, code, "%s%s: %s are not supported; %s", dashes, name,
			a->lacks, a->instead);
	near = near ? near : nearest(word, names, n);
	char hint[160] = "";
	if (a)
		snprintf(hint, sizeof(hint), "; %s", a->instead);
	else if (near)
		snprintf(hint, sizeof(hint), "; did you mean '%s%s%s'?", dashes,
			is_negated ? "no-" : "", near);
	return err_set(e, code, "unknown %s '%s%s'%s", kind, dashes, name, hint);
}

/* Returns the option of a key in a config file or an operand; it must have a value. */
static int find_key(const struct parse *s, const char *key, int code, struct err *e)
{
	bool negated;
	int i = find_option(s, key, &negated);
	if (i < 0)
		return unknown_name_error(s, "key", "", key, code, e);
	if (negated)
		return err_set(e, code, "unknown key '%s'; write '%s = no'", key,
			s->all[i]->name);
	if (s->all[i]->type == OPT_ACTION)
		return err_set(e, code, "'%s' is only for the command line", key);
	return i;
}

/* Appends to the error what to use instead of another program's word for a value. Returns -1. */
static int advise_on_value(
	const struct parse *s, const struct opt *t, const char *text, struct err *e)
{
	char both[64];
	snprintf(both, sizeof(both), "%s=%s", t->name, text);
	const struct opt_answer *a = find_answer(s->p, both);
	size_t n = strlen(e->msg);
	if (a)
		snprintf(e->msg + n, sizeof(e->msg) - n, "; %s", a->instead);
	return -1;
}

/* Sets option i from text, and notes where it was set. The first value of a source replaces a list.
 * The caller adds the name of the option to the error. */
static int set_value(struct parse *s, int i, const char *text, struct err *e)
{
	const struct opt *t = s->all[i];
	void *v = s->o + t->offset;
	if (t->type == OPT_LIST && !s->list_begun[i])
		strs_free(v);
	s->list_begun[i] = true;
	if (opt_set(t, v, text, e))
		return advise_on_value(s, t, text, e);
	opt_note_given(s->p, s->o, t, s->by_user || !opt_equals(t, v, t->def), s->from);
	return 0;
}

/* Begins a source of values. by_user: all options that it sets count as given. In a file only
 * those that differ from their defaults do, since it may list all options, like --print-config. */
static void source_begin(struct parse *s, bool by_user)
{
	s->by_user = by_user;
	s->from = NULL;
	memset(s->list_begun, 0, (size_t)s->n * sizeof(*s->list_begun));
}

/* Sets an option from a line of a file. A saved configuration may only have options of a run. */
static int set_from_conf(void *to, const char *key, const char *value, struct err *e)
{
	struct parse *s = to;
	if (s->saved && list_has_name(s->p->retired, key))
		return 0;
	int i = find_key(s, key, EX_DATAERR, e);
	if (i < 0)
		return -1;
	if (s->saved && !(s->all[i]->flags & OPT_RUN))
		return err_set(e, EX_DATAERR, "'%s' is not an option of a run", key);
	if (set_value(s, i, value, e)) {
		e->code = EX_DATAERR;
		return err_prefix(e, "%s: ", key);
	}
	return 0;
}

enum { MAX_CONFIG = 1 << 20 };

/* Applies a config text. `from` must live as long as the program. */
static int apply_text(struct parse *s, const struct str *text, const char *name,
	const char *from, struct err *e)
{
	source_begin(s, false);
	s->from = from;
	return conf_parse(text->s, text->len, name, set_from_conf, s, e);
}

/* Applies options that a run saved; they are not trusted. */
static int apply_saved(struct parse *s, const struct str *text, struct err *e)
{
	s->saved = true;
	int rc = apply_text(s, text, "the saved options", "the saved options", e);
	s->saved = false;
	return rc;
}

/* Sets all options to their defaults. Ends the program if a default is invalid. */
static void apply_defaults(struct parse *s)
{
	struct err e;
	source_begin(s, false);
	for (int i = 0; i < s->n; i++) {
		const struct opt *t = s->all[i];
		if (t->type != OPT_ACTION && t->def && set_value(s, i, t->def, &e))
			die(EX_FAILED, "BUG: the default of --%s: %s", t->name, e.msg);
	}
}

/* Writes the environment variable of an option, such as PT_BATCH_SIZE, to `name`. Returns it. */
static const char *env_name(const char *option, char name[static 80])
{
	size_t n = (size_t)snprintf(name, 80, "PT_");
	for (const char *p = option; *p && n < 79; p++)
		name[n++] = *p == '-' ? '_' : (char)toupper((unsigned char)*p);
	name[n] = '\0';
	return name;
}

bool opts_in_environment(const char *option)
{
	char name[80];
	return getenv(env_name(option, name)) != NULL;
}

/* Applies the environment variables PT_NAME; a list is separated by colons. */
static int apply_env(struct parse *s, struct err *e)
{
	source_begin(s, true);
	for (int i = 0; i < s->n; i++) {
		char name[80];
		const char *text = getenv(env_name(s->all[i]->name, name));
		if (!text && s->all[i]->was)
			text = getenv(env_name(s->all[i]->was, name));
		if (!text || s->all[i]->type == OPT_ACTION)
			continue;
		if (s->all[i]->type != OPT_LIST) {
			if (set_value(s, i, text, e))
				return err_prefix(e, "environment variable %s: ", name);
			continue;
		}
		char *copy = xstrdup(text), *rest = copy, *item;
		while ((item = strsep(&rest, ":")))
			set_value(s, i, item, e);
		free(copy);
	}
	return 0;
}

/* Returns "preset NAME" for opts_add_origins(); it lives as long as the program. */
static const char *preset_origin(const char *name)
{
	static struct strs all;
	scoped_ptr char *words = text_printf("preset %s", name);
	if (strs_find(&all, words) < 0)
		strs_add(&all, words);
	return all.v[strs_find(&all, words)];
}

/* Applies presets in order, for example a model, then its training. */
static int apply_presets(struct parse *s, const char *names, struct err *e)
{
	char *copy = xstrdup(names), *rest = copy, *name;
	int rc = 0;
	while (!rc && (name = strsep(&rest, ","))) {
		scoped_str text = {0}, path = {0};
		rc = preset_read(name, MAX_CONFIG, &path, &text, e) ||
		     apply_text(s, &text, path.s, preset_origin(name), e);
	}
	free(copy);
	return rc ? -1 : 0;
}

/* Copies the preset that a config file names to *to, a char *. */
static int note_preset(void *to, const char *key, const char *value, struct err *e)
{
	(void)e;
	if (!strcmp(key, "preset") && *value)
		*(char **)to = xstrdup(value);
	return 0;
}

/* Executes an option that exits, or records it. */
static int execute_action(
	struct parse *s, const struct opt *t, const char *arg, struct err *e)
{
	struct strs kinds = {0};
	if (!strcmp(t->name, "config")) {
		s->config = arg;
		return 0;
	}
	if (!strcmp(t->name, "print-config")) {
		s->print_config = true;
		return 0;
	}
	if (!strcmp(t->name, "quiet")) {
		s->quiet = true;
		return 0;
	}
	if (!strcmp(t->name, "help")) {
		opt_print_help(s->p);
	} else if (!strcmp(t->name, "version")) {
		opt_print_version(s->p);
	} else if (!strcmp(t->name, "complete")) {
		return err_set(e, EX_USAGE, "--complete must be the first argument");
	} else if (opts_generate(s->p, arg, stdout)) {
		opt_add_kinds(s->p, &kinds);
		return err_none_of(
			e, "--generate", arg, (const char *const *)kinds.v, kinds.n);
	}
	stdout_close();
	exit(0);
}

/* The options for getopt_long(). */
struct cli {
	struct option *longs;
	int n;
	char *letters;
};

/* Adds an option, and no-NAME of a flag, which is allocated. */
static void cli_add(
	const struct parse *s, struct cli *c, int i, const char *name, int arg)
{
	c->longs[c->n++] = (struct option){name, arg, NULL, 256 + i};
	if (s->all[i]->type != OPT_FLAG)
		return;
	struct str no = {0};
	str_printf(&no, "no-%s", name);
	c->longs[c->n++] = (struct option){no.s, no_argument, NULL, 256 + s->n + i};
}

/* Builds getopt_long()'s tables of long options (also former names and --no-X) and letters. */
static void cli_init(const struct parse *s, struct cli *c)
{
	struct str letters = {0};
	c->longs = xcalloc((size_t)s->n * 4 + 1, sizeof(*c->longs));
	c->n = 0;
	str_puts(&letters, ":");
	for (int i = 0; i < s->n; i++) {
		const struct opt *t = s->all[i];
		int arg = t->type == OPT_FLAG		    ? optional_argument
			  : t->type != OPT_ACTION || t->arg ? required_argument
							    : no_argument;
		cli_add(s, c, i, t->name, arg);
		if (t->was)
			cli_add(s, c, i, t->was, arg);
		if (t->letter)
			str_printf(&letters, "%c%s", t->letter,
				arg == required_argument ? ":" : "");
	}
	c->letters = letters.s;
}

/* Frees the tables of getopt_long(), and the --no-X names in them. */
static void cli_release(struct cli *c)
{
	for (struct option *l = c->longs; l->name; l++)
		if (!strncmp(l->name, "no-", 3) && l->has_arg == no_argument)
			free((void *)l->name);
	free(c->longs);
	free(c->letters);
}

/* Sets the error about an option for which getopt_long() returned c: ':' or '?'. */
static int set_cli_error(const struct parse *s, int c, char **argv, struct err *e)
{
	char letter[3] = {'-', (char)optopt, '\0'};
	const char *given = argv[optind - 1];
	if (c == ':')
		return err_set(e, EX_USAGE, "option %s needs a value",
			optopt >= 256 || strncmp(given, "--", 2) == 0 ? given : letter);
	if (strncmp(given, "--", 2))
		return err_set(e, EX_USAGE, "unknown option '%s'", letter);
	if (optopt >= 256)
		return err_set(e, EX_USAGE, "option %.*s takes no value",
			(int)strcspn(given, "="), given);
	char name[64];
	snprintf(name, sizeof(name), "%.*s", (int)strcspn(given + 2, "="), given + 2);
	int alike = 0;
	scoped_str list = {0};
	for (int i = 0; i < s->n; i++)
		if (!strncmp(s->all[i]->name, name, strlen(name)))
			str_printf(&list, "%s--%s", alike++ ? ", " : "", s->all[i]->name);
	return alike > 1 ? err_set(e, EX_USAGE, "option '--%s' could be %s", name, list.s)
			 : unknown_name_error(s, "option", "--", name, EX_USAGE, e);
}

/* Returns the index of the option for which getopt_long() returned c. *negated: it is no-NAME. */
static int option_index(const struct parse *s, int c, bool *negated)
{
	*negated = false;
	if (c >= 256) {
		*negated = c - 256 >= s->n;
		return (c - 256) % s->n;
	}
	for (int i = 0; i < s->n; i++)
		if (s->all[i]->letter == c)
			return i;
	return -1;
}

/* Applies the command line; only_sources: only --config, --preset and actions such as --help. */
static int apply_cli(struct parse *s, int argc, char **argv, bool only_sources,
	const char **preset, struct err *e)
{
	struct cli cli;
	int c, rc = 0;
	cli_init(s, &cli);
	source_begin(s, true);
	optind = 0; /* GNU: start again */
	opterr = 0;
	while (!rc && (c = getopt_long(argc, argv, cli.letters, cli.longs, NULL)) != -1) {
		if (c == '?' || c == ':') {
			rc = set_cli_error(s, c, argv, e);
			break;
		}
		bool negated;
		int i = option_index(s, c, &negated);
		const struct opt *t = s->all[i];
		if (only_sources && !strcmp(t->name, "preset"))
			*preset = optarg;
		if (t->files && optarg && !*optarg) /* probably an unset variable */
			rc = err_set(e, EX_USAGE, "--%s: the name is empty", t->name);
		else if (t->type == OPT_ACTION)
			rc = only_sources ? execute_action(s, t, optarg, e) : 0;
		else if (!only_sources && set_value(s, i,
						  optarg    ? optarg
						  : negated ? "no"
							    : "yes",
						  e))
			rc = err_prefix(e, "--%s: ", t->name);
	}
	cli_release(&cli);
	return rc;
}

/* Applies operands key=value if the program has .settings. Returns the number of other operands. */
static int apply_operands(struct parse *s, int argc, char **argv, struct err *e)
{
	int n = 0;
	for (int i = optind; i < argc; i++) {
		char *equals = strchr(argv[i], '=');
		if (!s->p->settings || !equals) {
			argv[n++] = argv[i];
			continue;
		}
		char key[64];
		snprintf(key, sizeof(key), "%.*s", (int)(equals - argv[i]), argv[i]);
		if (strchr(key, '/') || strchr(key, '.')) {
			argv[n++] = argv[i]; /* a file name with '=' */
			continue;
		}
		int at = find_key(s, key, EX_USAGE, e);
		if (at < 0)
			return -1;
		if (set_value(s, at, equals + 1, e))
			return err_prefix(e, "%s: ", key);
	}
	argv[n] = NULL;
	return n;
}

/* Sources that are read only once, since a config file may be a pipe. */
struct sources {
	struct str base, config;
	const char *preset;  /* from the command line or PT_PRESET; NULL: config_preset */
	char *config_preset; /* the preset that the config file names, or NULL */
};

/* Applies all sources; later ones win. Moves operands to argv[0..), and returns their number. */
static int apply_sources(
	struct parse *s, const struct sources *x, int argc, char **argv, struct err *e)
{
	const char *preset = x->preset ? x->preset : x->config_preset;
	bool negated;
	memset(s->o, 0, s->p->opts_bytes);
	apply_defaults(s);
	if (x->base.len && apply_saved(s, &x->base, e))
		return -1;
	if (preset && find_option(s, "preset", &negated) >= 0 &&
		apply_presets(s, preset, e))
		return -1;
	if ((s->config && apply_text(s, &x->config, s->config, s->config, e)) ||
		apply_env(s, e) || apply_cli(s, argc, argv, false, &preset, e))
		return -1;
	return apply_operands(s, argc, argv, e);
}

/* Returns the option that an argument names in full if several values may follow it, else NULL. */
static const struct opt *list_option(const struct parse *s, const char *arg)
{
	for (int i = 0; i < s->n; i++)
		if (s->all[i]->flags & OPT_SEVERAL && !strncmp(arg, "--", 2) &&
			!strcmp(arg + 2, s->all[i]->name))
			return s->all[i];
	return NULL;
}

static bool is_operand(const char *arg)
{
	return arg && (arg[0] != '-' || !arg[1]);
}

/* Turns `--list a b` into `--list=a --list=b`. Returns the number of arguments; the new ones live
 * as long as the program. */
static int expand_lists(const struct parse *s, int argc, char **argv)
{
	const struct opt *list = NULL;
	int n = 1, i = 1;
	for (; i < argc && strcmp(argv[i], "--"); i++) {
		struct str one = {0};
		if (!is_operand(argv[i])) {
			list = is_operand(argv[i + 1]) ? list_option(s, argv[i]) : NULL;
			if (!list)
				argv[n++] = argv[i];
			continue;
		}
		if (list)
			str_printf(&one, "--%s=%s", list->name, argv[i]);
		argv[n++] = list ? one.s : argv[i];
	}
	while (i < argc)
		argv[n++] = argv[i++];
	argv[n] = NULL;
	return n;
}

/* Applies all sources, twice if p->base() has a text, to copies of argv: getopt_long() sorts it.
 * Returns the number of operands, which are then first in argv, or -1. */
static int parse_all(struct parse *s, int argc, char **argv, struct err *e)
{
	struct sources x = {.preset = getenv("PT_PRESET")};
	argc = expand_lists(s, argc, argv);
	size_t n_bytes = (size_t)(argc + 1) * sizeof(*argv);
	char **copy = memcpy(xmalloc(n_bytes), argv, n_bytes);
	int n = -1;
	s->config = getenv("PT_CONFIG");
	if (apply_cli(s, argc, copy, true, &x.preset, e) ||
		(s->config && file_read(s->config, MAX_CONFIG, &x.config, e)) ||
		(s->config && conf_parse(x.config.s, x.config.len, s->config, note_preset,
				      &x.config_preset, e)))
		goto end;
	memcpy(copy, argv, n_bytes);
	n = apply_sources(s, &x, argc, copy, e);
	if (n >= 0 && s->p->base && s->p->base(s->o, &x.base, e))
		n = -1;
	if (n >= 0 && x.base.len) {
		memcpy(copy, argv, n_bytes);
		n = apply_sources(s, &x, argc, copy, e);
	}
	memcpy(argv, copy, n_bytes);
end:
	free(copy);
	free(x.config_preset);
	str_free(&x.base);
	str_free(&x.config);
	return n;
}

static void list_options(struct parse *s)
{
	for (const struct opt *t = NULL; (t = opt_next(s->p, t));) {
		if (t->type == OPT_GROUP)
			continue;
		s->all = xrealloc(s->all, (size_t)(s->n + 1) * sizeof(*s->all));
		s->all[s->n++] = t;
	}
}

/* Returns the state of parsing, and clears the options *o to zeros. */
static struct parse parse_begin(const struct program *p, void *o)
{
	struct parse s = {.p = p, .o = o};
	list_options(&s);
	s.list_begun = xcalloc((size_t)s.n, sizeof(*s.list_begun));
	memset(o, 0, p->opts_bytes);
	return s;
}

static void parse_end(struct parse *s)
{
	free(s->all);
	free(s->list_begun);
}

int opts_from_text(
	const struct program *p, void *o, const char *text, bool saved, struct err *e)
{
	struct parse s = parse_begin(p, o);
	const struct str t = {(char *)text, strlen(text), 0};
	apply_defaults(&s);
	int rc = saved ? apply_saved(&s, &t, e)
		       : apply_text(&s, &t, "the options", "the options", e);
	parse_end(&s);
	return rc;
}

/* Rejects several ranks for a program with .one_rank; other ranks than 0 exit. Returns rc or -1. */
static int check_one_rank(const struct program *p, int rc, struct err *e)
{
	if (!p->one_rank || !launch_size_variable())
		return rc;
	if (launch_rank() > 0)
		exit(rc < 0 ? e->code : EX_USAGE);
	return rc < 0 ? rc
		      : err_set(e, EX_USAGE,
				"%s is a single process; start it without mpiexec or srun",
				p->name);
}

/* All environment variables in the manual pages, without PT_. */
static const char *const variables[] = {
#include "options/variables.inc"
};

/* Writes a hint about an unknown environment variable PT_`name`: another trainer's word, or a
 * misspelling. The hint is empty for other names, which may belong to another project. */
static void explain_variable(
	const struct parse *s, const char *name, char hint[static DID_YOU_MEAN])
{
	char option[80], known[80];
	snprintf(option, sizeof(option), "%s", name);
	for (char *c = option; *c; c++)
		*c = (char)tolower((unsigned char)*c);
	for (int i = 0; i < s->n; i++)
		if (list_has_name(s->all[i]->elsewhere, option)) {
			snprintf(hint, DID_YOU_MEAN, "; did you mean '%s'?",
				env_name(s->all[i]->name, known));
			return;
		}
	const struct opt_answer *a = find_answer(s->p, option);
	const char *alike[ARRAY_LEN(variables)];
	int64_t n = 0;
	for (size_t i = 0; i < ARRAY_LEN(variables) && strlen(name) > 3; i++)
		if (variables[i][0] == name[0]) /* short words resemble many others */
			alike[n++] = variables[i];
	const char *near = nearest(name, alike, n);
	*hint = '\0';
	if (a)
		snprintf(hint, DID_YOU_MEAN, "; %s", a->instead);
	else if (near)
		snprintf(hint, DID_YOU_MEAN, "; did you mean 'PT_%s'?", near);
}

/* Warns about environment variables PT_... that no program has, which would be ignored silently. */
static void check_environment(const struct parse *s)
{
	for (char **v = environ; *v && launch_rank() == 0; v++) {
		char name[80], known[80], hint[DID_YOU_MEAN];
		snprintf(name, sizeof(name), "%.*s", (int)strcspn(*v, "="), *v);
		bool found = strncmp(name, "PT_", 3) != 0;
		for (size_t i = 0; i < ARRAY_LEN(variables) && !found; i++)
			found = !strcmp(variables[i], name + 3);
		for (int i = 0; i < s->n && !found; i++)
			found = !strcmp(env_name(s->all[i]->name, known), name);
		if (found)
			continue;
		explain_variable(s, name + 3, hint);
		if (*hint)
			warn("%s is ignored: no program uses it%s", name, hint);
	}
}

int opts_parse(const struct program *p, void *o, int argc, char **argv, struct err *e)
{
	if (argc > 1 && !strcmp(argv[1], "--complete")) {
		opt_complete(p, argc - 2, argv + 2, stdout);
		stdout_close();
		exit(0);
	}
	struct parse s = parse_begin(p, o);
	int rc = check_one_rank(p, parse_all(&s, argc, argv, e), e);
	if (rc >= 0)
		check_environment(&s);
	if (rc >= 0 && s.print_config) {
		struct str text = {0};
		opts_print(p, o, 0, 0, &text);
		fputs(text.s ? text.s : "", stdout);
		stdout_close();
		exit(0);
	}
	log_set_quiet(s.quiet);
	parse_end(&s);
	return rc;
}

int opts_parse_or_die(const struct program *p, void *o, int argc, char **argv)
{
	struct err e = {0};
	log_name(p->name);
	int n = opts_parse(p, o, argc, argv, &e);
	if (n < 0)
		die_err(&e);
	return n;
}

int opts_unknown_error(const char *what, const char *name, const char *const *names,
	int64_t n, struct err *e)
{
	char hint[DID_YOU_MEAN];
	return err_set(e, EX_USAGE, "unknown %s '%s'%s", what, name,
		did_you_mean(hint, name, names, n));
}

int opts_unknown_key_error(const struct program *p, const char *word, struct err *e)
{
	struct parse s = {.p = p};
	char key[64];
	list_options(&s);
	snprintf(key, sizeof(key), "%.*s", (int)strcspn(word, "="), word);
	unknown_name_error(&s, "key", "", key, EX_USAGE, e);
	free(s.all);
	return -1;
}
