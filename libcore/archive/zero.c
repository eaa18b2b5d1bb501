/* DeepSpeed's ZeRO 1, 2 and 3 checkpoints: a directory global_stepN with a model file (with ZeRO 3
 * one per rank) and an optimizer file per rank. An optimizer file has the rank's part of flat
 * buffers: fp32 parameters and moments, per parameter group. The model file lists the names and
 * shapes of the parameters in order (param_shapes).
 *
 *   ZeRO 1, 2: a group is one buffer, split into equal parts. Its end is padded, and the end of
 *              each parameter if there are param_alignment_paddings.
 *   ZeRO 3:    each parameter is split into equal parts, the last one padded. A rank has its part
 *              of each parameter in turn, in one buffer or several.
 *
 * Parameters are reassembled as DeepSpeed's zero_to_fp32.py does. */
#include "archive/archive_internal.h"

#include <unistd.h>

enum kind { FP32, EXP_AVG, EXP_AVG_SQ, KINDS };
static const char *const kinds[KINDS] = {"fp32", "exp_avg", "exp_avg_sq"};

/* ---- a checkpoint ---------------------------------------------------------------------------- */

/* A parameter of param_shapes. */
struct parameter {
	char *name;
	int ndim;
	int64_t dims[TORCH_MAX_DIMS], n; /* elements */
	int64_t group, padding;		 /* padding: elements after the parameter */
	int64_t at;			 /* index of the first element in the vector */
};

struct zero {
	struct torch_file *f;
	struct err *e;
	struct zero_files files;
	int64_t stage, ranks, groups;
	struct archive model; /* model file of rank 0 */
	int32_t model_file; /* index of that file, after the optimizer files of all ranks */
	struct parameter *parameters;
	int64_t n_parameters;
	struct buffer *buffers; /* [kind][group][rank] */
	/* [kind][group][rank]: number of elements of earlier buffers in the same vector */
	int64_t *before;
	uint32_t *steps;  /* [group] AdamW's step, a node in rank 0's tree; 0: none */
	bool has_moments; /* AdamW's exp_avg and exp_avg_sq */
};

static int set_error(const struct zero *z, int code, const char *what)
{
	return err_set(z->e, code, "%s: %s", z->files.directory.s, what);
}

static struct buffer *buffer_at(
	const struct zero *z, enum kind kind, int64_t group, int64_t rank)
{
	return &z->buffers[((int64_t)kind * z->groups + group) * z->ranks + rank];
}

/* Returns members 0 to n - 1 of a list, or of a dict with integer keys (0: missing), for free(). */
static uint32_t *list_numbered(const struct pickle *p, uint32_t node, int64_t n)
{
	uint32_t *list = xcalloc((size_t)n + 1, sizeof(*list)), key, x;
	bool is_dict = pickle_kind(p, node) == PICKLE_DICT;
	struct pickle_each it;
	int64_t at = -1;
	pickle_begin(&it, p, node);
	while ((!is_dict || pickle_next(&it, &key)) && pickle_next(&it, &x)) {
		if (is_dict && pickle_int(p, key, &at))
			continue;
		at += !is_dict;
		if (at >= 0 && at < n)
			list[at] = x;
	}
	return list;
}

static uint32_t get_optimizer(const struct pickle *p)
{
	return pickle_get(p, p->root, "optimizer_state_dict");
}

/* Returns the state dict of the wrapped optimizer; 0: none. */
static uint32_t get_base_state(const struct pickle *p)
{
	uint32_t o = get_optimizer(p), base = pickle_get(p, o, "base_optimizer_state");
	return base ? base : pickle_get(p, o, "optimizer_state_dict");
}

/* Returns the states of n groups, for free(). */
static uint32_t *list_group_states(const struct pickle *p, int64_t n)
{
	uint32_t base = get_base_state(p);
	bool elastic = pickle_kind(p, base) == PICKLE_LIST;
	return list_numbered(p, elastic ? base : pickle_get(p, base, "state"), n);
}

/* Returns an integer, the value of an enum, or the maximum of a list; `none` for anything else. */
static int64_t read_count(const struct pickle *p, uint32_t node, int64_t none)
{
	int64_t max = none, x;
	uint32_t member;
	struct pickle_each it;
	if (pickle_kind(p, node) == PICKLE_OBJECT)
		node = pickle_part(p, node, PICKLE_ARGUMENTS);
	if (!pickle_int(p, node, &x))
		return x;
	if (pickle_kind(p, node) != PICKLE_LIST && pickle_kind(p, node) != PICKLE_TUPLE)
		return none;
	pickle_begin(&it, p, node);
	while (pickle_next(&it, &member))
		if (!pickle_int(p, member, &x))
			max = max64(max, x);
	return max;
}

