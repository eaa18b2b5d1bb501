/* Reads what Hugging Face's Trainer wrote about a step. */
#include "check/run_facts.h"

#include "archive/archive.h"
#include "base/file.h"
#include "base/json.h"
#include "check/check.h"

#include <math.h>
#include <string.h>

enum { MAX_STATE = 1 << 26 };

/* Returns the object of a directory's JSON file; NULL: missing, or unreadable (with a warning). */
static json_t *read_object(const char *dir, const char *name)
{
	scoped_ptr char *path = text_printf("%s/%s", dir, name);
	scoped_str text = {0};
	struct err e = {0};
	json_error_t why = {.text = ""};
	json_t *root = NULL;
	if (!file_exists(path))
		return NULL;
	if (!file_check_regular(path, &e) && !file_read(path, MAX_STATE, &text, &e)) {
		root = load_json(text.s ? text.s : "", text.len, 0, &why);
		if (!json_is_object(root))
			err_set(&e, EX_DATAERR, "%s: %s", path,
				root ? "not a JSON object" : why.text);
	}
	if (e.code) {
		warn("%s; the file is ignored", e.msg);
		json_decref(root);
		root = NULL;
	}
	return root;
}

static int64_t integer_or(const json_t *object, const char *key, int64_t none)
{
	const json_t *x = json_object_get(object, key);
	return json_is_integer(x) ? json_integer_value(x) : none;
}

/* Sets out to the text of row[key] if it is a number >= 0. */
static void set_number(char out[NUM_TEXT], const json_t *row, const char *key)
{
	const json_t *x = json_object_get(row, key);
	double v = json_number_value(x);
	if (json_is_number(x) && isfinite(v) && v >= 0)
		text_double(out, v);
}

/* Returns the common learning rate of an optimizer's groups; -1: they differ, or it is unknown. */
static double read_rate(const char *dir)
{
	scoped_ptr char *path = text_printf("%s/optimizer.pt", dir);
	struct torch_file f;
	struct err e = {0};
	double lr = -1, x;
	const struct torch_item *item;
	scoped_str name = {0};
	if (!file_exists(path) ||
		torch_open(&f, path, &e)) /* (the view reports errors) */
		return -1;
	for (int g = 0;; g++) {
		int64_t n = 0;
		str_clear(&name);
		str_printf(&name, "param_groups.%d.lr", g);
		if (!(item = torch_find(&f, name.s)))
			break;
		if (torch_read_numbers(&f, item, 1, &x, &n, &e) || !n || (g && x != lr)) {
			lr = -1;
			break;
		}
		lr = x;
	}
	torch_close(&f);
	return lr;
}

/* Returns the logged rate if it is this step's, else -1: some versions log the next step's rate.
 * The optimizer's file before the step has this step's rate, the file after it the next one's. */
static double rate_of_step(double logged, const char *before, const char *after)
{
	double own = read_rate(before), next = read_rate(after);
	bool known = own >= 0 ? own == logged : next >= 0 && next != logged;
	return known ? logged : -1;
}

/* Reads the step's row of the log. A row's loss is the mean since the row before it. */
static void read_log(struct run_facts *x, const json_t *log, int64_t step,
	const char *before, const char *after)
{
	const json_t *row = NULL;
	int64_t previous = 0;
	for (size_t i = 0; i < json_array_size(log); i++) {
		const json_t *r = json_array_get(log, i);
		int64_t at = integer_or(r, "step", -1);
		if (!json_object_get(r, "loss"))
			continue;
		if (at == step)
			row = r;
		else if (at < step)
			previous = max64(previous, at);
	}
	set_number(x->grad_norm, row, "grad_norm");
	if (previous == step - 1)
		set_number(x->loss, row, "loss");
	const json_t *rate = json_object_get(row, "learning_rate");
	if (json_is_number(rate))
		x->lr = rate_of_step(json_number_value(rate), before, after);
}

/* Reads the log in trainer_state.json, if the checkpoints are one step apart. */
static void read_state(struct run_facts *x, const char *before, const char *after)
{
	json_auto_t *first = read_object(before, "trainer_state.json");
	json_auto_t *second = read_object(after, "trainer_state.json");
	int64_t from = first ? integer_or(first, "global_step", -1) : 0;
	int64_t step = integer_or(second, "global_step", -1);
	if (step > 0 && from == step - 1)
		read_log(x, json_object_get(second, "log_history"), step, before, after);
}

/* Reads training_args.bin, a pickle of an object with numeric fields. */
static void read_arguments(struct run_facts *x, const char *dir)
{
	scoped_ptr char *path = text_printf("%s/training_args.bin", dir);
	static const char *const keys[] = {
		"max_grad_norm", "bf16", "fp16", "gradient_accumulation_steps"};
	double v[ARRAY_LEN(keys)];
	struct torch_file f;
	struct err e = {0};
	if (!file_exists(path))
		return;
	if (torch_open(&f, path, &e)) {
		warn("%s; the file is ignored", e.msg);
		return;
	}
	for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
		int64_t n = 0;
		v[i] = -1;
		if (f.n != 1 ||
			torch_read_numbers_at(
				&f, &f.items[0], keys[i], 1, &v[i], &n, &e) ||
			!n || !(v[i] >= 0 && v[i] <= 1e30))
			v[i] = -1;
	}
	torch_close(&f);
	x->clip = v[0];
	x->fp16 = v[2] == 1;
	x->precision = v[1] == 1 || v[2] == 1 ? RUN_AUTOCAST : -1;
	x->accumulation = v[3] >= 1 && v[3] <= 1e6 ? (int64_t)v[3] : 0;
}

/* Reads the type of the weights: a model loaded in 16 bits is trained in 16 bits. */
static void read_type(struct run_facts *x, const char *dir)
{
	json_auto_t *config = read_object(dir, "config.json");
	const char *old = json_string_value(json_object_get(config, "torch_dtype"));
	const char *type = json_string_value(json_object_get(config, "dtype"));
	type = type ? type : old ? old : "";
	bool fp16 = !strcmp(type, "float16");
	if (fp16 || !strcmp(type, "bfloat16")) {
		x->precision = RUN_BF16;
		x->fp16 = fp16;
	}
}

void run_facts_read(struct run_facts *x, const char *before, const char *after)
{
	*x = (struct run_facts){.lr = -1, .clip = -1, .precision = -1};
	if (!file_is_directory(after) || !directory_has_file(after, "trainer_state.json"))
		return;
	read_state(x, before, after);
	read_arguments(x, after);
	read_type(x, after);
}
