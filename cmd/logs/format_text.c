/* Reads formats from a text in the syntax of pt-compare(1). The size of users' files is limited. */
#include "base/file.h"
#include "options/options.h"
#include "logs/formats.h"

#include <limits.h>

enum { MAX_FILE = 1 << 16, MAX_WORDS = 32, MAX_TEXT = UCHAR_MAX };

struct format_parser {
	struct log_formats *formats;
	const char *file;
	int line;
	bool built_in;
	struct log_format *current; /* NULL: no format has begun */
	int group; /* index of the first kind of line that the next label is for */
	struct {
		char *s;
		bool quoted;
	} word[MAX_WORDS];
	int n, next; /* number of words of the line; index of the next word to read */
	struct err *e;
};

/* Sets an error about the current line. */
static bool syntax_error(struct format_parser *p, const char *what, const char *why)
{
	err_set(p->e, EX_DATAERR, "%s: line %d: '%.80s': %s", p->file, p->line, what,
		why);
	return false;
}

/* ---- words ----------------------------------------------------------------------- */

/* Writes a NUL at `end`, and returns the byte after it. */
static char *terminate_text(char *end)
{
	if (*end)
		*end++ = '\0';
	return end;
}

/* Splits a line into words, in place. Returns false with an error for invalid quotes. */
static bool split_words(struct format_parser *p, char *s)
{
	for (p->n = p->next = 0;; p->n++) {
		s += strspn(s, " \t\r");
		if (!*s || *s == '#')
			return true;
		if (p->n == MAX_WORDS)
			return syntax_error(p, s, "a line has at most 32 words");
		char quote = *s == '"' || *s == '\'' ? *s++ : '\0', *begin = s;
		p->word[p->n].s = s;
		p->word[p->n].quoted = quote;
		s = quote ? strchr(s, quote) : s + strcspn(s, " \t\r");
		if (!s)
			return syntax_error(p, begin, "the text has no closing quote");
		bool is_valid = s > begin && s - begin <= MAX_TEXT;
		s = terminate_text(s);
		if (!is_valid)
			return syntax_error(p, begin, "a text must have 1 to 255 bytes");
	}
}

/* Reads the next word if it is a NAME, or a TEXT in quotes; otherwise returns NULL. */
enum kind_of_word { NAME, TEXT };
static const char *next_word(struct format_parser *p, enum kind_of_word kind)
{
	bool is_kind = p->next < p->n && p->word[p->next].quoted == (kind == TEXT);
	return is_kind ? p->word[p->next++].s : NULL;
}

/* Skips the next word and returns true, if it is this one without quotes. */
static bool accept_word(struct format_parser *p, const char *word)
{
	bool is_next = p->next < p->n && !p->word[p->next].quoted &&
		       !strcmp(p->word[p->next].s, word);
	p->next += is_next;
	return is_next;
}

/* Reads an optional unit; 1: none. Returns false if it is unknown. suffix: allows "suffix". */
static bool parse_unit(struct format_parser *p, double *scale, bool suffix)
{
	const char *s = next_word(p, NAME);
	*scale = 1;
	return !s || (scale_of_unit(s, scale) && (suffix || *scale != BY_SUFFIX)) ||
	       syntax_error(p, s, "the unit is not supported here");
}

void format_release(struct log_format *f)
{
	str_free(&f->about);
	free(f->kinds);
}

/* Returns true if the format states which numbers of the line are read. */
static bool has_numbers(const struct line_kind *k)
{
	return k->n_labels || k->fields.assign || k->reads_named;
}

/* Returns true if the next kind begins a new group: numbers belong to all kinds of a group. */
static bool ends_group(const struct line_kind *k)
{
	return k->n_labels || k->fields.assign;
}

/* Ends the current format, and removes it if an earlier format has the same name. */
static bool end_format(struct format_parser *p)
{
	struct log_format *f = p->current;
	p->current = NULL;
	if (!f)
		return true;
	const struct coded_format *code = p->built_in ? find_coded_format(f->name) : NULL;
	if (code && !f->n_kinds) {
		f->line = code->line;
		f->text = code->text;
		f->detect = code->detect;
	} else if (!f->n_kinds || !has_numbers(&f->kinds[f->n_kinds - 1])) {
		return syntax_error(
			p, f->name, "the format does not specify which numbers to read");
	}
	if (format_find(p->formats, f->name) != f) {
		format_release(f);
		p->formats->n--;
	}
	return true;
}

/* Adds a format with the name in the directive, and makes it current. Returns false on an
 * invalid name, maybe with p->e set. */
