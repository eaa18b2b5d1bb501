/* What is made from an option table: the OPTIONS of a man page, and completions. */
#include "base/opt.h"

#include <string.h>

/* ---- mdoc ------------------------------------------------------------------------ */

/* No line may begin with a dot or a quote, sentences end lines, backslashes are \e, and no
 * line is long. */
void man_text(FILE *f, const char *s)
{
	enum { LONG = 72 };
	int at = 0;
	for (char before = '\n'; *s; before = *s++) {
		bool sentence = *s == ' ' && (before == '.' || before == '?');
		bool breaks =
			*s == ' ' && (sentence || at + (int)strcspn(s + 1, " ") > LONG);
		if (at == 0 && (*s == '.' || *s == '\''))
			fputs("\\&", f);
		if (*s == '\\')
			fputs("\\e", f);
		else
			putc(breaks ? '\n' : *s, f);
		at = breaks ? 0 : at + 1;
	}
	putc('\n', f);
}

static void man(const struct program *p, FILE *f)
{
	struct str arg = {0};
	for (const struct opt *t = NULL; (t = opt_next(p, t));) {
		if (t->type == OPT_GROUP) {
			if (t != p->opts)
				fputs(".El\n", f);
			fprintf(f, ".Ss %s\n", t->name);
			if (t->help)
				man_text(f, t->help);
			fputs(".Bl -tag -width Ds\n", f);
			continue;
		}
		opt_arg(t, &arg);
		fputs(".It", f);
		if (t->letter)
			fprintf(f, " Fl %c ,", t->letter);
		bool on = t->type == OPT_FLAG && t->def && !strcmp(t->def, "yes");
		fprintf(f, " Fl -%s", t->name);
		if (t->type == OPT_ENUM)
			for (int i = 0; t->values[i]; i++)
				fprintf(f, "%s Cm %s", i ? " |" : "", t->values[i]);
		else if (arg.len)
			fprintf(f, " Ar %s", arg.s);
		if (on)
			fprintf(f, " , Fl -no-%s", t->name);
		putc('\n', f);
		man_text(f, t->help);
		if (on)
			fputs("On by default.\n", f);
		opt_default(t, &arg);
		if (!arg.len)
			continue;
		fputs("The default is\n.Cm ", f);
		for (const char *c = arg.s; *c; c++)
			fputs(*c == '\\' ? "\\e" : (char[]){*c, '\0'}, f);
		fputs(" .\n", f);
	}
	fputs(".El\n", f);
	str_free(&arg);
}

/* ---- shells ---------------------------------------------------------------------- */

/* A name that may be a shell function. */
static void function_name(const struct program *p, FILE *f)
{
	for (const char *s = p->name; *s; s++)
		putc(*s == '-' ? '_' : *s, f);
}

static void bash_files(FILE *f, const char *files)
{
	if (!strcmp(files, "/"))
		fputs("COMPREPLY=($(compgen -d -- \"$cur\"))", f);
	else if (*files)
		fprintf(f,
			"COMPREPLY=($(compgen -f -X '!*%s' -- \"$cur\") "
			"$(compgen -d -S / -- \"$cur\"))",
			files);
	else
		fputs("COMPREPLY=($(compgen -f -- \"$cur\"))", f);
}

static void bash(const struct program *p, FILE *f)
{
	fprintf(f, "# bash completion for %s; made by %s --generate bash\n_", p->name,
		p->name);
	function_name(p, f);
	fputs("()\n{\n\tlocal cur=${COMP_WORDS[COMP_CWORD]} "
	      "prev=${COMP_WORDS[COMP_CWORD-1]}\n"
	      "\tcase $prev in\n",
		f);
	for (const struct opt *t = NULL; (t = opt_next(p, t));) {
		bool valued = t->type != OPT_GROUP && t->type != OPT_FLAG && t->arg;
		if (!valued && t->type != OPT_ENUM)
			continue;
		if (t->letter)
			fprintf(f, "\t-%c | --%s) ", t->letter, t->name);
		else
			fprintf(f, "\t--%s) ", t->name);
		if (t->type == OPT_ENUM) {
			fputs("COMPREPLY=($(compgen -W '", f);
			for (int i = 0; t->values[i]; i++)
				fprintf(f, "%s%s", i ? " " : "", t->values[i]);
			fputs("' -- \"$cur\"))", f);
		} else if (t->files) {
			bash_files(f, t->files);
		} else {
			fputs("COMPREPLY=()", f);
		}
		fputs("; return ;;\n", f);
	}
	fputs("\tesac\n\tif [[ $cur == -* ]]; then\n\t\tCOMPREPLY=($(compgen -W '", f);
	for (const struct opt *t = NULL; (t = opt_next(p, t));) {
		if (t->type == OPT_GROUP)
			continue;
		fprintf(f, "--%s ", t->name);
		if (t->type == OPT_FLAG && t->def && !strcmp(t->def, "yes"))
			fprintf(f, "--no-%s ", t->name);
	}
	fputs("' -- \"$cur\"))\n\t\treturn\n\tfi\n", f);
	if (p->operands) {
		putc('\t', f);
		bash_files(f, p->operands);
		putc('\n', f);
	}
	fputs("}\ncomplete -o filenames -F _", f);
	function_name(p, f);
	fprintf(f, " %s\n", p->name);
}

