/* Numbers with names, anywhere in a line, and steps that restart in each epoch. */
#include "logs/named.h"

#include <ctype.h>
#include <math.h>
#include <strings.h>

/* ---- words --------------------------------------------------------------------------- */

static bool is_blank(char c)
{
	return c == ' ' || c == '\t';
}

static bool is_letter(char c)
{
	return isalpha((unsigned char)c) || c == '_';
}

static bool is_digit(char c)
{
	return isdigit((unsigned char)c);
}

/* Returns the byte `at`, or a NUL after the end. */
static char byte_at(struct span s, const char *at)
{
	return at >= s.p && at < s.p + s.n ? *at : '\0';
}

static const char *after_blanks(struct span s, const char *p)
{
	while (is_blank(byte_at(s, p)) || byte_at(s, p) == '#')
		p++;
	return p;
}

struct span last_word(struct span name)
{
	size_t n = 0;
	while (n < name.n && !is_blank(name.p[name.n - n - 1]))
		n++;
	return (struct span){name.p + name.n - n, n};
}

/* Shortens a name to its last `n` words. */
static struct span last_words(struct span name, int n)
{
	const char *p = name.p + name.n;
	while (n-- > 0 && p > name.p) {
		while (p > name.p && is_blank(p[-1]))
			p--;
		while (p > name.p && !is_blank(p[-1]))
			p--;
	}
	return span_trim((struct span){p, (size_t)(name.p + name.n - p)});
}

bool name_has_word(struct span name, const char *const *words)
{
	for (size_t i = 0; i < name.n;) {
		size_t n = 0;
		while (i + n < name.n && isalnum((unsigned char)name.p[i + n]))
			n++;
		for (int k = 0; words[k] && n; k++)
			if (strlen(words[k]) == n &&
				!strncasecmp(words[k], name.p + i, n))
				return true;
		i += n + 1;
	}
	return false;
}

/* ---- numbers ------------------------------------------------------------------------- */

/* Returns true where a word may begin: the digit in Acc@1 or top-5 is not a number. */
static bool may_begin(struct span s, const char *p)
{
	return p == s.p || strchr(" \t([{:=|,<>~#'\"", p[-1]);
}

/* Returns the first byte after a time, date or version, such as 10:00:00. NULL: there is none. */
static const char *after_date(struct span s, const char *after)
{
	if (!memchr(":-.", byte_at(s, after), 3) || !is_digit(byte_at(s, after + 1)))
		return NULL;
	while (is_digit(byte_at(s, after)) ||
		(byte_at(s, after) && strchr(":-.,/T", byte_at(s, after))))
		after++;
	return after;
}

/* Skips "tensor(" or "np.float64(" before a number. */
static const char *after_type(struct span s, const char *p)
{
	const char *q = p;
	while (is_letter(byte_at(s, q)) || (q > p && is_digit(byte_at(s, q))) ||
		byte_at(s, q) == '.')
		q++;
	return q > p && byte_at(s, q) == '(' ? q + 1 : p;
}

/* Reads "/100" after a number. Returns the byte after it. */
static const char *scan_total(struct span s, const char *p, int64_t *total)
{
	const char *end = s.p + s.n;
	*total = -1;
	if (byte_at(s, p) != '/' || !is_digit(byte_at(s, after_blanks(s, p + 1))))
		return p;
	const char *q = scan_step((struct span){p + 1, (size_t)(end - p - 1)}, total);
	if (q && byte_at(s, q) != '/')
		return q;
	*total = -1;
	return p;
}

/* Returns true for progress, "[640/60000 (1%)]", "| 12/100" or "12/100 [00:01", not for dates. */
static bool is_progress(struct span s, const char *number, const char *after)
{
	while (number > s.p && is_blank(number[-1]))
		number--;
	char before = number > s.p ? number[-1] : '\0';
	return (before == '[' || before == '|' ||
		       byte_at(s, after_blanks(s, after)) == '[') &&
	       !(is_blank(byte_at(s, after)) && is_digit(byte_at(s, after + 1)));
}

/* ---- search ---------------------------------------------------------------------------- */

struct search {
	struct span line;
	const char *p;	  /* the current byte */
	const char *name; /* start of a possible name of the next number; NULL: none */
	const char *after_name; /* the byte after it */
	bool given;		/* a colon or an equals sign follows the name */
	struct named *found;
	int n;
};

static void drop_name(struct search *s)
{
	s->name = s->after_name = NULL;
	s->given = false;
}

