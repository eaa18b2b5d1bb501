/* Lays out conversations by a template: turns, tools, calls of tools, thoughts. */
#include "base/json.h"
#include "chat/template.h"

/* ---- texts with tokens --------------------------------------------------------------------- */

void marked_clear(struct marked *m)
{
	str_clear(&m->text);
	m->n_counted = m->n_tokens = m->n_ids = 0;
	str_clear(&m->turns.strings);
	m->turns.n = 0;
	m->turns.tools = NULL;
}

void marked_release(struct marked *m)
{
	str_free(&m->text);
	free(m->counted);
	free(m->tokens);
	free(m->ids);
	str_free(&m->turns.strings);
	free(m->turns.v);
	*m = (struct marked){0};
}

void marked_add_counted(struct marked *m, int64_t begin, int64_t end)
{
	if (begin >= end)
		return;
	if (m->n_counted && m->counted[m->n_counted - 1].end >= begin) {
		m->counted[m->n_counted - 1].end = end;
		return;
	}
	m->counted = xgrow(m->counted, m->n_counted, sizeof(*m->counted));
	m->counted[m->n_counted++] = (struct extract){begin, end};
}

void marked_token(struct marked *m, int64_t begin, int64_t end, uint32_t id)
{
	m->tokens = xgrow(m->tokens, m->n_tokens, sizeof(*m->tokens));
	m->tokens[m->n_tokens++] = (struct marker_token){{begin, end}, id};
}

/* Appends a marker's text and special tokens. */
static void add_marker(struct marked *to, const struct marked *marker)
{
	int64_t begin = (int64_t)to->text.len;
	str_add(&to->text, marker->text.s, marker->text.len);
	for (int64_t i = 0; i < marker->n_tokens; i++)
		marked_token(to, begin + marker->tokens[i].at.begin,
			begin + marker->tokens[i].at.end, marker->tokens[i].id);
}

/* ---- laying out ---------------------------------------------------------------------------- */

/* Appends the text of a turn. Cuts guarded markers in it to hide them from the tokenizer. */
static void add_turn_text(
	const struct chat_template *c, const char *text, size_t n, struct marked *out)
{
	int64_t at = (int64_t)out->text.len;
	str_add(&out->text, text, n);
	for (size_t i = 0; c->guarded.n && i < n; i++)
		for (int64_t g = 0; g < c->guarded.n; g++) {
			size_t len = strlen(c->guarded.v[g]);
			if (len > n - i || memcmp(text + i, c->guarded.v[g], len))
				continue;
			int64_t cut = at + (int64_t)i + 1;
			marked_token(out, cut, cut, BPE_NONE);
			break;
		}
}

/* Returns true if text begins with a character that str.isspace() of Python accepts. */
static bool begins_with_space(const char *text, int64_t n)
{
	uint32_t code;
	return utf8_decode(text, n, &code) > 0 &&
	       (char_classes()[code] == CHAR_SPACE || (code >= 0x1c && code < 0x20));
}

/* Returns the extract without Unicode white space at both ends. */
static struct extract trim_space(const char *text, struct extract x)
{
	uint32_t code;
	while (x.begin < x.end && begins_with_space(text + x.begin, x.end - x.begin))
		x.begin += utf8_decode(text + x.begin, x.end - x.begin, &code);
	for (int64_t at = x.end; at > x.begin;) {
		for (at--; at > x.begin && ((uint8_t)text[at] & 0xc0) == 0x80; at--)
			;
		if (!begins_with_space(text + at, x.end - at))
			break;
		x.end = at;
	}
	return x;
}

struct layout {
	const struct chat_template *c;
	const struct chat_turns *turns;
	struct marked *out;
	int64_t turn;	     /* index of the current turn */
	const json_t *tools; /* NULL: none */
	int64_t question;    /* index of the user's last turn */
	struct str json;
};

static int turn_error(const struct layout *l, const char *what, struct err *e)
{
	return err_set(e, EX_DATAERR, "turn %lld: %s", (long long)l->turn, what);
}

static bool is_role(const struct chat_role *r, const char *name)
{
	return r && !strcmp(r->name, name);
}

