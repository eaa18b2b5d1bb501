/* Maps tensors by the stems of their names, for Hugging Face's classes. */
#include "dialect/dialect.h"
#include "dialect/order.h"

const struct scheme *hf_scheme(const struct model *m)
{
	const struct model_config *c = &m->c;
	if (!c->experts)
		return c->arch == ARCH_GPT2 ? &scheme_gpt2 : &scheme_llama;
	return c->router == ROUTER_SIGMOID	      ? &scheme_dots1
	       : c->shared_expert_dim || m->c.qk_norm ? &scheme_qwen_moe
						      : &scheme_mixtral;
}

/* Returns the stem of one of our names. Sets *layer (-1: none) and *kind (".weight", ".bias"). */
static const struct stem *find_stem(
	const struct scheme *s, const char *name, int64_t *layer, const char **kind)
{
	static const char layers[] = "layers.";
	*layer = -1;
	if (!strncmp(name, layers, strlen(layers))) {
		char *end;
		*layer = strtoll(name + strlen(layers), &end, 10);
		name = end + (*end == '.');
	}
	*kind = strrchr(name, '.');
	size_t n = *kind ? (size_t)(*kind - name) : 0;
	for (const struct stem *r = s->stems; n && r->ours; r++)
		if (strlen(r->ours) == n && !memcmp(r->ours, name, n))
			return r;
	return NULL;
}

/* Maximum distance between the parts of a fused tensor in the list. */
enum { LOOK_BACK = 8 };

/* Returns the foreign tensor with this name among the last few of list[*n]; else appends one. */
static struct foreign *find_or_add_foreign(struct foreign *list, int *n, const char *name)
{
	for (int i = *n - 1; i >= 0 && i >= *n - LOOK_BACK; i--)
		if (!strcmp(list[i].name, name))
			return &list[i];
	struct foreign *f = &list[(*n)++];
	*f = (struct foreign){.ndim = 0};
	snprintf(f->name, sizeof(f->name), "%s", name);
	return f;
}

/* Appends our tensor `number` to the outputs of a foreign tensor. */
static void add_part(struct foreign *f, const struct stem *r, const struct tensor *t,
	int number, int64_t rows)
{
	BUG_ON(f->n_parts == FOREIGN_PARTS);
	f->part[f->n_parts] = number;
	f->outputs[f->n_parts++] = rows;
	f->ndim = t->ndim;
	f->transposed = r->transposed && t->ndim == 2;
	f->dims[f->transposed] += rows;
	if (t->ndim == 2)
		f->dims[!f->transposed] = t->dims[1];
}

/* Appends to list[*n] a zero bias for a module that has none in our model. */
static void add_bias(struct foreign *list, int *n, const struct foreign *weight)
{
	struct foreign *f = &list[(*n)++];
	size_t stem = strlen(weight->name) - strlen("weight");
	*f = (struct foreign){.ndim = 1, .n_parts = weight->n_parts};
	snprintf(f->name, sizeof(f->name), "%.*sbias", (int)stem, weight->name);
	for (int i = 0; i < f->n_parts; i++) {
		f->part[i] = -1;
		f->outputs[i] = weight->outputs[i];
		f->dims[0] += weight->outputs[i];
	}
}

/* Sets the other program's name of a block of our tensor (0: the first, or the only one). Returns
 * NULL if it has none. */
static const struct stem *set_their_name(const struct scheme *s, const char *ours,
	int block, char name[static FOREIGN_NAME])
{
	const char *kind;
	int64_t layer;
	const struct stem *r = find_stem(s, ours, &layer, &kind);
	scoped_str module = {0};
	if (!r)
		return NULL;
	bool is_second = r->second && block % 2;
	const char *theirs = is_second ? r->second : r->theirs,
		   *star = strchr(theirs, '*');
	str_puts(&module, "");
	if (layer >= 0)
		str_printf(&module, "%s%lld.", s->layers, (long long)layer);
	if (star)
		str_printf(&module, "%.*s%d%s", (int)(star - theirs), theirs,
			r->second ? block / 2 : block, star + 1);
	else
		str_puts(&module, theirs);
	bool is_bias = r->bias && !strcmp(kind, ".bias");
	snprintf(name, FOREIGN_NAME, "%s%s", module.s, is_bias ? r->bias : kind);
	return r;
}

bool set_stack_name(const struct scheme *s, const char *ours, char name[FOREIGN_NAME])
{
	const char *kind;
	int64_t layer;
	const struct stem *r = find_stem(s, ours, &layer, &kind);
	if (!r || !r->stack)
		return false;
	snprintf(name, FOREIGN_NAME, "%s%lld.%s", s->layers, (long long)layer, r->stack);
	return true;
}