/* Reads the number at *at, if there is one. Returns the byte after it and its unit, or NULL. */
static const char *parse_number(struct search *s, const char *at)
{
	struct named *f = &s->found[s->n];
	const char *end = s->line.p + s->line.n;
	const char *typed = s->given ? after_type(s->line, at) : at;
	struct span text = {typed, (size_t)(end - typed)};
	if (typed >= end || is_blank(*typed))
		return NULL;
	const char *after = scan_number(text, &f->v);
	bool word = is_letter(*typed);
	bool unread = !after && s->given && begins_as_number(typed, end);
	f->v = after ? f->v : (double)NAN;
	while (unread && (!after || (after < end && !is_blank(*after))))
		after = after ? after + 1 : typed;
	if (!after || (word && (!s->name || is_letter(byte_at(s->line, after)))))
		return NULL;
	const char *date = unread ? NULL : after_date(s->line, after);
	if (date) {
		drop_name(s);
		return date;
	}
	struct span name = {
		s->name ? s->name : "", s->name ? (size_t)(s->after_name - s->name) : 0};
	f->number = (struct span){typed, (size_t)(after - typed)};
	f->unread = unread || (s->given && number_continues((struct span){
						   after, (size_t)(end - after)}));
	f->name = last_words(span_trim(name), s->given ? 3 : 2);
	after = scan_total(s->line, after, &f->total);
	bool counts = f->name.n || (f->total > 0 && is_progress(s->line, typed, after));
	f->unit = (struct span){after, 0};
	while (is_letter(byte_at(s->line, after)) || byte_at(s->line, after) == '%' ||
		(byte_at(s->line, after) == '/' &&
			is_letter(byte_at(s->line, after + 1))))
		after++;
	f->unit.n = (size_t)(after - f->unit.p);
	s->n += counts && s->n < MAX_NAMED;
	drop_name(s);
	return after;
}

/* Reads a letter of a name; after two blanks, it begins a new name. */
static void parse_letter(struct search *s)
{
	bool apart = s->name && s->p - s->after_name >= 2;
	if (!s->name || apart || s->given) {
		drop_name(s);
		s->name = s->p;
	}
	const char *q = s->p;
	const char *end = s->line.p + s->line.n;
	while (q < end && !is_blank(*q) && !strchr(",;|()[]{}<>\"':=", *q))
		q++;
	s->after_name = s->p = q > s->p ? q : s->p + 1;
}

/* Returns the byte after "(higher is better)" between a name and its number; or NULL. */
static const char *after_direction(const struct search *s)
{
	const char *end = s->line.p + s->line.n;
	struct span rest = {s->p, (size_t)(end - s->p)};
	bool is = span_begins(rest, "(higher is better)") ||
		  span_begins(rest, "(lower is better)");
	return is && s->name ? (const char *)memchr(s->p, ')', rest.n) + 1 : NULL;
}

/* Reads another character. It ends the name, unless it is a bracket before a number, as in Step
 * [100/600]; a colon or an equals sign marks the name as given. */
static void parse_sign(struct search *s)
{
	char c = *s->p++;
	bool number = is_digit(byte_at(s->line, after_blanks(s->line, s->p)));
	if (c == ':' || c == '=')
		s->given = s->name != NULL;
	else if (!number || (c != '[' && c != '('))
		drop_name(s);
}

int find_named(struct span line, struct named *found)
{
	struct search s = {.line = line, .p = line.p, .found = found};
	const char *end = line.p + line.n;
	while (s.p < end && s.n < MAX_NAMED) {
		char c = *s.p;
		bool number =
			(is_digit(c) || strchr("+-.nNiIta", c)) && may_begin(line, s.p);
		const char *after = number     ? parse_number(&s, s.p)
				    : c == '(' ? after_direction(&s)
					       : NULL;
		if (after)
			s.p = after;
		else if (is_blank(c) || c == '#')
			s.p++;
		else if (is_letter(c) || is_digit(c))
			parse_letter(&s);
		else
			parse_sign(&s);
	}
	return s.n;
}

int count_form(struct form_count forms[static MAX_FORMS], const struct named *f, int n)
{
	uint64_t hash = (uint64_t)n;
	for (int i = 0; i < n; i++)
		hash = hash_bytes(f[i].name.p, f[i].name.n, hash);
	int at = 0;
	while (at < MAX_FORMS && forms[at].n && forms[at].hash != hash)
		at++;
	if (at == MAX_FORMS)
		return -1;
	forms[at].hash = hash;
	forms[at].n++;
	return at;
}

/* ---- columns ----------------------------------------------------------------------------- */

