/* Logs in JSON: Megatron-LM's and Megatron-Bridge's golden values, trainer_state.json of Hugging
 * Face, and JSON lines. */
#include "base/json.h"
#include "logs/logs_internal.h"

#include <ctype.h>
#include <math.h>

/* ---- JSON with NaN --------------------------------------------------------------- */

/* Numbers that Python prints and JSON does not have: they become strings. */
static const char *const not_json[] = {
	"-Infinity", "Infinity", "NaN", "-inf", "inf", "nan"};

static size_t special_at(struct span s)
{
	for (size_t i = 0; i < ARRAY_LEN(not_json); i++)
		if (span_begins(s, not_json[i]))
			return strlen(not_json[i]);
	return 0;
}

static void quote_special(struct span s, struct str *out)
{
	bool quoted = false;
	size_t done = 0;
	for (size_t i = 0; i < s.n; i++) {
		if (s.p[i] == '"')
			quoted = !quoted;
		else if (quoted && s.p[i] == '\\')
			i++;
		if (quoted || !strchr("NIni-", s.p[i < s.n ? i : s.n - 1]))
			continue;
		size_t n = special_at((struct span){s.p + i, s.n - i});
		if (!n)
			continue;
		str_add(out, s.p + done, i - done);
		str_printf(out, "\"%.*s\"", (int)n, s.p + i);
		done = i + n;
		i = done - 1;
	}
	str_add(out, s.p + done, s.n - done);
}

/* Parses JSON, if necessary with NaN and infinity. */
static json_t *load_text(struct span text, json_error_t *why)
{
	json_t *root = load_json(text.p, text.n, 0, why);
	if (root)
		return root;
	scoped_str quoted = {0};
	quote_special(text, &quoted);
	root = load_json(quoted.s, quoted.len, 0, why);
	return root;
}

static json_t *load_object(struct span text, struct err *e)
{
	json_error_t why;
	json_t *root = load_text(text, &why);
	if (json_is_object(root))
		return root;
	if (root)
		err_set(e, EX_DATAERR, "not a JSON object");
	else
		err_set(e, EX_DATAERR, "line %d: %s", why.line, why.text);
	json_decref(root);
	return NULL;
}

/* Reads a number, or a string with one, such as "nan". */
static bool get_number(const json_t *j, double *v)
{
	if (json_is_number(j)) {
		*v = json_number_value(j);
		return true;
	}
	const char *s = json_string_value(j);
	const char *end = s ? s + json_string_length(j) : NULL;
	return s < end && scan_double(s, end, v) == end;
}

/* Records a string in the place of a number. */
static void note_unread_value(
	struct build *b, int64_t step, struct span name, const json_t *j)
{
	const char *s = json_string_value(j);
	if (s)
		build_unread(b, step, name, (struct span){s, json_string_length(j)});
}

/* Records a row whose value of the step is not a step. */
static void lose_row(struct build *b, const json_t *step)
{
	char text[NUM_TEXT];
	const char *s = json_string_value(step);
	if (json_is_number(step))
		s = text_double(text, json_number_value(step));
	if (s && begins_as_number(s, s + strlen(s)))
		build_lost_row(b, span_of(s));
}

static bool step_of_key(const char *key, int64_t *step)
{
	const char *p = scan_step(span_of(key), step);
	return p && !*p && isdigit((unsigned char)*key);
}

static const char *after_blanks(struct span s)
{
	size_t i = 0;
	while (i < s.n && isspace((unsigned char)s.p[i]))
		i++;
	return i < s.n ? s.p + i : "";
}

/* ---- golden values ---------------------------------------------------------------- */

bool is_golden(struct span first)
{
	return *after_blanks(first) == '{' && span_find(first, "\"start_step\"") &&
	       span_find(first, "\"values\"");
}

/* Parses {"start_step": 1, "end_step": 100, "step_interval": 5, "values": {"1": 10.9, "5":
 * "nan"}}; "nan" means not logged. */
