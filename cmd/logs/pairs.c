/* Lines that name each number: key=value (wordplay, ezpz, OLMo-core), and "name: value |"
 * (Megatron). */
#include "logs/logs_internal.h"

#include <ctype.h>

/* ---- wordplay and ezpz ------------------------------------------------------------- */

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

/* "name=number", and perhaps "(±0.02)" behind it. */
static bool split_pair(struct span word, struct span *name, double *v)
{
	const char *equals = word.n ? memchr(word.p, '=', word.n) : NULL;
	if (!equals || equals == word.p)
		return false;
	const char *begin = equals + 1, *end = word.p + word.n;
	const char *p = scan_double(begin, end, v);
	*name = (struct span){word.p, (size_t)(equals - word.p)};
	return p > begin &&
	       (p == end || *p == '(' || *p == '/' ||
		       (*p == ',' && !goes_on((struct span){p, (size_t)(end - p)})));
}

/* "name=2abc" */
static bool take_unread(struct build *b, struct span word, bool begin_row)
{
	const char *equals = word.n ? memchr(word.p, '=', word.n) : NULL;
	if (!equals)
		return false;
	const char *text = equals + 1;
	struct span name = {word.p, (size_t)(equals - word.p)};
	if (begin_row && begins_as_number(text, word.p + word.n))
		build_row(b, b->step, true);
	return build_unread(
		b, b->step, name, (struct span){text, (size_t)(word.p + word.n - text)});
}

/* The place behind "step=100" or "iter=100" in a line; NULL: nowhere. A row with another number there is
 * lost. */
static const char *find_step(struct build *b, struct span line, int64_t *step)
{
	static const char *const marks[] = {"step=", "iter="};
	for (size_t i = 0; i < ARRAY_LEN(marks); i++) {
		const char *p = span_find_word(line, marks[i]);
		const char *end = line.p + line.n;
		if (!p || (p > line.p && !isspace((unsigned char)p[-1])))
			continue;
		const char *number = p + strlen(marks[i]);
		const char *behind =
			scan_step((struct span){number, (size_t)(end - number)}, step);
		if (behind && (behind == end || isspace((unsigned char)*behind)))
			return behind;
		if (begins_as_number(number, end) && (!behind || *behind != '/') &&
			span_find_word(line, "loss="))
			build_lost_row(b, (struct span){p, (size_t)(end - p)});
	}
	return NULL;
}

/* Takes pairs; wordplay's MFU is in percent. Returns their number; -1: a word is no pair. */
static int take_pairs(struct build *b, struct span rest, bool training, bool strict)
{
	int n = 0;
	for (struct span word = next_word(&rest); word.n; word = next_word(&rest)) {
		struct span name;
		double v;
		if (!split_pair(word, &name, &v)) {
			if (strict)
				return -1;
			n += take_unread(b, word, !n && training);
			continue;
		}
		if (!n++ && training)
			build_row(b, b->step, true);
		if (name.n == 3 && !memcmp(name.p, "mfu", 3))
			v *= 1e-2;
		build_set(b, b->step, name, v);
	}
	return n;
}

static bool only_pairs(struct span rest)
{
	struct span name;
	double v;
	for (struct span word = next_word(&rest); word.n; word = next_word(&rest))
		if (!split_pair(word, &name, &v))
			return false;
	return true;
}

bool line_wordplay(struct build *b, struct span line)
{
	const char *p = find_step(b, line, &b->step);
	if (p) {
		struct span pairs = {p, (size_t)(line.p + line.n - p)};
		return b->open = take_pairs(b, pairs, true, false) > 0;
	}
	/* rich breaks long lines */
	b->open = b->open && only_pairs(line) && take_pairs(b, line, false, true) > 0;
	return false;
}

/* ---- OLMo-core --------------------------------------------------------------------- */

/* The numbers of OLMo-core have suffixes for 10^9 and more. */
static double suffix_scale(struct span s)
{
	static const char letters[] = "BTPE";
	double scale = 1e9;
	for (int i = 0; letters[i]; i++, scale *= 1e3)
		if (s.n && *s.p == letters[i])
			return scale;
	return 1;
}

