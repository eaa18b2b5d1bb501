/* Lines that name each number: key=value (ezpz), "name: value |" (Megatron), one per line
 * (OLMo-core). */
#include "logs/formats.h"

#include <ctype.h>

/* ---- wordplay and ezpz ------------------------------------------------------------- */

/* Returns the next word and moves *rest after it; empty: no more words. */
static struct span next_word(struct span *rest)
{
	while (rest->n && isspace((unsigned char)*rest->p))
		rest->p++, rest->n--;
	struct span word = {rest->p, 0};
	while (word.n < rest->n && !isspace((unsigned char)word.p[word.n]))
		word.n++;
	rest->p += word.n, rest->n -= word.n;
	return word;
}

/* Splits "name=number", perhaps followed by "(±0.02)". Returns false for any other word. */
static bool split_pair(struct span word, struct span *name, double *v)
{
	const char *equals = word.n ? memchr(word.p, '=', word.n) : NULL;
	if (!equals || equals == word.p)
		return false;
	const char *begin = equals + 1, *end = word.p + word.n;
	const char *p = scan_double(begin, end, v);
	*name = (struct span){word.p, (size_t)(equals - word.p)};
	return p > begin && (p == end || *p == '(' || *p == '/' ||
				    (*p == ',' && !number_continues((struct span){
							  p, (size_t)(end - p)})));
}

/* Records the unreadable value of a pair such as "name=2abc". */
static bool record_unread_pair(struct build *b, struct span word, bool begins_row)
{
	const char *equals = word.n ? memchr(word.p, '=', word.n) : NULL;
	if (!equals)
		return false;
	const char *text = equals + 1;
	struct span name = {word.p, (size_t)(equals - word.p)};
	if (begins_row && begins_as_number(text, word.p + word.n))
		build_begin_row(b, b->line.step, true);
	return build_add_unread(b, b->line.step, name,
		(struct span){text, (size_t)(word.p + word.n - text)});
}

/* Reads "step=100" or "iter=100". Returns the byte after it, or NULL. Records a row with an invalid
 * step as lost. */
static const char *scan_step_pair(struct build *b, struct span line, int64_t *step)
{
	static const char *const marks[] = {"step=", "iter="};
	for (size_t i = 0; i < ARRAY_LEN(marks); i++) {
		const char *p = span_find_word(line, marks[i]);
		const char *end = line.p + line.n;
		if (!p || (p > line.p && !isspace((unsigned char)p[-1])))
			continue;
		const char *number = p + strlen(marks[i]);
		const char *after =
			scan_step((struct span){number, (size_t)(end - number)}, step);
		if (after && (after == end || isspace((unsigned char)*after)))
			return after;
		if (begins_as_number(number, end) && (!after || *after != '/') &&
			span_find_word(line, "loss="))
			build_add_lost_row(b, (struct span){p, (size_t)(end - p)});
	}
	return NULL;
}

/* Adds the values of pairs. Returns their number; -1 if is_strict and a word is not a pair. */
static int parse_pairs(
	struct build *b, struct span rest, bool is_training, bool is_strict)
{
	int n = 0;
	for (struct span word = next_word(&rest); word.n; word = next_word(&rest)) {
		struct span name;
		double v;
		if (!split_pair(word, &name, &v)) {
			if (is_strict)
				return -1;
			n += record_unread_pair(b, word, !n && is_training);
			continue;
		}
		if (!n++ && is_training)
			build_begin_row(b, b->line.step, true);
		if (name.n == 3 && !memcmp(name.p, "mfu", 3))
			v *= 1e-2; /* printed in percent */
		build_set(b, b->line.step, name, v);
	}
	return n;
}

static bool has_only_pairs(struct span rest)
{
	struct span name;
	double v;
	for (struct span word = next_word(&rest); word.n; word = next_word(&rest))
		if (!split_pair(word, &name, &v))
			return false;
	return true;
}

/* Adds a row "step=1 loss=2 ..." to b. Adds pairs on following lines to the same row, but
 * returns false for these lines. */
bool parse_wordplay_line(struct build *b, struct span line)
{
	const char *p = scan_step_pair(b, line, &b->line.step);
	if (p) {
		struct span pairs = {p, (size_t)(line.p + line.n - p)};
		b->line.open = parse_pairs(b, pairs, true, false) > 0;
		if (b->line.open)
			build_set_time(b, b->line.step, time_of_line(line));
		return b->line.open;
	}
	/* (the library rich breaks long lines: this one may continue a row) */
	b->line.open = b->line.open && has_only_pairs(line) &&
		       parse_pairs(b, line, false, true) > 0;
	return false;
}

/* ---- fields: names with numbers ------------------------------------------------------ */

