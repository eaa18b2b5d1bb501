/* Reads formats from a text in the syntax of pt-compare(1). The size of users' files is limited. */
#include "base/file.h"
#include "options/options.h"
#include "logs/formats.h"

#include <limits.h>

enum { MAX_FILE = 1 << 16, MAX_WORDS = 32, MAX_TEXT = UCHAR_MAX };

struct parsing {
	struct log_formats *to;
	const char *file;
	int line;
	bool built_in;
	struct log_format *open; /* the current format; NULL: none has begun */
	int group;		 /* the first kind of line that the next label is for */
	struct {
		char *s;
		bool quoted;
	} word[MAX_WORDS];
	int n, i; /* words of the line, and words read so far */
	struct err *e;
};

/* Sets an error about the current line. */
static bool syntax_error(struct parsing *p, const char *what, const char *why)
{
	err_set(p->e, EX_DATAERR, "%s: line %d: '%.80s': %s", p->file, p->line, what,
		why);
	return false;
}

/* ---- words ----------------------------------------------------------------------- */

/* Ends a text at `end`, and returns the place after it. */
static char *end_text(char *end)
{
	if (*end)
		*end++ = '\0';
	return end;
}

static bool split_words(struct parsing *p, char *s)
{
	for (p->n = p->i = 0;; p->n++) {
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
		bool fits = s > begin && s - begin <= MAX_TEXT;
		s = end_text(s);
		if (!fits)
			return syntax_error(p, begin, "a text has 1 to 255 bytes");
	}
}

/* Reads the next word if it is a NAME, or a TEXT in quotes; otherwise returns NULL. */
enum kind_of_word { NAME, TEXT };
static const char *next_word(struct parsing *p, enum kind_of_word kind)
{
	bool is = p->i < p->n && p->word[p->i].quoted == (kind == TEXT);
	return is ? p->word[p->i++].s : NULL;
}

/* Skips the next word if it is this one. */
static bool next_is(struct parsing *p, const char *word)
{
	bool is = p->i < p->n && !p->word[p->i].quoted && !strcmp(p->word[p->i].s, word);
	p->i += is;
	return is;
}

/* Reads an optional unit; false: it is unknown. suffix: "suffix" is allowed. */
static bool next_unit(struct parsing *p, double *scale, bool suffix)
{
	const char *s = next_word(p, NAME);
	*scale = 1;
	return !s || (scale_of_unit(s, scale) && (suffix || *scale != BY_SUFFIX)) ||
	       syntax_error(p, s, "the unit is not supported here");
}

/* ---- formats --------------------------------------------------------------------- */

void format_free(struct log_format *f)
{
	str_free(&f->about);
	free(f->kinds);
}

static bool is_complete(const struct line_kind *k)
{
	return k->n_labels || k->fields.is || k->named;
}

/* Returns true if the next kind begins a new group: numbers belong to all kinds of a group. */
static bool ends_group(const struct line_kind *k)
{
	return k->n_labels || k->fields.is;
}

/* Ends the current format, and drops it if an earlier format has the same name. */
static bool end_format(struct parsing *p)
{
	struct log_format *f = p->open;
	p->open = NULL;
	if (!f)
		return true;
	const struct log_code *code = p->built_in ? log_code_find(f->name) : NULL;
	if (code && !f->n_kinds) {
		f->line = code->line;
		f->text = code->text;
		f->detect = code->detect;
	} else if (!f->n_kinds || !is_complete(&f->kinds[f->n_kinds - 1])) {
		return syntax_error(
			p, f->name, "the format ends without a number to read");
	}
	if (format_find(p->to, f->name) != f) {
		format_free(f);
		p->to->n--;
	}
	return true;
}

