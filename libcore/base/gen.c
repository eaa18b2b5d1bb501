/* What is made from an option table: the OPTIONS of a man page, and completions. */
#include "base/options_internal.h"

#include <ctype.h>
#include <string.h>

/* ---- words ----------------------------------------------------------------------- */

/* Words are one text, with a blank between them. */
static void add_word(struct str *out, const char *word, size_t n)
{
	str_printf(out, "%s%.*s", out->len ? " " : "", (int)n, word);
}

static void add_words(struct str *out, const char *const *words)
{
	for (; words && *words; words++)
		add_word(out, *words, strlen(*words));
}

/* `auto: from the newest ...` at the start of a sentence explains the word auto. */
static void explained(const char *help, struct str *out)
{
	bool start = true;
	for (const char *p = help; *p; p++) {
		size_t n = strcspn(p, ": ");
		bool word = n > 1 && p[n] == ':' && p[n + 1] == ' ';
		for (size_t i = 0; i < n && word; i++)
			word = islower((unsigned char)p[i]);
		if (start && word)
			add_word(out, p, n);
		p += n;
		start = n && *p && strchr(".;", p[-1]);
		if (!*p)
			return;
	}
}

void opt_kinds(const struct program *p, struct strs *out)
{
	static const char *const kinds[] = {"man", "bash", "zsh", "fish"};
	for (size_t i = 0; i < ARRAY_LEN(kinds); i++)
		strs_add(out, kinds[i]);
	for (const struct opt *t = p->opts; t->type != OPT_END; t++)
		if (!strcmp(t->name, "preset"))
			strs_add(out, "presets");
	for (int i = 0; p->kinds && p->kinds[i]; i++)
		strs_add(out, p->kinds[i]);
}

/* What may be written for the value: of an enum its names, of a text those words that its help
 * explains in a sentence `word: what it does`, of --generate the kinds. */
static void value_words(const struct program *p, const struct opt *t, struct str *out)
{
	struct strs kinds = {0};
	if (t->type == OPT_ENUM)
		add_words(out, t->values);
	else if (t->type == OPT_STR)
		explained(t->help, out);
	else if (t->type == OPT_ACTION && !strcmp(t->name, "generate"))
		opt_kinds(p, &kinds);
	for (int64_t i = 0; i < kinds.n; i++)
		add_word(out, kinds.v[i], strlen(kinds.v[i]));
	strs_free(&kinds);
}

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
		fprintf(f, " Fl -%s", t->name);
		if (t->type == OPT_ENUM)
			for (int i = 0; t->values[i]; i++)
				fprintf(f, "%s Cm %s", i ? " |" : "", t->values[i]);
		else if (arg.len)
			fprintf(f, " Ar %s", arg.s);
		if (opt_is_on(t))
			fprintf(f, " , Fl -no-%s", t->name);
		putc('\n', f);
		man_text(f, t->help);
		if (opt_is_on(t))
			fputs("On by default.\n", f);
		if (t->was)
			fprintf(f, "Its earlier name,\n.Fl -%s ,\nis read too.\n",
				t->was);
		if (t->needs)
			fprintf(f, "It needs %s.\n", t->needs);
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

static bool takes_value(const struct opt *t)
{
	return t->type == OPT_ENUM || (t->type != OPT_FLAG && t->arg);
}

static bool is_preset(const struct opt *t)
{
	return !strcmp(t->name, "preset");
}

/* May it be written key=value? */
static bool is_key(const struct opt *t)
{
	return t->type != OPT_GROUP && t->type != OPT_ACTION;
}

/* A shell function's name: the program's, with _ for -. */
static const char *function_name(const struct program *p)
{
	static char name[64];
	snprintf(name, sizeof(name), "_%s", p->name);
	for (char *s = name; (s = strchr(s, '-'));)
		*s = '_';
	return name;
}

/* ---- bash ------------------------------------------------------------------------ */