/* Appends our tensor i, a stack of experts, as one tensor. */
static int add_whole_stack(const struct scheme *s, const struct model *m, int i,
	struct foreign *list, int *n, struct err *e)
{
	const struct tensor *t = &m->tensors[i];
	struct foreign *f = &list[(*n)++];
	*f = (struct foreign){.stacked = true,
		.ndim = 3,
		.dims = {t->experts, t->dims[0] / t->experts, t->dims[1]},
		.n_parts = 1,
		.part = {i},
		.outputs = {t->dims[0]}};
	return set_stack_name(s, t->name, f->name)
		       ? 0
		       : err_set(e, EX_DATAERR, "this format has no tensor for %s",
				 t->name);
}

/* Appends the matrices of the experts in our tensor i, a stack. */
static int add_stack(const struct scheme *s, const struct model *m, int i,
	struct foreign *list, int *n, struct err *e)
{
	const struct tensor *t = &m->tensors[i];
	int64_t rows = t->dims[0] / t->blocks;
	for (int b = 0; b < t->blocks; b++) {
		struct foreign *f = &list[(*n)++];
		*f = (struct foreign){.stacked = true, .first = b * rows};
		const struct stem *r = set_their_name(s, t->name, b, f->name);
		if (!r)
			return err_set(e, EX_DATAERR, "this format has no tensor for %s",
				t->name);
		add_part(f, r, t, i, rows);
	}
	return 0;
}

/* Adds our tensor i, no stack of experts, to the foreign tensor that contains it. */
static int add_tensor(const struct scheme *s, const struct model *m, int i, int64_t vocab,
	struct foreign *list, int *n, struct err *e)
{
	const struct tensor *t = &m->tensors[i];
	char name[FOREIGN_NAME];
	const struct stem *r = set_their_name(s, t->name, 0, name);
	if (!r)
		return err_set(
			e, EX_DATAERR, "this format has no tensor for %s", t->name);
	bool is_vocab = t == m->tokens || t == m->output;
	add_part(find_or_add_foreign(list, n, name), r, t, i,
		is_vocab ? vocab : t->dims[0]);
	return 0;
}

int64_t foreign_max(const struct model *m)
{
	int64_t n = 0;
	for (int i = 0; i < m->n_tensors; i++)
		n += max64(1, m->tensors[i].blocks);
	return n;
}

/* Lists all tensors; each stack of experts as one (`whole_stacks`) or as its matrices. */
static int list_all(const struct scheme *s, const struct model *m, int64_t vocab,
	bool whole_stacks, struct foreign **out, struct err *e)
{
	int64_t max = whole_stacks ? m->n_tensors : foreign_max(m);
	struct foreign *list = xcalloc(2 * (size_t)max, sizeof(*list));
	int n = 0, rc = 0;
	for (int i = 0; i < m->n_tensors && !rc; i++)
		rc = !m->tensors[i].blocks ? add_tensor(s, m, i, vocab, list, &n, e)
		     : whole_stacks	   ? add_whole_stack(s, m, i, list, &n, e)
					   : add_stack(s, m, i, list, &n, e);
	int n_own = n;
	for (int i = 0; i < n_own && s->has_biases && !m->bias && !rc; i++) {
		const char *kind;
		int64_t layer;
		const struct stem *r =
			find_stem(s, m->tensors[list[i].part[0]].name, &layer, &kind);
		if (!r->no_bias)
			add_bias(list, &n, &list[i]);
	}
	*out = list;
	if (rc)
		free(list);
	return rc ? -1 : n;
}

int foreign_list(const struct scheme *s, const struct model *m, int64_t vocab,
	struct foreign **list, struct err *e)
{
	return list_all(s, m, vocab, false, list, e);
}

int foreign_list_stacks(const struct scheme *s, const struct model *m, int64_t vocab,
	struct foreign **list, struct err *e)
{
	return list_all(s, m, vocab, true, list, e);
}

/* Where a class has a parameter. `part`: before the layers (0), in one (1), after them (2). */
struct class_place {
	struct torch_parameter parameter;
	int64_t part, layer, module, expert, of_expert, bias;
};

static int by_class_order(const void *a, const void *b)
{
	const struct class_place *x = a, *y = b;
	const int64_t both[][2] = {{x->part, y->part}, {x->layer, y->layer},
		{x->module, y->module}, {x->expert, y->expert},
		{x->of_expert, y->of_expert}, {x->bias, y->bias}};
	int order = 0;
	for (size_t i = 0; i < ARRAY_LEN(both) && !order; i++)
		order = (both[i][0] > both[i][1]) - (both[i][0] < both[i][1]);
	return order;
}