static bool parse_format(struct parsing *p)
{
	static const char letters[] = "abcdefghijklmnopqrstuvwxyz0123456789-";
	struct log_formats *to = p->to;
	const char *name = next_word(p, NAME);
	if (!name || name[strspn(name, letters)] || !end_format(p))
		return false;
	if (!p->built_in && (log_code_find(name) || !strcmp(name, "auto")))
		return syntax_error(
			p, name, "this format cannot be replaced; choose another name");
	to->v = xgrow(to->v, to->n, sizeof(*to->v));
	p->open = &to->v[to->n++];
	*p->open = (struct log_format){.name = name};
	return true;
}

static bool parse_about(struct parsing *p)
{
	struct str *about = &p->open->about;
	const char *text = next_word(p, TEXT);
	str_printf(about, "%s%s", about->len ? " " : "", text ? text : "");
	return text;
}

static bool parse_settings(struct parsing *p)
{
	return p->open->settings = true;
}

static bool parse_head(struct parsing *p)
{
	struct log_format *f = p->open;
	for (int n = 0; n < MAX_HEADS && (f->heads[n] = next_word(p, TEXT)); n++)
		;
	f->closes = next_is(p, "closes");
	f->ranks = next_is(p, "ranks");
	return *f->heads;
}

/* ---- kinds of lines -------------------------------------------------------------- */

static bool add_kind(struct parsing *p, struct line_kind k)
{
	struct log_format *f = p->open;
	if (f->n_kinds == MAX_KINDS)
		return syntax_error(p, k.mark, "a format has at most 12 kinds of lines");
	if (!f->n_kinds || ends_group(&f->kinds[f->n_kinds - 1]))
		p->group = f->n_kinds;
	f->kinds = xgrow(f->kinds, f->n_kinds, sizeof(*f->kinds));
	f->kinds[f->n_kinds++] = k;
	return true;
}

static bool parse_kind(struct parsing *p)
{
	struct line_kind k = {.training = !strcmp(p->word->s, "train")};
	k.mark = next_word(p, TEXT);
	if (!k.mark || (next_is(p, "needs") && !(k.needs = next_word(p, TEXT))))
		return false;
	k.whole = next_is(p, "whole");
	k.epoch = next_is(p, "epoch");
	k.last = next_is(p, "last");
	k.named = next_is(p, "named");
	if ((k.epoch || k.last) && !k.named)
		return false;
	if (!k.named && next_is(p, "pairs")) {
		const char *is = next_word(p, TEXT), *between = next_word(p, TEXT);
		if (!is || is[1] || (between && between[1]))
			return false;
		k.fields = (struct fields){
			*is, between ? *between : '\0', next_is(p, "suffix"), NULL};
		if (next_is(p, "loss") && !(k.fields.loss = next_word(p, TEXT)))
			return false;
	}
	return add_kind(p, k);
}

static bool add_label(struct parsing *p, struct line_kind *k, struct label l)
{
	if (k->fields.is || k->n_labels == MAX_LABELS)
		return syntax_error(p, l.text,
			k->fields.is ? "a line with pairs has no other numbers"
				     : "a line has at most 16 numbers");
	k->label[k->n_labels++] = l;
	unsigned char *first = &k->first[(unsigned char)*l.text];
	if (!l.before && !*first)
		*first = (unsigned char)k->n_labels;
	return true;
}

/* Reads TEXT COLUMN [UNIT]. */
static bool next_label(struct parsing *p, struct label *l, bool suffix)
{
	l->text = next_word(p, TEXT);
	l->column = next_word(p, NAME);
	l->len = (unsigned char)(l->text ? strlen(l->text) : 0);
	return l->text && l->column && next_unit(p, &l->scale, suffix);
}

/* Adds a number next to a text to the kinds of lines of the current group. */
static bool parse_label(struct parsing *p)
{
	struct label l = {.before = next_is(p, "before")};
	if (!next_label(p, &l, !l.before))
		return false;
	int n = p->open ? p->open->n_kinds : 0;
	if (p->group >= n)
		return syntax_error(p, l.text, "there is no train or eval line above it");
	for (int i = p->group; i < n; i++)
		if (!add_label(p, &p->open->kinds[i], l))
			return false;
	return true;
}

