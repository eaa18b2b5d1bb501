/* Errors for a log in an unknown format: what it is, and how to read it. */
#include "base/file.h"
#include "logs/named.h"

#include <ctype.h>
#include <dirent.h>

/* ---- lines ----------------------------------------------------------------------------- */

/* Lines of one form: their numbers have the same names. */
struct form {
	struct str line;	  /* the first one */
	int64_t n;		  /* lines */
	int64_t last[MAX_NAMED];  /* of each number: its last value as a step */
	int64_t falls[MAX_NAMED]; /* of each number: how often it did not rise */
	bool has_loss;
};

/* A build for the line function collect_form(). */
struct forms {
	struct build b;
	struct form_count counts[MAX_FORMS];
	struct form v[MAX_FORMS];
};

static bool collect_form(struct build *b, struct span line)
{
	struct named v[MAX_NAMED];
	struct forms *all = (struct forms *)b;
	int n = find_named(line, v);
	int at = n ? count_form(all->counts, v, n) : -1;
	if (at < 0)
		return false;
	struct form *f = &all->v[at];
	bool is_first = all->counts[at].n == 1;
	if (is_first) {
		f->has_loss = find_roles(b->how, line, v, n).loss >= 0;
		str_add(&f->line, line.p, line.n);
	}
	for (int i = 0; i < n; i++) {
		int64_t step = named_step(&v[i]);
		f->falls[i] += step < 0 || (!is_first && step <= f->last[i]);
		f->last[i] = step;
	}
	return true;
}

static bool rises(const struct form *f, int i)
{
	enum { RESUMED_ONCE_IN = 20 };
	return i >= 0 && f->falls[i] * RESUMED_ONCE_IN <= f->n;
}

/* Chooses step and loss: the step must rise; without a name of a loss, the loss is the first
 * decimal number. */
static struct roles choose_numbers(
	const struct log_how *how, const struct form *f, int n, const struct named *v)
{
	struct roles r = find_roles(how, (struct span){f->line.s, f->line.len}, v, n);
	if (!rises(f, r.step))
		r.step = rises(f, r.epoch) ? r.epoch : -1;
	for (int i = 0; i < n && r.step < 0; i++)
		if (v[i].name.n && i != r.loss && rises(f, i))
			r.step = i;
	for (int i = 0; i < n && r.loss < 0; i++)
		if (v[i].name.n && memchr(v[i].number.p, '.', v[i].number.n))
			r.loss = i;
	return r;
}

/* Appends a text as a regular expression that can stand in single quotes in a shell. */
static void add_escaped(struct str *out, const char *p, const char *end)
{
	for (; p < end; p++) {
		bool blank = isspace((unsigned char)*p);
		if (blank && (p + 1 == end || !isspace((unsigned char)p[1])))
			str_puts(out, "\\s*");
		else if (!blank && (*p == '\'' || (signed char)*p < ' '))
			str_putc(out, '.');
		else if (!blank)
			str_printf(
				out, strchr("\\^$.[]|()?*+{}", *p) ? "\\%c" : "%c", *p);
	}
}

static void add_group(
	struct str *out, const char *line, const struct named *f, const char *group)
{
	const char *number = f->number.p;
	const char *from = f->name.n ? f->name.p : number - (number > line);
	if (out->len)
		str_puts(out, ".*?");
	add_escaped(out, from, number);
	str_puts(out, group);
	if (f->total > 0)
		str_puts(out, "/");
}

/* Appends a pattern for the numbers that may be step and loss. */
static void add_pattern(const struct log_how *how, struct str *out, const struct form *f)
{
	struct named v[MAX_NAMED];
	int n = find_named((struct span){f->line.s, f->line.len}, v);
	struct roles r = choose_numbers(how, f, n, v);
	if (r.loss >= 0 && r.step >= 0 && r.step < r.loss)
		add_group(out, f->line.s, &v[r.step], "(?<step>\\d+)");
	if (r.loss >= 0)
		add_group(out, f->line.s, &v[r.loss], "(?<loss>\\S+)");
	if (r.loss >= 0 && r.step > r.loss)
		add_group(out, f->line.s, &v[r.step], "(?<step>\\d+)");
}

