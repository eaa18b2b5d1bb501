/* Text for users from an option table: --help, --version, --print-config. */
#include "options/options_internal.h"

/* Prints text to f from column `indent`, breaks lines at `width`, and indents them. */
static void print_wrapped(FILE *f, const char *text, int indent, int width)
{
	int column = indent;
	while (*text) {
		int word_len = (int)strcspn(text, " ");
		if (column > indent && column + 1 + word_len > width) {
			fprintf(f, "\n%*s", indent, "");
			column = indent;
		} else if (column > indent) {
			putc(' ', f);
			column++;
		}
		fprintf(f, "%.*s", word_len, text);
		column += word_len;
		text += word_len;
		text += strspn(text, " ");
	}
	putc('\n', f);
}

bool opt_is_on_by_default(const struct opt *t)
{
	return t->type == OPT_FLAG && t->def && !strcmp(t->def, "yes");
}

void opt_help_value(const struct opt *t, struct str *out)
{
	str_clear(out);
	str_add(out, "", 0);
	if (t->type == OPT_ENUM)
		for (int i = 0; t->values[i]; i++)
			str_printf(out, "%s%s", i ? "|" : "", t->values[i]);
	else if (t->arg)
		str_puts(out, t->arg);
}

void opt_help_default(const struct opt *t, struct str *out)
{
	str_clear(out);
	str_add(out, "", 0);
	for (const char *p = t->def; p && *p && t->type != OPT_FLAG; p++) {
		if (*p == '\n')
			str_puts(out, "\\n");
		else
			str_putc(out, *p);
	}
}

void opt_print_help(const struct program *p)
{
	scoped_str arg = {0}, line = {0}, text = {0};
	for (int i = 0; p->synopsis[i]; i++)
		printf("%s %s%s%s\n", i ? "      " : "usage:", p->name,
			*p->synopsis[i] ? " " : "", p->synopsis[i]);
	printf("\n%s\n", p->summary);
	for (const struct opt *t = NULL; (t = opt_next(p, t));) {
		if (t->type == OPT_GROUP) {
			printf("\n%s:\n", t->name);
			continue;
		}
		opt_help_value(t, &arg);
		str_clear(&line);
		if (t->letter)
			str_printf(&line, "  -%c, ", t->letter);
		else
			str_puts(&line, "      ");
		str_printf(&line, "--%s%s%s%s", opt_is_on_by_default(t) ? "[no-]" : "",
			t->name, arg.len ? " " : "", arg.s);
		str_clear(&text);
		str_puts(&text, t->help);
		opt_help_default(t, &arg);
		if (arg.len)
			str_printf(&text, " [%s]", arg.s);
		if (line.len < 27)
			printf("%-28s", line.s);
		else
			printf("%s\n%28s", line.s, "");
		print_wrapped(stdout, text.s, 28, 90);
	}
	if (p->settings)
		printf("\n--no-NAME turns a flag off that a preset or a config file turns on.\n");
	if (p->versions)
		printf("\nThe manual: man %s; the whole toolkit: man 7 pt.\n", p->name);
}

void opt_print_version(const struct program *p)
{
	scoped_str libs = {0};
	printf("%s %s\n", p->name, PT_VERSION);
	str_printf(&libs, "xxHash %s\n", hash_version());
	if (p->versions)
		p->versions(&libs);
	fputs(libs.s, stdout);
}

/* Appends "name = value" as in a preset, once per element of a list; nothing if unset. */
static void print_option(const struct opt *t, const void *v, struct str *out)
{
	char num[NUM_TEXT];
	switch (t->type) {
	case OPT_FLAG:
		conf_print(out, t->name, *(const bool *)v ? "yes" : "no");
		break;
	case OPT_INT:
	case OPT_SIZE:
		str_printf(out, "%s = %lld\n", t->name, (long long)*(const int64_t *)v);
		break;
	case OPT_DOUBLE:
		conf_print(out, t->name, text_double(num, *(const double *)v));
		break;
	case OPT_ENUM:
		conf_print(out, t->name, t->values[*(const int *)v]);
		break;
	case OPT_STR: /* an empty text is printed only if it is not the default */
		if (*(const char *const *)v)
			conf_print(out, t->name, *(const char *const *)v);
		else if (t->def)
			conf_print(out, t->name, "");
		break;
	case OPT_LIST:
		for (int64_t i = 0; i < ((const struct strs *)v)->n; i++)
			conf_print(out, t->name, ((const struct strs *)v)->v[i]);
		break;
	default:
		break;
	}
}

void opts_print(const struct program *p, const void *o, unsigned with_flags,
	unsigned without_flags, struct str *out)
{
	bool headings = (!with_flags || with_flags == OPT_RUN) && !without_flags;
	for (const struct opt *t = p->opts; t->type != OPT_END; t++) {
		if (t->type == OPT_GROUP) {
			if (headings)
				str_printf(
					out, "%s[%s]\n", out->len ? "\n" : "", t->name);
			continue;
		}
		if ((t->flags & with_flags) == with_flags && !(t->flags & without_flags))
			print_option(t, (const char *)o + t->offset, out);
	}
}
