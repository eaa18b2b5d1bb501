/* Logs in JSON: Megatron-LM's and Megatron-Bridge's golden values, trainer_state.json of Hugging
 * Face, and JSON lines. */
#include "base/json.h"
#include "logs/logs_internal.h"

#include <ctype.h>
#include <math.h>

/* Numbers that Python prints, but JSON lacks. */
static const char *const not_json[] = {
	"-Infinity", "Infinity", "NaN", "-inf", "inf", "nan"};

/* Returns the length of NaN or infinity at the beginning of a text; 0: neither. */
static size_t special_length(struct span s)
{
	for (size_t i = 0; i < ARRAY_LEN(not_json); i++)
		if (span_begins(s, not_json[i]))
			return strlen(not_json[i]);
	return 0;
}

/* Appends JSON, with NaN and infinity as strings. */
static void quote_special(struct span s, struct str *out)
{
	bool in_string = false;
	size_t n_copied = 0;
	for (size_t i = 0; i < s.n; i++) {
		if (s.p[i] == '"')
			in_string = !in_string;
		else if (in_string && s.p[i] == '\\')
			i++;
		if (in_string || !strchr("NIni-", s.p[i < s.n ? i : s.n - 1]))
			continue;
		size_t n = special_length((struct span){s.p + i, s.n - i});
		if (!n)
			continue;
		str_add(out, s.p + n_copied, i - n_copied);
		str_printf(out, "\"%.*s\"", (int)n, s.p + i);
		n_copied = i + n;
		i = n_copied - 1;
	}
	str_add(out, s.p + n_copied, s.n - n_copied);
}

/* Parses JSON that may have NaN and infinity. */
static json_t *load_json_text(struct span text, json_error_t *why)
{
	json_t *root = load_json(text.p, text.n, 0, why);
	if (root)
		return root;
	scoped_str quoted = {0};
	quote_special(text, &quoted);
	root = load_json(quoted.s, quoted.len, 0, why);
	return root;
}

