/* Templates of conversations: JSON with literal texts, which no program fills in. */
#include "prepare/record.h"
#include "base/file.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_TEMPLATE = 1 << 20 };

struct role {
	char *name;
	struct marked before, end, after; /* the end counts as the turn does */
};

struct chat_template {
	const struct tokenizer *t;
	struct str source;
	struct marked begin, end; /* of a conversation */
	char *default_system;	  /* NULL: none */
	bool trim;
	struct role *roles;
	int64_t n_roles;
	/* Tokens of markers that the tokenizer would find in any text: they are kept from it. */
	struct strs guarded;
	bool has_tokens; /* around the user's turns */
};

/* ---- the built-in ones ------------------------------------------------------------------- */

#define CHATML_ROLE(name) \
	"\"" name "\": [\"<|im_start|>" name "\\n\", \"<|im_end|>\", \"\\n\"]"
#define LLAMA3_ROLE(name)                           \
	"\"" name "\": [\"<|start_header_id|>" name \
	"<|end_header_id|>\\n\\n\", \"<|eot_id|>\"]"

static const struct {
	const char *name, *source;
} built_in[] = {
	{"chatml",
		"{\"roles\": {" CHATML_ROLE("system") ", " CHATML_ROLE(
			"user") ", " CHATML_ROLE("assistant") ", " CHATML_ROLE("tool") "}}"},
	{"llama3",
		"{\"begin\": \"<|begin_of_text|>\", \"trim\": true, \"roles\": {" LLAMA3_ROLE(
			"system") ", " LLAMA3_ROLE("user") ", " LLAMA3_ROLE("assistant") "}}"},
	{"qwen",
		"{\"default_system\": \"You are Qwen, created by Alibaba Cloud. You are a "
		"helpful assistant.\", \"roles\": {" CHATML_ROLE("system") ", " CHATML_ROLE(
			"user") ", " CHATML_ROLE("assistant") "}}"},
};

static const char *built_in_source(const char *name)
{
	for (size_t i = 0; i < ARRAY_LEN(built_in); i++)
		if (!strcmp(built_in[i].name, name))
			return built_in[i].source;
	return NULL;
}

/* ---- texts with tokens --------------------------------------------------------------------- */

void marked_clear(struct marked *m)
{
	str_clear(&m->text);
	m->n_counted = m->n_tokens = m->n_ids = 0;
	str_clear(&m->turns.said);
	m->turns.n = 0;
}

void marked_free(struct marked *m)
{
	str_free(&m->text);
	free(m->counted);
	free(m->tokens);
	free(m->ids);
	str_free(&m->turns.said);
	free(m->turns.v);
	*m = (struct marked){0};
}

void marked_count(struct marked *m, int64_t begin, int64_t end)
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

static void add_token(struct marked *m, int64_t begin, int64_t end, uint32_t id)
{
	m->tokens = xgrow(m->tokens, m->n_tokens, sizeof(*m->tokens));
	m->tokens[m->n_tokens++] = (struct marker_token){{begin, end}, id};
}

static void add_marker(struct marked *to, const struct marked *m)
{
	int64_t at = (int64_t)to->text.len;
	str_add(&to->text, m->text.s, m->text.len);
	for (int64_t i = 0; i < m->n_tokens; i++)
		add_token(to, at + m->tokens[i].at.begin, at + m->tokens[i].at.end,
			m->tokens[i].id);
}