/* Replies that are files: blanks in their names are quoted. */
static void bash_files(FILE *f, const char *files)
{
	fputs("compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(", f);
	if (!strcmp(files, "/"))
		fputs("compgen -d -- \"$cur\")", f);
	else if (*files)
		fprintf(f, "compgen -f -X '!*%s' -- \"$cur\"; compgen -d -- \"$cur\")",
			files);
	else
		fputs("compgen -f -- \"$cur\")", f);
}

static void bash_value(const struct program *p, const struct opt *t, FILE *f)
{
	struct str words = {0};
	value_words(p, t, &words);
	putc('\t', f);
	if (t->letter)
		fprintf(f, "-%c | ", t->letter);
	fprintf(f, "--%s) ", t->name);
	if (t->files) {
		bash_files(f, t->files);
		fputs("; ", f);
	}
	if (is_preset(t))
		fputs("mapfile -t COMPREPLY < <(compgen -W \"$(\"${COMP_WORDS[0]}\" "
		      "--generate presets 2>/dev/null)\" -- \"$cur\"); ",
			f);
	if (words.len) {
		fprintf(f, "mapfile -t%s COMPREPLY < <(compgen -W '%s' -- \"$cur\"); ",
			t->files ? " -O \"${#COMPREPLY[@]}\"" : "", words.s);
	}
	fputs("return ;;\n", f);
	str_free(&words);
}

static void bash_options(const struct program *p, FILE *f)
{
	fputs("\tif [[ $cur == -* ]]; then\n"
	      "\t\tmapfile -t COMPREPLY < <(compgen -W '",
		f);
	for (const struct opt *t = NULL; (t = opt_next(p, t));) {
		if (t->type == OPT_GROUP)
			continue;
		fprintf(f, "--%s ", t->name);
		if (opt_is_on(t))
			fprintf(f, "--no-%s ", t->name);
	}
	fputs("' -- \"$cur\")\n\t\treturn\n\tfi\n", f);
}

static void bash_operands(const struct program *p, FILE *f)
{
	struct str words = {0};
	if (p->words)
		add_words(&words, p->words());
	if (words.len && p->operands) {
		fputs("\tlocal word first=yes\n"
		      "\tfor word in \"${COMP_WORDS[@]:1:COMP_CWORD-1}\"; do\n"
		      "\t\t[[ $word == -* ]] || first=no\n"
		      "\tdone\n"
		      "\tif [[ $first == no ]]; then\n\t\t",
			f);
		bash_files(f, p->operands);
		fputs("\n\t\treturn\n\tfi\n", f);
	} else if (p->operands) {
		putc('\t', f);
		bash_files(f, p->operands);
		putc('\n', f);
	}
	if (words.len)
		fprintf(f, "\tmapfile -t COMPREPLY < <(compgen -W '%s' -- \"$cur\")\n",
			words.s);
	if (p->settings) { /* only when there is a letter: they are many */
		fputs("\t[[ $cur ]] && mapfile -t -O \"${#COMPREPLY[@]}\" COMPREPLY < "
		      "<(compgen -W '",
			f);
		for (const struct opt *t = p->opts; t->type != OPT_END; t++)
			if (is_key(t))
				fprintf(f, "%s= ", t->name);
		fputs("' -- \"$cur\")\n"
		      "\t[[ ${COMPREPLY[*]} == *= ]] && compopt -o nospace 2>/dev/null\n",
			f);
	}
	str_free(&words);
}

/* The line comes in pieces: `--name=value` as three words. */
static void bash(const struct program *p, FILE *f)
{
	const char *only = p->settings ? "" : " && ${COMP_WORDS[at-2]} == --*";
	fprintf(f,
		"# bash completion for %s; made by %s --generate bash\n"
		"%s()\n{\n\tlocal at=$COMP_CWORD flag=\n"
		"\tlocal cur=${COMP_WORDS[at]}\n"
		"\t[[ $cur == = ]] && cur= && at=$((at + 1))\n"
		"\tlocal option=${COMP_WORDS[at-1]}\n"
		"\tCOMPREPLY=()\n"
		"\tif [[ $option == =%s ]]; then\n"
		"\t\tflag=${COMP_WORDS[at-2]}\n"
		"\t\toption=--${flag#--}\n"
		"\tfi\n"
		"\tcase $option in\n",
		p->name, p->name, function_name(p), only);
	for (const struct opt *t = NULL; (t = opt_next(p, t));)
		if (t->type != OPT_GROUP && takes_value(t))
			bash_value(p, t, f);
	fputs("\tesac\n"
	      "\tif [[ $flag ]]; then\n"
	      "\t\tmapfile -t COMPREPLY < <(compgen -W 'yes no' -- \"$cur\")\n"
	      "\t\treturn\n\tfi\n",
		f);
	bash_options(p, f);
	bash_operands(p, f);
	fprintf(f, "}\ncomplete -F %s %s\n", function_name(p), p->name);
}