/* Parses text as a JSON object, which the caller releases. Returns NULL with *e set. */
static json_t *load_json_object(struct span text, struct err *e)
{
	json_error_t why;
	json_t *root = load_json_text(text, &why);
	if (json_is_object(root))
		return root;
	if (root)
		err_set(e, EX_DATAERR, "the text is not a JSON object");
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

/* Records a string that is where a number should be. */
static void add_unread(struct build *b, int64_t step, struct span name, const json_t *j)
{
	const char *s = json_string_value(j);
	if (s)
		build_add_unread(b, step, name, (struct span){s, json_string_length(j)});
}

/* Records a row as lost if its step begins like a number, but is not a step. */
static void add_lost_row(struct build *b, const json_t *step)
{
	char text[NUM_TEXT];
	const char *s = json_string_value(step);
	if (json_is_number(step))
		s = text_double(text, json_number_value(step));
	if (s && begins_as_number(s, s + strlen(s)))
		build_add_lost_row(b, span_of(s));
}

/* Reads a key that is a step. Returns false for any other key. */
static bool scan_step_key(const char *key, int64_t *step)
{
	const char *p = scan_step(span_of(key), step);
	return p && !*p && isdigit((unsigned char)*key);
}

/* Returns the first byte that is not a blank, or an empty text. */
static const char *skip_blanks(struct span s)
{
	size_t i = 0;
	while (i < s.n && isspace((unsigned char)s.p[i]))
		i++;
	return i < s.n ? s.p + i : "";
}

bool is_megatron_golden(struct span first)
{
	return *skip_blanks(first) == '{' && span_find(first, "\"start_step\"") &&
	       span_find(first, "\"values\"");
}

/* Parses a metric: {"start_step": 1, "end_step": 100, "step_interval": 5, "values": {"1": 10.9,
 * "5": "nan"}}; "nan" means not logged. The values may be a list, one per step_interval. */
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
		if (!scan_step_key(key, &step))
			build_add_lost_row(b, span_of(key));
		else if (!get_number(v, &x))
			add_unread(b, step, span_of(name), v);
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

int parse_megatron_golden(struct build *b, struct span text, struct err *e)
{
	json_t *root = load_json_object(text, e), *metric;
	const char *name;
	b->is_table = true; /* keys may be in alphabetic order */
	json_object_foreach(root, name, metric) parse_metric(b, name, metric);
	json_decref(root);
	return root ? 0 : -1;
}

/* Detects {"0": {"lm loss": 11.89, "elapsed time per iteration (ms)": 284.2}}. */
bool is_megatron_bridge(struct span first)
{
	const char *p = skip_blanks(first), *end = first.p + first.n;
	if (*p != '{')
		return false;
	p = skip_blanks((struct span){p + 1, (size_t)(end - p - 1)});
	if (*p != '"' || p + 1 == end || !isdigit((unsigned char)p[1]))
		return false;
	return span_find(first, "lm loss\"") || span_find(first, "loss\"");
}

/* Adds the values of a file of Megatron-Bridge: an object of steps, each an object of
 * values. Returns -1 with *e set. */
int parse_megatron_bridge(struct build *b, struct span text, struct err *e)
{
	json_t *root = load_json_object(text, e), *row, *v;
	const char *step_key, *key;
	int64_t step;
	double x;
	b->is_table = true;
	json_object_foreach(root, step_key, row)
	{
		if (!scan_step_key(step_key, &step)) {
			if (begins_as_number(step_key, step_key + strlen(step_key)))
				build_add_lost_row(b, span_of(step_key));
			continue;
		}
		json_object_foreach(row, key, v)
		{
			if (get_number(v, &x))
				build_set(b, step, span_of(key), x);
			else
				add_unread(b, step, span_of(key), v);
		}
	}
	json_decref(root);
	return root ? 0 : -1;
}

/* ---- trainer_state.json ------------------------------------------------------------ */

bool is_trainer_state(struct span first)
{
	return *skip_blanks(first) == '{' && span_find(first, "\"log_history\"");
}

/* Adds the numbers of an object that are known settings of the run to b. */
static void add_json_settings(struct build *b, json_t *object)
{
	const char *key;
	json_t *v;
	json_object_foreach(object, key, v)
	{
		const char *option = option_for_setting(b->opts, span_of(key));
		char text[NUM_TEXT];
		if (!option || !json_is_number(v))
			continue;
		text_double(text, json_number_value(v));
		build_add_setting(b, option, span_of(text));
	}
}

/* Parses a row of log_history: {"epoch": 0.1, "grad_norm": 1.2, "loss": 2.5, "step": 10}. The last
 * row has the mean training loss. */
static void parse_history_row(struct build *b, json_t *row)
{
	const char *key;
	json_t *v;
	double step, x;
	json_t *step_value = json_object_get(row, "step");
	if (!get_number(step_value, &step) || !column_accepts(COL_STEP, step)) {
		add_lost_row(b, step_value);
		return;
	}
	build_begin_row(b, (int64_t)step, json_object_get(row, "loss") != NULL);
	json_object_foreach(row, key, v)
	{
		const char *name = strcmp(key, "train_loss") ? key : "mean_train_loss";
		if (!strcmp(key, "step"))
			continue;
		if (get_number(v, &x))
			build_set(b, (int64_t)step, span_of(name), x);
		else
			add_unread(b, (int64_t)step, span_of(name), v);
	}
}

/* Adds the settings and the log history of Hugging Face's trainer_state.json to b.
 * Returns -1 with *e set. */
int parse_trainer_state(struct build *b, struct span text, struct err *e)
{
	json_t *root = load_json_object(text, e), *row;
	size_t i;
	b->is_table = true;
	add_json_settings(b, root);
	json_array_foreach(json_object_get(root, "log_history"), i, row)
		parse_history_row(b, row);
	json_decref(root);
	return root ? 0 : -1;
}

/* ---- JSON lines -------------------------------------------------------------------- */

enum { MAX_DEPTH = 4 };

/* Sets a path such as "a/b" to its first `prefix` bytes and a key. */
static void set_path_key(struct str *path, size_t prefix, const char *key)
{
	path->len = prefix;
	if (prefix)
		str_putc(path, '/');
	str_puts(path, key);
}

/* Reads a step from a number or from a string such as "5/30", which is step 5 of 30. */
static bool scan_json_step(const json_t *j, double *v)
{
	const char *s = json_string_value(j);
	int64_t step;
	const char *p = s && strchr(s, '/') ? scan_step(span_of(s), &step) : NULL;
	if (!p || *p != '/')
		return get_number(j, v) && column_accepts(COL_STEP, *v);
	*v = (double)step;
	return true;
}

/* Returns the value of the step, or NULL. *invalid: set to a value that should be a step. */
static json_t *find_json_step(json_t *object, int64_t *step, json_t **invalid, int depth)
{
	const char *key;
	json_t *v;
	double x;
	json_object_foreach(object, key, v)
	{
		json_t *within = json_is_object(v) && depth < MAX_DEPTH
					 ? find_json_step(v, step, invalid, depth + 1)
					 : NULL;
		if (within)
			return within;
		if (!name_is_step(span_of(key)))
			continue;
		if (!scan_json_step(v, &x)) {
			*invalid = json_is_null(v) ? *invalid : v;
			continue;
		}
		*step = (int64_t)x;
		return v;
	}
	return NULL;
}

/* Adds the values of an object, except step_value. path: the keys of the objects around it. */
static void parse_object(struct build *b, json_t *object, struct str *path, int64_t step,
	const json_t *step_value, int depth)
{
	const char *key;
	json_t *v;
	size_t prefix = path->len;
	json_object_foreach(object, key, v)
	{
		double x;
		set_path_key(path, prefix, key);
		if (json_is_object(v) && depth < MAX_DEPTH) {
			if (!strcmp(key, "metrics")) /* ezpz's names omit it */
				path->len = prefix;
			parse_object(b, v, path, step, step_value, depth + 1);
		} else if (v == step_value) {
			continue;
		} else if (get_number(v, &x)) { /* fairseq has them in quotes */
			build_set(b, step, (struct span){path->s, path->len}, x);
		} else {
			add_unread(b, step, (struct span){path->s, path->len}, v);
		}
	}
	path->len = prefix;
}

/* Returns true if an object has a loss or another known column. */
static bool has_known_column(const struct log_options *opts, json_t *object, int depth)
{
	const char *key;
	json_t *v;
	json_object_foreach(object, key, v)
	{
		double scale;
		struct span column = our_column(opts, span_of(key), &scale);
		if (column_find(column.p) >= 0)
			return true;
		if (json_is_object(v) && depth < MAX_DEPTH &&
			has_known_column(opts, v, depth + 1))
			return true;
	}
	return false;
}

/* Adds the values of a JSON object, unless another run is selected or it is not a row of a log.
 * Returns true if it has values. line: the text of the row. */
static bool parse_json_row(struct build *b, json_t *row, struct span line)
{
	scoped_str path = {0};
	json_t *invalid = NULL;
	int64_t points = b->n_points, step = b->table.rows;
	const char *run = json_string_value(json_object_get(row, "run"));
	if (run && !runs_select_row(&b->table, run))
		return false;
	const json_t *step_value = row ? find_json_step(row, &step, &invalid, 0) : NULL;
	const char *key = json_string_value(json_object_get(row, "key"));
	double x, time = 0;
	if (key && step_value && get_number(json_object_get(row, "value"), &x)) {
		build_set(b, step, span_of(key), x); /* MLflow */
		if (get_number(json_object_get(row, "timestamp"), &time))
			build_set_time(b, step, time / 1e3);
	} else if (!row && span_find(line, "loss\""))
		build_add_lost_row(b, line);
	else if (!step_value && invalid && has_known_column(b->opts, row, 0))
		add_lost_row(b, invalid);
	else if (step_value || has_known_column(b->opts, row, 0)) {
		b->table.json_row = ++b->table.rows;
		parse_object(b, row, &path, step, step_value, 0);
		b->table.json_row = 0;
		build_set_time(b, step, b->line.stamp);
	}
	return b->n_points > points;
}

/* Parses the text of a JSON row. */
static bool parse_row_text(struct build *b, struct span line)
{
	json_error_t why;
	json_auto_t *row = load_json_text(line, &why);
	return parse_json_row(b, row, line);
}

/* Adds the values of a line with a JSON object, perhaps after a prefix of fairseq.
 * Returns true if it has any. */
bool parse_jsonl_line(struct build *b, struct span line)
{
	/* fairseq: "2026-01-01 10:00:00 | INFO | train_inner | {" */
	const char *begin = span_find(line, " | {\"");
	b->line.stamp = begin ? time_of_line(line) : 0;
	if (begin)
		line = (struct span){begin + 3, line.n - (size_t)(begin + 3 - line.p)};
	line = span_trim(line);
	if (line.n < 2 || *line.p != '{' || line.p[line.n - 1] != '}')
		return false;
	bool has_values = parse_row_text(b, line);
	b->n_parsed += has_values;
	return has_values;
}

/* Detects MLflow's {"metrics": [{"key": "loss", "value": 2.5, "timestamp": 1764201600500}]}. */
static bool is_mlflow_history(struct span first)
{
	return *skip_blanks(first) == '{' && span_find(first, "\"metrics\"") &&
	       span_find(first, "\"key\"") && span_find(first, "\"timestamp\"");
}

bool is_json_array(struct span first)
{
	const char *p = skip_blanks(first), *end = first.p + first.n;
	if (is_mlflow_history(first))
		return true;
	if (*p != '[' || span_find(first, "{\"log\": \"")) /* LLMQ's */
		return false;
	p = skip_blanks((struct span){p + 1, (size_t)(end - p - 1)});
	double time;
	const char *after =
		*p == '['
			? scan_number((struct span){p + 1, (size_t)(end - p - 1)}, &time)
			: NULL;
	/* lines may begin with [[rank0]] or [2026-01-01 */
	return *p == '{' || (after && *skip_blanks((struct span){
					      after, (size_t)(end - after)}) == ',');
}

/* Parses [1764201600.5, 10, 2.5]: wall time, step and value, as TensorBoard exports a scalar. */
static void parse_tensorboard_triple(struct build *b, const json_t *row)
{
	double step = -1, v, time;
	const json_t *at = json_array_get(row, 1), *value = json_array_get(row, 2);
	struct span name = rename_export_value(b->opts, SPAN("Value"));
	if (!get_number(at, &step) || !column_accepts(COL_STEP, step))
		add_lost_row(b, at);
	else if (get_number(value, &v))
		build_set(b, (int64_t)step, name, v);
	else
		add_unread(b, (int64_t)step, name, value);
	if (column_accepts(COL_STEP, step) && get_number(json_array_get(row, 0), &time))
		build_set_time(b, (int64_t)step, time);
}

/* Adds each object or TensorBoard triple of a JSON array to b. Returns -1 with *e set. */
int parse_json_array(struct build *b, struct span text, struct err *e)
{
	json_error_t why;
	json_t *root = load_json_text(text, &why), *row;
	json_t *rows = json_is_object(root) ? json_object_get(root, "metrics") : root;
	size_t i;
	b->is_table = true;
	json_array_foreach(rows, i, row)
	{
		if (json_is_array(row))
			parse_tensorboard_triple(b, row);
		else if (json_is_object(row))
			parse_json_row(b, row, text);
	}
	json_decref(root);
	return root ? 0 : err_set(e, EX_DATAERR, "line %d: %s", why.line, why.text);
}