/* Returns the ZeRO stage; 1 if it is missing, as BF16_Optimizer (ZeRO 1, fp32 gradients) does. */
static int64_t read_stage(const struct pickle *p)
{
	return read_count(p, pickle_get(p, get_optimizer(p), "zero_stage"), 1);
}

static int64_t read_ranks(const struct pickle *p)
{
	return read_count(p, pickle_get(p, get_optimizer(p), "partition_count"), -1);
}

/* Returns the list of a rank's fp32 buffers, one per group. */
static uint32_t get_buffers(const struct pickle *p)
{
	const char *key = read_stage(p) == 3 ? "fp32_flat_groups"
					     : "single_partition_of_fp32_groups";
	return pickle_get(p, get_optimizer(p), key);
}

/* Reads the ZeRO stage and the number of ranks from the first optimizer file. */
static int read_layout(struct zero *z)
{
	enum { MAX_RANKS = 1 << 20 };
	struct archive a;
	scoped_ptr char *path =
		text_printf("%s/%s", z->files.directory.s, z->files.optim.v[0]);
	int rc = archive_open_path(&a, path, z->e);
	if (!rc) {
		z->stage = read_stage(&a.tree);
		z->ranks = read_ranks(&a.tree);
		if (z->stage < 1 || z->stage > 3 || z->ranks < 1 || z->ranks > MAX_RANKS)
			rc = err_set(z->e, EX_UNAVAILABLE,
				"%s: not an optimizer of ZeRO 1, 2 or 3 (zero_stage, "
				"partition_count); " ZERO_UNIVERSAL,
				path);
		close(a.zip.fd);
		archive_close(&a);
	}
	return rc;
}

/* Sets a rank's buffers of one kind. `nodes`: [group] the fp32 buffer, or the optimizer state. */
static int read_group_buffers(struct zero *z, const struct archive *a, int64_t rank,
	enum kind kind, const uint32_t *nodes)
{
	for (int64_t g = 0; g < z->groups; g++) {
		uint32_t node = kind == FP32
					? nodes[g]
					: pickle_field(&a->tree, nodes[g], kinds[kind]);
		struct buffer *b = buffer_at(z, kind, g, rank);
		if (storages_describe_buffer(z->f, (int32_t)rank, a, node, b, z->e))
			return err_prefix(
				z->e, "%s of group %lld: ", kinds[kind], (long long)g);
		if (b->dtype != buffer_at(z, kind, 0, 0)->dtype)
			return err_set(z->e, EX_DATAERR,
				"%s: the dtype of %s differs from rank 0",
				z->f->parts->files[rank], kinds[kind]);
	}
	return 0;
}

/* Fails if the stage, the number of ranks or of groups differs from rank 0. */
static int check_rank(struct zero *z, const struct pickle *p, int64_t rank)
{
	const char *path = z->f->parts->files[rank];
	if (read_stage(p) != z->stage || read_ranks(p) != z->ranks)
		return err_set(z->e, EX_DATAERR,
			"%s: from a different run (ZeRO %lld, %lld ranks) than the other files",
			path, (long long)read_stage(p), (long long)read_ranks(p));
	if (p->nodes[get_buffers(p)].n != (uint64_t)z->groups)
		return err_set(z->e, EX_DATAERR,
			"%s: the number of parameter groups (%u) differs from rank 0 "
			"(%lld)",
			path, p->nodes[get_buffers(p)].n, (long long)z->groups);
	return 0;
}

/* Allocates z->steps, and sets AdamW's step of each group, from its state or options. */
static void read_steps(struct zero *z, const struct pickle *p, const uint32_t *states)
{
	uint32_t common = pickle_get(p, get_optimizer(p), "base_optimizer_state_step");
	scoped_ptr uint32_t *groups = list_numbered(
		p, pickle_get(p, get_base_state(p), "param_groups"), z->groups);
	z->steps = xcalloc((size_t)z->groups + 1, sizeof(*z->steps));
	for (int64_t g = 0; g < z->groups; g++) {
		uint32_t step = pickle_field(p, states[g], "step");
		step = step ? step : common;
		z->steps[g] =
			step ? step
			     : pickle_field(p, groups[z->stage < 3 ? g : 0], "step");
	}
}