struct fields_row {
	struct build *b;
	const struct fields *f;
	int64_t step;
	bool is_training, has_begun;
	bool has_loss, has_nan; /* has_nan: the row states a number of NaN iterations */
};

/* Returns true for Lightning's v_num, and for values that a progress bar only repeats. */
static bool is_stale(struct build *b, struct span name, double v)
{
	struct known_name *known = build_add_name(b, name);
	struct series *s = known && known->series >= 0 ? &b->series[known->series] : NULL;
	bool is_lasting = span_begins(name, "val") ||
			  (name.n > 6 && !memcmp(name.p + name.n - 6, "_epoch", 6));
	return span_begins(name, "v_num") ||
	       (is_lasting && s && s->n && s->p[s->n - 1].v == v);
}

/* Removes "np.float64(" before a number of NumPy. */
static struct span strip_type(struct span text)
{
	const char *p = span_begins(text, "np.") ? memchr(text.p, '(', text.n) : NULL;
	return p ? (struct span){p + 1, (size_t)(text.p + text.n - p - 1)} : text;
}

static bool name_equals(struct span name, const char *text)
{
	return name.n == strlen(text) && span_begins(name, text);
}

/* Adds the value of a field such as " lm loss: 1.089E+01 "; the first field begins the row. Earlier
 * versions of Megatron-LM had no colon after some names. Programs derived from it have two numbers
 * in a field, such as " iteration time: 1.5 s samples/sec: 3.8 "; the first one is read. */
static void parse_field(struct fields_row *t, struct span field)
{
	field = span_trim(field);
	const char *sign = field.n ? memchr(field.p, t->f->assign, field.n) : NULL;
	const char *end = field.p + field.n;
	if (!sign && field.n && t->f->delimiter == '|')
		sign = memrchr(field.p, ' ', field.n);
	double v;
	if (!sign)
		return;
	struct span name = span_trim((struct span){field.p, (size_t)(sign - field.p)});
	struct span text = span_trim((struct span){sign + 1, (size_t)(end - sign - 1)});
	text = strip_type(text);
	const char *p = scan_number(text, &v);
	if (name_is_step(name) || (!p && !begins_as_number(text.p, end)) ||
		(t->f->delimiter == ',' && is_stale(t->b, name, p ? v : NAN)))
		return;
	if (!t->has_begun)
		build_begin_row(t->b, t->step, t->is_training);
	t->has_begun = true;
	if (t->f->loss && name_equals(name, t->f->loss))
		name = SPAN("lm loss");
	t->has_loss |= name_equals(name, "lm loss");
	t->has_nan |= p && v > 0 && name_equals(name, "number of nan iterations");
	struct span rest = {p, p ? (size_t)(end - p) : 0};
	if ((!p || number_continues(rest)) && build_add_unread(t->b, t->step, name, text))
		return;
	const char *key = t->f->suffix ? NULL : option_for_setting(t->b->opts, name);
	if (key && !strcmp(key, "batch"))
		build_add_setting(t->b, key, text);
	else if (p)
		build_set(t->b, t->step, name,
			t->f->suffix ? convert_unit(v, scale_of_suffix(rest)) : v);
}

bool parse_fields(struct build *b, struct span s, const struct line_kind *k, int64_t step)
{
	struct fields_row t = {b, &k->fields, step, k->is_training, false};
	bool is_field = t.f->delimiter != '|';
	while (s.n) {
		const char *stop = memchr(s.p, t.f->delimiter, s.n);
		size_t n = stop ? (size_t)(stop - s.p) : s.n;
		if (is_field)
			parse_field(&t, (struct span){s.p, n});
		is_field = true;
		n += stop != NULL;
		s = (struct span){s.p + n, s.n - n};
	}
	/* Megatron-LM prints only losses above 0. */
	if (t.has_nan && !t.has_loss)
		build_set(b, step, SPAN("lm loss"), NAN);
	return t.has_begun;
}

/* ---- blocks: a line with the step, and one line per field ---------------------------- */

/* Reads the step at p: "[epoch=2][batch=10/100]" is step 110. Returns the byte after, or NULL. */
static const char *scan_block_step(
	struct build *b, struct span line, const char *p, int64_t *step)
{
	const char *end = line.p + line.n, *epoch = span_find(line, "[epoch=");
	int64_t total = -1, number;
	p = scan_step((struct span){p, (size_t)(end - p)}, step);
	if (!p || p == end || (*p != '/' && *p != ']'))
		return NULL;
	const char *after = p;
	if (*p == '/')
		after = scan_step((struct span){p + 1, (size_t)(end - p - 1)}, &total);
	if (total >= 0 && !epoch)
		build_set_total(b, total);
	if (epoch)
		epoch += strlen("[epoch=");
	if (epoch && total > 0 &&
		scan_step((struct span){epoch, (size_t)(end - epoch)}, &number) &&
		number > 0 && number <= INT64_C(0x20000000000000) / total)
		*step += (number - 1) * total;
	return after ? after : p;
}

