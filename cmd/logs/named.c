/* Numbers with names, anywhere in a line, and steps that restart in each epoch. */
#include "logs/named.h"

#include <ctype.h>
#include <math.h>
#include <strings.h>

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

/* Returns the byte at p, or a NUL outside of the text. */
static char byte_at(struct span s, const char *p)
{
	return p >= s.p && p < s.p + s.n ? *p : '\0';
}

/* Returns the first byte from p on that is neither a blank nor '#'. */
static const char *skip_blanks(struct span s, const char *p)
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

/* Returns true if a number may begin at p: the digit in Acc@1 or top-5 does not. */
static bool may_begin_number(struct span s, const char *p)
{
	return p == s.p || strchr(" \t([{:=|,<>~#'\"", p[-1]);
}

/* Returns the byte after a time, date or version such as 10:00:00, or NULL. p: its first sign. */
static const char *skip_date(struct span s, const char *p)
{
	if (!memchr(":-.", byte_at(s, p), 3) || !is_digit(byte_at(s, p + 1)))
		return NULL;
	while (is_digit(byte_at(s, p)) ||
		(byte_at(s, p) && strchr(":-.,/T", byte_at(s, p))))
		p++;
	return p;
}

/* Returns the byte after "tensor(" or "np.float64(" at p, or p. */
static const char *skip_type(struct span s, const char *p)
{
	const char *q = p;
	while (is_letter(byte_at(s, q)) || (q > p && is_digit(byte_at(s, q))) ||
		byte_at(s, q) == '.')
		q++;
	return q > p && byte_at(s, q) == '(' ? q + 1 : p;
}

/* Reads "/100" at p, after a number; *total is -1 without it. Returns the byte after it. */
static const char *scan_total(struct span s, const char *p, int64_t *total)
{
	const char *end = s.p + s.n;
	*total = -1;
	if (byte_at(s, p) != '/' || !is_digit(byte_at(s, skip_blanks(s, p + 1))))
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
	char preceding = number > s.p ? number[-1] : '\0';
	return (preceding == '[' || preceding == '|' ||
		       byte_at(s, skip_blanks(s, after)) == '[') &&
	       !(is_blank(byte_at(s, after)) && is_digit(byte_at(s, after + 1)));
}

struct number_search {
	struct span line;
	const char *p;	  /* the current byte */
	const char *name; /* start of a possible name of the next number; NULL: none */
	const char *after_name; /* the byte after it */
	bool has_sign;		/* a colon or an equals sign follows the name */
	struct named *found;
	int n;
};

static void forget_name(struct number_search *s)
{
	s->name = s->after_name = NULL;
	s->has_sign = false;
}

/* Adds the number at `begin`, if it has a name or counts progress. Returns the byte after the
 * number and its unit, or NULL if there is no number. */
static const char *parse_number(struct number_search *s, const char *begin)
{
	struct named *f = &s->found[s->n];
	const char *end = s->line.p + s->line.n;
	const char *number = s->has_sign ? skip_type(s->line, begin) : begin;
	struct span text = {number, (size_t)(end - number)};
	if (number >= end || is_blank(*number))
		return NULL;
	const char *after = scan_number(text, &f->v);
	bool is_word = is_letter(*number);
	bool is_unread = !after && s->has_sign && begins_as_number(number, end);
	f->v = after ? f->v : (double)NAN;
	while (is_unread && (!after || (after < end && !is_blank(*after))))
		after = after ? after + 1 : number;
	if (!after || (is_word && (!s->name || is_letter(byte_at(s->line, after)))))
		return NULL;
	const char *date = is_unread ? NULL : skip_date(s->line, after);
	if (date) {
		forget_name(s);
		return date;
	}
	struct span name = {
		s->name ? s->name : "", s->name ? (size_t)(s->after_name - s->name) : 0};
	f->number = (struct span){number, (size_t)(after - number)};
	f->unread = is_unread || (s->has_sign && number_continues((struct span){
							 after, (size_t)(end - after)}));
	f->name = last_words(span_trim(name), s->has_sign ? 3 : 2);
	after = scan_total(s->line, after, &f->total);
	bool is_found =
		f->name.n || (f->total > 0 && is_progress(s->line, number, after));
	f->unit = (struct span){after, 0};
	while (is_letter(byte_at(s->line, after)) || byte_at(s->line, after) == '%' ||
		(byte_at(s->line, after) == '/' &&
			is_letter(byte_at(s->line, after + 1))))
		after++;
	f->unit.n = (size_t)(after - f->unit.p);
	s->n += is_found && s->n < MAX_NAMED;
	forget_name(s);
	return after;
}

/* Reads a word of a name. After two blanks, it begins a new name. */
static void parse_name_word(struct number_search *s)
{
	bool is_apart = s->name && s->p - s->after_name >= 2;
	if (!s->name || is_apart || s->has_sign) {
		forget_name(s);
		s->name = s->p;
	}
	const char *q = s->p;
	const char *end = s->line.p + s->line.n;
	while (q < end && !is_blank(*q) && !strchr(",;|()[]{}<>\"':=", *q))
		q++;
	s->after_name = s->p = q > s->p ? q : s->p + 1;
}

/* Returns the byte after "(higher is better)" between a name and its number, or NULL. */
static const char *skip_direction(const struct number_search *s)
{
	const char *end = s->line.p + s->line.n;
	struct span rest = {s->p, (size_t)(end - s->p)};
	bool is_note = span_begins(rest, "(higher is better)") ||
		       span_begins(rest, "(lower is better)");
	return is_note && s->name ? (const char *)memchr(s->p, ')', rest.n) + 1 : NULL;
}