/* Sets the number of groups from rank 0's file, and allocates the buffers of all ranks. */
static int make_buffers(struct zero *z, const struct pickle *p)
{
	uint32_t list = get_buffers(p);
	z->groups = pickle_kind(p, list) == PICKLE_LIST ? p->nodes[list].n : 0;
	int64_t n = KINDS * z->groups * z->ranks + 1;
	size_t each = sizeof(*z->buffers) + sizeof(*z->before);
	if (items_charge(z->f, n * (int64_t)each, z->e))
		return -1;
	z->buffers = xcalloc((size_t)n, sizeof(*z->buffers));
	z->before = xcalloc((size_t)n, sizeof(*z->before));
	return 0;
}

/* Reads where a rank's buffers are. Rank 0 also sets the groups, has_moments and the steps. */
static int read_rank(struct zero *z, int64_t rank)
{
	struct archive a;
	if (storages_open(z->f, (int32_t)rank, &a, z->e))
		return -1;
	const struct pickle *p = &a.tree;
	int rc = rank ? 0 : make_buffers(z, p);
	rc = rc || check_rank(z, p, rank) ? -1 : 0;
	if (!rc) {
		scoped_ptr uint32_t *states = list_group_states(p, z->groups);
		scoped_ptr uint32_t *buffers =
			list_numbered(p, get_buffers(p), z->groups);
		if (!rank) {
			z->has_moments = pickle_field(p, states[0], kinds[EXP_AVG]) != 0;
			read_steps(z, p, states);
		}
		for (enum kind k = FP32; k < KINDS && !rc && (!k || z->has_moments); k++)
			rc = read_group_buffers(z, &a, rank, k, k ? states : buffers);
	}
	storages_close(z->f, (int32_t)rank, &a);
	return rc;
}

/* Reads the dimensions of a torch.Size. Returns -1 if the node is not one. */
static int read_shape(const struct pickle *p, uint32_t node, struct parameter *x)
{
	struct pickle_each it;
	uint32_t member;
	if (pickle_kind(p, node) != PICKLE_TUPLE)
		return -1;
	pickle_begin(&it, p, node);
	while (pickle_next(&it, &member))
		if (x->ndim == TORCH_MAX_DIMS ||
			pickle_int(p, member, &x->dims[x->ndim++]))
			return -1;
	if (!shape_fits(x->dims, x->ndim))
		return -1;
	x->n = 1;
	for (int i = 0; i < x->ndim; i++)
		x->n *= x->dims[i];
	return 0;
}

/* Returns a copy of a name; NULL if the node is not a name, or with *rc = -1 if out of budget. */
static char *copy_text(
	const struct zero *z, const struct pickle *p, uint32_t node, int *rc)
{
	enum { MAX_NAME = 4096 };
	size_t n;
	const char *text = pickle_text(p, node, &n);
	struct str out = {0};
	if (text && n <= MAX_NAME && !memchr(text, 0, n)) {
		*rc = items_charge(z->f, (int64_t)n, z->e);
		if (*rc)
			return NULL;
		str_puts(&out, "");
		str_add(&out, text, n);
	}
	return out.s;
}

/* Appends a parameter; fails if its name or shape is invalid. */
static int add_parameter(struct zero *z, uint32_t key, uint32_t shape, int64_t group)
{
	struct parameter x = {.group = group};
	int rc = items_charge(z->f, sizeof(x), z->e);
	if (rc || read_shape(&z->model.tree, shape, &x) ||
		!(x.name = copy_text(z, &z->model.tree, key, &rc)))
		return rc ? rc
			  : set_error(z, EX_DATAERR,
				    "invalid name or shape of a parameter");
	z->parameters = xgrow(z->parameters, z->n_parameters, sizeof(*z->parameters));
	z->parameters[z->n_parameters++] = x;
	return 0;
}