/* Returns true if a name is a module, and sets *expert to the number in the place of its *. */
static bool is_module(const char *module, const char *name, size_t n, int64_t *expert)
{
	const char *star = strchr(module, '*');
	const size_t head = star ? (size_t)(star - module) : 0;
	char *end;
	if (!star)
		return strlen(module) == n && !memcmp(module, name, n);
	if (n <= head || memcmp(module, name, head) != 0)
		return false;
	*expert = strtoll(name + head, &end, 10);
	const size_t rest = n - (size_t)(end - name);
	return end > name + head && end <= name + n && strlen(star + 1) == rest &&
	       !memcmp(star + 1, end, rest);
}

/* Sets the place of a module of experts, or of the router next to them. */
static void set_place_in_experts(
	const struct scheme *s, struct class_order order, int k, struct class_place *x)
{
	int first = 0;
	while (s->modules[first] && !strstr(s->modules[first], ".experts."))
		first++;
	if (strstr(s->modules[k], ".experts.")) {
		x->of_expert = k;
		x->module = first;
	} else if (order.router_last && text_ends(s->modules[k], ".gate")) {
		x->expert = INT64_MAX;
		x->module = first;
	}
}

/* Sets the place of a Hugging Face name, such as model.layers.0.mlp.up_proj.weight. */
static int set_place(const struct scheme *s, const char *name, struct class_order order,
	struct class_place *x)
{
	const char *kind = strrchr(name, '.');
	bool in_layer = !strncmp(name, s->layers, strlen(s->layers));
	char *module = (char *)name;
	if (in_layer)
		x->layer = strtoll(name + strlen(s->layers), &module, 10);
	size_t n = x->parameter.ndim	   ? strlen(module)
		   : kind && kind > module ? (size_t)(kind - module)
					   : 0;
	x->bias = kind && !strcmp(kind, ".bias");
	x->part = in_layer;
	for (int k = 0; s->modules[k]; k++) {
		if (!in_layer && *s->modules[k] == '.')
			x->part = 2;
		x->module = k;
		if (is_module(s->modules[k], module, n, &x->expert)) {
			set_place_in_experts(s, order, k, x);
			return 0;
		}
	}
	return -1;
}

/* Sets the item of a foreign tensor, and the shape of a stack of experts. */
static void set_parameter(
	const struct placement *x, const struct foreign *f, struct torch_parameter *p)
{
	const struct tensor_source *s = get_source(x, SOURCE_MODEL, f->part[0]);
	const bool is_stack = f->stacked && f->ndim == 3;
	const int64_t block = f->stacked && !is_stack ? f->first / f->outputs[0] : 0;
	*p = (struct torch_parameter){.item = s->blocks ? s->blocks[block].item : s->item,
		.ndim = is_stack ? f->ndim : 0};
	if (is_stack)
		memcpy(p->dims, f->dims, sizeof(f->dims));
}

int64_t stems_list_in_order(const struct placement *x, struct class_order order,
	struct torch_parameter *out, struct err *e)
{
	const struct dialect *d = x->names->dialect;
	struct foreign *list = NULL;
	int64_t n_all = 0, n = 0;
	int rc = d->scheme && d->scheme->modules ? 0 : -1;
	int n_list =
		rc ? 0 : list_all(d->scheme, x->m, x->m->c.vocab, order.stacks, &list, e);
	if (n_list < 0)
		return -1;
	struct class_place *places = xcalloc((size_t)n_list + 1, sizeof(*places));
	for (int i = 0; i < n_list && !rc; i++) {
		if (list[i].part[0] < 0 ||
			is_buffer_of_router(&x->m->tensors[list[i].part[0]]))
			continue;
		set_parameter(x, &list[i], &places[n_all].parameter);
		rc = set_place(d->scheme, list[i].name, order, &places[n_all++]);
	}
	qsort(places, (size_t)n_all, sizeof(*places), by_class_order);
	for (int64_t i = 0; i < n_all; i++)
		if (places[i].parameter.item &&
			(!n || out[n - 1].item != places[i].parameter.item))
			out[n++] = places[i].parameter;
	free(places);
	free(list);
	return rc ? err_set(e, EX_UNAVAILABLE,
			    "%s: the optimizer numbers its parameters in the order of the model's "
			    "class, which is unknown: the model file sorts them by name; save "
			    "the names too, by AdamW(model.named_parameters())",
			    x->names->file->path)
		  : n;
}

