/* Opens files of adapters as views, and adds adapters to a model. */
#include "lora/lora.h"

#include "archive/safetensors.h"
#include "base/file.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LORA_A, LORA_B };
static const char *const suffixes[] = {".lora_A", ".lora_B"};

/* A tensor's name, parsed. */
struct lora_name {
	char module[FOREIGN_NAME]; /* module, as named in the base model */
	int which;		   /* LORA_A, LORA_B; -1: not a tensor of an adapter */
	const char *other;	   /* unsupported part of the name; NULL: none */
};

/* Copies a name without the names of wrappers. */
static void drop_wrappers(const char *name, char *out, size_t capacity)
{
	static const char *const wrappers[] = {"module", "_orig_mod",
		"_fsdp_wrapped_module", "_checkpoint_wrapped_module"};
	size_t at = 0;
	*out = '\0';
	for (size_t n; *name; name += n + (name[n] == '.')) {
		bool is_wrapper = false;
		n = strcspn(name, ".");
		for (size_t i = 0; i < ARRAY_LEN(wrappers); i++)
			is_wrapper |=
				strlen(wrappers[i]) == n && !memcmp(wrappers[i], name, n);
		if (!is_wrapper && at < capacity)
			at += (size_t)snprintf(out + at, capacity - at, "%s%.*s",
				at ? "." : "", (int)n, name);
	}
}

/* Parses base_model.model.MODULE.lora_A[.ADAPTER]END, with any prefix. */
static struct lora_name parse_name(const char *name, const char *end)
{
	static const char begin[] = "base_model.model.";
	static const char *const others[] = {
		"lora_embedding_", "lora_magnitude_vector", "modules_to_save"};
	struct lora_name x = {.which = -1};
	char plain[2 * FOREIGN_NAME];
	const char *from = strstr(name, begin);
	if (!from || !text_ends(name, end))
		return x;
	drop_wrappers(from + strlen(begin), plain, sizeof(plain));
	for (size_t i = 0; i < ARRAY_LEN(others); i++)
		if (strstr(plain, others[i]))
			x.other = others[i];
	for (int k = 0; k < 2; k++) {
		char *at = strstr(plain, suffixes[k]);
		if (!at || strlen(plain) >= sizeof(plain) - 1)
			continue;
		x.which = k;
		snprintf(x.module, sizeof(x.module), "%.*s", (int)(at - plain), plain);
	}
	return x;
}

/* An adapter's tensor in each group of the file. */
struct lora_tensor {
	const struct torch_item *items[SOURCE_GROUPS];
};

struct lora_files {
	const struct lora *l;
	struct torch_file file, optimizer;
	bool has_optimizer;	 /* it has its own file */
	struct lora_tensor *all; /* [base tensors][A, B] */
	int *slots;		 /* [tensors of the view]: indices in `all` */
	int n;
};

/* Returns the file that has the group. */
static struct torch_file *group_file(struct lora_files *x, int group)
{
	return group && x->has_optimizer ? &x->optimizer : &x->file;
}

static int read_adapter_rows(
	const struct ckpt_view *v, const struct ckpt_rows *r, float *out, struct err *e)
{
	struct lora_files *x = v->with;
	const struct torch_item *t = x->all[x->slots[r->tensor]].items[r->group];
	return torch_read(group_file(x, r->group), t, r->row, r->n, out, e);
}

/* Closes the files of adapters, and frees v->with. */
static void close_adapter_files(struct ckpt_view *v)
{
	struct lora_files *x = v->with;
	torch_close(&x->file);
	if (x->has_optimizer)
		torch_close(&x->optimizer);
	free(x->all);
	free(x->slots);
	free(x);
}

/* Returns a module's index in the base model's list; -1: the model has no such matrix. */
static int find_module(const struct lora *l, const char *module)
{
	const size_t n = strlen(module);
	for (int i = 0; i < l->n_list; i++)
		if (l->list[i].ndim == 2 && l->list[i].part[0] >= 0 &&
			!strncmp(l->list[i].name, module, n) &&
			!strcmp(l->list[i].name + n, ".weight"))
			return i;
	return -1;
}

/* Returns true if entry i of the base model's list is a table of tokens or positions. */
static bool is_embedding(const struct lora *l, int i)
{
	const struct tensor *t = &l->m.tensors[l->list[i].part[0]];
	return t == l->m.tokens || t == l->m.positions;
}

