/* Names of columns and settings in the logs of other trainers. */
#include "options/options.h"
#include "logs/formats.h"

#include <ctype.h>
#include <strings.h>

static const char *const step_names[] = {"step", "iteration", "iter", "_step",
	"global_step", "train/global_step", "trainer/global_step", "train/step",
	"train/iter", "steps", "iter_num", "num_updates", "train_num_updates",
	"valid_num_updates", "global_step/max_steps", "training/global_step",
	"rollout/step", NULL};

/* Returns true if c equals a known letter without case. '_' also matches parentheses and '%', which
 * some writers of event files replace. */
static bool letters_match(char known, char c)
{
	return tolower((unsigned char)known) == tolower((unsigned char)c) ||
	       (c == '_' && (known == '(' || known == ')' || known == '%'));
}

static bool names_match(const char *s, struct span name)
{
	for (size_t i = 0; i < name.n; i++)
		if (!s[i] || !letters_match(s[i], name.p[i]))
			return false;
	return !s[name.n];
}

int log_options_map_column(struct log_options *h, const char *pair, struct err *e)
{
	const char *equals = strchr(pair, '=');
	if (!equals || equals == pair || !equals[1])
		return err_set(e, EX_USAGE,
			"--column '%s': expected OURS=THEIRS, such as loss=train/loss",
			pair);
	strs_add(&h->columns, pair);
	return 0;
}

struct span mapped_column(const struct log_options *opts, struct span name)
{
	for (int64_t i = 0; i < opts->columns.n; i++) {
		const char *pair = opts->columns.v[i], *equals = strchr(pair, '=');
		if (names_match(equals + 1, name))
			return (struct span){pair, (size_t)(equals - pair)};
	}
	return (struct span){NULL, 0};
}

/* Prefers a known name in the same case to the first one that differs only in case. */
struct span our_column(const struct log_options *opts, struct span name, double *scale)
{
	const struct log_names *all = &opts->formats->columns;
	struct span ours = mapped_column(opts, name);
	*scale = 1;
	if (ours.n)
		return ours;
	const struct log_name *found = NULL;
	for (const struct log_name *m = all->v; m < all->v + all->n; m++) {
		bool is_exact = names_match(m->name, name) && span_begins(name, m->name);
		if (is_exact || (!found && names_match(m->name, name)))
			found = m;
		if (is_exact)
			break;
	}
	if (found) {
		*scale = found->scale;
		return span_of(found->ours);
	}
	int c = column_find_tag(name.p, name.n);
	return c < 0 ? name : span_of(columns[c].name);
}

struct span rename_export_value(const struct log_options *opts, struct span name)
{
	return names_match("Value", name) && !mapped_column(opts, name).n ? SPAN("loss")
									  : name;
}

char *log_column_for_name(const struct log_options *opts, const char *theirs)
{
	double scale;
	struct span ours = our_column(opts, span_of(theirs), &scale);
	char *name = xstrdup(ours.p);
	name[ours.n] = '\0';
	return name;
}

bool name_is_step(struct span name)
{
	for (int i = 0; step_names[i]; i++)
		if (names_match(step_names[i], name))
			return true;
	return false;
}

bool log_is_step_name(const char *name)
{
	return name_is_step(span_of(name));
}

/* Compares a known name with one in a log, without case; ' ' and '-' equal '_'. */
static bool setting_names_match(const char *s, struct span name)
{
	for (size_t i = 0; i < name.n; i++) {
		char c = name.p[i];
		c = c == ' ' || c == '-' ? '_' : (char)tolower((unsigned char)c);
		if (!s[i] || s[i] != c)
			return false;
	}
	return !s[name.n];
}

const char *option_for_setting(const struct log_options *opts, struct span name)
{
	const struct log_names *all = &opts->formats->settings;
	for (int i = 0; i < all->n; i++)
		if (setting_names_match(all->v[i].name, name))
			return all->v[i].ours;
	return NULL;
}