/* Appends the parameters of a group. `paddings`: elements after each one (ZeRO 1, 2); 0: none. */
static int add_group(struct zero *z, uint32_t shapes, uint32_t paddings, int64_t group)
{
	const struct pickle *first = &z->f->parts->archive.tree;
	struct pickle_each it, padding_it;
	uint32_t key, shape, padding_node;
	int rc = 0;
	pickle_begin(&it, &z->model.tree, shapes);
	pickle_begin(&padding_it, first, paddings);
	while (!rc && pickle_next(&it, &key) && pickle_next(&it, &shape)) {
		rc = add_parameter(z, key, shape, group);
		int64_t *padding =
			rc ? NULL : &z->parameters[z->n_parameters - 1].padding;
		if (padding && paddings &&
			(!pickle_next(&padding_it, &padding_node) ||
				pickle_int(first, padding_node, padding) ||
				*padding < 0 || *padding > 1 << 20))
			rc = set_error(z, EX_DATAERR, "invalid param_alignment_paddings");
	}
	return rc;
}

/* Appends the parameters that param_shapes of the model file lists. */
static int read_parameters(struct zero *z)
{
	const struct pickle *p = &z->model.tree, *first = &z->f->parts->archive.tree;
	uint32_t list = pickle_get(p, p->root, "param_shapes"), shapes;
	uint32_t paddings =
		pickle_get(first, get_optimizer(first), "param_alignment_paddings");
	struct pickle_each it, all;
	if (pickle_kind(p, list) != PICKLE_LIST)
		return err_set(z->e, EX_UNAVAILABLE,
			"%s: param_shapes (parameter names) is missing; " ZERO_UNIVERSAL,
			p->name);
	if (p->nodes[list].n != z->groups)
		return err_set(z->e, EX_DATAERR,
			"%s has %u parameter group%s, but the optimizer has %lld",
			p->name, p->nodes[list].n, plural(p->nodes[list].n),
			(long long)z->groups);
	pickle_begin(&it, p, list);
	pickle_begin(&all, first, z->stage < 3 ? paddings : 0);
	for (int64_t g = 0; pickle_next(&it, &shapes); g++) {
		uint32_t padding_it = 0;
		pickle_next(&all, &padding_it);
		if (pickle_kind(p, shapes) != PICKLE_DICT)
			return set_error(z, EX_DATAERR, "invalid param_shapes");
		if (add_group(z, shapes, padding_it, g))
			return -1;
	}
	return 0;
}

/* Buffers that concatenate to one vector: first[0], first[step], first[2 * step], ... */
struct vector {
	const struct buffer *first;
	int64_t n, step;
};

/* Returns the size of a vector in elements, and sets z->before of its buffers. */
static int64_t vector_size(struct zero *z, const struct vector *v)
{
	int64_t n = 0;
	for (int64_t i = 0; i < v->n; i++) {
		z->before[&v->first[i * v->step] - z->buffers] = n;
		n += v->first[i * v->step].n;
	}
	return n;
}

/* Adds elements [from, from + n) of the vector as elements [first, first + n) of the last item. */
static void add_part(const struct zero *z, const struct vector *v, int64_t begin,
	int64_t first, int64_t n)
{
	const int64_t *before = z->before + (v->first - z->buffers);
	int64_t low = 0, high = v->n;
	while (high - low > 1) { /* (the last buffer that begins at or before `begin`) */
		int64_t middle = low + (high - low) / 2;
		*(before[middle * v->step] <= begin ? &low : &high) = middle;
	}
	for (int64_t i = low; i < v->n && n; i++) {
		const struct buffer *b = &v->first[i * v->step];
		int64_t at = begin - before[i * v->step];
		int64_t n_here = max64(0, min64(n, b->n - at));
		storages_add_range(z->f, b, at, first, n_here);
		begin += n_here;
		first += n_here;
		n -= n_here;
	}
}

/* Returns the vector of group `index` over all ranks (ZeRO 1, 2), or of rank `index` over all
 * groups (ZeRO 3). */
static struct vector vector_at(const struct zero *z, enum kind kind, int64_t index)
{
	return z->stage < 3 ? (struct vector){buffer_at(z, kind, index, 0), z->ranks, 1}
			    : (struct vector){
				      buffer_at(z, kind, 0, index), z->groups, z->ranks};
}

/* Returns the elements per rank of a parameter of n elements, padding included (ZeRO 3). */
static int64_t part_size(const struct zero *z, int64_t n)
{
	return (n + z->ranks - 1) / z->ranks;
}