const struct torch_item *stems_find_item(const struct torch_names *x, const char *ours)
{
	const struct scheme *s = x->dialect->scheme;
	char name[FOREIGN_NAME];
	if (!s)
		return x->dialect->find ? x->dialect->find(x, ours)
					: torch_names_find(x, ours);
	const struct torch_item *item =
		set_their_name(s, ours, 0, name) ? torch_names_find(x, name) : NULL;
	return !item && set_stack_name(s, ours, name) ? torch_names_find(x, name) : item;
}

/* Returns the source of one of our tensors: the rows of an item from `first` on. */
static struct tensor_source make_source(const struct placement *x, int tensor,
	const struct torch_item *item, int64_t first, bool is_transposed)
{
	bool is_rotated = has_rotated_rows(&x->m->tensors[tensor]);
	return (struct tensor_source){.item = item,
		.first = first,
		.layer = -1,
		.transposed = is_transposed,
		.pairs = is_rotated && x->pairs,
		.rotates_partly = is_rotated && x->m->c.rotary};
}

/* Sets the source of one matrix of a stack: its own item, or rows of an item with all experts. */
static int set_block_source(
	struct placement *x, int group, const struct foreign *f, struct err *e)
{
	const int i = f->part[0];
	const struct tensor *t = &x->m->tensors[i];
	const int64_t rows = f->outputs[0], block = f->first / rows;
	const struct block_source *own = get_source(x, SOURCE_MODEL, i)->blocks;
	const struct torch_item *parameter = group && own ? own[block].item : NULL;
	char stack[FOREIGN_NAME];
	const struct torch_item *item = find_group_item(x, group, f->name, parameter);
	int64_t first = 0;
	if (item && item->ndim == 2 && !has_shape(item, 2, rows, t->dims[1]))
		return report_wrong_shape(x, item, e);
	if (!item && set_stack_name(x->names->dialect->scheme, t->name, stack)) {
		item = find_group_item(x, group, stack, parameter ? own[0].item : NULL);
		if (item && parameter && item->ndim == 2) /* the first matrix alone */
			item = NULL;
	}
	if (!item)
		return report_missing(x, group, f->name, e);
	if (item->ndim != 2) {
		if (item->ndim != 3 || item->dims[0] != t->experts ||
			item->dims[1] != t->dims[0] / t->experts ||
			item->dims[2] != t->dims[1])
			return report_wrong_shape(x, item, e);
		first = f->first;
	}
	set_block(x, group, i, (int)block, (struct block_source){item, first});
	return 0;
}

/* Sets the sources of our tensors that a foreign tensor contains. */
static int set_tensor_sources(struct placement *x, int group, const struct foreign *f,
	bool is_linear, struct err *e)
{
	int64_t first = 0;
	int64_t outputs = f->dims[f->transposed], inputs = f->dims[!f->transposed];
	if (f->stacked)
		return set_block_source(x, group, f, e);
	const struct torch_item *parameter =
		f->part[0] < 0 ? NULL : get_source(x, SOURCE_MODEL, f->part[0])->item;
	const struct torch_item *item =
		find_group_item(x, group, f->name, group ? parameter : NULL);
	bool is_transposed = f->transposed && !is_linear;
	if (!item && f->part[0] < 0)
		return 0; /* a bias that both models lack */
	if (!item)
		return report_missing(x, group, f->name, e);
	if (!has_shape(item, f->ndim, is_transposed ? inputs : outputs,
		    is_transposed ? outputs : inputs))
		return report_wrong_shape(x, item, e);
	for (int p = 0; p < f->n_parts; first += f->outputs[p++])
		if (f->part[p] >= 0)
			*get_source(x, group, f->part[p]) =
				make_source(x, f->part[p], item, first, is_transposed);
	return 0;
}

/* Sets the sources of all our tensors in a group. Fails if one is missing or misshapen. */
static int set_all_sources(struct placement *x, int group, bool is_linear, struct err *e)
{
	struct foreign *list;
	int n = foreign_list(x->names->dialect->scheme, x->m, x->m->c.vocab, &list, e);
	int rc = 0;
	if (n < 0)
		return -1;
	for (int i = 0; i < n && !rc; i++)
		rc = set_tensor_sources(x, group, &list[i], is_linear, e);
	free(list);
	return rc;
}

int stems_set_sources(struct placement *x, int group, struct err *e)
{
	return set_all_sources(x, group, false, e);
}

int stems_set_linear_sources(struct placement *x, int group, struct err *e)
{
	return set_all_sources(x, group, true, e);
}