/* Adds a setting without its quotes and without commas between thousands. */
static void add_clean_setting(struct build *b, const char *key, struct span value)
{
	char digits[NUM_TEXT];
	size_t n = 0;
	value = span_trim(value);
	if (value.n >= 2 && (*value.p == '"' || *value.p == '\'') &&
		value.p[value.n - 1] == *value.p)
		value = (struct span){value.p + 1, value.n - 2};
	for (size_t i = 0; i < value.n && n < sizeof(digits); i++) {
		if (value.p[i] != ',' && !isdigit((unsigned char)value.p[i])) {
			n = sizeof(digits);
			break;
		}
		if (value.p[i] != ',')
			digits[n++] = value.p[i];
	}
	bool is_number = n && n < sizeof(digits);
	build_add_setting(b, key, is_number ? (struct span){digits, n} : value);
}

/* Adds "name: value", "name = value", "| name | value |", "name ... value", "\"name\": value,". */
static void add_named_setting(struct build *b, struct span line)
{
	static const char prefix[] = "Config param ";
	line = span_trim(line);
	if (span_begins(line, prefix))
		line = (struct span){
			line.p + sizeof(prefix) - 1, line.n - sizeof(prefix) + 1};
	while (line.n && (*line.p == '|' || *line.p == '"' || *line.p == ' '))
		line.p++, line.n--;
	size_t n = 0;
	while (n < line.n && !strchr("|:=.\"", line.p[n]))
		n++;
	struct span name = span_trim((struct span){line.p, n});
	const char *key = option_for_setting(b->opts, name);
	struct span value = {line.p + n, line.n - n};
	if (!key || !value.n)
		return;
	while (value.n && strchr("|:=.\" ", *value.p))
		value.p++, value.n--;
	while (value.n && strchr("|,\" ", value.p[value.n - 1]))
		value.n--;
	add_clean_setting(b, key, value);
}

/* Adds LLMQ's {"log": "option", "time": "...", "step": 0, "name": "seq-len", "value": 1024}. */
static void add_llmq_option(struct build *b, struct span line)
{
	static const char name[] = "\"name\": \"", value[] = "\"value\": ";
	const char *end = line.p + line.n, *p = span_find(line, name);
	const char *v = span_find(line, value);
	if (!span_find(line, "\"log\": \"option\"") || !p || !v)
		return;
	p += sizeof(name) - 1;
	v += sizeof(value) - 1;
	const char *quote = memchr(p, '"', (size_t)(end - p));
	struct span text = {v, 0};
	const char *key =
		quote ? option_for_setting(b->opts, (struct span){p, (size_t)(quote - p)})
		      : NULL;
	while (v + text.n < end && v[text.n] != '}' && v[text.n] != ',')
		text.n++;
	if (text.n >= 2 && *text.p == '"')
		text = (struct span){text.p + 1, text.n - 2};
	if (key)
		build_add_setting(b, key, text);
}

void add_settings_of_line(struct build *b, struct span line)
{
	enum { MAX_LINE = 2000 };
	const struct log_names *all = &b->opts->formats->sentences;
	add_llmq_option(b, line);
	if (line.n > MAX_LINE)
		return;
	add_named_setting(b, line);
	for (int i = 0; i < all->n; i++) {
		const char *p = span_find(line, all->v[i].name);
		if (!p)
			continue;
		p += strlen(all->v[i].name);
		struct span value = {p, 0};
		while (p + value.n < line.p + line.n &&
			(isdigit((unsigned char)p[value.n]) || p[value.n] == ','))
			value.n++;
		while (value.n && p[value.n - 1] == ',')
			value.n--;
		if (value.n)
			add_clean_setting(b, all->v[i].ours, value);
	}
}

/* Lists each name under its column or option. */
static void print_name_list(const struct log_names *all, FILE *f)
{
	fputs(".Bl -tag -width Ds -compact\n", f);
	for (const struct log_name *m = all->v; m < all->v + all->n; m++) {
		if (m == all->v || strcmp(m[-1].ours, m->ours) != 0)
			fprintf(f, ".It Va %s\n", m->ours);
		if (strcmp(m->ours, m->name) != 0)
			fprintf(f, ".Qq %s\n", m->name);
		if (m->scale == 0x1p30)
			fputs(".Pq from GiB\n", f);
		else if (m->scale == INVERSE)
			fputs(".Pq the inverse\n", f);
		else if (m->scale != 1)
			fprintf(f, ".Pq times %g\n", m->scale);
	}
	fputs(".El\n", f);
}

void names_print(const struct log_formats *all, FILE *f)
{
	print_name_list(&all->columns, f);
	fputs(".Pp\nSettings:\n.Pp\n", f);
	print_name_list(&all->settings, f);
}
