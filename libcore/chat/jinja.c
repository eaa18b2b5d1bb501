/* Chat templates of Hugging Face, which are programs in Jinja. They are never executed: published
 * templates are recognized, however they are spelled, and replaced by built-in templates. */
#include "chat/template.h"

#include "base/file.h"
#include "base/hash.h"

#include <ctype.h>
#include <jansson.h>

enum { MAX_TEMPLATE = 1 << 20, MAX_CONFIG = 1 << 24 };

/* XXH3 of published templates, as normalize_jinja() writes them. */
static const struct {
	uint64_t xxh3;
	const char *name;
} known[] = {
	{0x7215a7e8ea596cfb, "chatml"},
	{0x32312382920c21e9, "chatml"}, /* with a default of add_generation_prompt */
	{0xeccf9bc8c7059b96, "llama3"},
	{0xd5aff29c71f2966c, "llama3"}, /* with contents that are lists */
	{0x58a38c92310f79d6, "llama3.1"},
	{0x16d388f43ed27522, "qwen"},
	{0xd2fa3ec1235442a4, "qwen3"},
	{0xc8f324cc402a9529, "qwen3-2507"},
};

/* Appends the string literal at s with unescaped line breaks. Returns the end of the literal. */
static const char *normalize_string(const char *s, struct str *out)
{
	const char quote = *s++;
	for (; *s && *s != quote; s++) {
		if (*s == '\\' && s[1] == 'n') {
			str_putc(out, '\n');
			s++;
		} else {
			if (*s == '\\' && s[1])
				str_putc(out, *s++);
			str_putc(out, *s);
		}
	}
	return *s ? s + 1 : s;
}

static const char *skip_space(const char *s)
{
	return s + strspn(s, " \t\r\n");
}

/* Appends .role or .content at s as ['role'] or ['content']. Returns its end; NULL: neither. */
static const char *normalize_field(const char *s, struct str *out)
{
	static const char *const names[] = {".role", ".content"};
	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		size_t n = strlen(names[i]);
		if (strncmp(s, names[i], n) || isalnum((uint8_t)s[n]) || s[n] == '_')
			continue;
		str_printf(out, "['%s']", names[i] + 1);
		return s + n;
	}
	return NULL;
}

/* Writes an expression or a statement {...} without white space and with strings in single
 * quotes. Joins neighboring strings. Returns the end of the expression. */
static const char *normalize_tag(const char *s, struct str *out)
{
	const char end[] = {s[1] == '{' ? '}' : '%', '}', '\0'};
	str_add(out, s, 2);
	for (s += 2; *s && strncmp(s, end, 2) != 0;) {
		const char *next = normalize_field(s, out);
		if (*s == '\'' || *s == '"') {
			str_putc(out, '\'');
			for (next = s;;) {
				s = normalize_string(next, out);
				next = skip_space(s);
				next = *next == '+' ? skip_space(next + 1) : s;
				if (next == s || (*next != '\'' && *next != '"'))
					break;
			}
			str_putc(out, '\'');
		} else if (next) {
			s = next;
		} else if (skip_space(s) > s) {
			s = skip_space(s);
		} else {
			str_putc(out, *s++);
		}
	}
	str_add(out, s, strnlen(s, 2));
	return s + strnlen(s, 2);
}

/* Writes Jinja in a canonical spelling. */
static void normalize_jinja(const char *s, struct str *out)
{
	while (*s)
		if (*s == '{' && (s[1] == '{' || s[1] == '%'))
			s = normalize_tag(s, out);
		else
			str_putc(out, *s++);
	while (out->len && strchr(" \t\r\n", out->s[out->len - 1]))
		out->len--;
}

const char *chat_template_of_jinja(const struct str *jinja)
{
	scoped_str normalized = {0};
	if (!jinja->len || memchr(jinja->s, '\0', jinja->len))
		return NULL;
	normalize_jinja(jinja->s, &normalized);
	uint64_t xxh3 = hash_bytes(normalized.s, normalized.len, 0);
	for (size_t i = 0; i < ARRAY_LEN(known); i++)
		if (known[i].xxh3 == xxh3)
			return known[i].name;
	return NULL;
}

/* Appends the Jinja of a file: all its text, or a field of tokenizer_config.json; false: none. */
static bool extract_jinja(const char *path, const struct str *text, struct str *jinja)
{
	size_t at = text->len ? strspn(text->s, " \t\r\n") : 0;
	bool json =
		at < text->len && text->s[at] == '{' && !strchr("{%#", text->s[at + 1]);
	if (!json && (text_ends(path, ".jinja") || (text->len && strstr(text->s, "{%"))))
		str_add(jinja, text->s, text->len);
	json_auto_t *o = json ? json_loadb(text->s, text->len, 0, NULL) : NULL;
	const json_t *x = json_object_get(o, "chat_template");
	if (json_is_string(x))
		str_add(jinja, json_string_value(x), json_string_length(x));
	return jinja->len > 0;
}

/* Sets *file to `path` or, if that is a directory, to the file in it that has a chat template. */
static int find_template_file(const char *path, struct str *file, struct err *e)
{
	static const char *const names[] = {
		"chat_template.jinja", "tokenizer_config.json"};
	str_puts(file, path);
	for (size_t i = 0; i < ARRAY_LEN(names) && file_is_directory(path); i++) {
		str_clear(file);
		str_printf(file, "%s/%s", path, names[i]);
		if (file_exists(file->s))
			return 0;
	}
	return file_is_directory(path)
		       ? err_set(e, EX_DATAERR,
				 "%s: the directory has no chat_template.jinja and no tokenizer_config.json",
				 path)
		       : 0;
}

int chat_template_read(
	const char *path, const char **name, struct str *text, struct err *e)
{
	scoped_str file = {0}, jinja = {0}, names = {0};
	if (find_template_file(path, &file, e))
		return -1;
	bool is_config = text_ends(file.s, "tokenizer_config.json");
	if (file_read(file.s, is_config ? MAX_CONFIG : MAX_TEMPLATE, text, e))
		return -1;
	if (!extract_jinja(file.s, text, &jinja) && !is_config)
		return 0;
	*name = jinja.len ? chat_template_of_jinja(&jinja) : NULL;
	str_clear(text);
	if (*name)
		return 0;
	chat_template_names(&names);
	return err_set(e, EX_DATAERR, "%s: %s; the known templates are %s", file.s,
		jinja.len ? "this Jinja is not a known template" : "has no chat_template",
		names.s);
}