static bool is_text(const struct chat_turns *t, struct extract x, const char *text)
{
	size_t n = (size_t)(x.end - x.begin);
	return strlen(text) == n && !memcmp(t->strings.s + x.begin, text, n);
}

/* Returns the role of turn i. ShareGPT, OpenAI and Llama have other names for some roles. */
static const struct chat_role *turn_role(const struct layout *l, int64_t i)
{
	static const char *const alias[][2] = {{"human", "user"}, {"gpt", "assistant"},
		{"function", "tool"}, {"ipython", "tool"}, {"observation", "tool"}};
	if (i < 0 || i >= l->turns->n)
		return NULL;
	struct extract x = l->turns->v[i].role;
	const struct chat_role *r = chat_role_named(
		l->c, l->turns->strings.s + x.begin, (size_t)(x.end - x.begin));
	for (size_t k = 0; k < ARRAY_LEN(alias) && !r; k++)
		if (is_text(l->turns, x, alias[k][0]))
			r = chat_role_named(l->c, alias[k][1], strlen(alias[k][1]));
	return r;
}

/* Returns a field of the JSON of a turn; NULL: missing or null. */
static const json_t *turn_field(const struct chat_turn *t, const char *name)
{
	const json_t *j = t->json ? json_object_get(t->json, name) : NULL;
	return json_is_null(j) ? NULL : j;
}

static void add_tool_text(const struct layout *l, enum tool_text which)
{
	add_marker(l->out, &l->c->tools[which]);
}

/* Appends a JSON value as text of the turn. Fails above 256 MiB. */
static int add_json(struct layout *l, const json_t *j, int indent, struct err *e)
{
	str_clear(&l->json);
	if (l->out->text.len > MAX_JSON || !tojson(&l->json, j, indent))
		return turn_error(l, "more than 256 MiB of JSON", e);
	add_turn_text(l->c, l->json.s, l->json.len, l->out);
	return 0;
}

static int add_tool_list(struct layout *l, struct err *e)
{
	add_tool_text(l, TOOL_LIST);
	for (size_t i = 0; i < json_array_size(l->tools); i++) {
		add_tool_text(l, TOOL_BEFORE);
		if (add_json(l, json_array_get(l->tools, i), l->c->style->indent, e))
			return -1;
		add_tool_text(l, TOOL_AFTER);
	}
	add_tool_text(l, TOOL_LIST_END);
	return 0;
}

/* Returns j, or the JSON in j if j is a string: the caller frees *own. An empty string and NULL
 * give null. Returns NULL if the string is not JSON. */
