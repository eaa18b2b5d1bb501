/* The table of formats. Reads lines in a format, and detects the format of a log. */
#include "base/file.h"
#include "options/options.h"
#include "draw/page.h"
#include "logs/named.h"

#include <dirent.h>

/* The built-in formats, which users may add to. */
extern const char log_trainers[];
PAGE_EMBED(log_trainers, "share/logs/trainers");

static const struct coded_format coded_formats[] = {
	{"pt", .line = NULL},
	{"wordplay", .line = parse_wordplay_line},
	{"torchtitan-losses", .line = parse_losses_line},
	{"lightning", .line = parse_lightning_line},
	{"mlflow", .line = parse_mlflow_line},
	{"trainer", .line = parse_trainer_line},
	{"megatron-golden", .text = parse_megatron_golden, .detect = is_megatron_golden},
	{"megatron-bridge", .text = parse_megatron_bridge, .detect = is_megatron_bridge},
	{"trainer-state", .text = parse_trainer_state, .detect = is_trainer_state},
	{"tensorboard", .text = parse_tensorboard, .detect = is_tensorboard},
	{"json", .text = parse_json_array, .detect = is_json_array},
	{"keras", .line = parse_keras_line},
	{"yolo", .line = parse_yolo_line},
	{"csv", .line = parse_csv_line},
	{"jsonl", .line = parse_jsonl_line},
	{"plain", .line = parse_plain_line},
};

const struct coded_format *find_coded_format(const char *name)
{
	for (size_t i = 0; i < ARRAY_LEN(coded_formats); i++)
		if (!strcmp(coded_formats[i].name, name))
			return &coded_formats[i];
	return NULL;
}

/* ---- how logs are read ------------------------------------------------------------- */

static void add_built_in_formats(struct log_formats *formats)
{
	struct err e;
	if (formats_add(formats, log_trainers, "share/logs/trainers", true, &e))
		bug(__FILE__, __LINE__, e.msg);
}

static void formats_release(struct log_formats *f)
{
	for (int i = 0; i < f->n; i++)
		format_release(&f->v[i]);
	free(f->v);
	free(f->columns.v);
	free(f->settings.v);
	free(f->sentences.v);
	strs_free(&f->texts);
	pattern_close(f);
}

static int is_format_file(const struct dirent *d)
{
	return *d->d_name != '.' && text_ends(d->d_name, ".format");
}

/* Adds the formats in share/pt/logs, in the order of their files' names. */
static int add_shared_formats(struct log_formats *formats, struct err *e)
{
	scoped_str directory = {0};
	struct dirent **d;
	int rc = 0;
	share_path(&directory, "logs");
	int n = scandir(directory.s, &d, is_format_file, alphasort);
	for (int i = 0; i < n; i++) {
		scoped_ptr char *file = text_printf("%s/%s", directory.s, d[i]->d_name);
		if (!rc)
			rc = file_check_regular(file, e) ||
			     formats_read(formats, file, e);
		free(d[i]);
	}
	if (n >= 0)
		free(d);
	return rc ? -1 : 0;
}

static bool detects_format(const struct log_options *opts)
{
	return !opts->format || !strcmp(opts->format, "auto") ||
	       strpbrk(opts->format, "./");
}

/* Sets *e to an error that lists all formats. Returns -1. */
static int reject_format_name(const struct log_options *opts, struct err *e)
{
	scoped_strs names = {0};
	strs_add(&names, "auto");
	for (int i = 0; i < opts->formats->n; i++)
		strs_add(&names, opts->formats->v[i].name);
	err_none_of(e, "--format", opts->format, (const char *const *)names.v, names.n);
	return -1;
}

