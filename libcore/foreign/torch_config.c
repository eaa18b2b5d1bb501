/* The model options of a PyTorch checkpoint, from shapes and from a configuration. */
#include "foreign/huggingface.h"
#include "foreign/foreign.h"
#include "foreign/foreign_internal.h"

#include "base/file.h"
#include "engine/options.h"
#include "options/options.h"

#include <sys/stat.h>

/* The limits of pt-train's options. */
enum { MAX_DIM = 1 << 22, MAX_ROWS = 1 << 24, MAX_LAYERS = 100000 };

/* Reads a number that the program saved; leaves *out unchanged if it is missing. */
static int read_argument(struct torch_file *f, const struct torch_names *x,
	const char *name, double *out, struct err *e)
{
	double value;
	int64_t n = 0;
	const struct torch_item *item = torch_names_find_exact(x, name);
	int rc = x->dialect->read_numbers
			 ? x->dialect->read_numbers(f, x, name, 1, &value, &n, e)
		 : item ? torch_read_numbers(f, item, 1, &value, &n, e)
			: 0;
	if (!rc && n && value > 0 && value <= 1e9)
		*out = value;
	return rc;
}

/* Reads the options that a program saved with the model. */
static int read_arguments(struct model_config *c, struct torch_file *f,
	const struct torch_names *x, bool *has_context, struct err *e)
{
	const struct dialect *d = x->dialect;
	double heads = 0, length = 0;
	c->norm_eps = 1e-5;
	c->rope_theta = 10000;
	if ((d->heads && read_argument(f, x, d->heads, &heads, e)) ||
		read_argument(f, x, "args.norm_epsilon", &c->norm_eps, e) ||
		read_argument(f, x, "args.rotary_base", &c->rope_theta, e) ||
		(d->context && read_argument(f, x, d->context, &length, e)))
		return -1;
	c->heads = (int64_t)heads;
	c->context = d->context ? (int64_t)length : c->context;
	*has_context = c->context > 0 && c->context <= MAX_DIM;
	return 0;
}

/* The options that a file specifies, even if the value is pt-train's default. */
struct specified {
	bool has_heads, has_context, has_tie;
};

/* Notes which settings the user specified, so that they are not derived from the tensors. */
static int mark_specified(void *arg, const char *key, const char *value, struct err *e)
{
	struct specified *s = arg;
	(void)value, (void)e;
	s->has_heads = s->has_heads || !strcmp(key, "heads");
	s->has_context = s->has_context || !strcmp(key, "context");
	s->has_tie = s->has_tie || !strcmp(key, "tie");
	return 0;
}

/* Reads the model options of a file like pt-train's --config. */
static int read_option_file(
	struct model_config *c, const char *path, bool *has_context, struct err *e)
{
	enum { MAX_BYTES = 1 << 20 };
	scoped_str text = {0};
	struct train_opts o;
	if (file_read(path, MAX_BYTES, &text, e))
		return -1;
	struct specified specified = {0};
	const char *all = text.s ? text.s : "";
	int rc = opts_from_text(&train_program, &o, all, false, e);
	rc = rc ? err_prefix(e, "%s: ", path)
		: conf_parse(all, text.len, path, mark_specified, &specified, e);
	*c = o.model;
	c->virtual_degrees = NULL; /* (owned by the options) */
	*has_context = specified.has_context;
	c->heads = specified.has_heads ? c->heads : 0;
	c->tie = specified.has_tie ? c->tie : BY_ARCH;
	opts_free(&train_program, &o);
	return rc ? -1 : 0;
}

/* Returns --model-config, or config.json or nanotron's model_config.json in the checkpoint's
 * directory, or config.json next to the checkpoint; for free(). NULL: none. */
static char *find_config(const char *path, const char *given)
{
	struct str file = {0};
	struct stat st;
	size_t n = strlen(path);
	if (given)
		return xstrdup(given);
	static const char *const names[] = {"config.json", "model_config.json"};
	bool is_directory = !stat(path, &st) && S_ISDIR(st.st_mode);
	for (size_t i = 0; i < ARRAY_LEN(names) && is_directory; i++) {
		str_clear(&file);
		str_printf(&file, "%s/%s", path, names[i]);
		if (file_exists(file.s))
			return file.s;
	}
	while (n > 1 && path[n - 1] == '/')
		n--;
	while (n && path[n - 1] != '/')
		n--;
	str_clear(&file);
	str_printf(&file, "%.*sconfig.json", (int)n, path);
	if (file_exists(file.s))
		return file.s;
	str_free(&file);
	return NULL;
}

int torch_config_check_class(const char *checkpoint, const char *given, struct err *e)
{
	scoped_ptr char *path = find_config(checkpoint, given);
	struct hf_config h;
	struct err read_once = {0};
	if (!path || !text_ends(path, ".json"))
		return 0;
	if (given && file_check_regular(path, &read_once)) /* (a FIFO can be read once) */
		return 0;
	return file_check_regular(path, e) || hf_config_read(&h, path, e) ? -1 : 0;
}