/* Returns the elements of all parameters per group; with ZeRO 3 per rank, in [0]. For free(). */
static int64_t *sum_sizes(const struct zero *z)
{
	int64_t *n = xcalloc((size_t)z->groups + 1, sizeof(*n));
	for (int64_t i = 0; i < z->n_parameters; i++) {
		const struct parameter *x = &z->parameters[i];
		int64_t *sum = &n[z->stage == 3 ? 0 : x->group];
		*sum += z->stage == 3 ? part_size(z, x->n) : x->n + x->padding;
		*sum = min64(*sum, INT64_MAX / 8);
	}
	return n;
}

/* Fails if the size of a vector differs from its parameters. A group is padded to a multiple of 2
 * elements per rank; the fp32 buffers may lack this. (items_finish() detects short parameters.) */
static int check_sizes(struct zero *z)
{
	int64_t align = z->stage == 3 ? 1 : 2 * z->ranks, *sizes = sum_sizes(z);
	int64_t n = z->stage == 3 ? z->ranks : z->groups;
	int rc = 0;
	for (enum kind k = FP32; k < KINDS && !rc && (!k || z->has_moments); k++)
		for (int64_t i = 0; i < n && !rc; i++) {
			const struct vector v = vector_at(z, k, i);
			int64_t size = vector_size(z, &v);
			int64_t expected = sizes[z->stage == 3 ? 0 : i];
			if ((size + align - 1) / align != (expected + align - 1) / align)
				rc = err_set(z->e, EX_DATAERR,
					"%s: the parameters of %s %lld have %lld elements, the %s "
					"buffers %lld: from several runs, or offloaded to disk",
					z->files.directory.s,
					z->stage == 3 ? "rank" : "group", (long long)i,
					(long long)expected, kinds[k], (long long)size);
		}
	free(sizes);
	return rc;
}

/* Appends an item without chunks for a parameter, or for its optimizer state `what`. */
static int add_empty_item(
	struct zero *z, const char *name, const char *what, const struct parameter *x)
{
	scoped_str text = {0};
	if (what)
		str_printf(&text, "optimizer.state.%s.%s", name, what);
	else
		str_puts(&text, name);
	struct torch_item *t = items_add(z->f, text.s, text.len, z->e);
	if (!t)
		return -1;
	t->kind = TORCH_TENSOR;
	t->ndim = x->ndim;
	memcpy(t->dims, x->dims, sizeof(t->dims));
	return 0;
}

/* Appends a parameter or a moment. `at`: its first element in the vector. */
static int add_tensor(struct zero *z, const char *name, const struct parameter *x,
	enum kind kind, int64_t at)
{
	if (add_empty_item(z, name, kind == FP32 ? NULL : kinds[kind], x))
		return -1;
	z->f->items[z->f->n - 1].dtype = buffer_at(z, kind, x->group, 0)->dtype;
	if (z->stage < 3) {
		const struct vector v = vector_at(z, kind, x->group);
		add_part(z, &v, at, 0, x->n);
		return 0;
	}
	int64_t part = part_size(z, x->n);
	for (int64_t r = 0; r * part < x->n; r++) {
		const struct vector v = vector_at(z, kind, r);
		add_part(z, &v, at, r * part, min64(part, x->n - r * part));
	}
	return 0;
}

static int add_step(struct zero *z, const char *name, int64_t group)
{
	uint32_t step = z->steps[group];
	scoped_ptr char *text = text_printf("optimizer.state.%s.step", name);
	return step ? torch_file_add_items(z->f, step, text, z->e) : 0;
}

/* Appends all items of a parameter, under one of its names. */
static int add_items(struct zero *z, const char *name, const struct parameter *x)
{
	for (enum kind k = FP32; k < KINDS && (!k || z->has_moments); k++)
		if (add_tensor(z, name, x, k, x->at))
			return -1;
	return z->has_moments ? add_step(z, name, x->group) : 0;
}

/* Appends the aliases of shared parameters. */
static int add_aliases(struct zero *z)
{
	const struct pickle *p = &z->model.tree;
	struct pickle_each it;
	uint32_t alias, source, shared = pickle_get(p, p->root, "shared_params");
	size_t n = (size_t)z->n_parameters;
	scoped_ptr struct parameter *sorted =
		xcalloc(n + 1, sizeof(*sorted)); /* (its first field is the name) */
	int rc = 0;
	memcpy(sorted, z->parameters, n * sizeof(*sorted));
	qsort(sorted, n, sizeof(*sorted), compare_texts);
	pickle_begin(&it, p, pickle_kind(p, shared) == PICKLE_DICT ? shared : 0);
	while (!rc && pickle_next(&it, &alias) && pickle_next(&it, &source)) {
		scoped_ptr char *name = copy_text(z, p, alias, &rc);
		scoped_ptr char *original = rc ? NULL : copy_text(z, p, source, &rc);
		const struct parameter *x =
			name && original ? bsearch(&original, sorted, n, sizeof(*sorted),
						   compare_texts)
					 : NULL;
		rc = x ? add_items(z, name, x) : rc;
	}
	return rc;
}

