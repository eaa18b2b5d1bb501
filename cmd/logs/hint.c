/* Errors for a log in an unknown format: what it is, and how to read it. */
#include "base/file.h"
#include "logs/named.h"

#include <ctype.h>
#include <dirent.h>

/* Lines of one form: their numbers have the same names. */
struct form {
	struct str line;	  /* the first line of the form */
	int64_t n;		  /* lines */
	int64_t last[MAX_NAMED];  /* [number]: its last value as a step */
	int64_t falls[MAX_NAMED]; /* [number]: how often it did not rise */
	bool has_loss;
};

/* The forms of a sample. `b` is first: collect_form() casts from it. */
struct forms {
	struct build b;
	struct form_count counts[MAX_FORMS];
	struct form v[MAX_FORMS];
};

/* Counts a line by its form, and the numbers of the form that do not rise. */
static bool collect_form(struct build *b, struct span line)
{
	struct named v[MAX_NAMED];
	struct forms *all = (struct forms *)b;
	int n = find_named_numbers(line, v);
	int index = n ? count_form(all->counts, v, n) : -1;
	if (index < 0)
		return false;
	struct form *f = &all->v[index];
	bool is_first = all->counts[index].n == 1;
	if (is_first) {
		f->has_loss = find_roles(b->opts, line, v, n).loss >= 0;
		str_add(&f->line, line.p, line.n);
	}
	for (int i = 0; i < n; i++) {
		int64_t step = step_of_number(&v[i]);
		f->falls[i] += step < 0 || (!is_first && step <= f->last[i]);
		f->last[i] = step;
	}
	return true;
}

/* Returns true if number i rises from line to line, except where a run was resumed. */
static bool does_rise(const struct form *f, int i)
{
	enum { RESUMED_ONCE_IN = 20 };
	return i >= 0 && f->falls[i] * RESUMED_ONCE_IN <= f->n;
}

/* Chooses step and loss: the step must rise; without a name of a loss, the loss is the first
 * decimal number. */
static struct roles choose_numbers(const struct log_options *opts, const struct form *f,
	int n, const struct named *v)
{
	struct roles r = find_roles(opts, (struct span){f->line.s, f->line.len}, v, n);
	if (!does_rise(f, r.step))
		r.step = does_rise(f, r.epoch) ? r.epoch : -1;
	for (int i = 0; i < n && r.step < 0; i++)
		if (v[i].name.n && i != r.loss && does_rise(f, i))
			r.step = i;
	for (int i = 0; i < n && r.loss < 0; i++)
		if (v[i].name.n && memchr(v[i].number.p, '.', v[i].number.n))
			r.loss = i;
	return r;
}

/* Appends a text as a regular expression that can stand in single quotes in a shell. */
static void append_escaped(struct str *out, const char *p, const char *end)
{
	for (; p < end; p++) {
		bool is_blank = isspace((unsigned char)*p);
		if (is_blank && (p + 1 == end || !isspace((unsigned char)p[1])))
			str_puts(out, "\\s*");
		else if (!is_blank && (*p == '\'' || (signed char)*p < ' '))
			str_putc(out, '.');
		else if (!is_blank)
			str_printf(
				out, strchr("\\^$.[]|()?*+{}", *p) ? "\\%c" : "%c", *p);
	}
}

/* Appends the text before a number, and the group for the number. */
static void append_group(
	struct str *out, const char *line, const struct named *f, const char *group)
{
	const char *number = f->number.p;
	const char *from = f->name.n ? f->name.p : number - (number > line);
	if (out->len)
		str_puts(out, ".*?");
	append_escaped(out, from, number);
	str_puts(out, group);
	if (f->total > 0)
		str_puts(out, "/");
}

/* Appends a pattern for the loss and the step of a form, in their order. */
static void append_pattern(
	const struct log_options *opts, struct str *out, const struct form *f)
{
	struct named v[MAX_NAMED];
	int n = find_named_numbers((struct span){f->line.s, f->line.len}, v);
	struct roles r = choose_numbers(opts, f, n, v);
	if (r.loss >= 0 && r.step >= 0 && r.step < r.loss)
		append_group(out, f->line.s, &v[r.step], "(?<step>\\d+)");
	if (r.loss >= 0)
		append_group(out, f->line.s, &v[r.loss], "(?<loss>\\S+)");
	if (r.loss >= 0 && r.step > r.loss)
		append_group(out, f->line.s, &v[r.step], "(?<step>\\d+)");
}