/* Removes the rank that srun prints before a line, as in "0:       Train ...". */
static struct span strip_rank(struct span line)
{
	size_t n = 0;
	while (n < line.n && isdigit((unsigned char)line.p[n]))
		n++;
	if (n && n < line.n && line.p[n] == ':')
		line = (struct span){line.p + n + 1, line.n - n - 1};
	return span_trim(line);
}

/* Returns the kind of line with fields whose mark a line begins with; NULL: none. */
static const struct line_kind *find_kind(const struct log_format *f, struct span line)
{
	for (int i = 0; i < f->n_kinds; i++)
		if (f->kinds[i].fields.assign && span_begins(line, f->kinds[i].mark))
			return &f->kinds[i];
	return NULL;
}

bool parse_block(struct build *b, const struct log_format *f, struct span line)
{
	const char *end = line.p + line.n;
	struct fields_row t = {b, &f->kinds->fields, b->line.step, true, false};
	for (int i = 0; f->heads[i]; i++) {
		const char *p = span_find(line, f->heads[i]);
		if (!p)
			continue;
		p = scan_block_step(b, line, p + strlen(f->heads[i]), &t.step);
		b->line.open = p != NULL;
		b->line.stamp = time_of_line(line);
		b->line.step = p ? t.step : b->line.step;
		p = p ? span_find((struct span){p, (size_t)(end - p)}, "]: ") : NULL;
		if (p)
			parse_field(&t, (struct span){p + 3, (size_t)(end - p - 3)});
		return t.has_begun;
	}
	if (f->ranks)
		line = strip_rank(line);
	const struct line_kind *k = find_kind(f, line);
	if (k && b->line.open) {
		size_t n = strlen(k->mark);
		t.f = &k->fields;
		t.is_training = k->is_training;
		parse_field(&t, (struct span){line.p + n, line.n - n});
	}
	b->line.open &= t.has_begun || !f->closes;
	if (t.has_begun)
		build_set_time(b, t.step, b->line.stamp);
	return t.has_begun;
}

/* ---- the progress bar of Lightning, and of NeMo 1 --------------------------------------- */

/* Removes the mean loss, which is first: "loss=2.5, v_num=0, train_loss=2.25, val_loss=2.5]". */
static struct span strip_mean_loss(struct span rest)
{
	const char *end = rest.p + rest.n, *p = span_find(rest, "v_num=");
	p = p && span_find(rest, "train_loss") ? memchr(p, ',', (size_t)(end - p)) : NULL;
	return p ? (struct span){p, (size_t)(end - p)} : rest;
}

/* Returns the seconds per batch in a text with "1.95it/s" or "4.47s/it"; NAN: not stated. */
static double parse_bar_time(struct span rest)
{
	double v;
	const char *end = rest.p + rest.n, *p = span_find(rest, "it/s");
	bool is_rate = p != NULL;
	p = is_rate ? p : span_find(rest, "s/it");
	const char *number = p;
	while (p && number > rest.p &&
		(number[-1] == '.' || isdigit((unsigned char)number[-1])))
		number--;
	if (!p || number == p || scan_double(number, end, &v) != p)
		return NAN;
	return is_rate ? 1 / v : v;
}

/* Parses "Epoch 1:  20%|##  | 20/100 [00:10<00:42, 1.95it/s, v_num=0, train_loss=2.5]" as step 120,
 * or as the bar's global_step=119.0. The time is the mean of the epoch so far. */
bool parse_lightning_line(struct build *b, struct span line)
{
	static const struct line_kind kind = {
		.is_training = true, .fields = {'=', ',', false, "train_loss"}};
	const char *end = line.p + line.n, *p = span_find_word(line, "Epoch ");
	int64_t epoch, n, total = 0, first = 0;
	p = p ? scan_step((struct span){p + 6, (size_t)(end - p - 6)}, &epoch) : NULL;
	const char *bracket = p ? memchr(p, '[', (size_t)(end - p)) : NULL;
	const char *bar = bracket ? memrchr(p, '|', (size_t)(bracket - p)) : NULL;
	if (!bar || (*p != ':' && *p != '/'))
		return false;
	bool has_total = *p == '/'; /* "Epoch 3/400" */
	int64_t epochs = 0;
	if (has_total)
		scan_step((struct span){p + 1, (size_t)(end - p - 1)}, &epochs);
	p = scan_step((struct span){bar + 1, (size_t)(bracket - bar - 1)}, &n);
	if (!p || *p != '/')
		return false;
	if (scan_step((struct span){p + 1, (size_t)(bracket - p - 1)}, &total))
		b->line.batches = total;
	else if (!epoch)
		b->line.batches = n; /* "20/?" */
	/* (the bar counts epochs or batches of an epoch; epochs of a total begin at 1) */
	bool by_epoch = has_total && total == epochs && (n == epoch || n + 1 == epoch);
	epoch -= has_total && !by_epoch && epoch > 0;
	if (!by_epoch && b->line.batches > 0 &&
		epoch < (INT64_C(1) << 53) / b->line.batches)
		first = epoch * b->line.batches, n += first;
	struct span rest = {bracket + 1, (size_t)(end - bracket - 1)};
	p = span_find_word(rest, "global_step=");
	if (p)
		scan_step((struct span){p + 12, (size_t)(end - p - 12)}, &n);
	if (!parse_fields(b, strip_mean_loss(rest), &kind, n))
		return false;
	/* (global_step may count several batches; NeMo prints its own time per step) */
	bool has_own_time = p || span_find(rest, "train_step_timing");
	if (!by_epoch && !has_own_time && n > first)
		build_set_mean(b, first, n, SPAN("dt"), parse_bar_time(rest));
	return true;
}

