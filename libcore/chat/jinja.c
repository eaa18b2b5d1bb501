/* Chat templates of Hugging Face, which are programs in Jinja. They are never executed: published
 * templates are recognized, however they are spelled, and replaced by built-in templates. */
#include "chat/template.h"

#include "base/file.h"
#include "base/hash.h"

#include <ctype.h>
#include <jansson.h>

enum { MAX_TEMPLATE = 1 << 20, MAX_CONFIG = 1 << 24 };

/* ---- recognition ------------------------------------------------------------------ */

/* XXH3 of published templates, as spell() writes them. */
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

/* Reads a string of an expression, and appends it with unescaped line breaks. Returns its end. */
static const char *spell_string(const char *at, struct str *out)
{
	const char quote = *at++;
	for (; *at && *at != quote; at++) {
		if (*at == '\\' && at[1] == 'n') {
			str_putc(out, '\n');
			at++;
		} else {
			if (*at == '\\' && at[1])
				str_putc(out, *at++);
			str_putc(out, *at);
		}
	}
	return *at ? at + 1 : at;
}

static const char *skip_space(const char *at)
{
	return at + strspn(at, " \t\r\n");
}

/* Writes message.role as message['role']. Returns its end; NULL: something else. */
static const char *spell_field(const char *at, struct str *out)
{
	static const char *const names[] = {".role", ".content"};
	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		size_t n = strlen(names[i]);
		if (strncmp(at, names[i], n) || isalnum((uint8_t)at[n]) || at[n] == '_')
			continue;
		str_printf(out, "['%s']", names[i] + 1);
		return at + n;
	}
	return NULL;
}

/* Writes an expression or a statement {...} without white space and with strings in single
 * quotes. Joins neighboring strings. Returns the end of the expression. */
static const char *spell_tag(const char *at, struct str *out)
{
	const char end[] = {at[1] == '{' ? '}' : '%', '}', '\0'};
	str_add(out, at, 2);
	for (at += 2; *at && strncmp(at, end, 2) != 0;) {
		const char *next = spell_field(at, out);
		if (*at == '\'' || *at == '"') {
			str_putc(out, '\'');
			for (next = at;;) {
				at = spell_string(next, out);
				next = skip_space(at);
				next = *next == '+' ? skip_space(next + 1) : at;
				if (next == at || (*next != '\'' && *next != '"'))
					break;
			}
			str_putc(out, '\'');
		} else if (next) {
			at = next;
		} else if (skip_space(at) > at) {
			at = skip_space(at);
		} else {
			str_putc(out, *at++);
		}
	}
	str_add(out, at, strnlen(at, 2));
	return at + strnlen(at, 2);
}

/* Writes Jinja in a canonical spelling. */
static void spell(const char *at, struct str *out)
{
	while (*at)
		if (*at == '{' && (at[1] == '{' || at[1] == '%'))
			at = spell_tag(at, out);
		else
			str_putc(out, *at++);
	while (out->len && strchr(" \t\r\n", out->s[out->len - 1]))
		out->len--;
}

const char *chat_template_of_jinja(const struct str *jinja)
{
	scoped_str spelled = {0};
	if (!jinja->len || memchr(jinja->s, '\0', jinja->len))
		return NULL;
	spell(jinja->s, &spelled);
	uint64_t xxh3 = hash_bytes(spelled.s, spelled.len, 0);
	for (size_t i = 0; i < ARRAY_LEN(known); i++)
		if (known[i].xxh3 == xxh3)
			return known[i].name;
	return NULL;
}

/* ---- files ------------------------------------------------------------------------ */

/* Finds Jinja: a whole file, or a field of tokenizer_config.json. Returns false if not found. */
static bool find_jinja(const char *path, const struct str *text, struct str *jinja)
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

/* Sets *file to the path of a file, or of the file with a template in a directory. */
static int find_file(const char *path, struct str *file, struct err *e)
{
	static const char *const names[] = {
		"chat_template.jinja", "tokenizer_config.json"};
	str_puts(file, path);
	for (size_t i = 0; i < ARRAY_LEN(names) && file_is_folder(path); i++) {
		str_clear(file);
		str_printf(file, "%s/%s", path, names[i]);
		if (file_exists(file->s))
			return 0;
	}
	return file_is_folder(path)
		       ? err_set(e, EX_DATAERR,
				 "%s: has no chat_template.jinja and no tokenizer_config.json",
				 path)
		       : 0;
}

int chat_template_read(
	const char *path, const char **name, struct str *text, struct err *e)
{
	scoped_str file = {0}, jinja = {0}, names = {0};
	if (find_file(path, &file, e))
		return -1;
	bool is_config = text_ends(file.s, "tokenizer_config.json");
	if (file_read(file.s, is_config ? MAX_CONFIG : MAX_TEMPLATE, text, e))
		return -1;
	if (!find_jinja(file.s, text, &jinja) && !is_config)
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
