/* Templates of conversations: JSON with literal texts, not programs. */
#include "chat/template.h"

#include <jansson.h>

/* ---- the built-in ones ------------------------------------------------------------------- */

#define CHATML_ROLE(name) \
	"\"" name "\": [\"<|im_start|>" name "\\n\", \"<|im_end|>\", \"\\n\"]"
#define CHATML_ROLES \
	CHATML_ROLE("system") ", " CHATML_ROLE("user") ", " CHATML_ROLE("assistant") ", "
#define QWEN_ROLES                                                                                           \
	CHATML_ROLES                                                                                         \
	"\"tool\": [\"<|im_start|>user\\n<tool_response>\\n\", \"\\n</tool_response><|im_end|>\", \"\\n\", " \
	"\"\\n</tool_response>\\n<tool_response>\\n\"]"
#define LLAMA3_ROLE(name, header)                     \
	"\"" name "\": [\"<|start_header_id|>" header \
	"<|end_header_id|>\\n\\n\", \"<|eot_id|>\"]"
#define LLAMA3_ROLES                    \
	LLAMA3_ROLE("system", "system") \
	", " LLAMA3_ROLE("user", "user") ", " LLAMA3_ROLE("assistant", "assistant")
#define LLAMA3_BEGIN "{\"begin\": \"<|begin_of_text|>\", \"trim\": true, "

/* Templates of the models. chatml and qwen3-2507 differ in tools; llama3.1 has a fixed date. */
static const struct {
	const char *name, *source;
} built_in[] = {
	{"chatml", "{\"roles\": {" CHATML_ROLES CHATML_ROLE("tool") "}}"},
	{"llama3", LLAMA3_BEGIN "\"roles\": {" LLAMA3_ROLES "}}"},
	{"llama3.1", LLAMA3_BEGIN
		"\"default_system\": \"\", \"tools\": \"llama3.1\", "
		"\"system\": \"Cutting Knowledge Date: December 2023\\nToday Date: 26 Jul "
		"2024\\n\\n\", "
		"\"roles\": {" LLAMA3_ROLES ", " LLAMA3_ROLE("tool", "ipython") "}}"},
	{"qwen",
		"{\"default_system\": \"You are Qwen, created by Alibaba Cloud. You are a "
		"helpful assistant.\", "
		"\"tools\": \"qwen\", \"roles\": {" QWEN_ROLES "}}"},
	{"qwen3", "{\"tools\": \"qwen3\", \"roles\": {" QWEN_ROLES "}}"},
	{"qwen3-2507", "{\"tools\": \"qwen\", \"roles\": {" QWEN_ROLES "}}"},
};

void chat_template_names(struct str *out)
{
	for (size_t i = 0; i < ARRAY_LEN(built_in); i++)
		str_printf(out, "%s%s", i ? ", " : "", built_in[i].name);
}

#define QWEN_TOOLS                                                                                     \
	[TOOL_SYSTEM] = "", [TOOL_SPACE] = "\n\n",                                                     \
	[TOOL_LIST] =                                                                                  \
		"# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"     \
		"You are provided with function signatures within <tools></tools> XML tags:\n<tools>", \
	[TOOL_BEFORE] = "\n",                                                                          \
	[TOOL_LIST_END] =                                                                              \
		"\n</tools>\n\nFor each function call, return a json object with function name and "   \
		"arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n"                    \
		"{\"name\": <function-name>, \"arguments\": <args-json-object>}\n</tool_call>",        \
	[TOOL_CALL] = "<tool_call>\n{\"name\": \"",                                                    \
	[TOOL_ARGUMENTS] = "\", \"arguments\": ", [TOOL_CALL_END] = "}\n</tool_call>",                 \
	[TOOL_NEXT_CALL] = "\n"

static const struct tool_style styles[] = {
	{.name = "qwen", .text = {QWEN_TOOLS}},
	{.name = "qwen3",
		.text = {QWEN_TOOLS, [TOOL_THOUGHT] = "<think>\n",
			[TOOL_THOUGHT_END] = "\n</think>\n\n"}},
	{.name = "llama3.1",
		.text = {[TOOL_SYSTEM] = "Environment: ipython\n",
			[TOOL_LIST] =
				"Given the following functions, please respond with a JSON for a "
				"function call "
				"with its proper arguments that best answers the given prompt.\n\n"
				"Respond in the format {\"name\": function name, \"parameters\": "
				"dictionary of argument "
				"name and its value}.Do not use variables.\n\n",
			[TOOL_AFTER] = "\n\n",
			[TOOL_CALL] = "{\"name\": \"",
			[TOOL_ARGUMENTS] = "\", \"parameters\": ",
			[TOOL_CALL_END] = "}"},
		.tools_in_user_turn = true,
		.json_results = true,
		.indent = 4},
};