/* Records the file's item of an adapter's tensor; ignores other items. end: suffix of the names. */
static int record_item(struct lora_files *x, const struct torch_item *t, int group,
	const char *end, struct err *e)
{
	const struct lora_name name = parse_name(t->name, end);
	const char *path = group_file(x, group)->path;
	if (name.other && !group)
		return err_set(e, EX_UNAVAILABLE, "%s: %s is not supported (%s)", path,
			t->name, name.other);
	if (name.which < 0)
		return 0;
	int i = find_module(x->l, name.module);
	if (i < 0 || is_embedding(x->l, i))
		return err_set(e, EX_DATAERR,
			"%s: the base model has no matrix %s, which %s adapts", path,
			name.module, t->name);
	const struct torch_item **slot = &x->all[2 * i + name.which].items[group];
	if (*slot)
		return err_set(e, EX_UNAVAILABLE,
			"%s: %s and %s: several adapters of one module are not supported",
			path, (*slot)->name, t->name);
	*slot = t;
	return 0;
}

/* Assigns each tensor of a file whose name ends in `end` to its adapter. Returns -1 with
 * *e set. */
static int record_items(struct lora_files *x, int group, const char *end, struct err *e)
{
	const struct torch_file *f = group_file(x, group);
	for (int64_t i = 0; i < f->n; i++)
		if (f->items[i].kind == TORCH_TENSOR &&
			record_item(x, &f->items[i], group, end, e))
			return -1;
	return 0;
}

/* Checks that A and B of entry i exist, and that their shapes match its matrix. */
static int check_shapes(const struct lora_files *x, int i, struct err *e)
{
	const struct foreign *f = &x->l->list[i];
	const struct torch_item *a = x->all[2 * i].items[0],
				*b = x->all[2 * i + 1].items[0];
	const int64_t in = f->dims[!f->transposed], out = f->dims[f->transposed];
	const bool has_both = a && b;
	if (has_both && a->ndim == 2 && b->ndim == 2 && a->dims[1] == in &&
		b->dims[0] == out && a->dims[0] == b->dims[1] && a->dims[0] >= 1)
		return 0;
	if (has_both && a->ndim == 2 && b->ndim == 2 && b->dims[1] == in &&
		a->dims[0] == out)
		return err_set(e, EX_DATAERR,
			"%s: %s and %s have each other's shapes: are A and B exchanged?",
			x->file.path, a->name, b->name);
	return err_set(e, EX_DATAERR,
		has_both ? "%s: the shapes of the adapter of %s do not match its matrix"
			 : "%s: the adapter of %s lacks A or B",
		x->file.path, f->name);
}

/* Names a tensor of the view after its matrix; fused matrices: "wqkv", "w13" (gate and up). */
static void name_tensor(const struct lora *l, int slot, char *out, size_t capacity)
{
	const struct foreign *f = &l->list[slot / 2];
	const char *name = l->m.tensors[f->part[0]].name;
	int n = (int)(strlen(name) - strlen(".weight"));
	if (f->n_parts > 1)
		snprintf(out, capacity, "%.*s%s%s", n - 1, name,
			f->n_parts == 2 ? "13" : "qkv", suffixes[slot % 2]);
	else
		snprintf(out, capacity, "%.*s%s", n, name, suffixes[slot % 2]);
}

/* Lists the tensors of the view, in forward order. */
static int list_tensors(
	struct lora_files *x, struct ckpt_view *v, bool gradients, struct err *e)
{
	const struct lora *l = x->l;
	x->slots = xcalloc(2 * (size_t)l->n_list + 1, sizeof(*x->slots));
	v->tensors = xcalloc(2 * (size_t)l->n_list + 1, sizeof(*v->tensors));
	for (int i = 0; i < 2 * l->n_list; i++) {
		const struct torch_item *t = x->all[i].items[0];
		bool any = x->all[i / 2 * 2].items[0] || x->all[i / 2 * 2 + 1].items[0];
		if (any && !gradients && i % 2 == 0 && check_shapes(x, i / 2, e))
			return -1;
		if (!t)
			continue;
		if (t->ndim != 2)
			return err_set(e, EX_DATAERR, "%s: %s is not a matrix",
				x->file.path, t->name);
		struct ckpt_tensor *to = &v->tensors[v->n_tensors];
		*to = (struct ckpt_tensor){.ndim = 2, .dims = {t->dims[0], t->dims[1]}};
		name_tensor(l, i, to->name, sizeof(to->name));
		x->slots[v->n_tensors++] = i;
	}
	x->n = v->n_tensors;
	return x->n ? 0
		    : err_set(e, EX_DATAERR,
			      "%s: no adapter found: no tensor is named "
			      "base_model.model.MODULE.lora_A.weight",
			      x->file.path);
}