/* The longest added token at the beginning of text; NULL: none. */
static const struct bpe_added *token_at(
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

/* The special tokens in a literal text. */
static void find_tokens(struct chat_template *c, struct marked *m)
{
	if (!c->t || !bpe_rules_of(c->t))
		return;
	for (int64_t at = 0, n, all = (int64_t)m->text.len; at < all; at += max64(1, n)) {
		const char *here = m->text.s + at;
		const struct bpe_added *a = token_at(c->t, here, (size_t)(all - at), &n);
		if (!a)
			continue;
		add_token(m, at, at + n, a->id);
		if (a->flags & BPE_SPECIAL)
			continue;
		struct str name = {0};
		str_add(&name, here, (size_t)n);
		if (strs_find(&c->guarded, name.s) < 0)
			strs_add(&c->guarded, name.s);
		str_free(&name);
	}
}

/* ---- reading ------------------------------------------------------------------------------- */

static int read_text(struct chat_template *c, const json_t *j, const char *name,
	struct marked *to, struct err *e)
{
	if (!json_is_string(j))
		return err_set(e, EX_DATAERR, "%.40s is not a string", name);
	str_add(&to->text, json_string_value(j), json_string_length(j));
	find_tokens(c, to);
	return 0;
}

static int read_role(
	struct chat_template *c, const char *name, const json_t *texts, struct err *e)
{
	size_t n = json_array_size(texts);
	if (n < 2 || n > 3)
		return err_set(e, EX_DATAERR,
			"role %.40s: not a list of the text before a turn, the text that "
			"ends it, and perhaps one behind it",
			name);
	c->roles = xgrow(c->roles, c->n_roles, sizeof(*c->roles));
	struct role *r = &c->roles[c->n_roles++];
	*r = (struct role){.name = xstrdup(name)};
	struct marked *const to[] = {&r->before, &r->end, &r->after};
	for (size_t i = 0; i < n; i++)
		if (read_text(c, json_array_get(texts, i), name, to[i], e))
			return -1;
	return 0;
}

static int read_roles(struct chat_template *c, const json_t *roles, struct err *e)
{
	const char *name;
	json_t *value;
	if (!json_object_size(roles))
		return err_set(e, EX_DATAERR, "roles is not an object with roles");
	json_object_foreach(
		(json_t *)roles, name, value) if (read_role(c, name, value, e)) return -1;
	return 0;
}

static int read_key(
	struct chat_template *c, const char *name, const json_t *value, struct err *e)
{
	if (!strcmp(name, "begin"))
		return read_text(c, value, name, &c->begin, e);
	if (!strcmp(name, "end"))
		return read_text(c, value, name, &c->end, e);
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
		"'%.40s': not begin, end, default_system (texts), trim (true or false) or "
		"roles",
		name);
}

static const struct role *role_named(
	const struct chat_template *c, const char *name, size_t n)
{
	for (int64_t i = 0; i < c->n_roles; i++)
		if (strlen(c->roles[i].name) == n && !memcmp(c->roles[i].name, name, n))
			return &c->roles[i];
	return NULL;
}

static int parse(struct chat_template *c, struct err *e)
{
	json_error_t why;
	json_t *root = json_loadb(c->source.s ? c->source.s : "", c->source.len,
		JSON_REJECT_DUPLICATES, &why);
	const char *name;
	json_t *value;
	int rc = 0;
	if (!root)
		return err_set(
			e, EX_DATAERR, "not JSON: line %d: %s", why.line, why.text);
	if (!json_object_get(root, "roles"))
		rc = err_set(e, EX_DATAERR, "no object with roles");
	json_object_foreach(root, name, value) rc = rc || read_key(c, name, value, e);
	json_decref(root);
	if (!rc && c->default_system && !role_named(c, "system", 6))
		rc = err_set(e, EX_DATAERR, "default_system, but no role system");
	return rc ? -1 : 0;
}

struct chat_template *chat_template_open(
	const char *name, const struct tokenizer *t, struct err *e)
{
	struct chat_template *c = xcalloc(1, sizeof(*c));
	const char *source = built_in_source(name);
	c->t = t;
	if (source)
		str_puts(&c->source, source);
	int rc = source ? 0 : file_read(name, MAX_TEMPLATE, &c->source, e);
	if (!rc && parse(c, e))
		rc = err_prefix(e, "%s: ", name);
	if (rc) {
		chat_template_close(c);
		return NULL;
	}
	const struct role *user = role_named(c, "user", 4);
	c->has_tokens = !user || user->before.n_tokens || user->end.n_tokens;
	return c;
}