static bool parse_alone(struct parsing *p)
{
	struct line_kind k = {.alone = true};
	struct label l = {.before = false};
	if (!next_label(p, &l, false) || !add_label(p, &k, l))
		return false;
	k.mark = l.text;
	bool added = add_kind(p, k);
	p->group = p->open->n_kinds;
	return added;
}

/* ---- names ----------------------------------------------------------------------- */

static bool parse_names(struct parsing *p)
{
	struct log_formats *f = p->to;
	bool column = !strcmp(p->word->s, "column");
	struct log_names *to = column				? &f->columns
			       : !strcmp(p->word->s, "setting") ? &f->settings
								: &f->sentences;
	struct log_name name = {.ours = next_word(p, NAME), .scale = 1};
	if (!name.ours || (column && !next_unit(p, &name.scale, false)) || p->i == p->n)
		return false;
	while ((name.name = next_word(p, TEXT))) {
		to->v = xgrow(to->v, to->n, sizeof(*to->v));
		to->v[to->n++] = name;
	}
	return true;
}

/* ---- lines ----------------------------------------------------------------------- */

#define LINE_FORM                                                    \
	"\"TEXT\" [needs \"TEXT\"] [whole] [[epoch | last] named | " \
	"pairs \":\" [\"|\"] [suffix] [loss \"NAME\"]]"

static const struct directive {
	const char *word, *form;
	bool (*parse)(struct parsing *p);
	bool within; /* a format */
} directives[] = {
	{"format", "format NAME, of a-z, 0-9 and -", parse_format, false},
	{"about", "about \"TEXT\"", parse_about, true},
	{"settings", "settings", parse_settings, true},
	{"head", "head \"TEXT\" ... [closes] [ranks]", parse_head, true},
	{"train", "train " LINE_FORM, parse_kind, true},
	{"eval", "eval " LINE_FORM, parse_kind, true},
	{"before", "before \"TEXT\" COLUMN [UNIT]", parse_label, true},
	{"alone", "alone \"TEXT\" COLUMN [UNIT]", parse_alone, true},
	{"column", "column COLUMN [UNIT] \"NAME\" ...", parse_names, false},
	{"setting", "setting OPTION \"NAME\" ...", parse_names, false},
	{"sentence", "sentence OPTION \"TEXT\" ...", parse_names, false},
};
static const struct directive label_directive = {
	"", "\"TEXT\" COLUMN [UNIT]", parse_label, true};

static const struct directive *find_directive(struct parsing *p)
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

static bool parse_line(struct parsing *p, char *text)
{
	if (!split_words(p, text) || !p->n)
		return !p->e->code;
	const struct directive *d = find_directive(p);
	if (!d)
		return false;
	if (d->within && !p->open)
		return syntax_error(p, p->word->s, "there is no format line above it");
	p->i = d->parse != parse_label;
	if (d->parse(p) && p->i == p->n)
		return true;
	if (!p->e->code)
		err_set(p->e, EX_DATAERR, "%s: line %d: the form is %s", p->file, p->line,
			d->form);
	return false;
}

int formats_add(struct log_formats *to, const char *text, const char *name, bool built_in,
	struct err *e)
{
	struct parsing p = {to, name, .built_in = built_in, .e = e};
	bool right = true;
	*e = (struct err){0};
	strs_add(&to->texts, text);
	for (char *s = to->texts.v[to->texts.n - 1]; *s && right;) {
		char *line = s;
		s = end_text(s + strcspn(s, "\n"));
		p.line++;
		right = parse_line(&p, line);
	}
	return right && end_format(&p) ? 0 : -1;
}

int formats_read(struct log_formats *to, const char *path, struct err *e)
{
	scoped_str text = {0};
	if (file_read(path, MAX_FILE, &text, e))
		return -1;
	if (text.len && strlen(text.s) < text.len)
		return err_set(
			e, EX_DATAERR, "%s: not a text file: it has a NUL byte", path);
	return formats_add(to, text.len ? text.s : "", path, false, e);
}