static int report_mismatch(
	const char *path, const char *what, int64_t config, int64_t shapes, struct err *e)
{
	return err_set(e, EX_DATAERR,
		"%s: %s is %lld, but the shapes of the tensors give %lld: another model?",
		path, what, (long long)config, (long long)shapes);
}

/* Fails if a value of the configuration (0: unspecified) contradicts the shapes. */
static int check_shapes(const struct model_config *from, const struct model_config *shape,
	const char *path, struct err *e)
{
	const struct {
		const char *name;
		int64_t config, shapes;
	} both[] = {{"the number of layers", from->layers, shape->layers},
		{"the hidden size", from->dim, shape->dim},
		{"the hidden size of the feed-forward layers", from->ffn_dim,
			shape->ffn_dim},
		{"the vocabulary", from->vocab, shape->vocab},
		{"the number of experts", from->experts, shape->experts},
		{"the hidden size of an expert", from->expert_dim, shape->expert_dim},
		{"the number of positions", from->arch == ARCH_GPT2 ? from->context : 0,
			shape->context}};
	if (!from->experts != !shape->experts)
		return err_set(e, EX_DATAERR, "%s: describes %s, but the tensors are %s",
			path, from->experts ? "experts" : "no experts",
			shape->experts ? "a mixture of experts" : "of a dense model");
	if (from->arch != shape->arch)
		return err_set(e, EX_DATAERR, "%s: describes %s, but the tensors are %s",
			path, arch_names[from->arch], arch_names[shape->arch]);
	for (size_t i = 0; i < ARRAY_LEN(both); i++)
		if (both[i].config && both[i].config != both[i].shapes &&
			(both[i].shapes || !shape->experts)) /* (no layer may be dense) */
			return report_mismatch(
				path, both[i].name, both[i].config, both[i].shapes, e);
	return 0;
}

/* Reads a configuration; fails if it contradicts the shapes, else completes it from them. */
static int read_config(struct model_config *c, bool *pairs,
	const struct model_config *shape, const char *path, bool *has_context,
	struct err *e)
{
	struct hf_config h;
	*has_context = true;
	if (text_ends(path, ".json")) {
		if (hf_config_read(&h, path, e))
			return -1;
		*c = h.c;
		int64_t layer = 0;
		while (layer < c->layers && !layer_has_experts(c, layer))
			layer++;
		if (layer == c->layers) /* (a sparse step above the number of layers) */
			c->experts = c->expert_dim = c->shared_expert_dim = 0;
		*pairs = h.rope_interleaved;
		c->bias = shape->bias;
		if (check_shapes(c, shape, path, e))
			return -1;
		if (c->qk_norm != shape->qk_norm)
			return err_set(e, EX_DATAERR,
				"%s: the model has %s of queries and keys, but the tensors %s",
				path, c->qk_norm ? "norms" : "no norms",
				shape->qk_norm ? "do" : "do not");
		return 0;
	}
	if (read_option_file(c, path, has_context, e))
		return -1;
	c->arch = shape->arch;
	c->layers = shape->layers;
	c->dim = shape->dim;
	c->ffn_dim = shape->ffn_dim ? shape->ffn_dim : c->ffn_dim;
	c->experts = shape->experts;
	c->expert_dim = shape->expert_dim;
	c->shared_expert_dim = shape->shared_expert_dim;
	c->shared_expert_gate = shape->shared_expert_gate;
	c->vocab = shape->vocab;
	c->bias = shape->bias;
	c->qk_norm = shape->qk_norm;
	c->head_dim = c->head_dim || c->qk_norm_all ? c->head_dim : shape->head_dim;
	c->tie = c->tie == BY_ARCH ? shape->tie : c->tie;
	return 0;
}

/* Sets kv_heads. Fails if the heads do not divide the shapes. */
static int set_kv_heads(struct model_config *c, const struct torch_names *x,
	const char *path, struct err *e)
{
	int64_t width = head_width(c), keys = count_key_rows(x, c);
	if (!width || (!c->head_dim && c->dim % c->heads))
		return err_set(e, EX_DATAERR,
			"%s: %lld heads do not divide the hidden size %lld", path,
			(long long)c->heads, (long long)c->dim);
	if (!keys)
		keys = (c->kv_heads ? c->kv_heads : c->heads) * width;
	if (keys < 0 || keys % width ||
		(c->kv_heads > 0 && c->kv_heads * width != keys &&
			c->kv_heads != c->heads))
		return err_set(e, EX_DATAERR,
			"%s: %lld heads of width %lld and %lld key and value heads do not "
			"match the %lld rows of the weight of the keys",
			path, (long long)c->heads, (long long)width,
			(long long)c->kv_heads, (long long)keys);
	c->kv_heads = keys / width;
	return 0;
}