int log_options_load(struct log_options *opts, struct err *e)
{
	struct log_formats *f = opts->formats = xcalloc(1, sizeof(*f));
	if (opts->format && strpbrk(opts->format, "./")) {
		if (formats_read(f, opts->format, e))
			return -1;
		f->n_given = f->n;
		if (!f->n)
			return err_set(e, EX_DATAERR,
				"%s: the file defines no log format; see pt-compare(1)",
				opts->format);
	}
	if (add_shared_formats(f, e))
		return -1;
	add_built_in_formats(f);
	if (!detects_format(opts) && !format_find(f, opts->format))
		return reject_format_name(opts, e);
	return opts->pattern ? pattern_open(f, opts->pattern, e) : 0;
}

void log_options_release(struct log_options *opts)
{
	if (opts->formats)
		formats_release(opts->formats);
	free(opts->formats);
	strs_free(&opts->columns);
	*opts = (struct log_options){.format = NULL};
}

void log_list_format_names(struct strs *names)
{
	struct log_formats f = {0};
	add_built_in_formats(&f);
	strs_add(names, "auto");
	for (int i = 0; i < f.n; i++)
		strs_add(names, f.v[i].name);
	formats_release(&f);
}

void log_print_formats_man(FILE *f)
{
	struct log_formats all = {0};
	add_built_in_formats(&all);
	fputs(".Bl -tag -width Ds -compact\n", f);
	for (int i = 0; i < all.n; i++) {
		fprintf(f, ".It Cm %s\n", all.v[i].name);
		man_text(f, all.v[i].about.s);
	}
	fputs(".El\n", f);
	formats_release(&all);
}

void log_print_names_man(FILE *f)
{
	struct log_formats all = {0};
	add_built_in_formats(&all);
	names_print(&all, f);
	formats_release(&all);
}

/* Returns the length of a color code at the beginning: ESC [ parameters letter. */
static size_t color_length(struct span s)
{
	size_t n = 1;
	n += n < s.n && s.p[n] == '[';
	while (n < s.n && (unsigned char)s.p[n] < '@')
		n++;
	return n < s.n ? n + 1 : n;
}

/* Sets *out to the line without escape sequences for colors. */
static void strip_color(struct span line, struct str *out)
{
	str_clear(out);
	while (line.n) {
		const char *escape = memchr(line.p, '\033', line.n);
		size_t n = escape ? (size_t)(escape - line.p) : line.n;
		str_add(out, line.p, n);
		line = (struct span){line.p + n, line.n - n};
		n = line.n ? color_length(line) : 0;
		line = (struct span){line.p + n, line.n - n};
	}
}

/* Parses a line without color codes: a row, or else settings. Returns true for a row. */
static bool parse_plain_text(
	struct build *b, const struct log_format *f, struct span line)
{
	if (*f->heads	   ? parse_block(b, f, line)
		: f->kinds ? parse_kinds(b, f, line)
			   : f->line(b, line))
		return true;
	if (f->settings)
		add_settings_of_line(b, line);
	return false;
}

/* Parses a line of a log into r->b; carriage returns also separate lines, since progress bars print
 * them. context: a struct line_reader. */
int format_parse_line(void *context, const char *p, size_t len, struct err *e)
{
	struct line_reader *r = context;
	struct span rest = {p, len};
	while (rest.n) {
		const char *cr = memchr(rest.p, '\r', rest.n);
		struct span line = {rest.p, cr ? (size_t)(cr - rest.p) : rest.n};
		size_t n = line.n + (cr != NULL);
		rest = (struct span){rest.p + n, rest.n - n};
		if (line.n && memchr(line.p, '\033', line.n)) {
			strip_color(line, &r->plain);
			line = (struct span){r->plain.s, r->plain.len};
		}
		if (line.n)
			parse_plain_text(r->b, r->f, line);
	}
	if (r->b->pattern.too_hard)
		return err_set(e, EX_USAGE,
			"--pattern: matching takes too long on a line that begins with '%.*s'; "
			"simplify the pattern",
			(int)min64((int64_t)len, 40), p);
	return 0;
}

/* ---- detection ------------------------------------------------------------------- */