static void zsh_text(FILE *f, const char *s)
{
	for (; *s; s++) {
		if (*s == '\'')
			fputs("'\\''", f);
		else if (strchr("[]:\\", *s))
			fprintf(f, "\\%c", *s);
		else
			putc(*s, f);
	}
}

static void zsh_files(FILE *f, const char *files)
{
	if (!strcmp(files, "/"))
		fputs("_files -/", f);
	else if (*files)
		fprintf(f, "_files -g \"*%s(-.)\"", files);
	else
		fputs("_files", f);
}

static void zsh_one(FILE *f, const struct opt *t, const char *dashes, const char *name)
{
	bool repeats = t->type == OPT_LIST;
	fprintf(f, "\t'%s%s%s[", repeats ? "*" : "", dashes, name);
	zsh_text(f, t->help);
	putc(']', f);
	if (t->type == OPT_ENUM) {
		fprintf(f, ":%s:(", t->name);
		for (int i = 0; t->values[i]; i++)
			fprintf(f, "%s%s", i ? " " : "", t->values[i]);
		putc(')', f);
	} else if (t->type != OPT_FLAG && t->arg) {
		putc(':', f);
		zsh_text(f, t->arg);
		putc(':', f);
		if (t->files)
			zsh_files(f, t->files);
	}
	fputs("' \\\n", f);
}

static void zsh(const struct program *p, FILE *f)
{
	fprintf(f, "#compdef %s\n# made by %s --generate zsh\n_arguments -s -S \\\n",
		p->name, p->name);
	for (const struct opt *t = NULL; (t = opt_next(p, t));) {
		if (t->type == OPT_GROUP)
			continue;
		char letter[2] = {t->letter, '\0'};
		if (t->letter)
			zsh_one(f, t, "-", letter);
		zsh_one(f, t, "--", t->name);
	}
	fputs("\t'*:file:", f);
	if (p->operands)
		zsh_files(f, p->operands);
	fputs("'\n", f);
}

static void fish_text(FILE *f, const char *s)
{
	for (; *s; s++) {
		if (*s == '\'' || *s == '\\')
			putc('\\', f);
		putc(*s, f);
	}
}

static void fish(const struct program *p, FILE *f)
{
	fprintf(f, "# fish completion for %s; made by %s --generate fish\n", p->name,
		p->name);
	if (!p->operands)
		fprintf(f, "complete -c %s -f\n", p->name);
	for (const struct opt *t = NULL; (t = opt_next(p, t));) {
		if (t->type == OPT_GROUP)
			continue;
		fprintf(f, "complete -c %s -l %s", p->name, t->name);
		if (t->letter)
			fprintf(f, " -s %c", t->letter);
		if (t->type == OPT_ENUM) {
			fputs(" -x -a '", f);
			for (int i = 0; t->values[i]; i++)
				fprintf(f, "%s%s", i ? " " : "", t->values[i]);
			putc('\'', f);
		} else if (t->type != OPT_FLAG && t->arg) {
			fputs(t->files ? " -r -F" : " -x", f);
		}
		fputs(" -d '", f);
		fish_text(f, t->help);
		fputs("'\n", f);
	}
}

int opts_generate(const struct program *p, const char *kind, FILE *f)
{
	static const struct {
		const char *kind;
		void (*make)(const struct program *, FILE *);
	} makers[] = {{"man", man}, {"bash", bash}, {"zsh", zsh}, {"fish", fish}};
	for (size_t i = 0; i < ARRAY_LEN(makers); i++) {
		if (!strcmp(makers[i].kind, kind)) {
			makers[i].make(p, f);
			return 0;
		}
	}
	return p->generate ? p->generate(kind, f) : -1;
}