static void parse_metric(struct build *b, const char *name, json_t *metric)
{
	json_t *values = json_object_get(metric, "values"), *v;
	size_t i;
	const char *key;
	int64_t step, first = json_integer_value(json_object_get(metric, "start_step"));
	int64_t interval = json_integer_value(json_object_get(metric, "step_interval"));
	double x;
	json_object_foreach(values, key, v)
	{
		if (!step_of_key(key, &step))
			build_lost_row(b, span_of(key));
		else if (!get_number(v, &x))
			note_unread_value(b, step, span_of(name), v);
		else if (!isnan(x))
			build_set(b, step, span_of(name), x);
	}
	json_array_foreach(values, i, v)
	{
		if (!get_number(v, &x) || isnan(x) || first < 0 || first > 1 << 30 ||
			interval < 0 || interval > 1 << 20)
			continue;
		build_set(b, first + (int64_t)i * max64(interval, 1), span_of(name), x);
	}
}

int text_golden(struct build *b, struct span text, struct err *e)
{
	json_t *root = load_object(text, e), *metric;
	const char *name;
	b->is_table = true; /* keys may be in alphabetic order */
	json_object_foreach(root, name, metric) parse_metric(b, name, metric);
	json_decref(root);
	return root ? 0 : -1;
}

/* Detects {"0": {"lm loss": 11.89, "elapsed time per iteration (ms)": 284.2}}. */
bool is_bridge(struct span first)
{
	const char *p = after_blanks(first), *end = first.p + first.n;
	if (*p != '{')
		return false;
	p = after_blanks((struct span){p + 1, (size_t)(end - p - 1)});
	if (*p != '"' || p + 1 == end || !isdigit((unsigned char)p[1]))
		return false;
	return span_find(first, "lm loss\"") || span_find(first, "loss\"");
}

int text_bridge(struct build *b, struct span text, struct err *e)
{
	json_t *root = load_object(text, e), *row, *v;
	const char *step_key, *key;
	int64_t step;
	double x;
	b->is_table = true;
	json_object_foreach(root, step_key, row)
	{
		if (!step_of_key(step_key, &step)) {
			if (begins_as_number(step_key, step_key + strlen(step_key)))
				build_lost_row(b, span_of(step_key));
			continue;
		}
		json_object_foreach(row, key, v)
		{
			if (get_number(v, &x))
				build_set(b, step, span_of(key), x);
			else
				note_unread_value(b, step, span_of(key), v);
		}
	}
	json_decref(root);
	return root ? 0 : -1;
}

/* ---- trainer_state.json ------------------------------------------------------------ */

bool is_trainer_state(struct span first)
{
	return *after_blanks(first) == '{' && span_find(first, "\"log_history\"");
}

static void parse_settings(struct build *b, json_t *object)
{
	const char *key;
	json_t *v;
	json_object_foreach(object, key, v)
	{
		const char *to = name_of_setting(b->how, span_of(key));
		char text[NUM_TEXT];
		if (!to || !json_is_number(v))
			continue;
		text_double(text, json_number_value(v));
		build_setting(b, to, span_of(text));
	}
}

/* Parses {"epoch": 0.1, "grad_norm": 1.2, "learning_rate": 5e-05, "loss": 2.5, "step": 10}. The
 * last row has the mean training loss. */
static void parse_history(struct build *b, json_t *row)
{
	const char *key;
	json_t *v;
	double step, x;
	json_t *at = json_object_get(row, "step");
	if (!get_number(at, &step) || !column_accepts(COL_STEP, step)) {
		lose_row(b, at);
		return;
	}
	build_row(b, (int64_t)step, json_object_get(row, "loss") != NULL);
	json_object_foreach(row, key, v)
	{
		const char *name = strcmp(key, "train_loss") ? key : "mean_train_loss";
		if (!strcmp(key, "step"))
			continue;
		if (get_number(v, &x))
			build_set(b, (int64_t)step, span_of(name), x);
		else
			note_unread_value(b, (int64_t)step, span_of(name), v);
	}
}