/* Appends a pattern for the most common form of lines, preferably with a loss; or nothing. */
static void propose_pattern(
	const struct log_options *opts, struct span sample, struct str *out)
{
	enum { MIN_LINES = 2 };
	const struct log_format collector = {.name = "forms", .line = collect_form};
	struct forms *all = xcalloc(1, sizeof(*all));
	const struct form *best = NULL;
	build_init(&all->b, opts);
	format_parse_sample(&all->b, &collector, sample);
	for (int i = 0; i < MAX_FORMS; i++)
		all->v[i].n = all->counts[i].n;
	for (const struct form *f = all->v; f < all->v + MAX_FORMS; f++)
		if (f->n >= MIN_LINES &&
			(!best || f->has_loss > best->has_loss ||
				(f->has_loss == best->has_loss && f->n > best->n)))
			best = f;
	if (best)
		append_pattern(opts, out, best);
	for (int i = 0; i < MAX_FORMS; i++)
		str_free(&all->v[i].line);
	build_release(&all->b);
	free(all);
}

/* Sets an error for a table without a loss, which lists its first columns. */

/* Sets *e to an error that lists the first columns of the log. Returns -1. */
static int reject_columns(const char *name, const struct strs *names, struct err *e)
{
	enum { SHOWN = 6 };
	scoped_str list = {0};
	for (int64_t i = 0; i < names->n && i < SHOWN; i++)
		str_printf(&list, "%s%.40s", i ? ", " : "", names->v[i]);
	if (names->n > SHOWN)
		str_printf(&list, " and %lld more", (long long)names->n - SHOWN);
	return err_set(e, EX_DATAERR,
		"%s: none of the columns %s is a known loss; specify --column loss=NAME",
		name, list.s);
}

int reject_unknown_format(const struct log_options *opts, const char *name,
	struct span sample, struct err *e)
{
	scoped_strs names = {0};
	scoped_str pattern = {0};
	if (file_reject_foreign(name, sample.p, sample.n, FOREIGN_LOG, e))
		return -1;
	if (opts && csv_is_run_table(sample))
		return err_set(e, EX_DATAERR,
			"%s: the table has a row per run, not per step; export the chart of a "
			"metric, or specify --format csv",
			name);
	if (opts && csv_list_columns(sample, &names))
		return reject_columns(name, &names, e);
	if (opts)
		propose_pattern(opts, sample, &pattern);
	return err_set(e, EX_DATAERR,
		"%s: unknown log format; specify --pattern to read lines of any form%s%s%s",
		name, pattern.len ? ", such as --pattern '" : "",
		pattern.len ? pattern.s : "", pattern.len ? "'" : "");
}

/* Returns the file with the history or the output of a run in its W&B directory; NULL: none. */
static char *wandb_output(const char *path)
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

int reject_wandb_directory(const char *path, struct err *e)
{
	struct dirent **d;
	int n = scandir(path, &d, is_wandb_entry, alphasort);
	scoped_ptr char *last =
		n > 0 ? text_printf("%s/%s", path, d[n - 1]->d_name) : NULL;
	scoped_ptr char *output = wandb_output(path);
	scoped_ptr char *output_of_last = last && !output ? wandb_output(last) : NULL;
	const char *file = output ? output : output_of_last;
	bool is_wandb = file || (last && text_ends(last, ".wandb"));
	for (int i = 0; i < n; i++)
		free(d[i]);
	if (n >= 0)
		free(d);
	if (!is_wandb)
		return 0;
	if (!file)
		return err_set(e, EX_DATAERR,
			"%s: the W&B directory has no output of the run; export the chart of a "
			"metric as CSV",
			path);
	return err_set(e, EX_DATAERR,
		"%s: W&B directories are not supported; specify %s, which has the run's %s",
		path, file, text_ends(file, ".log") ? "output" : "history");
}