/* Fails if the sizes derived from the tensors do not form a valid model. */
static int check_sizes(const struct model_config *c, const char *path, struct err *e)
{
	if (!c->layers || (!c->ffn_dim && !c->expert_dim))
		return err_set(e, EX_DATAERR, "%s: layer 0 is missing", path);
	if (c->layers <= MAX_LAYERS && c->dim >= 1 && c->dim <= MAX_DIM &&
		c->ffn_dim <= MAX_ROWS && c->vocab >= 1 && c->vocab <= MAX_ROWS &&
		c->context <= MAX_DIM)
		return 0;
	return err_set(
		e, EX_DATAERR, "%s: the tensor shapes do not form a valid model", path);
}

int torch_config_read(struct model_config *c, bool *pairs, struct torch_file *f,
	const struct torch_names *x, const char *given, struct err *e)
{
	struct model_config shape = {.arch = 0};
	set_config_from_shapes(x, &shape);
	if (check_sizes(&shape, f->path, e))
		return -1;
	scoped_ptr char *path = find_config(f->path, given);
	bool has_context = false;
	*c = shape;
	*pairs = false;
	int rc = path && !given ? file_check_regular(path, e) : 0;
	if (path && !rc)
		rc = read_config(c, pairs, &shape, path, &has_context, e);
	if (!rc && shape.context)
		c->context = shape.context;
	if (!path)
		rc = read_arguments(c, f, x, &has_context, e);
	if (!rc && (!c->heads || (!has_context && !shape.context)))
		rc = err_set(e, EX_USAGE,
			"%s: the tensors do not determine %s%s; give --model-config FILE (Hugging "
			"Face's config.json, or a file of pt-train options)",
			path ? path : f->path,
			c->heads ? "" : "the number of heads (heads)",
			has_context || shape.context ? ""
			: c->heads
				? "the sequence length (context), norm-eps and rope-theta"
				: ", sequence length (context), norm-eps and rope-theta");
	if (!rc && c->experts && !c->experts_per_token)
		rc = err_set(e, EX_USAGE,
			"%s: the tensors do not determine the experts of a token; specify "
			"--model-config FILE, Hugging Face's config.json or pt-train options",
			f->path);
	rc = rc || set_kv_heads(c, x, path ? path : f->path, e) ? -1 : 0;
	return rc;
}

/* Sets *all_agree to whether all groups from name `at` on have the value v[n] of a key. */
static int check_groups_agree(struct torch_file *f, const struct torch_names *x,
	const char *key, int64_t at, const double *v, int64_t n, bool *all_agree,
	struct err *e)
{
	const struct torch_item *item;
	*all_agree = true;
	while ((item = torch_names_next_option(x, key, &at))) {
		double other[2];
		int64_t n_other = 0;
		if (torch_read_numbers(f, item, 2, other, &n_other, e))
			return -1;
		*all_agree &= n_other == n && !memcmp(other, v, (size_t)n * sizeof(*v));
	}
	return 0;
}

/* Appends the value of a key in the parameter groups as options, if all groups agree. */
static int add_option(struct str *out, struct torch_file *f, const struct torch_names *x,
	const char *key, const char *const names[2], struct err *e)
{
	char text[NUM_TEXT], path[64];
	double v[2];
	int64_t n = 0, at = 0;
	const struct torch_item *item = torch_names_next_option(x, key, &at);
	bool all_agree = true;
	snprintf(path, sizeof(path), "optimizer.param_groups.0.%s", key);
	bool own = x->dialect->read_numbers != NULL;
	if (own	       ? x->dialect->read_numbers(f, x, path, 2, v, &n, e)
		: item ? torch_read_numbers(f, item, 2, v, &n, e)
		       : 0)
		return -1;
	if (item && n && !own && check_groups_agree(f, x, key, at, v, n, &all_agree, e))
		return -1;
	for (int64_t i = 0; i < n && names[i] && all_agree; i++)
		str_printf(out, "%s = %s\n", names[i], text_double(text, v[i]));
	return 0;
}

int torch_config_append_adamw(
	struct str *out, struct torch_file *f, const struct torch_names *x, struct err *e)
{
	static const struct {
		const char *key, *names[2];
	} all[] = {{"betas", {"beta1", "beta2"}}, {"eps", {"eps"}},
		{"weight_decay", {"weight-decay"}}};
	size_t before = out->len;
	/* (the initial value of a schedule, if there is one) */
	if (add_option(out, f, x, "initial_lr", (const char *const[]){"lr", NULL}, e) ||
		(out->len == before && add_option(out, f, x, "lr",
					       (const char *const[]){"lr", NULL}, e)))
		return -1;
	for (size_t i = 0; i < ARRAY_LEN(all); i++)
		if (add_option(out, f, x, all[i].key, all[i].names, e))
			return -1;
	return 0;
}