int text_trainer_state(struct build *b, struct span text, struct err *e)
{
	json_t *root = load_object(text, e), *row;
	size_t i;
	b->is_table = true;
	parse_settings(b, root);
	json_array_foreach(json_object_get(root, "log_history"), i, row)
		parse_history(b, row);
	json_decref(root);
	return root ? 0 : -1;
}

/* ---- JSON lines -------------------------------------------------------------------- */

enum { MAX_DEPTH = 4 };

/* Appends a key to a path such as "a/b". */
static void set_key(struct str *path, size_t prefix, const char *key)
{
	path->len = prefix;
	if (prefix)
		str_putc(path, '/');
	str_puts(path, key);
}

/* Reads a step, or "5/30", step 5 of 30. */
static bool get_step(const json_t *j, double *v)
{
	const char *s = json_string_value(j);
	int64_t step;
	const char *p = s && strchr(s, '/') ? scan_step(span_of(s), &step) : NULL;
	if (!p || *p != '/')
		return get_number(j, v) && column_accepts(COL_STEP, *v);
	*v = (double)step;
	return true;
}

/* Returns the value of the step, or NULL; *other: a value that is not a step, or NULL. */
static json_t *find_json_step(json_t *object, int64_t *step, json_t **other, int depth)
{
	const char *key;
	json_t *v;
	double x;
	json_object_foreach(object, key, v)
	{
		json_t *within = json_is_object(v) && depth < MAX_DEPTH
					 ? find_json_step(v, step, other, depth + 1)
					 : NULL;
		if (within)
			return within;
		if (!name_is_step(span_of(key)))
			continue;
		if (!get_step(v, &x)) {
			*other = json_is_null(v) ? *other : v;
			continue;
		}
		*step = (int64_t)x;
		return v;
	}
	return NULL;
}

/* Adds the values of an object. at: the value of the step; all other names of steps are columns. */
static void parse_object(struct build *b, json_t *object, struct str *path, int64_t step,
	const json_t *at, int depth)
{
	const char *key;
	json_t *v;
	size_t prefix = path->len;
	json_object_foreach(object, key, v)
	{
		double x;
		set_key(path, prefix, key);
		if (json_is_object(v) && depth < MAX_DEPTH) {
			if (!strcmp(key, "metrics")) /* ezpz: without a name */
				path->len = prefix;
			parse_object(b, v, path, step, at, depth + 1);
		} else if (v == at) {
			continue;
		} else if (get_number(v, &x)) { /* fairseq has them in quotes */
			build_set(b, step, (struct span){path->s, path->len}, x);
		} else {
			note_unread_value(b, step, (struct span){path->s, path->len}, v);
		}
	}
	path->len = prefix;
}

/* Returns true if an object has a loss or another known column. */
static bool has_known(const struct log_how *how, json_t *object, int depth)
{
	const char *key;
	json_t *v;
	json_object_foreach(object, key, v)
	{
		double scale;
		struct span column = name_of_column(how, span_of(key), &scale);
		if (column_find(column.p) >= 0)
			return true;
		if (json_is_object(v) && depth < MAX_DEPTH &&
			has_known(how, v, depth + 1))
			return true;
	}
	return false;
}