static int column_of(struct build *b, struct span name)
{
	double scale;
	char text[64];
	struct span column = name_of_column(b->how, name, &scale);
	snprintf(text, sizeof(text), "%.*s", (int)min64((int64_t)column.n, 63), column.p);
	return column_find(text);
}

static void set_scaled(struct build *b, int64_t step, struct span column,
	const struct named *f, double scale)
{
	if (f->unread && (build_unread(b, step, column, f->number) || isnan(f->v)))
		return;
	if (f->total > 0)
		build_set(b, step, column, f->v / (double)f->total);
	else
		build_set(b, step, column, scaled(f->v, scale));
}

void set_named_as(
	struct build *b, int64_t step, struct span column, const struct named *f)
{
	bool known = column_of(b, column) >= 0;
	set_scaled(b, step, column, f, known ? scale_of_suffix(f->unit) : 1);
}

void set_named(struct build *b, int64_t step, const struct named *f)
{
	if (f->name.n)
		set_named_as(b, step, f->name, f);
}

/* ---- steps --------------------------------------------------------------------------------- */

int64_t named_step(const struct named *f)
{
	bool whole = !f->unread && f->v >= 0 && f->v <= 0x1p53 &&
		     f->v == (double)(int64_t)f->v &&
		     !memchr(f->number.p, '.', f->number.n);
	return whole ? (int64_t)f->v : -1;
}

int64_t step_in_epochs(struct build *b, int64_t epoch, int64_t step, int64_t total)
{
	static const int64_t max = INT64_C(1) << 53;
	struct epochs *s = &b->epochs;
	if (epoch < 0)
		return step;
	if (!s->begun)
		*s = (struct epochs){
			.begun = true, .first = epoch, .epoch = epoch, .step = step};
	if (epoch > s->epoch && step <= s->step && !s->length)
		s->length = total > 0 ? total : s->step + max64(s->gap, 1);
	if (epoch == s->epoch && step > s->step)
		s->gap = step - s->step;
	s->epoch = epoch;
	s->step = step;
	int64_t n = epoch - s->first;
	return s->length > 0 && n > 0 && n < (max - step) / s->length
		       ? n * s->length + step
		       : step;
}

void begin_named_row(struct build *b, int64_t step)
{
	bool repeats = step == b->line.trained;
	build_row(b, step, true);
	b->repeats = repeats;
}

/* ---- formats with named numbers ------------------------------------------------------------ */

bool is_other_rank(const struct named *f, int n)
{
	for (int i = 0; i < n; i++)
		if (f[i].name.n == 4 && !strncasecmp(f[i].name.p, "rank", 4) &&
			f[i].v > 0)
			return true;
	return false;
}

/* Returns the label with this name; NULL: none. */
static const struct label *label_of(const struct line_kind *k, struct span name)
{
	for (int i = 0; i < k->n_labels; i++)
		if (k->label[i].len == name.n &&
			!strncasecmp(k->label[i].text, name.p, name.n))
			return &k->label[i];
	return NULL;
}

/* Returns the step of the run in a line with an epoch. *at: the index of the step's number. */
static int64_t step_after_epoch(
	struct build *b, const struct named *f, int n, int64_t epoch, int *at)
{
	for (*at = 0; *at < n; ++*at) {
		int64_t step = named_step(&f[*at]), total = f[*at].total;
		if (step < 0 || (f[*at].name.n && !name_is_step(f[*at].name)))
			continue;
		bool counts =
			total > 0 && epoch > 0 && epoch < (INT64_C(1) << 52) / total;
		return counts ? (epoch - 1) * total + step
			      : step_in_epochs(b, epoch, step, total);
	}
	return epoch;
}

bool parse_named(struct build *b, struct span s, const struct line_kind *k, int64_t step)
{
	struct named f[MAX_NAMED];
	int n = find_named(s, f), at = n;
	bool any = false;
	if (is_other_rank(f, n))
		return false;
	if (k->epoch)
		step = step_after_epoch(b, f, n, step, &at);
	for (int i = 0; i < n; i++) {
		const struct label *l = label_of(k, f[i].name);
		bool skipped = i == at || !f[i].name.n || name_is_step(f[i].name) ||
			       (l && !strcmp(l->column, "-"));
		if (skipped)
			continue;
		if (!any && k->training)
			begin_named_row(b, step);
		else if (!any)
			build_row(b, step, false);
		any = true;
		if (!l)
			set_named(b, step, &f[i]);
		else
			set_scaled(b, step, span_of(l->column), &f[i],
				l->scale != BY_SUFFIX ? l->scale
						      : scale_of_suffix(f[i].unit));
	}
	return any;
}