/* Sets each parameter's offset in its group's buffers; appends its items and the aliases. */
static int add_parameters(struct zero *z)
{
	int64_t at = 0, group = 0;
	for (int64_t i = 0; i < z->n_parameters; i++) {
		struct parameter *x = &z->parameters[i];
		if (z->stage < 3 && x->group != group)
			at = 0;
		group = x->group;
		x->at = at;
		if (add_items(z, x->name, x))
			return -1;
		at += z->stage == 3 ? part_size(z, x->n) : x->n + x->padding;
	}
	return z->n_parameters ? add_aliases(z) : 0;
}

/* ---- frozen parameters, which the optimizer does not have ------------------------------------ */

/* Appends the texts in a list, or the keys of a dict. */
static int add_names(
	const struct zero *z, const struct pickle *p, uint32_t list, struct strs *out)
{
	int rc = 0;
	bool is_dict = pickle_kind(p, list) == PICKLE_DICT;
	struct pickle_each it;
	uint32_t name, value;
	pickle_begin(&it, p, list);
	while (!rc && pickle_next(&it, &name) && (!is_dict || pickle_next(&it, &value))) {
		scoped_ptr char *text = copy_text(z, p, name, &rc);
		if (text)
			strs_add(out, text);
	}
	return rc;
}

/* Appends, for ZeRO 1 and 2, the module's tensors except buffers and the optimizer's parameters,
 * which the module has as rounded copies, and their aliases. */
static int add_frozen(struct zero *z)
{
	const struct pickle *p = &z->model.tree;
	scoped_strs excluded = {0};
	struct pickle_each it;
	uint32_t key, node;
	int rc = 0;
	for (int64_t i = 0; i < z->n_parameters; i++)
		strs_add(&excluded, z->parameters[i].name);
	rc = add_names(z, p, pickle_get(p, p->root, "buffer_names"), &excluded) ||
			     add_names(z, p, pickle_get(p, p->root, "shared_params"),
				     &excluded)
		     ? -1
		     : 0;
	strs_sort(&excluded);
	uint32_t module = pickle_get(p, p->root, "module");
	pickle_begin(&it, p, pickle_kind(p, module) == PICKLE_DICT ? module : 0);
	while (rc >= 0 && pickle_next(&it, &key) && pickle_next(&it, &node)) {
		scoped_ptr char *name = copy_text(z, p, key, &rc);
		if (name && !(excluded.n && bsearch(&name, excluded.v, (size_t)excluded.n,
						    sizeof(*excluded.v), compare_texts)))
			rc = storages_add_tensor(
				z->f, z->model_file, &z->model, node, name, z->e);
	}
	return rc < 0 ? -1 : 0;
}

/* Sets z->buffers to a rank's part of each frozen parameter in its model file (ZeRO 3). */
static int read_fragments(
	struct zero *z, const struct archive *a, int64_t rank, int64_t begin)
{
	const struct pickle *p = &a->tree;
	uint32_t is_dict = pickle_get(p, p->root, "frozen_param_fragments"), key, node;
	struct pickle_each it;
	pickle_begin(&it, p, pickle_kind(p, is_dict) == PICKLE_DICT ? is_dict : 0);
	for (int64_t i = begin; i < z->n_parameters; i++) {
		const struct parameter *x = &z->parameters[i];
		struct buffer *b = &z->buffers[(i - begin) * z->ranks + rank];
		/* (DeepSpeed lists shapes and fragments in the same order) */
		if (!pickle_next(&it, &key) || !pickle_next(&it, &node) ||
			!pickle_is_text(p, key, x->name))
			node = pickle_field(p, is_dict, x->name);
		if (storages_describe_buffer(
			    z->f, z->model_file + (int32_t)rank, a, node, b, z->e))
			return err_prefix(z->e, "%s: ", x->name);
		if (b->n != part_size(z, x->n) ||
			b->dtype != z->buffers[(i - begin) * z->ranks].dtype)
			return err_set(z->e, EX_DATAERR,
				"%s: the part of %s has %lld elements, not %lld, or its dtype "
				"differs from rank 0",
				p->name, x->name, (long long)b->n,
				(long long)part_size(z, x->n));
	}
	return 0;
}

