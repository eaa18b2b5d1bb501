/* Lines of JSONL that mark which tokens count. */
#include "prepare/record.h"
#include "table/table.h"

#include "base/json.h"

enum {
	N_FIELDS = 2,
	IGNORED = -100 /* PyTorch's label of a token that does not count */
};

struct records {
	const struct prepare *p;
	struct chat_template *chat; /* NULL: none */
	char *field[N_FIELDS];	    /* the second may be NULL */
	const struct tokenizer *t;  /* NULL: a vocabulary is trained */
	struct str source;	    /* text of all options, to be hashed */
};

static const char *const default_fields[] = {
	[RECORD_TEXT] = "text",
	[RECORD_PROMPT] = "prompt,completion",
	[RECORD_MESSAGES] = "messages",
	[RECORD_SPANS] = "text,spans",
	[RECORD_IDS] = "input_ids,labels",
	[RECORD_MASK] = "input_ids,mask",
};

/* Returns the names of --field, or the default names. */
static const char *field_names(const struct prepare *p)
{
	return p->field ? p->field : default_fields[p->record];
}

/* Sets r->field[] to the names of one or two fields (--field or the default), allocated. */
static int read_fields(struct records *r, struct err *e)
{
	const char *fields = field_names(r->p);
	const char *comma = strchr(fields, ',');
	bool has_two_fields = r->p->record != RECORD_MESSAGES;
	bool may_have_one = r->p->record == RECORD_IDS && !comma;
	if ((!has_two_fields != !comma && !may_have_one) ||
		(comma && strchr(comma + 1, ',')))
		return err_set(e, EX_USAGE, "--field '%.80s': expected %s", fields,
			has_two_fields ? "two names, as in prompt,completion"
				       : "one name");
	r->field[0] = comma ? xcalloc((size_t)(comma - fields) + 1, 1) : xstrdup(fields);
	if (comma) {
		memcpy(r->field[0], fields, (size_t)(comma - fields));
		r->field[1] = xstrdup(comma + 1);
	}
	return 0;
}

/* Rejects options that do not fit the kind of records. t: NULL if unknown. */
static int check_options(
	const struct records *r, const struct tokenizer *t, struct err *e)
{
	const struct prepare *p = r->p;
	bool ids = record_has_ids(p->record);
	if (p->format == FORMAT_TEXT)
		return err_set(e, EX_USAGE,
			"--format text has no records; omit --record and --chat-template");
	if (ids && (!t || (t->kind->learn && !t->vocab.n)))
		return err_set(e, EX_USAGE,
			"records of tokens have no text to learn a vocabulary from; give "
			"--vocab, or a --tokenizer with --vocab-files");
	if (ids && (p->keep.n || p->drop.n))
		return err_set(e, EX_USAGE,
			"--keep and --drop filter text, but the records are tokens");
	if (p->record == RECORD_MESSAGES && !p->chat_template)
		return err_set(e, EX_USAGE, "conversations need --chat-template");
	if (p->chat_template && p->record != RECORD_MESSAGES &&
		p->record != RECORD_PROMPT)
		return err_set(e, EX_USAGE,
			"--chat-template applies only to --record messages and prompt");
	if (p->chat_template && p->tokenizer.special)
		return err_set(e, EX_USAGE,
			"--allow-special and --chat-template are mutually exclusive: "
			"a user's text could become a marker of the template");
	return 0;
}

struct records *records_new(
	const struct prepare *p, const struct tokenizer *t, struct err *e)
{
	struct records *r = xcalloc(1, sizeof(*r));
	r->p = p;
	r->t = t;
	int rc = read_fields(r, e) || check_options(r, t, e);
	if (!rc && p->chat_template) {
		r->chat = chat_template_open(p->chat_template, t, e);
		rc = !r->chat;
		if (!rc && t && !(p->comm && p->comm->rank) &&
			!chat_template_is_safe(r->chat))
			warn("--chat-template %s: no marker of user turns is a special token "
			     "of this vocabulary, so a user's text could look like a marker",
				p->chat_template);
	}
	if (rc) {
		records_free(r);
		return NULL;
	}
	str_printf(&r->source, "%d %d %s,%s %s", p->record, p->count, r->field[0],
		r->field[1] ? r->field[1] : "",
		r->chat ? chat_template_source(r->chat) : "");
	return r;
}