/* Sets c->name and c->source if a built-in template has this name. */
static void load_built_in(struct chat_template *c, const char *name)
{
	for (size_t i = 0; i < ARRAY_LEN(built_in); i++)
		if (!strcmp(built_in[i].name, name)) {
			c->name = built_in[i].name;
			str_puts(&c->source, built_in[i].source);
		}
}

/* Returns the longest added token at the begin of text, and sets *n_bytes; NULL: none. */
static const struct bpe_added *find_added(
	const struct tokenizer *t, const char *text, size_t n, int64_t *n_bytes)
{
	const struct bpe_rules *r = bpe_rules_of(t);
	const struct bpe_added *found = NULL;
	*n_bytes = 0;
	for (int64_t i = 0; i < r->n_added; i++) {
		int64_t begin = t->vocab.offset[r->added[i].id];
		int64_t len = t->vocab.offset[r->added[i].id + 1] - begin;
		if (len <= *n_bytes || len > (int64_t)n ||
			memcmp(text, t->vocab.bytes + begin, (size_t)len))
			continue;
		*n_bytes = len;
		found = &r->added[i];
	}
	return found;
}

/* Marks the special tokens in a literal text. The tokenizer finds other added tokens in any text;
 * with `guards_tokens`, only literal texts have them. */
static void mark_tokens(struct chat_template *c, struct marked *m, bool guards_tokens)
{
	if (!c->t || !bpe_rules_of(c->t))
		return;
	for (int64_t at = 0, n, end = (int64_t)m->text.len; at < end; at += max64(1, n)) {
		const char *rest = m->text.s + at;
		const struct bpe_added *a =
			find_added(c->t, rest, (size_t)(end - at), &n);
		if (!a || (!guards_tokens && !(a->flags & BPE_SPECIAL)))
			continue;
		marked_token(m, at, at + n, a->id);
		if (a->flags & BPE_SPECIAL)
			continue;
		scoped_str name = {0};
		str_add(&name, rest, (size_t)n);
		if (strs_find(&c->guarded, name.s) < 0)
			strs_add(&c->guarded, name.s);
	}
}

/* Appends a JSON string to *to, and marks the special tokens in it. */
static int read_text(struct chat_template *c, const json_t *j, const char *name,
	bool guards_tokens, struct marked *to, struct err *e)
{
	if (!json_is_string(j))
		return err_set(
			e, EX_DATAERR, "key \"%.40s\": a text is not a string", name);
	str_add(&to->text, json_string_value(j), json_string_length(j));
	mark_tokens(c, to, guards_tokens);
	return 0;
}

/* Reads a role: its texts before a turn, at the end, after it, and between turns of this role. */
static int read_role(
	struct chat_template *c, const char *name, const json_t *texts, struct err *e)
{
	size_t n = json_array_size(texts);
	if (n < 2 || n > 4)
		return err_set(e, EX_DATAERR,
			"role \"%.40s\" must be a list of 2 to 4 texts: before a turn, at its end, "
			"after it, and between two turns of this role",
			name);
	c->roles = xgrow(c->roles, c->n_roles, sizeof(*c->roles));
	struct chat_role *r = &c->roles[c->n_roles++];
	*r = (struct chat_role){.name = xstrdup(name), .joins_turns = n == 4};
	struct marked *const to[] = {&r->before, &r->end, &r->after, &r->between};
	for (size_t i = 0; i < n; i++)
		if (read_text(c, json_array_get(texts, i), name, strcmp(name, "tool"),
			    to[i], e))
			return -1;
	return 0;
}

static int read_roles(struct chat_template *c, const json_t *roles, struct err *e)
{
	const char *name;
	json_t *value;
	if (!json_object_size(roles))
		return err_set(e, EX_DATAERR,
			"key \"roles\" is not an object with at least one role");
	json_object_foreach(
		(json_t *)roles, name, value) if (read_role(c, name, value, e)) return -1;
	return 0;
}

/* Sets the style of tool calls by name, and copies its texts. */
static int read_tool_style(struct chat_template *c, const json_t *name, struct err *e)
{
	const char *text = json_is_string(name) ? json_string_value(name) : "";
	for (size_t i = 0; i < ARRAY_LEN(styles); i++)
		if (!strcmp(styles[i].name, text))
			c->style = &styles[i];
	if (!c->style)
		return err_set(e, EX_DATAERR,
			"key \"tools\" must be \"qwen\", \"qwen3\" or \"llama3.1\"");
	for (int i = 0; i < N_TOOL_TEXTS; i++) {
		const char *literal = c->style->text[i];
		str_puts(&c->tools[i].text, literal ? literal : "");
		mark_tokens(c, &c->tools[i], false);
	}
	return 0;
}