/* Sets z->buffers to all ranks' parts of the frozen parameters, from `begin` on (ZeRO 3). */
static int read_all_fragments(struct zero *z, int64_t begin)
{
	struct archive a;
	int rc = read_fragments(z, &z->model, 0, begin);
	for (int64_t r = 1; r < z->ranks && !rc; r++) {
		int32_t file = z->model_file + (int32_t)r;
		if (storages_open(z->f, file, &a, z->e))
			return -1;
		rc = read_fragments(z, &a, r, begin);
		storages_close(z->f, file, &a);
	}
	return rc;
}

/* Appends the frozen parameters (ZeRO 3); z->buffers then holds only their parts. */
static int add_fragments(struct zero *z)
{
	const struct pickle *p = &z->model.tree;
	int64_t begin = z->n_parameters;
	int rc = add_group(z, pickle_get(p, p->root, "frozen_param_shapes"), 0, 0);
	if (rc || begin == z->n_parameters)
		return rc;
	free(z->buffers); /* (the optimizer's buffers are no longer needed) */
	z->buffers = NULL;
	z->groups = z->n_parameters - begin;
	if (items_charge(z->f, z->groups * z->ranks * (int64_t)sizeof(*z->buffers), z->e))
		return -1;
	z->buffers = xcalloc((size_t)(z->groups * z->ranks), sizeof(*z->buffers));
	rc = read_all_fragments(z, begin);
	for (int64_t i = begin; i < z->n_parameters && !rc; i++) {
		const struct parameter *x = &z->parameters[i];
		const struct buffer *b = buffer_at(z, FP32, i - begin, 0);
		int64_t part = part_size(z, x->n);
		rc = add_empty_item(z, x->name, NULL, x);
		if (rc)
			break;
		z->f->items[z->f->n - 1].dtype = b->dtype;
		for (int64_t r = 0; r * part < x->n; r++)
			storages_add_range(
				z->f, &b[r], 0, r * part, min64(part, x->n - r * part));
	}
	return rc;
}

/* Reads the files of all ranks, and appends all items. */
static int read_files(struct zero *z)
{
	scoped_strs paths = {0};
	const struct pickle *p = &z->f->parts->archive.tree;
	int rc = zero_files_list(&z->files, z->stage, z->ranks, &paths, z->e);
	z->model_file = (int32_t)z->ranks;
	if (!rc)
		storages_add_files(z->f, &paths);
	if (rc || archive_open_path(&z->f->parts->archive, z->f->parts->files[0], z->e))
		return -1;
	for (int64_t r = 0; r < z->ranks; r++)
		if (read_rank(z, r))
			return -1;
	if (storages_open(z->f, z->model_file, &z->model, z->e))
		return -1;
	rc = read_parameters(z) || check_sizes(z) || add_parameters(z) ||
	     (z->stage == 3 ? add_fragments(z) : add_frozen(z)) ||
	     torch_file_add_items(z->f, pickle_get(p, get_base_state(p), "param_groups"),
		     "optimizer.param_groups", z->e);
	storages_close(z->f, z->model_file, &z->model);
	return rc || items_finish(z->f, z->e) ? -1 : 0;
}

/* Returns true if a directory has files of DeepSpeed ZeRO, and no safetensors model. */
static bool zero_matches(const char *path)
{
	struct zero_files x;
	if (container_has_safetensors(path))
		return false;
	bool matches = zero_files_find(&x, path);
	zero_files_release(&x);
	return matches;
}

/* Appends the items of the checkpoint in directory f->path, and frees all temporary lists. */
static int zero_open(struct torch_file *f, struct err *e)
{
	struct zero z = {.f = f, .e = e};
	zero_files_find(&z.files, f->path);
	int rc = zero_files_check(&z.files, e) || read_layout(&z) || read_files(&z) ? -1
										    : 0;
	for (int64_t i = 0; i < z.n_parameters; i++)
		free(z.parameters[i].name);
	free(z.parameters);
	free(z.buffers);
	free(z.before);
	free(z.steps);
	zero_files_release(&z.files);
	return rc;
}

const struct container container_zero = {.matches = zero_matches, .open = zero_open};