/* ---- Hugging Face's Trainer ------------------------------------------------------------ */

/* Reads the next "'name': value" or "'name': 'value'" of a dict, and moves *rest after it. */
static bool next_dict_item(struct span *rest, struct span *name, struct span *value)
{
	const char *end = rest->p + rest->n, *p = memchr(rest->p, '\'', rest->n);
	const char *q = p ? memchr(p + 1, '\'', (size_t)(end - p - 1)) : NULL;
	if (!q || q + 1 == end || q[1] != ':')
		return false;
	*name = (struct span){p + 1, (size_t)(q - p - 1)};
	p = q + 2;
	for (q = p; q < end && *q != ',' && *q != '}'; q++)
		;
	*value = span_trim((struct span){p, (size_t)(q - p)});
	if (value->n >= 2 && *value->p == '\'' && value->p[value->n - 1] == '\'')
		*value = (struct span){value->p + 1, value->n - 2};
	*rest = (struct span){q, (size_t)(end - q)};
	return true;
}

/* Returns the step that a dict states, or "step 12: " before it, as the trainer slime
 * prints; -1: none. */
static int64_t find_stated_step(struct span line, struct span dict)
{
	static const char *const marks[] = {"step ", "rollout ", "perf ", "eval "};
	struct span name, text, before = {line.p, (size_t)(dict.p - line.p)};
	int64_t step;
	while (dict.n && next_dict_item(&dict, &name, &text))
		if (name_is_step(name) && scan_step(text, &step))
			return step;
	for (size_t i = 0; i < ARRAY_LEN(marks); i++) {
		const char *p = span_find_word(before, marks[i]);
		const char *end = before.p + before.n;
		p = p ? p + strlen(marks[i]) : NULL;
		const char *q =
			p ? scan_step((struct span){p, (size_t)(end - p)}, &step) : NULL;
		if (q && q + 2 == end && !memcmp(q, ": ", 2))
			return step;
	}
	return -1;
}

/* Parses the speed in the last line, "{'train_runtime': 12.5, 'train_steps_per_second': 2.5, ...,
 * 'train_loss': 2.4}", unless the log has times of steps. Its loss is a mean. */
static void parse_summary(struct build *b, struct span rest)
{
	struct span name, text;
	double v;
	for (int i = 0; i < b->n_series; i++)
		if (b->series[i].column == COL_DT && b->series[i].n)
			return;
	while (rest.n && next_dict_item(&rest, &name, &text))
		if (span_find(name, "_per_second") && scan_number(text, &v))
			build_set(b, b->line.step, name, v);
}

/* Parses "{'loss': 2.5, 'learning_rate': 5e-05, 'epoch': 0.1}" or "{'eval_loss': 2.25, ...}". */
bool parse_trainer_line(struct build *b, struct span line)
{
	const char *p = span_find(line, "{'");
	struct span rest = {p, p ? (size_t)(line.p + line.n - p) : 0}, name, text;
	if (span_begins(rest, "{'train_runtime': "))
		parse_summary(b, rest);
	bool is_training =
		p && (span_find(rest, "'loss': ") || span_find(rest, "'train/loss': "));
	int64_t step = p ? find_stated_step(line, rest) : -1;
	if (!is_training && step < 0 && !(p && span_find(rest, "'eval_loss': ")))
		return false;
	build_begin_row(b, step >= 0 ? step : b->line.step + is_training, is_training);
	while (rest.n && next_dict_item(&rest, &name, &text)) {
		double v;
		text = strip_type(text);
		const char *after = scan_number(text, &v), *end = text.p + text.n;
		if (name_is_step(name))
			continue;
		if (after && (after == end || *after == ')'))
			build_set(b, b->line.step, name, v);
		else
			build_add_unread(b, b->line.step, name, text);
	}
	return true;
}
