/* --generate: text from a program's tables, such as the OPTIONS of its manual page. */
#include "options/options_internal.h"

void opt_add_kinds(const struct program *p, struct strs *out)
{
	strs_add(out, "man");
	for (const struct opt *t = NULL; (t = opt_next(p, t));)
		if (t->type == OPT_GROUP && t->arg)
			strs_add(out, t->arg);
	for (int i = 0; p->kinds && p->kinds[i]; i++)
		strs_add(out, p->kinds[i]);
}

/* Escapes a dot or a quote at the start of a line, writes backslashes as \e, ends lines at the
 * end of sentences, and breaks long lines. */
void man_text(FILE *f, const char *s)
{
	enum { MAX_COLS = 99 };
	int col = 0;
	for (char before = '\n'; *s; before = *s++) {
		bool sentence = *s == ' ' && (before == '.' || before == '?');
		bool breaks = *s == ' ' &&
			      (sentence || col + (int)strcspn(s + 1, " ") > MAX_COLS);
		if (col == 0 && (*s == '.' || *s == '\''))
			fputs("\\&", f);
		if (*s == '\\')
			fputs("\\e", f);
		else
			putc(breaks ? '\n' : *s, f);
		col = breaks ? 0 : col + 1;
	}
	putc('\n', f);
}

/* Writes " Pq default Cm 12 ; No needs --option" to f: an option's default and needs. */
static void write_man_remarks(const struct opt *t, FILE *f)
{
	scoped_str arg = {0};
	opt_help_default(t, &arg);
	if (opt_is_on_by_default(t))
		str_puts(&arg, "on");
	if (arg.len || t->needs)
		fputs(" Pq ", f);
	if (arg.len)
		fputs("default Cm ", f);
	for (const char *c = arg.s; *c; c++)
		fputs(*c == '\\' ? "\\e" : (char[]){*c, '\0'}, f);
	if (t->needs)
		fprintf(f, "%sneeds %s", arg.len ? " ; No " : "", t->needs);
}

/* Writes one option as an item of the manual page's list. */
static void write_man_option(const struct opt *t, FILE *f)
{
	scoped_str arg = {0};
	opt_help_value(t, &arg);
	fputs(".It", f);
	if (t->letter)
		fprintf(f, " Fl %c ,", t->letter);
	fprintf(f, " Fl -%s", t->name);
	if (t->type == OPT_ENUM)
		for (int i = 0; t->values[i]; i++)
			fprintf(f, "%s Cm %s", i ? " |" : "", t->values[i]);
	else if (arg.len)
		fprintf(f, " Ar %s", arg.s);
	if (opt_is_on_by_default(t))
		fprintf(f, " , Fl -no-%s", t->name);
	write_man_remarks(t, f);
	putc('\n', f);
	man_text(f, t->help);
	if (t->was)
		fprintf(f, ".No The earlier name Fl -%s No is still accepted .\n",
			t->was);
}

static void write_man_group(const struct opt *t, FILE *f)
{
	fprintf(f, ".Ss %s\n", t->name);
	if (t->help)
		man_text(f, t->help);
	fputs(".Bl -tag -width Ds\n", f);
}

/* Writes the OPTIONS section of a manual page. `page`: of the groups that are on this page; NULL: of
 * the groups on the program's page, with references to the other pages. */
static void write_man(const struct program *p, const char *page, FILE *f)
{
	bool on_page = false;
	for (const struct opt *t = NULL; (t = opt_next(p, t));) {
		if (t->type != OPT_GROUP) {
			if (on_page)
				write_man_option(t, f);
			continue;
		}
		if (on_page)
			fputs(".El\n", f);
		on_page = page ? t->arg && !strcmp(t->arg, page) : !t->arg;
		if (on_page)
			write_man_group(t, f);
		else if (!page)
			fprintf(f, ".Ss %s\nSee\n.Xr %s 7 .\n", t->name, t->arg);
	}
	if (on_page)
		fputs(".El\n", f);
}

static bool has_page(const struct program *p, const char *page)
{
	for (const struct opt *t = NULL; (t = opt_next(p, t));)
		if (t->type == OPT_GROUP && t->arg && !strcmp(t->arg, page))
			return true;
	return false;
}

int opts_generate(const struct program *p, const char *kind, FILE *f)
{
	if (!strcmp(kind, "man") || has_page(p, kind)) {
		write_man(p, strcmp(kind, "man") ? kind : NULL, f);
		return 0;
	}
	for (int i = 0; p->kinds && p->kinds[i]; i++) {
		if (!strcmp(p->kinds[i], kind)) {
			p->generate(i, f);
			return 0;
		}
	}
	return -1;
}