void record_columns(const struct prepare *p, struct strs *out)
{
	const char *fields = field_names(p), *comma = strchr(fields, ',');
	bool is_messages = p->record == RECORD_MESSAGES;
	if (is_messages && !p->field) {
		strs_add(out, "/messages");
		strs_add(out, "/conversations");
	} else if (comma && p->record != RECORD_TEXT) {
		scoped_ptr char *first =
			text_printf("+%.*s", (int)(comma - fields), fields);
		scoped_ptr char *second = text_printf("+%s", comma + 1);
		strs_add(out, first);
		strs_add(out, second);
	} else {
		scoped_ptr char *only = text_printf("+%s", fields);
		strs_add(out, only);
	}
	if (is_messages || p->record == RECORD_PROMPT)
		strs_add(out, "?tools");
}

void records_free(struct records *r)
{
	if (!r)
		return;
	chat_template_close(r->chat);
	for (int i = 0; i < N_FIELDS; i++)
		free(r->field[i]);
	str_free(&r->source);
	free(r);
}

bool records_contain_end(const struct records *r)
{
	return r->chat || record_has_ids(r->p->record);
}

const char *records_template(const struct records *r)
{
	return r->chat ? chat_template_text(r->chat) : NULL;
}

const char *records_options(const struct records *r)
{
	return r->source.s;
}

/* Appends a turn; a silent one does not count as a target. */
static void add_turn(struct chat_turns *t, const char *role, const json_t *text,
	bool silent, const json_t *j)
{
	int64_t at = (int64_t)t->strings.len, role_end;
	str_puts(&t->strings, role);
	role_end = (int64_t)t->strings.len;
	str_add(&t->strings, json_string_value(text), json_string_length(text));
	t->v = xgrow(t->v, t->n, sizeof(*t->v));
	t->v[t->n++] = (struct chat_turn){
		{at, role_end}, {role_end, (int64_t)t->strings.len}, silent, j};
}

/* Reads a turn with OpenAI's or ShareGPT's names, its weight and its tool calls. */
static int read_turn(struct chat_turns *t, const json_t *j, struct err *e)
{
	const json_t *role = json_object_get(j, "role"),
		     *text = json_object_get(j, "content"),
		     *weight = json_object_get(j, "weight");
	role = role ? role : json_object_get(j, "from");
	text = text ? text : json_object_get(j, "value");
	bool calls = json_array_size(json_object_get(j, "tool_calls"));
	if (!json_is_string(role) || (!text && !calls))
		return err_set(e, EX_DATAERR,
			"turn %lld is not an object with the strings role and content, or "
			"from and value",
			(long long)t->n);
	if (!calls && json_is_null(text)) /* (with calls, content may be missing) */
		return err_set(e, EX_DATAERR,
			"turn %lld: its content is null, and it has no tool_calls",
			(long long)t->n);
	bool has_weight = weight && !json_is_null(weight);
	double w = has_weight ? json_number_value(weight) : 1;
	if ((has_weight && !json_is_number(weight)) || (w != 0 && w != 1))
		return err_set(e, EX_DATAERR, "turn %lld: its weight is neither 0 nor 1",
			(long long)t->n);
	add_turn(t, json_string_value(role), text, w == 0, j);
	return 0;
}

static int read_turns(struct chat_turns *t, const json_t *list, struct err *e)
{
	for (size_t i = 0; i < json_array_size(list); i++)
		if (read_turn(t, json_array_get(list, i), e))
			return -1;
	return 0;
}

/* Sets the text and the counted spans of *out by applying the chat template to its turns. */
static int apply_template(const struct records *r, struct marked *out, struct err *e)
{
	if (!out->turns.n)
		return err_set(e, EX_DATAERR, "the conversation has no turns");
	return chat_template_apply(r->chat, r->p->count, out, e);
}

/* Reads the turns of a conversation, and applies the chat template to them. */
static int read_messages(
	const struct records *r, const json_t *root, struct marked *out, struct err *e)
{
	const json_t *list = json_object_get(root, r->field[0]);
	if (!list && !r->p->field)
		list = json_object_get(root, "conversations");
	if (!json_is_array(list))
		return jsonl_reject_field(root, r->field[0], "a list of turns", e);
	out->turns.tools = json_object_get(root, "tools");
	return read_turns(&out->turns, list, e) || apply_template(r, out, e) ? -1 : 0;
}