/* Sets one field of the template from a key of its JSON object. Fails if the key is unknown. */
static int read_key(
	struct chat_template *c, const char *name, const json_t *value, struct err *e)
{
	if (!strcmp(name, "begin"))
		return read_text(c, value, name, true, &c->begin, e);
	if (!strcmp(name, "end"))
		return read_text(c, value, name, true, &c->end, e);
	if (!strcmp(name, "system"))
		return read_text(c, value, name, true, &c->system, e);
	if (!strcmp(name, "tools"))
		return read_tool_style(c, value, e);
	if (!strcmp(name, "roles"))
		return read_roles(c, value, e);
	if (!strcmp(name, "trim") && json_is_boolean(value)) {
		c->trim = json_is_true(value);
		return 0;
	}
	if (!strcmp(name, "default_system") && json_is_string(value)) {
		c->default_system = xstrdup(json_string_value(value));
		return 0;
	}
	return err_set(e, EX_DATAERR,
		"key \"%.40s\" is unknown, or its value has the wrong type; the keys are begin, "
		"end, system and default_system (strings), trim (true or false), tools (the name "
		"of a template) and roles (an object)",
		name);
}

const struct chat_role *chat_role_named(
	const struct chat_template *c, const char *name, size_t n)
{
	for (int64_t i = 0; i < c->n_roles; i++)
		if (strlen(c->roles[i].name) == n && !memcmp(c->roles[i].name, name, n))
			return &c->roles[i];
	return NULL;
}

/* Parses the JSON text of a template, c->source, into *c. */
static int parse_template(struct chat_template *c, struct err *e)
{
	json_error_t why;
	json_auto_t *root = json_loadb(c->source.s ? c->source.s : "", c->source.len,
		JSON_REJECT_DUPLICATES, &why);
	const char *name;
	json_t *value;
	int rc = 0;
	if (!root)
		return err_set(
			e, EX_DATAERR, "not JSON: line %d: %s", why.line, why.text);
	if (!json_object_get(root, "roles"))
		rc = err_set(e, EX_DATAERR, "key \"roles\" is missing");
	json_object_foreach(root, name, value) rc = rc || read_key(c, name, value, e);
	if (!rc && c->default_system && !chat_role_named(c, "system", 6))
		rc = err_set(
			e, EX_DATAERR, "key \"default_system\" needs a role \"system\"");
	return rc ? -1 : 0;
}

/* Parses c->source, unless *e is set. Returns c; NULL after an error, with c closed. */
static struct chat_template *finish_template(
	struct chat_template *c, const char *origin, struct err *e)
{
	if (e->code || parse_template(c, e)) {
		if (origin)
			err_prefix(e, "%s: ", origin);
		chat_template_close(c);
		return NULL;
	}
	const struct chat_role *user = chat_role_named(c, "user", 4);
	c->has_tokens = !user || user->before.n_tokens || user->end.n_tokens;
	return c;
}

struct chat_template *chat_template_open(
	const char *name, const struct tokenizer *t, struct err *e)
{
	struct chat_template *c = xcalloc(1, sizeof(*c));
	const char *equivalent = NULL;
	c->t = t;
	load_built_in(c, name);
	if (!c->name && chat_template_read(name, &equivalent, &c->source, e))
		return finish_template(c, NULL, e);
	if (equivalent)
		load_built_in(c, equivalent);
	return finish_template(c, name, e);
}

struct chat_template *chat_template_open_text(
	const char *kept, const struct tokenizer *t, struct err *e)
{
	struct chat_template *c = xcalloc(1, sizeof(*c));
	c->t = t;
	load_built_in(c, kept);
	if (*kept == '{')
		str_puts(&c->source, kept);
	else if (!c->name)
		err_set(e, EX_DATAERR, "unknown template '%.40s'", kept);
	return finish_template(c, "chat template", e);
}

void chat_template_close(struct chat_template *c)
{
	if (!c)
		return;
	for (int64_t i = 0; i < c->n_roles; i++) {
		free(c->roles[i].name);
		marked_release(&c->roles[i].before);
		marked_release(&c->roles[i].end);
		marked_release(&c->roles[i].after);
		marked_release(&c->roles[i].between);
	}
	free(c->roles);
	marked_release(&c->begin);
	marked_release(&c->end);
	marked_release(&c->system);
	for (int i = 0; i < N_TOOL_TEXTS; i++)
		marked_release(&c->tools[i]);
	free(c->default_system);
	strs_free(&c->guarded);
	str_free(&c->source);
	free(c);
}

const char *chat_template_source(const struct chat_template *c)
{
	return c->source.s;
}

const char *chat_template_text(const struct chat_template *c)
{
	return c->name ? c->name : c->source.s + strspn(c->source.s, " \t\r\n");
}

bool chat_template_is_safe(const struct chat_template *c)
{
	return c->has_tokens;
}