static bool parse_format_directive(struct format_parser *p)
{
	static const char letters[] = "abcdefghijklmnopqrstuvwxyz0123456789-";
	struct log_formats *formats = p->formats;
	const char *name = next_word(p, NAME);
	if (!name || name[strspn(name, letters)] || !end_format(p))
		return false;
	if (!p->built_in && (find_coded_format(name) || !strcmp(name, "auto")))
		return syntax_error(
			p, name, "this format cannot be replaced; choose another name");
	formats->v = xgrow(formats->v, formats->n, sizeof(*formats->v));
	p->current = &formats->v[formats->n++];
	*p->current = (struct log_format){.name = name};
	return true;
}

/* Appends a text to the description of the current format. Returns false on a syntax error. */
static bool parse_about_directive(struct format_parser *p)
{
	struct str *about = &p->current->about;
	const char *text = next_word(p, TEXT);
	str_printf(about, "%s%s", about->len ? " " : "", text ? text : "");
	return text;
}

static bool parse_settings_directive(struct format_parser *p)
{
	return p->current->settings = true;
}

/* Reads the texts that begin a log of the current format. Returns false if there is none. */
static bool parse_head_directive(struct format_parser *p)
{
	struct log_format *f = p->current;
	for (int n = 0; n < MAX_HEADS && (f->heads[n] = next_word(p, TEXT)); n++)
		;
	f->closes = accept_word(p, "closes");
	f->ranks = accept_word(p, "ranks");
	return *f->heads;
}

/* ---- kinds of lines -------------------------------------------------------------- */

/* Appends a kind of line to the current format. */
static bool add_kind(struct format_parser *p, struct line_kind k)
{
	struct log_format *f = p->current;
	if (f->n_kinds == MAX_KINDS)
		return syntax_error(p, k.mark, "a format has at most 12 kinds of lines");
	if (!f->n_kinds || ends_group(&f->kinds[f->n_kinds - 1]))
		p->group = f->n_kinds;
	f->kinds = xgrow(f->kinds, f->n_kinds, sizeof(*f->kinds));
	f->kinds[f->n_kinds++] = k;
	return true;
}

/* Adds a kind of line with a step: a training row or an evaluation. */
static bool parse_row_directive(struct format_parser *p)
{
	struct line_kind k = {.is_training = !strcmp(p->word->s, "train")};
	k.mark = next_word(p, TEXT);
	if (!k.mark || (accept_word(p, "needs") && !(k.needs = next_word(p, TEXT))))
		return false;
	k.whole_line = accept_word(p, "whole");
	k.has_epoch = accept_word(p, "epoch");
	k.no_step = accept_word(p, "last");
	k.reads_named = accept_word(p, "named");
	if ((k.has_epoch || k.no_step) && !k.reads_named)
		return false;
	if (!k.reads_named && accept_word(p, "pairs")) {
		const char *assign = next_word(p, TEXT), *delimiter = next_word(p, TEXT);
		if (!assign || assign[1] || (delimiter && delimiter[1]))
			return false;
		k.fields = (struct fields){*assign, delimiter ? *delimiter : '\0',
			accept_word(p, "suffix"), NULL};
		if (accept_word(p, "loss") && !(k.fields.loss = next_word(p, TEXT)))
			return false;
	}
	return add_kind(p, k);
}

/* Adds a label, the text next to a number, to a kind of line; indexes it by its first
 * byte. Returns false with p->e set if the line cannot have it. */
static bool add_label(struct format_parser *p, struct line_kind *k, struct label l)
{
	if (k->fields.assign || k->n_labels == MAX_LABELS)
		return syntax_error(p, l.text,
			k->fields.assign ? "a line with pairs cannot have other numbers"
					 : "a line has at most 16 numbers");
	k->label[k->n_labels++] = l;
	unsigned char *first = &k->first[(unsigned char)*l.text];
	if (!l.is_before && !*first)
		*first = (unsigned char)k->n_labels;
	return true;
}

/* Reads TEXT COLUMN [UNIT]; allows_suffix: the unit may be "suffix". */
static bool parse_label(struct format_parser *p, struct label *l, bool allows_suffix)
{
	l->text = next_word(p, TEXT);
	l->column = next_word(p, NAME);
	l->len = (unsigned char)(l->text ? strlen(l->text) : 0);
	return l->text && l->column && parse_unit(p, &l->scale, allows_suffix);
}

/* Adds a number next to a text to the kinds of lines of the current group. */
static bool parse_label_directive(struct format_parser *p)
{
	struct label l = {.is_before = accept_word(p, "before")};
	if (!parse_label(p, &l, !l.is_before))
		return false;
	int n = p->current ? p->current->n_kinds : 0;
	if (p->group >= n)
		return syntax_error(p, l.text, "no train or eval line comes before");
	for (int i = p->group; i < n; i++)
		if (!add_label(p, &p->current->kinds[i], l))
			return false;
	return true;
}