/* Lays out a prompt and its completion, the texts of turns 0 and 1, with or without a template. */
static int lay_out_prompt(const struct records *r, struct marked *out, struct err *e)
{
	static const char *const roles[N_FIELDS] = {"user", "assistant"};
	struct chat_turns *t = &out->turns;
	for (int i = 0; i < N_FIELDS && r->chat; i++) {
		t->v[i].role.begin = (int64_t)t->strings.len;
		str_puts(&t->strings, roles[i]);
		t->v[i].role.end = (int64_t)t->strings.len;
	}
	if (r->chat)
		return apply_template(r, out, e);
	for (int i = 0; i < N_FIELDS; i++) {
		int64_t begin = (int64_t)out->text.len;
		struct extract x = t->v[i].text;
		str_add(&out->text, t->strings.s + x.begin, (size_t)(x.end - x.begin));
		if (r->p->count == COUNT_ALL || (i && r->p->count != COUNT_NONE))
			marked_add_counted(out, begin, (int64_t)out->text.len);
	}
	return 0;
}

/* Reads a prompt and its completion: two strings or, with a template, two lists of turns. */
static int read_prompt(
	const struct records *r, const json_t *root, struct marked *out, struct err *e)
{
	const json_t *x[N_FIELDS];
	struct chat_turns *t = &out->turns;
	bool are_texts = true;
	t->tools = json_object_get(root, "tools");
	for (int i = 0; i < N_FIELDS; i++) {
		x[i] = json_object_get(root, r->field[i]);
		are_texts = are_texts && json_is_string(x[i]);
		if (!json_is_string(x[i]) && !(r->chat && json_is_array(x[i])))
			return jsonl_reject_field(root, r->field[i],
				json_is_array(x[i])
					? "a string; turns need --chat-template"
					: "a string",
				e);
	}
	for (int i = 0; i < N_FIELDS; i++) {
		if (json_is_string(x[i]))
			add_turn(t, i ? "assistant" : "user", x[i], false, NULL);
		else if (read_turns(t, x[i], e))
			return -1;
		for (int64_t k = 0; k < t->n && !i; k++)
			t->v[k].silent = true;
	}
	return are_texts ? lay_out_prompt(r, out, e) : apply_template(r, out, e);
}

/* Returns the offset of character `to`; -1: the text is shorter. Character `from` is at `at`. */
static int64_t find_character(
	const struct str *text, int64_t at, json_int_t from, json_int_t to)
{
	for (; from < to && at < (int64_t)text->len; from++)
		for (at++;
			at < (int64_t)text->len && ((uint8_t)text->s[at] & 0xc0) == 0x80;)
			at++;
	return from == to ? at : -1;
}

/* Reads a text and the spans of it that count: pairs [begin, end) of characters, ascending. */
static int read_spans(
	const struct records *r, const json_t *root, struct marked *out, struct err *e)
{
	const json_t *text = json_object_get(root, r->field[0]),
		     *spans = json_object_get(root, r->field[1]);
	if (!json_is_string(text))
		return jsonl_reject_field(root, r->field[0], "a string", e);
	if (!json_is_array(spans))
		return jsonl_reject_field(root, r->field[1], "a list of spans", e);
	str_add(&out->text, json_string_value(text), json_string_length(text));
	json_int_t before = 0;
	int64_t at = 0;
	for (size_t i = 0; i < json_array_size(spans); i++) {
		const json_t *span = json_array_get(spans, i), *begin, *end;
		begin = json_array_get(span, 0);
		end = json_array_get(span, 1);
		json_int_t b = json_integer_value(begin), n = json_integer_value(end);
		bool good = json_array_size(span) == 2 && json_is_integer(begin) &&
			    json_is_integer(end) && b >= before && n >= b;
		int64_t from = good ? find_character(&out->text, at, before, b) : -1;
		at = from < 0 ? -1 : find_character(&out->text, from, b, n);
		if (at < 0)
			return err_set(e, EX_DATAERR,
				"span %zu is not [begin, end], in characters of the text, "
				"after the previous span",
				i);
		marked_add_counted(out, from, at);
		before = n;
	}
	return 0;
}

/* A list of numbers: of JSON, or integers of a table. */
struct numbers {
	const json_t *list;
	struct cell_integers cells; /* without `list` */
	size_t n;
};

/* Returns element i; -1 with *is_integer false. */
static int64_t number_at(const struct numbers *x, size_t i, bool *is_integer)
{
	int64_t v = -1;
	const json_t *j = x->list ? json_array_get(x->list, i) : NULL;
	*is_integer = !x->list || json_is_integer(j);
	if (!x->list)
		memcpy(&v, x->cells.at + i * sizeof(v), sizeof(v));
	else if (*is_integer)
		v = json_integer_value(j);
	return v;
}