void format_parse_sample(struct build *b, const struct log_format *f, struct span sample)
{
	struct line_reader r = {b, f, {0}};
	struct err e;
	while (sample.n) {
		const char *stop = memchr(sample.p, '\n', sample.n);
		size_t n = stop ? (size_t)(stop - sample.p) : sample.n;
		format_parse_line(&r, sample.p, n, &e);
		n += stop != NULL;
		sample = (struct span){sample.p + n, sample.n - n};
	}
	str_free(&r.plain);
}

/* Returns the number of rows that a format finds in a sample. */
static int64_t count_rows(
	const struct log_options *opts, const struct log_format *f, struct span sample)
{
	struct build b;
	build_init(&b, opts);
	format_parse_sample(&b, f, sample);
	int64_t rows = b.n_points ? b.n_parsed : 0;
	build_release(&b);
	return rows;
}

/* Returns true for a log of pt-train. Lines of other programs may begin with step=, too. */
static bool is_pt_log(const struct log_options *opts, struct span sample)
{
	const char *end = sample.p + sample.n;
	if (h5_has_signature(sample.p, sample.n) || span_begins(sample, "# meta ") ||
		span_find(sample, "\n# meta "))
		return true;
	if (opts->formats->regex || opts->formats->n_given)
		return false;
	const char *p =
		span_begins(sample, "step=") ? sample.p : span_find(sample, "\nstep=");
	if (!p)
		return false;
	p += *p == '\n';
	const char *stop = memchr(p, '\n', (size_t)(end - p));
	struct span line = {p, (size_t)((stop ? stop : end) - p)};
	if (span_find(line, " tokens="))
		return true;
	return !span_find(line, " dtf=") && !span_find(line, " mfu=") &&
	       !span_find(line, " sps=");
}

/* Returns the format of lines with the most rows in the sample, and sets *max to their number.
 * CSV and JSON lines are tried last: other programs may print some between their own lines. */
static const struct log_format *detect_line_format(
	const struct log_options *opts, struct span sample, int64_t *max)
{
	const struct log_formats *all = opts->formats;
	const struct log_format *best = NULL;
	*max = 0;
	for (int i = 0; i < (all->n_given ? all->n_given : all->n); i++) {
		const struct log_format *f = &all->v[i];
		bool is_general =
			f->line == parse_csv_line || f->line == parse_jsonl_line;
		if (!(f->line || f->kinds) || f->line == parse_plain_line ||
			(is_general && *max))
			continue;
		int64_t n = count_rows(opts, f, sample);
		if (n > *max)
			*max = n, best = f;
	}
	return best;
}

/* Tries the formats on the beginning of the sample; on all of it if they find few rows there. */
const struct log_format *format_detect(const struct log_options *opts, struct span sample)
{
	enum { BEGINNING = 1 << 15, FEW = 16 };
	struct span beginning = {sample.p, (size_t)min64((int64_t)sample.n, BEGINNING)};
	const struct log_formats *all = opts->formats;
	int64_t n;
	if (is_pt_log(opts, sample))
		return format_find(all, "pt");
	if (all->regex)
		return &all->pattern;
	for (int i = 0; i < all->n && !all->n_given; i++)
		if (all->v[i].detect && all->v[i].detect(sample))
			return &all->v[i];
	const struct log_format *f = detect_line_format(opts, beginning, &n);
	if (n < FEW && sample.n > beginning.n)
		f = detect_line_format(opts, sample, &n);
	if (!f && !all->n_given && plain_detect(opts, sample))
		f = format_find(all, "plain");
	return f;
}

bool is_pt_format(const struct log_format *f)
{
	return !strcmp(f->name, "pt");
}

const struct log_format *format_find(const struct log_formats *all, const char *name)
{
	for (int i = 0; i < all->n; i++)
		if (!strcmp(all->v[i].name, name))
			return &all->v[i];
	return NULL;
}