/* Adds a kind of line that has only this text and number, without a step. */
static bool parse_alone_directive(struct format_parser *p)
{
	struct line_kind k = {.is_alone = true};
	struct label l = {.is_before = false};
	if (!parse_label(p, &l, false) || !add_label(p, &k, l))
		return false;
	k.mark = l.text;
	bool is_added = add_kind(p, k);
	p->group = p->current->n_kinds;
	return is_added;
}

/* Adds names that other logs have for a column or a setting, or texts before a setting. */
static bool parse_names_directive(struct format_parser *p)
{
	struct log_formats *f = p->formats;
	bool is_column = !strcmp(p->word->s, "column");
	struct log_names *list = is_column			  ? &f->columns
				 : !strcmp(p->word->s, "setting") ? &f->settings
								  : &f->sentences;
	struct log_name name = {.ours = next_word(p, NAME), .scale = 1};
	if (!name.ours || (is_column && !parse_unit(p, &name.scale, false)) ||
		p->next == p->n)
		return false;
	while ((name.name = next_word(p, TEXT))) {
		list->v = xgrow(list->v, list->n, sizeof(*list->v));
		list->v[list->n++] = name;
	}
	return true;
}

/* ---- lines ----------------------------------------------------------------------- */

#define LINE_FORM                                                    \
	"\"TEXT\" [needs \"TEXT\"] [whole] [[epoch | last] named | " \
	"pairs \":\" [\"|\"] [suffix] [loss \"NAME\"]]"

static const struct directive {
	const char *word, *form;
	bool (*parse)(struct format_parser *p);
	bool in_format; /* allowed only after a format line */
} directives[] = {
	{"format", "format NAME, of a-z, 0-9 and -", parse_format_directive, false},
	{"about", "about \"TEXT\"", parse_about_directive, true},
	{"settings", "settings", parse_settings_directive, true},
	{"head", "head \"TEXT\" ... [closes] [ranks]", parse_head_directive, true},
	{"train", "train " LINE_FORM, parse_row_directive, true},
	{"eval", "eval " LINE_FORM, parse_row_directive, true},
	{"before", "before \"TEXT\" COLUMN [UNIT]", parse_label_directive, true},
	{"alone", "alone \"TEXT\" COLUMN [UNIT]", parse_alone_directive, true},
	{"column", "column COLUMN [UNIT] \"NAME\" ...", parse_names_directive, false},
	{"setting", "setting OPTION \"NAME\" ...", parse_names_directive, false},
	{"sentence", "sentence OPTION \"TEXT\" ...", parse_names_directive, false},
};
static const struct directive label_directive = {
	"", "\"TEXT\" COLUMN [UNIT]", parse_label_directive, true};

/* Returns the directive of the first word, or NULL with an error. */
static const struct directive *find_directive(struct format_parser *p)
{
	const char *names[ARRAY_LEN(directives)];
	if (p->word->quoted)
		return &label_directive;
	for (size_t i = 0; i < ARRAY_LEN(directives); i++) {
		names[i] = directives[i].word;
		if (!strcmp(directives[i].word, p->word->s))
			return &directives[i];
	}
	scoped_ptr char *where = text_printf("%s: line %d", p->file, p->line);
	err_none_of(p->e, where, p->word->s, names, ARRAY_LEN(directives));
	p->e->code = EX_DATAERR;
	return NULL;
}

/* Parses one line of a format file. Returns false with p->e set. Splits text in place. */
static bool parse_line(struct format_parser *p, char *text)
{
	if (!split_words(p, text) || !p->n)
		return !p->e->code;
	const struct directive *d = find_directive(p);
	if (!d)
		return false;
	if (d->in_format && !p->current)
		return syntax_error(p, p->word->s, "no format line comes before");
	p->next = d->parse != parse_label_directive;
	if (d->parse(p) && p->next == p->n)
		return true;
	if (!p->e->code)
		err_set(p->e, EX_DATAERR, "%s: line %d: the syntax is: %s", p->file,
			p->line, d->form);
	return false;
}

int formats_add(struct log_formats *formats, const char *text, const char *name,
	bool built_in, struct err *e)
{
	struct format_parser p = {formats, name, .built_in = built_in, .e = e};
	bool is_valid = true;
	*e = (struct err){0};
	strs_add(&formats->texts, text);
	for (char *s = formats->texts.v[formats->texts.n - 1]; *s && is_valid;) {
		char *line = s;
		s = terminate_text(s + strcspn(s, "\n"));
		p.line++;
		is_valid = parse_line(&p, line);
	}
	return is_valid && end_format(&p) ? 0 : -1;
}

int formats_read(struct log_formats *formats, const char *path, struct err *e)
{
	scoped_str text = {0};
	if (file_read(path, MAX_FILE, &text, e))
		return -1;
	if (text.len && strlen(text.s) < text.len)
		return err_set(
			e, EX_DATAERR, "%s: not a text file: it has a NUL byte", path);
	return formats_add(formats, text.len ? text.s : "", path, false, e);
}