static bool parse_json_row(struct build *b, json_t *row, struct span line)
{
	scoped_str path = {0};
	json_t *other = NULL;
	int64_t points = b->n_points, step = b->table.rows;
	const char *run = json_string_value(json_object_get(row, "run"));
	if (run && !runs_select_row(&b->table, run))
		return false;
	const json_t *at = row ? find_json_step(row, &step, &other, 0) : NULL;
	const char *key = json_string_value(json_object_get(row, "key"));
	double x, time = 0;
	if (key && at && get_number(json_object_get(row, "value"), &x)) {
		build_set(b, step, span_of(key), x); /* MLflow */
		if (get_number(json_object_get(row, "timestamp"), &time))
			build_clock(b, step, time / 1e3);
	} else if (!row && span_find(line, "loss\""))
		build_lost_row(b, line);
	else if (!at && other && has_known(b->how, row, 0))
		lose_row(b, other);
	else if (at || has_known(b->how, row, 0)) {
		b->table.json_row = ++b->table.rows;
		parse_object(b, row, &path, step, at, 0);
		b->table.json_row = 0;
		build_clock(b, step, b->line.stamp);
	}
	return b->n_points > points;
}

static bool parse_json(struct build *b, struct span line)
{
	json_error_t why;
	json_auto_t *row = load_text(line, &why);
	return parse_json_row(b, row, line);
}

bool line_jsonl(struct build *b, struct span line)
{
	/* fairseq: "2026-01-01 10:00:00 | INFO | train_inner | {" */
	const char *begin = span_find(line, " | {\"");
	b->line.stamp = begin ? time_of_line(line) : 0;
	if (begin)
		line = (struct span){begin + 3, line.n - (size_t)(begin + 3 - line.p)};
	line = span_trim(line);
	if (line.n < 2 || *line.p != '{' || line.p[line.n - 1] != '}')
		return false;
	bool any = parse_json(b, line);
	b->n_parsed += any;
	return any;
}

/* ---- arrays ------------------------------------------------------------------------ */

/* Detects MLflow's {"metrics": [{"key": "loss", "value": 2.5, "timestamp": 1764201600500}]}. */
static bool is_history(struct span first)
{
	return *after_blanks(first) == '{' && span_find(first, "\"metrics\"") &&
	       span_find(first, "\"key\"") && span_find(first, "\"timestamp\"");
}

bool is_array(struct span first)
{
	const char *p = after_blanks(first), *end = first.p + first.n;
	if (is_history(first))
		return true;
	if (*p != '[' || span_find(first, "{\"log\": \"")) /* LLMQ's */
		return false;
	p = after_blanks((struct span){p + 1, (size_t)(end - p - 1)});
	double time;
	const char *after =
		*p == '['
			? scan_number((struct span){p + 1, (size_t)(end - p - 1)}, &time)
			: NULL;
	/* lines may begin with [[rank0]] or [2026-01-01 */
	return *p == '{' || (after && *after_blanks((struct span){
					      after, (size_t)(end - after)}) == ',');
}

/* Parses [1764201600.5, 10, 2.5]: wall time, step and value, as TensorBoard exports a scalar. */
static void parse_triple(struct build *b, const json_t *row)
{
	double step = -1, v, time;
	const json_t *at = json_array_get(row, 1), *value = json_array_get(row, 2);
	struct span name = value_of_export(b->how, SPAN("Value"));
	if (!get_number(at, &step) || !column_accepts(COL_STEP, step))
		lose_row(b, at);
	else if (get_number(value, &v))
		build_set(b, (int64_t)step, name, v);
	else
		note_unread_value(b, (int64_t)step, name, value);
	if (column_accepts(COL_STEP, step) && get_number(json_array_get(row, 0), &time))
		build_clock(b, (int64_t)step, time);
}

int text_array(struct build *b, struct span text, struct err *e)
{
	json_error_t why;
	json_t *root = load_text(text, &why), *row;
	json_t *rows = json_is_object(root) ? json_object_get(root, "metrics") : root;
	size_t i;
	b->is_table = true;
	json_array_foreach(rows, i, row)
	{
		if (json_is_array(row))
			parse_triple(b, row);
		else if (json_is_object(row))
			parse_json_row(b, row, text);
	}
	json_decref(root);
	return root ? 0 : err_set(e, EX_DATAERR, "line %d: %s", why.line, why.text);
}