static int compare_file_order(const void *a, const void *b)
{
	const struct torch_item *x = *(const struct torch_item *const *)a,
				*y = *(const struct torch_item *const *)b;
	return (x->order > y->order) - (x->order < y->order);
}

/* Returns N of state.N.exp_avg; -1: the state has names. */
static int64_t state_number(const struct torch_item *t)
{
	const char *at = strstr(t->name, "state.");
	char *end;
	if (!at || !isdigit((unsigned char)at[6]) || !text_ends(t->name, ".exp_avg"))
		return -1;
	int64_t n = strtoll(at + 6, &end, 10);
	return strcmp(end, ".exp_avg") != 0 ? -1 : n;
}

struct numbered_mean {
	int64_t number;
	const struct torch_item *mean;
};

static int compare_state_numbers(const void *a, const void *b)
{
	const struct numbered_mean *x = a, *y = b;
	return (x->number > y->number) - (x->number < y->number);
}

/* Checks that only one group of the optimizer has parameters: they are then in the model's
 * order. */
static int check_groups(const struct lora_files *x, struct torch_file *f, struct err *e)
{
	const int64_t max_ids = 4 * (int64_t)x->l->n_list + 16;
	scoped_ptr double *ids = xcalloc((size_t)max_ids, sizeof(*ids));
	int groups = 0;
	for (int64_t i = 0; i < f->n; i++) {
		int64_t n = 0;
		if (!strstr(f->items[i].name, "param_groups.") ||
			!text_ends(f->items[i].name, ".params"))
			continue;
		if (torch_read_numbers(f, &f->items[i], max_ids, ids, &n, e))
			return -1;
		groups += n > 0;
	}
	return groups == 1
		       ? 0
		       : err_set(e, EX_UNAVAILABLE,
				 "%s: the optimizer has %d groups of parameters without "
				 "names, so their order is unknown; save the names, or use "
				 "one group",
				 f->path, groups);
}

/* Assigns the moments of parameters without names. Their numbers follow the order of the tensors
 * in the file if it has a model, else the order of the model's class, A before B. */
static int assign_numbered_moments(struct lora_files *x, struct numbered_mean *list,
	int64_t n, const struct ckpt_view *v, struct err *e)
{
	struct torch_file *f = group_file(x, 1);
	const struct torch_item **order = xcalloc((size_t)x->n + 1, sizeof(*order));
	int rc = check_groups(x, f, e);
	if (!rc && n != x->n)
		rc = err_set(e, EX_UNAVAILABLE,
			"%s: the optimizer has the state of %lld parameters, but the "
			"adapters have %d tensors",
			f->path, (long long)n, x->n);
	for (int i = 0; i < x->n; i++)
		order[i] = x->all[x->slots[i]].items[0];
	if (!x->has_optimizer)
		qsort(order, (size_t)x->n, sizeof(*order), compare_file_order);
	qsort(list, (size_t)n, sizeof(*list), compare_state_numbers);
	for (int i = 0; i < x->n && !rc; i++) {
		int k = 0;
		while (x->all[x->slots[k]].items[0] != order[i])
			k++;
		const struct torch_item *m = list[i].mean;
		scoped_ptr char *squares = text_printf("%s_sq", m->name);
		x->all[x->slots[k]].items[SOURCE_MEANS] = m;
		x->all[x->slots[k]].items[SOURCE_SQUARES] = torch_find(f, squares);
		if (m->ndim != 2 || m->dims[0] != v->tensors[k].dims[0] ||
			m->dims[1] != v->tensors[k].dims[1])
			rc = err_set(e, EX_UNAVAILABLE,
				"%s: the shape of %s differs from %s: the order of the "
				"parameters is unknown; save {\"model\": "
				"model.state_dict(), \"optimizer\": ...} with torch.save",
				f->path, m->name, order[i]->name);
	}
	free(order);
	return rc;
}