/* "[step=10/1000,epoch=1,eta=2h]", then lines "    train/CE loss=2.345" */
bool line_olmo(struct build *b, struct span line)
{
	const char *p = span_find(line, "[step="), *end = line.p + line.n;
	double v;
	if (p) {
		p += strlen("[step=");
		p = scan_step((struct span){p, (size_t)(end - p)}, &b->step);
		b->open = p && p < end && *p == '/';
		int64_t total;
		if (b->open &&
			scan_step((struct span){p + 1, (size_t)(end - p - 1)}, &total))
			build_total(b, total);
		return false;
	}
	const char *equals = line.n ? memrchr(line.p, '=', line.n) : NULL;
	b->open = b->open && equals && isspace((unsigned char)*line.p);
	p = b->open ? scan_number(
			      (struct span){equals + 1, (size_t)(end - equals - 1)}, &v)
		    : NULL;
	struct span name =
		equals ? span_trim((struct span){line.p, (size_t)(equals - line.p)})
		       : line;
	struct span after = {p, p ? (size_t)(end - p) : 0};
	if (b->open && (!p || (goes_on(after) && suffix_scale(after) == 1)) &&
		build_unread(b, b->step, name,
			(struct span){equals + 1, (size_t)(end - equals - 1)}))
		return true;
	if (!p)
		return b->open = false;
	build_row(b, b->step, true);
	build_set(b, b->step, name, v * suffix_scale(after));
	return true;
}

/* ---- Megatron-LM and Megatron-Bridge ------------------------------------------------ */

/* " lm loss: 1.089E+01 "; earlier versions had no colon behind some names, and derived programs have two
 * numbers in a field: " iteration time: 1.5 s samples/sec: 3.8 ", of which the first is taken. */
static void take_field(struct build *b, struct span field, bool suffix)
{
	field = span_trim(field);
	const char *colon = field.n ? memchr(field.p, ':', field.n) : NULL;
	const char *end = field.p + field.n;
	if (!colon && field.n)
		colon = memrchr(field.p, ' ', field.n);
	double v;
	if (!colon)
		return;
	struct span name = span_trim((struct span){field.p, (size_t)(colon - field.p)});
	struct span text = span_trim((struct span){colon + 1, (size_t)(end - colon - 1)});
	const char *p = scan_number(text, &v);
	if ((!p || goes_on((struct span){p, (size_t)(end - p)})) &&
		build_unread(b, b->step, name, text))
		return;
	if (!p)
		return;
	struct span rest = {p, (size_t)(end - p)};
	const char *key = suffix ? NULL : name_of_setting(name);
	if (key && !strcmp(key, "batch"))
		build_setting(
			b, "batch", (struct span){colon + 1, (size_t)(end - colon - 1)});
	else
		build_set(b, b->step, name, v * (suffix ? scale_of_suffix(rest) : 1));
}

static void take_fields(struct build *b, struct span rest, bool suffix)
{
	while (rest.n) {
		const char *bar = memchr(rest.p, '|', rest.n);
		size_t n = bar ? (size_t)(bar - rest.p) : rest.n;
		take_field(b, (struct span){rest.p, n}, suffix);
		n += bar != NULL;
		rest = (struct span){rest.p + n, rest.n - n};
	}
}

/* " iteration       10/     100 | consumed samples: 320 | elapsed time per iteration (ms): 123.4 |
 * learning rate: 1.5E-04 | global batch size: 32 | lm loss: 1.08E+01 | ...", " validation loss at
 * iteration 100 | lm loss value: 3.4E+00 | ..." */