/* Appends a pattern for the most common lines, preferably with a loss; or nothing. */
static void propose_pattern(
	const struct log_how *how, struct span sample, struct str *out)
{
	enum { MIN_LINES = 2 };
	const struct log_format collector = {.name = "forms", .line = collect_form};
	struct forms *all = xcalloc(1, sizeof(*all));
	const struct form *best = NULL;
	build_init(&all->b, how);
	format_sample(&all->b, &collector, sample);
	for (int i = 0; i < MAX_FORMS; i++)
		all->v[i].n = all->counts[i].n;
	for (const struct form *f = all->v; f < all->v + MAX_FORMS; f++)
		if (f->n >= MIN_LINES &&
			(!best || f->has_loss > best->has_loss ||
				(f->has_loss == best->has_loss && f->n > best->n)))
			best = f;
	if (best)
		add_pattern(how, out, best);
	for (int i = 0; i < MAX_FORMS; i++)
		str_free(&all->v[i].line);
	build_free(&all->b);
	free(all);
}

/* ---- the message ------------------------------------------------------------------------ */

static int hint_columns(const char *name, const struct strs *names, struct err *e)
{
	enum { SHOWN = 6 };
	scoped_str list = {0};
	for (int64_t i = 0; i < names->n && i < SHOWN; i++)
		str_printf(&list, "%s%.40s", i ? ", " : "", names->v[i]);
	if (names->n > SHOWN)
		str_printf(&list, " and %lld more", (long long)names->n - SHOWN);
	return err_set(e, EX_DATAERR,
		"%s: a table of %s, none known as a loss; specify it by --column loss=NAME",
		name, list.s);
}

int hint_unknown(
	const struct log_how *how, const char *name, struct span sample, struct err *e)
{
	scoped_strs names = {0};
	scoped_str pattern = {0};
	if (file_reject_foreign(name, sample.p, sample.n, FOREIGN_LOG, e))
		return -1;
	if (how && csv_is_runs(sample))
		return err_set(e, EX_DATAERR,
			"%s: a table of runs, not a history; export the chart of a metric, or read it "
			"anyway by --format csv",
			name);
	if (how && csv_columns(sample, &names))
		return hint_columns(name, &names, e);
	if (how)
		propose_pattern(how, sample, &pattern);
	return err_set(e, EX_DATAERR,
		"%s: neither a log of pt-train nor in another known format; --pattern reads "
		"lines of any form%s%s%s",
		name, pattern.len ? ", such as --pattern '" : "",
		pattern.len ? pattern.s : "", pattern.len ? "'" : "");
}

/* ---- directories --------------------------------------------------------------------------- */

/* Finds the history or the output of a run in its directory of W&B; NULL: there is neither. */
static char *wandb_file(const char *path)
{
	static const char *const names[] = {"wandb-history.jsonl", "output.log"};
	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		char *file = text_printf("%s/files/%s", path, names[i]);
		if (file_exists(file))
			return file;
		free(file);
	}
	return NULL;
}

static int is_wandb_entry(const struct dirent *d)
{
	return text_ends(d->d_name, ".wandb") || !strncmp(d->d_name, "run-", 4) ||
	       !strncmp(d->d_name, "offline-run-", 12);
}

int hint_directory(const char *path, struct err *e)
{
	struct dirent **d;
	int n = scandir(path, &d, is_wandb_entry, alphasort);
	scoped_ptr char *last =
		n > 0 ? text_printf("%s/%s", path, d[n - 1]->d_name) : NULL;
	scoped_ptr char *own = wandb_file(path);
	scoped_ptr char *of_last = last && !own ? wandb_file(last) : NULL;
	const char *file = own ? own : of_last;
	bool is_wandb = file || (last && text_ends(last, ".wandb"));
	for (int i = 0; i < n; i++)
		free(d[i]);
	if (n >= 0)
		free(d);
	if (!is_wandb)
		return 0;
	if (!file)
		return err_set(e, EX_DATAERR,
			"%s: a directory of W&B without the run's output; export the chart of a "
			"metric as CSV",
			path);
	return err_set(e, EX_DATAERR,
		"%s: a directory of W&B is not supported; give %s, which has the run's %s",
		path, file, text_ends(file, ".log") ? "output" : "history");
}