/* Adds an option of AdamW if all groups of the optimizer agree. */
static int append_option(struct torch_file *f, const char *key,
	const char *const names[2], struct str *out, struct err *e)
{
	scoped_ptr char *end = text_printf(".%s", key);
	double first[2] = {0}, v[2] = {0};
	int64_t n_first = 0, n;
	bool groups_agree = true;
	for (int64_t i = 0; i < f->n; i++) {
		if (!strstr(f->items[i].name, "param_groups.") ||
			!text_ends(f->items[i].name, end))
			continue;
		if (torch_read_numbers(f, &f->items[i], 2, v, &n, e))
			return -1;
		groups_agree &=
			!n_first || (n == n_first && !memcmp(v, first, sizeof(v)));
		n_first = n;
		memcpy(first, v, sizeof(v));
	}
	for (int64_t i = 0; i < n_first && names[i] && groups_agree; i++) {
		char text[NUM_TEXT];
		str_printf(out, "%s = %s\n", names[i], text_double(text, first[i]));
	}
	return 0;
}

/* Appends AdamW's settings to v->config, and sets v->info.step, from the optimizer's
 * file. mean: an exp_avg, next to which the step count is. */
static int read_options(struct lora_files *x, const struct torch_item *mean,
	struct ckpt_view *v, struct err *e)
{
	struct torch_file *f = group_file(x, 1);
	scoped_ptr char *name = text_printf(
		"%.*sstep", (int)(strlen(mean->name) - strlen("exp_avg")), mean->name);
	const struct torch_item *step = torch_find(f, name);
	double steps = 0;
	int64_t n = 0;
	if (append_option(
		    f, "betas", (const char *const[]){"beta1", "beta2"}, &v->config, e) ||
		append_option(
			f, "eps", (const char *const[]){"eps", NULL}, &v->config, e) ||
		append_option(f, "weight_decay",
			(const char *const[]){"weight-decay", NULL}, &v->config, e) ||
		(step && torch_read_numbers(f, step, 1, &steps, &n, e)))
		return -1;
	if (!n || !(steps >= 0 && steps < 0x1p53))
		return err_set(e, EX_DATAERR, "%s: %s does not contain a step count",
			f->path, name);
	v->info.step = (int64_t)steps;
	return 0;
}

/* Records the moments, by name or by number, if the file has any. */
static int read_moments(struct lora_files *x, struct ckpt_view *v, struct err *e)
{
	struct torch_file *f = group_file(x, 1);
	struct numbered_mean *list = xcalloc((size_t)f->n + 1, sizeof(*list));
	int64_t n = 0;
	int rc = record_items(x, SOURCE_MEANS, ".exp_avg", e) ||
		 record_items(x, SOURCE_SQUARES, ".exp_avg_sq", e);
	for (int64_t i = 0; i < f->n; i++)
		if (f->items[i].kind == TORCH_TENSOR && state_number(&f->items[i]) >= 0)
			list[n++] = (struct numbered_mean){
				state_number(&f->items[i]), &f->items[i]};
	if (!rc && n)
		rc = assign_numbered_moments(x, list, n, v, e);
	free(list);
	int n_complete = 0;
	for (int i = 0; i < x->n; i++)
		n_complete +=
			x->all[x->slots[i]].items[1] && x->all[x->slots[i]].items[2];
	if (rc || !n_complete)
		return rc ? -1 : 0;
	if (n_complete < x->n)
		return err_set(e, EX_UNAVAILABLE,
			"%s: only %d of %d tensors of the adapters have moments", f->path,
			n_complete, x->n);
	for (int g = 1; g < SOURCE_GROUPS; g++)
		strs_add(&v->groups, source_groups[g]);
	return read_options(x, x->all[x->slots[0]].items[1], v, e);
}

static int open_tensor_file(struct torch_file *f, const char *path, struct err *e)
{
	if (text_ends(path, ".safetensors"))
		return torch_open_as(f, &container_safetensors, path, e);
	return torch_open(f, path, e);
}

/* Returns the path of the first of these files in a directory, allocated; NULL: none. */
static char *find_file_in(const char *path, const char *const *names, size_t n)
{
	for (size_t i = 0; i < n && file_is_directory(path); i++)
		if (directory_has_file(path, names[i]))
			return text_printf("%s/%s", path, names[i]);
	return NULL;
}