void chat_template_close(struct chat_template *c)
{
	if (!c)
		return;
	for (int64_t i = 0; i < c->n_roles; i++) {
		free(c->roles[i].name);
		marked_free(&c->roles[i].before);
		marked_free(&c->roles[i].end);
		marked_free(&c->roles[i].after);
	}
	free(c->roles);
	marked_free(&c->begin);
	marked_free(&c->end);
	free(c->default_system);
	strs_free(&c->guarded);
	str_free(&c->source);
	free(c);
}

const char *chat_template_source(const struct chat_template *c)
{
	return c->source.s;
}

bool chat_template_is_safe(const struct chat_template *c)
{
	return c->has_tokens;
}

/* ---- laying out ---------------------------------------------------------------------------- */

/* Text of a turn. Where it has the text of a marker that would be found in it, it is cut. */
static void add_said(
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
			add_token(out, cut, cut, BPE_NONE);
			break;
		}
}

/* As Python has it. */
static bool is_space(const char *text, int64_t n)
{
	uint32_t code;
	return utf8_decode(text, n, &code) > 0 &&
	       (char_classes()[code] == CHAR_SPACE || (code >= 0x1c && code < 0x20));
}

static struct extract trimmed(const char *text, struct extract x)
{
	uint32_t code;
	while (x.begin < x.end && is_space(text + x.begin, x.end - x.begin))
		x.begin += utf8_decode(text + x.begin, x.end - x.begin, &code);
	for (int64_t at = x.end; at > x.begin;) {
		for (at--; at > x.begin && ((uint8_t)text[at] & 0xc0) == 0x80; at--)
			;
		if (!is_space(text + at, x.end - at))
			break;
		x.end = at;
	}
	return x;
}

/* The turn says bytes x of the text. */
static void add_turn(const struct chat_template *c, const struct role *r,
	const char *text, struct extract x, bool counts, struct marked *out)
{
	if (c->trim)
		x = trimmed(text, x);
	add_marker(out, &r->before);
	int64_t begin = (int64_t)out->text.len;
	add_said(c, text + x.begin, (size_t)(x.end - x.begin), out);
	add_marker(out, &r->end);
	if (counts)
		marked_count(out, begin, (int64_t)out->text.len);
	add_marker(out, &r->after);
}

/* ShareGPT has other names of roles. */
static const struct role *role_of(
	const struct chat_template *c, const struct chat_turns *t, int64_t i)
{
	struct extract x = t->v[i].role;
	const char *name = t->said.s + x.begin;
	size_t n = (size_t)(x.end - x.begin);
	const struct role *r = role_named(c, name, n);
	if (!r && n == 5 && !memcmp(name, "human", n))
		r = role_named(c, "user", 4);
	if (!r && n == 3 && !memcmp(name, "gpt", n))
		r = role_named(c, "assistant", 9);
	return r;
}

static bool is_role(const struct role *r, const char *name)
{
	return r && !strcmp(r->name, name);
}

int chat_template_apply(
	const struct chat_template *c, int count, struct marked *out, struct err *e)
{
	const struct chat_turns *turns = &out->turns;
	int64_t last = turns->n - 1;
	while (last >= 0 && !is_role(role_of(c, turns, last), "assistant"))
		last--;
	add_marker(out, &c->begin);
	if (c->default_system && turns->n && !is_role(role_of(c, turns, 0), "system"))
		add_turn(c, role_named(c, "system", 6), c->default_system,
			(struct extract){0, (int64_t)strlen(c->default_system)}, false,
			out);
	for (int64_t i = 0; i < turns->n; i++) {
		const struct chat_turn *t = &turns->v[i];
		const struct role *r = role_of(c, turns, i);
		if (!r)
			return err_set(e, EX_DATAERR,
				"turn %lld: the template has no role '%.*s'",
				(long long)i, (int)min64(t->role.end - t->role.begin, 40),
				turns->said.s + t->role.begin);
		bool counts =
			is_role(r, "assistant") && !t->silent &&
			(count == COUNT_ASSISTANT || (count == COUNT_LAST && i == last));
		add_turn(c, r, turns->said.s, t->text, counts, out);
	}
	add_marker(out, &c->end);
	if (count == COUNT_ALL)
		marked_count(out, 0, (int64_t)out->text.len);
	return 0;
}