static const json_t *parse_if_string(const json_t *j, json_t **own)
{
	if (!j || (json_is_string(j) && !json_string_length(j)))
		return *own = json_null();
	if (json_is_string(j))
		return *own = load_json(json_string_value(j), json_string_length(j),
			       JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
	return j;
}

/* Appends the arguments of a call: an object, or, as in OpenAI's API, its JSON in a string. */
static int add_call_arguments(struct layout *l, const json_t *j, struct err *e)
{
	json_auto_t *own = NULL;
	j = parse_if_string(j, &own);
	if (!j)
		return turn_error(
			l, "tool_calls: the string 'arguments' of a call is not JSON", e);
	int rc = json_is_null(j) ? 0 : add_json(l, j, 0, e);
	if (json_is_null(j))
		str_puts(&l->out->text, "{}");
	return rc;
}

/* Appends a tool call: its name and arguments. Fails if it has no name. */
static int add_call(struct layout *l, const json_t *call, struct err *e)
{
	const json_t *f = json_object_get(call, "function"), *name;
	f = json_is_object(f) ? f : call;
	name = json_object_get(f, "name");
	if (!json_is_string(name))
		return turn_error(l, "tool_calls: a call has no name", e);
	add_tool_text(l, TOOL_CALL);
	add_turn_text(l->c, json_string_value(name), json_string_length(name), l->out);
	add_tool_text(l, TOOL_ARGUMENTS);
	if (add_call_arguments(l, json_object_get(f, "arguments"), e))
		return -1;
	add_tool_text(l, TOOL_CALL_END);
	return 0;
}

/* Appends the tool calls of the current turn. `has_text`: the turn has text before the calls. */
static int add_calls(struct layout *l, bool is_assistant, bool has_text, struct err *e)
{
	const struct tool_style *style = l->c->style;
	const json_t *calls = turn_field(&l->turns->v[l->turn], "tool_calls");
	size_t n = json_array_size(calls);
	if (calls && (!json_is_array(calls) || (n && !is_assistant)))
		return turn_error(
			l, "tool_calls is not a list of calls by the assistant", e);
	if (n && !style)
		return turn_error(l,
			"the template does not support tool_calls; qwen, qwen3, qwen3-2507 "
			"and llama3.1 do",
			e);
	if (n && !style->text[TOOL_NEXT_CALL] && (n > 1 || has_text))
		return turn_error(l,
			"the template allows only one call per turn, without text in that turn",
			e);
	for (size_t i = 0; i < n; i++) {
		if (i || has_text)
			add_tool_text(l, TOOL_NEXT_CALL);
		if (add_call(l, json_array_get(calls, i), e))
			return -1;
	}
	return 0;
}

/* Returns the extract without newlines at its begin or end, or both. */
static struct extract strip_newlines(
	const char *text, struct extract x, bool at_begin, bool at_end)
{
	while (at_begin && x.begin < x.end && text[x.begin] == '\n')
		x.begin++;
	while (at_end && x.begin < x.end && text[x.end - 1] == '\n')
		x.end--;
	return x;
}

/* Returns where the first mark in x begins or, with `last`, the last one ends; -1: no mark. */
static int64_t find_mark(const char *text, struct extract x, const char *mark, bool last)
{
	int64_t n = (int64_t)strlen(mark), found = -1;
	for (int64_t i = x.begin; i + n <= x.end && (last || found < 0); i++)
		if (!memcmp(text + i, mark, (size_t)n))
			found = last ? i + n : i;
	return found;
}

struct thought {
	const char *text;
	struct extract x;
};

/* Sets *t to the thoughts of the current turn. Returns the rest of its content. */
static struct extract split_thought(
	const struct layout *l, struct extract content, struct thought *t)
{
	static const char end_mark[] = "</think>";
	const json_t *reasoning = turn_field(&l->turns->v[l->turn], "reasoning_content");
	const char *text = l->turns->strings.s;
	int64_t at = find_mark(text, content, end_mark, false);
	*t = (struct thought){.text = text};
	if (json_is_string(reasoning)) {
		t->text = json_string_value(reasoning);
		t->x.end = (int64_t)json_string_length(reasoning);
	} else if (at >= 0) {
		t->x = strip_newlines(
			text, (struct extract){content.begin, at}, false, true);
		t->x.begin = max64(t->x.begin, find_mark(text, t->x, "<think>", true));
		content.begin = find_mark(text, content, end_mark, true);
		content = strip_newlines(text, content, true, false);
	}
	return content;
}

/* Appends the thoughts of a turn after the last question, as Qwen3 does. Returns the content,
 * without leading line breaks if thoughts were appended. */
static struct extract add_thought(
	const struct layout *l, const struct thought *t, struct extract content)
{
	bool last = l->turn == l->turns->n - 1;
	if (l->turn <= l->question || (!last && t->x.begin == t->x.end))
		return content;
	struct extract x = strip_newlines(t->text, t->x, true, true);
	add_tool_text(l, TOOL_THOUGHT);
	add_turn_text(l->c, t->text + x.begin, (size_t)(x.end - x.begin), l->out);
	add_tool_text(l, TOOL_THOUGHT_END);
	return strip_newlines(l->turns->strings.s, content, true, false);
}

/* Returns the last user turn that is not a tool result, as in old formats; else the last turn. */
static int64_t find_last_question(const struct layout *l)
{
	static const char begin[] = "<tool_response>", end[] = "</tool_response>";
	for (int64_t i = l->turns->n - 1; i >= 0; i--) {
		struct extract x = l->turns->v[i].text;
		const char *text = l->turns->strings.s + x.begin;
		size_t n = (size_t)(x.end - x.begin);
		bool is_result = n >= strlen(end) &&
				 !memcmp(text, begin, strlen(begin)) &&
				 !memcmp(text + n - strlen(end), end, strlen(end));
		if (!is_result && is_role(turn_role(l, i), "user"))
			return i;
	}
	return l->turns->n - 1;
}

/* Appends the thoughts, text and tool calls of the current turn. */
static int add_content(struct layout *l, const struct chat_role *r, struct err *e)
{
	const struct chat_turn *t = &l->turns->v[l->turn];
	const json_t *content = turn_field(
		t, t->json && json_object_get(t->json, "content") ? "content" : "value");
	const struct tool_style *style = l->c->style;
	bool is_assistant = is_role(r, "assistant");
	struct extract x = t->text;
	if (style && style->json_results && is_role(r, "tool")) {
		json_auto_t *text = content && !json_is_string(content)
					    ? NULL
					    : json_stringn(l->turns->strings.s + x.begin,
						      (size_t)(x.end - x.begin));
		return add_json(l, text ? text : content, 0, e);
	}
	if (content && !json_is_string(content))
		return err_set(e, EX_DATAERR, "turn %lld: content is %s, not a string",
			(long long)l->turn, json_kind(content));
	if (l->c->trim)
		x = trim_space(l->turns->strings.s, x);
	bool thinks = is_assistant && style && style->text[TOOL_THOUGHT];
	struct thought thought;
	if (thinks)
		x = split_thought(l, x, &thought);
	bool has_text = x.begin < x.end;
	if (thinks)
		x = add_thought(l, &thought, x);
	add_turn_text(
		l->c, l->turns->strings.s + x.begin, (size_t)(x.end - x.begin), l->out);
	return add_calls(l, is_assistant, has_text, e);
}

/* Appends the first system turn, given or the default, with the list of tools if there is one. */
static int add_system(struct layout *l, bool is_given, struct err *e)
{
	const struct chat_template *c = l->c;
	const struct chat_role *r = chat_role_named(c, "system", 6);
	bool has_list = l->tools && !c->style->tools_in_user_turn;
	if (!is_given && !c->default_system && !has_list)
		return 0;
	if (!r)
		return turn_error(
			l, "tools are listed, but the template has no role 'system'", e);
	add_marker(l->out, &r->before);
	if (l->tools)
		add_tool_text(l, TOOL_SYSTEM);
	add_marker(l->out, &c->system);
	if (is_given && add_content(l, r, e))
		return -1;
	if (!is_given && c->default_system)
		add_turn_text(c, c->default_system, strlen(c->default_system), l->out);
	if (has_list && (is_given || c->default_system))
		add_tool_text(l, TOOL_SPACE);
	if (has_list && add_tool_list(l, e))
		return -1;
	add_marker(l->out, &r->end);
	add_marker(l->out, &r->after);
	return 0;
}

/* Appends a turn with its markers. Counts its tokens in the loss if is_counted. */
static int add_turn(struct layout *l, const struct chat_role *r, bool is_counted,
	bool with_tools, struct err *e)
{
	bool is_joined = r->joins_turns && turn_role(l, l->turn - 1) == r;
	add_marker(l->out, is_joined ? &r->between : &r->before);
	int64_t begin = (int64_t)l->out->text.len;
	if ((with_tools && add_tool_list(l, e)) || add_content(l, r, e))
		return -1;
	is_joined = r->joins_turns && turn_role(l, l->turn + 1) == r;
	if (!is_joined)
		add_marker(l->out, &r->end);
	if (is_counted)
		marked_add_counted(l->out, begin, (int64_t)l->out->text.len);
	if (!is_joined)
		add_marker(l->out, &r->after);
	return 0;
}

/* Sets the error that the template lacks the turn's role, with a list of its roles. Returns -1. */
static int unknown_role_error(const struct layout *l, struct err *e)
{
	struct extract x = l->turns->v[l->turn].role;
	scoped_str names = {0};
	for (int64_t i = 0; i < l->c->n_roles; i++)
		str_printf(&names, "%s%.40s", i ? ", " : "", l->c->roles[i].name);
	err_set(e, EX_DATAERR,
		"turn %lld: the template has no role '%.*s'; its roles are %s",
		(long long)l->turn, (int)min64(x.end - x.begin, 40),
		l->turns->strings.s + x.begin, names.s);
	return -1;
}

/* Appends all turns. `count`: which turns are targets of the loss, COUNT_ASSISTANT and so on. */
static int add_turns(struct layout *l, int count, struct err *e)
{
	const struct chat_turns *turns = l->turns;
	bool has_system = is_role(turn_role(l, 0), "system");
	int64_t last_counted = turns->n - 1;
	while (last_counted >= 0 && !is_role(turn_role(l, last_counted), "assistant"))
		last_counted--;
	if (add_system(l, has_system, e))
		return -1;
	l->turn = has_system;
	bool tools_in_user_turn = l->tools && l->c->style->tools_in_user_turn;
	if (tools_in_user_turn && !is_role(turn_role(l, has_system), "user"))
		return turn_error(l,
			"the template lists the tools in the first user turn, so this must be a "
			"user turn",
			e);
	for (; l->turn < turns->n; l->turn++) {
		const struct chat_role *r = turn_role(l, l->turn);
		if (!r)
			return unknown_role_error(l, e);
		bool is_counted =
			is_role(r, "assistant") && !turns->v[l->turn].silent &&
			(count == COUNT_ASSISTANT ||
				(count == COUNT_LAST && l->turn == last_counted));
		if (add_turn(l, r, is_counted,
			    tools_in_user_turn && l->turn == has_system, e))
			return -1;
	}
	return 0;
}

/* Sets l->tools to the list of tools, which may be JSON in a string (*own), or to NULL. */
static int set_tools(struct layout *l, json_t **own, struct err *e)
{
	const json_t *j = parse_if_string(l->turns->tools, own);
	if (!j)
		return err_set(
			e, EX_DATAERR, "field 'tools' is a string that is not JSON");
	if (json_is_null(j))
		return 0;
	if (!json_is_array(j))
		return err_set(
			e, EX_DATAERR, "field 'tools' is %s, not a list", json_kind(j));
	l->tools = json_array_size(j) ? j : NULL;
	if (l->tools && !l->c->style)
		return err_set(e, EX_DATAERR,
			"the template does not support tools; qwen, qwen3, "
			"qwen3-2507 and llama3.1 do");
	return 0;
}

int chat_template_apply(
	const struct chat_template *c, int count, struct marked *out, struct err *e)
{
	struct layout l = {.c = c, .turns = &out->turns, .out = out};
	json_auto_t *own = NULL;
	int rc = set_tools(&l, &own, e);
	l.question = find_last_question(&l);
	add_marker(out, &c->begin);
	rc = rc || add_turns(&l, count, e);
	add_marker(out, &c->end);
	if (count == COUNT_ALL)
		marked_add_counted(out, 0, (int64_t)out->text.len);
	str_free(&l.json);
	return rc ? -1 : 0;
}

int chat_template_apply_question(const struct chat_template *c, const char *text,
	size_t n, struct marked *out, struct err *e)
{
	static const char user[] = "user";
	const int64_t role = sizeof(user) - 1;
	const struct chat_role *next = chat_role_named(c, "assistant", 9);
	struct chat_turns *turns = &out->turns;
	struct layout l = {.c = c, .turns = turns, .out = out};
	if (!next)
		return err_set(
			e, EX_DATAERR, "the chat template has no role \"assistant\"");
	marked_clear(out);
	str_puts(&turns->strings, user);
	str_add(&turns->strings, text, n);
	turns->v = xgrow(turns->v, 0, sizeof(*turns->v));
	turns->v[turns->n++] = (struct chat_turn){
		.role = {0, role}, .text = {role, (int64_t)turns->strings.len}};
	add_marker(out, &c->begin);
	if (add_turns(&l, COUNT_NONE, e))
		return -1;
	add_marker(out, &next->before);
	return 0;
}