/* ---- zsh ------------------------------------------------------------------------- */

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

/* What completes the value: words, files, or both. */
static void zsh_value(const struct program *p, const struct opt *t, FILE *f)
{
	struct str words = {0};
	value_words(p, t, &words);
	if (is_preset(t)) {
		fputs("{compadd -- $(${words[1]} --generate presets 2>/dev/null)}", f);
	} else if (words.len && t->files) {
		fprintf(f, "{compadd -- %s; ", words.s);
		zsh_files(f, t->files);
		putc('}', f);
	} else if (words.len) {
		fprintf(f, "(%s)", words.s);
	} else if (t->files) {
		zsh_files(f, t->files);
	}
	str_free(&words);
}

static void zsh_one(const struct program *p, FILE *f, const struct opt *t,
	const char *dashes, const char *name)
{
	bool letter = !dashes[1];
	fprintf(f, "\t'%s%s%s%s[", t->type == OPT_LIST ? "*" : "", dashes, name,
		!takes_value(t) ? ""
		: letter	? "+"
				: "=");
	zsh_text(f, t->help);
	putc(']', f);
	if (takes_value(t)) {
		putc(':', f);
		zsh_text(f, t->arg ? t->arg : t->name);
		putc(':', f);
		zsh_value(p, t, f);
	}
	fputs("' \\\n", f);
}

/* Operands that may be key=value: a key, then what its option takes. */
static void zsh_settings(const struct program *p, FILE *f)
{
	fprintf(f,
		"%s_operand()\n{\n"
		"\tif compset -P 1 '*='; then\n"
		"\t\tcase ${IPREFIX%%=} in\n",
		function_name(p));
	for (const struct opt *t = p->opts; t->type != OPT_END; t++) {
		struct str words = {0};
		add_words(&words, t->type == OPT_ENUM ? t->values : NULL);
		if (words.len || t->type == OPT_FLAG)
			fprintf(f, "\t\t%s) compadd -- %s ;;\n", t->name,
				words.len ? words.s : "yes no");
		str_free(&words);
	}
	fputs("\t\tesac\n\telse\n\t\t[[ -n $PREFIX ]] && compadd -S '' --", f);
	for (const struct opt *t = p->opts; t->type != OPT_END; t++)
		if (is_key(t))
			fprintf(f, " %s=", t->name);
	fputs("\n\t\t", f);
	zsh_files(f, p->operands);
	fputs("\n\tfi\n}\n", f);
}

static void zsh_operands(const struct program *p, FILE *f)
{
	struct str words = {0};
	if (p->words)
		add_words(&words, p->words());
	if (words.len)
		fprintf(f, "\t'%s:word:(%s)'%s\n", p->operands ? "1" : "*", words.s,
			p->operands ? " \\" : "");
	str_free(&words);
	if (!p->operands)
		return;
	fputs("\t'*:file:", f);
	if (p->settings)
		fprintf(f, "{%s_operand}", function_name(p));
	else
		zsh_files(f, p->operands);
	fputs("'\n", f);
}