bool line_megatron(struct build *b, struct span line)
{
	static const char mark[] = "iteration ", val[] = "validation loss at ";
	const char *p = span_find_word(line, mark), *end = line.p + line.n;
	int64_t step, total;
	if (!p)
		return false;
	size_t before = (size_t)(p - line.p), n_val = sizeof(val) - 1;
	bool is_val = before >= n_val && !memcmp(p - n_val, val, n_val);
	p += sizeof(mark) - 1;
	struct span number = {p, (size_t)(end - p)};
	p = scan_step(number, &step);
	if ((!p || goes_on((struct span){p, (size_t)(end - p)})) &&
		span_find(number, "| lm loss")) {
		build_lost_row(b, span_trim(number));
		return false;
	}
	const char *bar = p ? memchr(p, '|', (size_t)(end - p)) : NULL;
	if (!bar || (!is_val && *p != '/'))
		return false;
	build_row(b, step, !is_val);
	if (!is_val && scan_step((struct span){p + 1, (size_t)(bar - p - 1)}, &total))
		build_total(b, total);
	take_fields(b, (struct span){bar, (size_t)(end - bar)}, false);
	return true;
}

/* ---- NeMo and nanotron ---------------------------------------------------------------- */

/* The step behind a mark, if one of `needs` follows it. */
static const char *step_behind(
	struct span line, const char *mark, const char *needs, int64_t *step)
{
	const char *p = span_find_word(line, mark), *end = line.p + line.n;
	if (!p)
		return NULL;
	p += strlen(mark);
	p = scan_step((struct span){p, (size_t)(end - p)}, step);
	return p && span_find(line, needs) ? p : NULL;
}

/* "Training epoch 0, iteration 28/99 | lr: 5.6e-06 | global_batch_size: 32 | global_step: 28 |
 * reduced_train_loss: 2.778 | train_step_timing in s: 0.189 | consumed_samples: 928 | val_loss: 2.861": the
 * iteration is that of the epoch. */
bool line_nemo(struct build *b, struct span line)
{
	int64_t step;
	const char *bar = span_find(line, " | ");
	if (!bar || !span_find(line, "Training epoch ") ||
		!step_behind(line, "global_step: ", "loss: ", &step))
		return false;
	build_row(b, step, true);
	take_fields(b, (struct span){bar, (size_t)(line.p + line.n - bar)}, false);
	return true;
}

/* "iteration: 5 / 100 | consumed_tokens: 1.31M | elapsed_time_per_iteration_ms: 1.02K | tokens_per_sec: 257K |
 * lm_loss: 10.5 | lr: 0.0003 | grad_norm: 0.86 | ..." */
bool line_nanotron(struct build *b, struct span line)
{
	int64_t step;
	const char *end = line.p + line.n;
	const char *p = step_behind(line, "iteration: ", "| lm_loss: ", &step);
	const char *bar = p ? memchr(p, '|', (size_t)(end - p)) : NULL;
	double loss;
	if (!bar)
		return false;
	build_row(b, step, true);
	take_fields(b, (struct span){bar, (size_t)(end - bar)}, true);
	p = span_find(line, "| lm_loss: ") + strlen("| lm_loss: ");
	if (scan_number((struct span){p, (size_t)(end - p)}, &loss))
		build_set(b, step, SPAN("lm loss"), loss);
	return true;
}

/* ---- Hugging Face's Trainer ------------------------------------------------------------ */

/* The next "'name': value" of a dict; later versions write the value in quotes, too. */
static bool next_item(struct span *rest, struct span *name, struct span *value)
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

/* "{'loss': 2.5, 'grad_norm': 1.25, 'learning_rate': 5e-05, 'epoch': 0.1}", "{'eval_loss': 2.25, ...}", and at the
 * end "{'train_runtime': 12.5, ..., 'train_loss': 2.4}", whose loss is a mean. */
bool line_trainer(struct build *b, struct span line)
{
	const char *p = span_find(line, "{'");
	struct span rest = {p, p ? (size_t)(line.p + line.n - p) : 0}, name, text;
	bool training = p && span_find(rest, "'loss': ");
	if (!p || (!training && !span_find(rest, "'eval_loss': ")))
		return false;
	build_row(b, training ? b->step + 1 : b->step, training);
	while (rest.n && next_item(&rest, &name, &text)) {
		double v;
		const char *behind = scan_number(text, &v);
		if (behind && behind == text.p + text.n)
			build_set(b, b->step, name, v);
		else
			build_unread(b, b->step, name, text);
	}
	return true;
}