/* Opens the file, or the files of a directory: PEFT's adapter and, from Trainer, the optimizer. */
static int open_files(
	struct lora_files *x, const char *path, bool gradients, struct err *e)
{
	static const char *const names[] = {
		"adapter_model.safetensors", "adapter_model.bin"};
	static const char *const optimizers[] = {"optimizer.pt", "optimizer.bin"};
	scoped_ptr char *file = find_file_in(path, names, ARRAY_LEN(names));
	scoped_ptr char *optimizer =
		find_file_in(path, optimizers, ARRAY_LEN(optimizers));
	if (open_tensor_file(&x->file, file ? file : path, e))
		return -1;
	if (gradients || !optimizer)
		return 0;
	x->has_optimizer = !open_tensor_file(&x->optimizer, optimizer, e);
	if (!x->has_optimizer)
		torch_close(&x->file);
	return x->has_optimizer ? 0 : -1;
}

int lora_open_view(struct ckpt_view *v, const struct lora *l, const char *path,
	bool gradients, struct err *e)
{
	struct lora_files *x = xcalloc(1, sizeof(*x));
	*v = (struct ckpt_view){.name = path, .format = "an adapter of PEFT"};
	x->l = l;
	x->all = xcalloc(2 * (size_t)l->n_list + 1, sizeof(*x->all));
	if (open_files(x, path, gradients, e)) {
		free(x->all);
		free(x);
		return -1;
	}
	v->read = read_adapter_rows;
	v->close = close_adapter_files;
	v->with = x;
	strs_add(&v->groups, "model");
	str_add(&v->config, l->base.config.s, l->base.config.len);
	int rc = record_items(x, 0, ".weight", e) || list_tensors(x, v, gradients, e) ||
		 (!gradients && read_moments(x, v, e));
	if (rc)
		ckpt_view_close(v);
	return rc ? -1 : 0;
}

/* Describes tensor k of the view as a tensor of the model, and its adapter. */
static int describe_tensor(const struct lora *l, const struct ckpt_view *v, int k,
	struct adapter *adapter, struct tensor *t, struct err *e)
{
	const struct lora_files *x = v->with;
	const int i = x->slots[k] / 2;
	const struct foreign *f = &l->list[i];
	const struct tensor *matrix = &l->m.tensors[f->part[0]];
	char module[FOREIGN_NAME];
	*t = (struct tensor){.unit = matrix->unit,
		.ndim = 2,
		.dims = {v->tensors[k].dims[0], v->tensors[k].dims[1]},
		.decay = true,
		.lr_scale = 1,
		.init = x->slots[k] % 2 ? INIT_ZERO : INIT_NORMAL,
		.uses = 1};
	memcpy(t->name, v->tensors[k].name, sizeof(t->name));
	if (x->slots[k] % 2)
		return 0;
	*adapter = (struct adapter){.a = l->m.n_tensors + k,
		.b = l->m.n_tensors + k + 1,
		.n_parts = f->n_parts};
	memcpy(adapter->part, f->part, sizeof(adapter->part));
	snprintf(module, sizeof(module), "%.*s",
		(int)(strlen(f->name) - strlen(".weight")), f->name);
	return lora_scale(l, module, t->dims[0], &adapter->scale, e);
}

int lora_read_weights(
	struct weights *w, const struct lora *l, const struct ckpt_view *v, struct err *e)
{
	const int n = v->n_tensors;
	struct tensor *tensors = xcalloc((size_t)n, sizeof(*tensors));
	struct adapter *list = xcalloc((size_t)n, sizeof(*list));
	float **values = xcalloc((size_t)n, sizeof(*values));
	int rc = weights_read(w, &l->base, e);
	for (int k = 0; k < n && !rc; k++) {
		rc = describe_tensor(l, v, k, &list[k / 2], &tensors[k], e);
		values[k] = rc ? NULL : ckpt_view_tensor(v, k, e);
		rc = rc || !values[k];
	}
	if (!rc) {
		weights_add_adapters(w, list, n / 2, tensors, values);
	} else {
		for (int k = 0; k < n; k++)
			free(values[k]);
		free(list);
	}
	free(values);
	free(tensors);
	return rc ? -1 : 0;
}