/* Reads a punctuation mark. It ends the name, except a colon, an equals sign, and a bracket before
 * a before_number, as in Step [100/600]. */
static void parse_punctuation(struct number_search *s)
{
	char c = *s->p++;
	bool before_number = is_digit(byte_at(s->line, skip_blanks(s->line, s->p)));
	if (c == ':' || c == '=')
		s->has_sign = s->name != NULL;
	else if (!before_number || (c != '[' && c != '('))
		forget_name(s);
}

int find_named_numbers(struct span line, struct named *found)
{
	struct number_search s = {.line = line, .p = line.p, .found = found};
	const char *end = line.p + line.n;
	while (s.p < end && s.n < MAX_NAMED) {
		char c = *s.p;
		bool may_be_number = (is_digit(c) || strchr("+-.nNiIta", c)) &&
				     may_begin_number(line, s.p);
		const char *after = may_be_number ? parse_number(&s, s.p)
				    : c == '('	  ? skip_direction(&s)
						  : NULL;
		if (after)
			s.p = after;
		else if (is_blank(c) || c == '#')
			s.p++;
		else if (is_letter(c) || is_digit(c))
			parse_name_word(&s);
		else
			parse_punctuation(&s);
	}
	return s.n;
}

int count_form(struct form_count forms[static MAX_FORMS], const struct named *f, int n)
{
	uint64_t hash = (uint64_t)n;
	for (int i = 0; i < n; i++)
		hash = hash_bytes(f[i].name.p, f[i].name.n, hash);
	int index = 0;
	while (index < MAX_FORMS && forms[index].n && forms[index].hash != hash)
		index++;
	if (index == MAX_FORMS)
		return -1;
	forms[index].hash = hash;
	forms[index].n++;
	return index;
}

/* Returns the index in columns[] of run.h for a name in a log; -1: none. */
static int find_run_column(struct build *b, struct span name)
{
	double scale;
	char text[64];
	struct span column = our_column(b->opts, name, &scale);
	snprintf(text, sizeof(text), "%.*s", (int)min64((int64_t)column.n, 63), column.p);
	return column_find(text);
}

/* Sets a column to a number times the scale, or to its fraction of the total. */
static void set_converted(struct build *b, int64_t step, struct span column,
	const struct named *f, double scale)
{
	if (f->unread && (build_add_unread(b, step, column, f->number) || isnan(f->v)))
		return;
	if (f->total > 0)
		build_set(b, step, column, f->v / (double)f->total);
	else
		build_set(b, step, column, convert_unit(f->v, scale));
}

void set_column_from(
	struct build *b, int64_t step, struct span column, const struct named *f)
{
	bool is_known = find_run_column(b, column) >= 0;
	set_converted(b, step, column, f, is_known ? scale_of_suffix(f->unit) : 1);
}

void set_named_column(struct build *b, int64_t step, const struct named *f)
{
	if (f->name.n)
		set_column_from(b, step, f->name, f);
}

int64_t step_of_number(const struct named *f)
{
	bool is_step = !f->unread && f->v >= 0 && f->v <= 0x1p53 &&
		       f->v == (double)(int64_t)f->v &&
		       !memchr(f->number.p, '.', f->number.n);
	return is_step ? (int64_t)f->v : -1;
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
	bool is_repeated = step == b->line.trained;
	build_begin_row(b, step, true);
	b->repeats = is_repeated;
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

/* Returns the label of a kind with this name; NULL: none. */
static const struct label *find_label(const struct line_kind *k, struct span name)
{
	for (int i = 0; i < k->n_labels; i++)
		if (k->label[i].len == name.n &&
			!strncasecmp(k->label[i].text, name.p, name.n))
			return &k->label[i];
	return NULL;
}

/* Returns the step of the run in a line with an epoch. *index: set to the index of its number. */
static int64_t step_in_line(
	struct build *b, const struct named *f, int n, int64_t epoch, int *index)
{
	for (*index = 0; *index < n; ++*index) {
		int64_t step = step_of_number(&f[*index]), total = f[*index].total;
		if (step < 0 || (f[*index].name.n && !name_is_step(f[*index].name)))
			continue;
		bool is_in_range =
			total > 0 && epoch > 0 && epoch < (INT64_C(1) << 52) / total;
		return is_in_range ? (epoch - 1) * total + step
				   : step_in_epochs(b, epoch, step, total);
	}
	return epoch;
}

bool parse_named(struct build *b, struct span s, const struct line_kind *k, int64_t step)
{
	struct named f[MAX_NAMED];
	int n = find_named_numbers(s, f), step_index = n;
	bool has_values = false;
	if (is_other_rank(f, n))
		return false;
	if (k->has_epoch)
		step = step_in_line(b, f, n, step, &step_index);
	for (int i = 0; i < n; i++) {
		const struct label *l = find_label(k, f[i].name);
		bool skip = i == step_index || !f[i].name.n || name_is_step(f[i].name) ||
			    (l && !strcmp(l->column, "-"));
		if (skip)
			continue;
		if (!has_values && k->is_training)
			begin_named_row(b, step);
		else if (!has_values)
			build_begin_row(b, step, false);
		has_values = true;
		if (!l)
			set_named_column(b, step, &f[i]);
		else
			set_converted(b, step, span_of(l->column), &f[i],
				l->scale != BY_SUFFIX ? l->scale
						      : scale_of_suffix(f[i].unit));
	}
	return has_values;
}