/* Sets *e to an error about element i of a list field. Returns -1. */
static int reject_element(const struct records *r, int field, size_t i,
	const struct numbers *x, const char *what, struct err *e)
{
	char text[NUM_TEXT] = "";
	bool is_integer;
	const json_t *j = json_array_get(x->list, i);
	if (json_is_number(j))
		text_double(text, json_number_value(j));
	else if (!x->list)
		text_double(text, (double)number_at(x, i, &is_integer));
	return err_set(e, EX_DATAERR, "field '%.40s': element %zu is %s, not %s",
		r->field[field], i, *text ? text : json_kind(j), what);
}

/* Adds tokens and their labels or mask; without labels, all tokens count. */
static int add_ids(const struct records *r, const struct numbers *ids,
	const struct numbers *labels, struct marked *out, struct err *e)
{
	bool is_mask = r->p->record == RECORD_MASK, is_id, is_label = true;
	if (labels && labels->n != ids->n)
		return err_set(e, EX_DATAERR,
			"field '%.40s' has %zu elements, but '%.40s' has %zu",
			r->field[1], labels->n, r->field[0], ids->n);
	out->ids = xrealloc(out->ids, (ids->n + 1) * sizeof(*out->ids));
	for (size_t i = 0; i < ids->n; i++) {
		int64_t x = number_at(ids, i, &is_id),
			y = labels ? number_at(labels, i, &is_label) : x;
		if (!is_id || x < 0 || x >= r->t->vocab.n)
			return reject_element(
				r, 0, i, ids, "a token of the vocabulary", e);
		bool good =
			is_label && (is_mask ? y == 0 || y == 1 : y == x || y == IGNORED);
		if (!good)
			return reject_element(r, 1, i, labels,
				is_mask ? "0 or 1" : "this token or -100", e);
		out->ids[i] = (uint32_t)x;
		if (is_mask ? y == 1 : y != IGNORED)
			marked_add_counted(out, (int64_t)i, (int64_t)i + 1);
	}
	out->n_ids = (int64_t)ids->n;
	return 0;
}

static int read_ids(
	const struct records *r, const json_t *root, struct marked *out, struct err *e)
{
	struct numbers x[N_FIELDS] = {0};
	static const char *const what[N_FIELDS] = {
		"a list of tokens", "a list of numbers"};
	int n = r->field[1] ? N_FIELDS : 1;
	for (int i = 0; i < n; i++) {
		x[i].list = json_object_get(root, r->field[i]);
		x[i].n = json_array_size(x[i].list);
		if (!json_is_array(x[i].list))
			return jsonl_reject_field(root, r->field[i], what[i], e);
	}
	return add_ids(r, &x[0], n > 1 ? &x[1] : NULL, out, e);
}

typedef int record_fn(
	const struct records *r, const json_t *root, struct marked *out, struct err *e);
static record_fn *const record_readers[] = {
	[RECORD_PROMPT] = read_prompt,
	[RECORD_MESSAGES] = read_messages,
	[RECORD_SPANS] = read_spans,
	[RECORD_IDS] = read_ids,
	[RECORD_MASK] = read_ids,
};

int record_read(const struct records *r, const char *line, int64_t n, struct marked *out,
	struct err *e)
{
	marked_clear(out);
	bool is_prompt = r->p->record == RECORD_PROMPT;
	if ((is_prompt || r->p->record == RECORD_MESSAGES) &&
		jsonl_scan_turns(line, n, (const char *const *)r->field,
			is_prompt ? 2 : 1, &out->turns))
		return is_prompt ? lay_out_prompt(r, out, e) : apply_template(r, out, e);
	json_auto_t *root = jsonl_parse_object(line, n, e);
	return root ? record_readers[r->p->record](r, root, out, e) : -1;
}

/* Finds the lists of integers of a row; false: they are missing, or not lists of integers. */
static bool find_integers(
	const struct records *r, const char *row, struct numbers x[N_FIELDS])
{
	for (int i = 0; i < N_FIELDS && r->field[i]; i++) {
		if (!row_find_integers(row, r->field[i], &x[i].cells))
			return false;
		x[i].n = (size_t)x[i].cells.n;
	}
	return true;
}

int record_read_row(const struct records *r, const char *row, int64_t n,
	struct marked *out, struct err *e)
{
	struct numbers x[N_FIELDS] = {0};
	marked_clear(out);
	if (record_has_ids(r->p->record) && find_integers(r, row, x))
		return add_ids(r, &x[0], r->field[1] ? &x[1] : NULL, out, e);
	json_auto_t *root = row_to_json(row, n, e);
	return root ? record_readers[r->p->record](r, root, out, e) : -1;
}