static void zsh(const struct program *p, FILE *f)
{
	fprintf(f, "#compdef %s\n# made by %s --generate zsh\n", p->name, p->name);
	if (p->settings)
		zsh_settings(p, f);
	fputs("_arguments -s -S \\\n", f);
	for (const struct opt *t = NULL; (t = opt_next(p, t));) {
		if (t->type == OPT_GROUP)
			continue;
		char letter[2] = {t->letter, '\0'};
		if (t->letter)
			zsh_one(p, f, t, "-", letter);
		zsh_one(p, f, t, "--", t->name);
		if (!opt_is_on(t))
			continue;
		fprintf(f, "\t'--no-%s[not\\: ", t->name);
		zsh_text(f, t->help);
		fputs("]' \\\n", f);
	}
	zsh_operands(p, f);
}

/* ---- fish ------------------------------------------------------------------------ */

static void fish_text(FILE *f, const char *s)
{
	for (; *s; s++) {
		if (*s == '\'' || *s == '\\')
			putc('\\', f);
		putc(*s, f);
	}
}

static void fish_one(const struct program *p, const struct opt *t, FILE *f)
{
	struct str words = {0};
	value_words(p, t, &words);
	fprintf(f, "complete -c %s -l %s", p->name, t->name);
	if (t->letter)
		fprintf(f, " -s %c", t->letter);
	if (takes_value(t))
		fputs(t->files ? " -r -F" : " -x", f);
	if (is_preset(t))
		fprintf(f, " -a '(%s --generate presets 2>/dev/null)'", p->name);
	if (words.len)
		fprintf(f, " -a '%s'", words.s);
	fputs(" -d '", f);
	fish_text(f, t->help);
	fputs("'\n", f);
	str_free(&words);
	if (!opt_is_on(t))
		return;
	fprintf(f, "complete -c %s -l no-%s -d 'not: ", p->name, t->name);
	fish_text(f, t->help);
	fputs("'\n", f);
}

/* Operands that are key=value: all that can be told. */
static void fish_settings(const struct program *p, FILE *f)
{
	fprintf(f, "complete -c %s -a '", p->name);
	for (const struct opt *t = p->opts; t->type != OPT_END; t++) {
		if (!is_key(t))
			continue;
		if (t->type == OPT_FLAG)
			fprintf(f, "%s=yes %s=no ", t->name, t->name);
		else if (t->type != OPT_ENUM)
			fprintf(f, "%s= ", t->name);
		for (int i = 0; t->type == OPT_ENUM && t->values[i]; i++)
			fprintf(f, "%s=%s ", t->name, t->values[i]);
	}
	fputs("'\n", f);
}

static void fish(const struct program *p, FILE *f)
{
	struct str words = {0};
	fprintf(f, "# fish completion for %s; made by %s --generate fish\n", p->name,
		p->name);
	if (!p->operands)
		fprintf(f, "complete -c %s -f\n", p->name);
	if (p->words)
		add_words(&words, p->words());
	if (words.len)
		fprintf(f, "complete -c %s %s-a '%s'\n", p->name,
			p->operands ? "-n __fish_is_first_arg -f " : "", words.s);
	if (p->settings)
		fish_settings(p, f);
	for (const struct opt *t = NULL; (t = opt_next(p, t));)
		if (t->type != OPT_GROUP)
			fish_one(p, t, f);
	str_free(&words);
}

static void presets(const struct program *p, FILE *f)
{
	struct str folder = {0};
	struct strs names = {0};
	(void)p;
	preset_names(&folder, &names);
	for (int64_t i = 0; i < names.n; i++)
		fprintf(f, "%s\n", names.v[i]);
	str_free(&folder);
	strs_free(&names);
}

int opts_generate(const struct program *p, const char *kind, FILE *f)
{
	static const struct {
		const char *kind;
		void (*make)(const struct program *, FILE *);
	} makers[] = {
		{"man", man},
		{"bash", bash},
		{"zsh", zsh},
		{"fish", fish},
		{"presets", presets},
	};
	for (size_t i = 0; i < ARRAY_LEN(makers); i++) {
		if (!strcmp(makers[i].kind, kind)) {
			makers[i].make(p, f);
			return 0;
		}
	}
	for (int i = 0; p->kinds && p->kinds[i]; i++) {
		if (!strcmp(p->kinds[i], kind)) {
			p->generate(i, f);
			return 0;
		}
	}
	return -1;
}
