/*
 * DeepSpeed's own checkpoints of ZeRO 1, 2 and 3: a directory global_stepN with the file of the model
 * (of each rank, with ZeRO 3) and one of the optimizer of each rank. The optimizer has flat buffers: fp32
 * parameters and the moments, of each group of parameters, of which a rank has a part. The file of the model
 * has the names and shapes of the parameters in their order, param_shapes.
 *
 *   ZeRO 1, 2: a group is one buffer, cut into equal parts; its end, and the end of each parameter if
 *              param_alignment_paddings says so, are padded.
 *   ZeRO 3:    each parameter is cut into equal parts, the last one padded. A rank has its part of the first
 *              parameter, of the second ..., in one buffer or several.
 *
 * Both as DeepSpeed's zero_to_fp32.py puts the parameters together again.
 */
#include "archive/archive_internal.h"

#include <unistd.h>

enum kind { FP32, EXP_AVG, EXP_AVG_SQ, KINDS };
static const char *const kinds[KINDS] = {"fp32", "exp_avg", "exp_avg_sq"};

/* ---- a checkpoint -------------------------------------------------------------------------------- */

/* A parameter of param_shapes. */
struct parameter {
	char *name;
	int ndim;
	int64_t dims[TORCH_MAX_DIMS], n; /* numbers */
	int64_t group, padding;		 /* behind it, in numbers */
	int64_t at;			 /* where it begins in its vector */
};

struct zero {
	struct torch_file *f;
	struct err *e;
	struct zero_files files;
	int64_t stage, ranks, groups;
	struct archive model; /* the file of the model of rank 0 */
	int32_t model_file; /* the first of those; the optimizer's are files 0 to ranks - 1 */
	struct parameter *parameters;
	int64_t n_parameters;
	struct buffer *buffers; /* [kind][group][rank] */
	int64_t *
		before; /* [kind][group][rank]: numbers in the buffers before it in its vector */
	uint32_t *steps; /* [group] in the tree of rank 0: AdamW's step; 0: none */
	bool moments;
};

static int refuse(const struct zero *z, int code, const char *what)
{
	return err_set(z->e, code, "%s: %s", z->files.folder.s, what);
}

static struct buffer *buffer_of(
	const struct zero *z, enum kind kind, int64_t group, int64_t rank)
{
	return &z->buffers[((int64_t)kind * z->groups + group) * z->ranks + rank];
}

/* Sets the n first members of a list, or the values of the keys 0 to n - 1 of a dict; 0: none. Allocated. */
static uint32_t *list_numbered(const struct pickle *p, uint32_t node, int64_t n)
{
	uint32_t *list = xcalloc((size_t)n + 1, sizeof(*list)), key, x;
	bool dict = pickle_kind(p, node) == PICKLE_DICT;
	struct pickle_each it;
	int64_t at = -1;
	pickle_each(&it, p, node);
	while ((!dict || pickle_next(&it, &key)) && pickle_next(&it, &x)) {
		if (dict && pickle_int(p, key, &at))
			continue;
		at += !dict;
		if (at >= 0 && at < n)
			list[at] = x;
	}
	return list;
}

static uint32_t optimizer_of(const struct pickle *p)
{
	return pickle_get(p, p->root, "optimizer_state_dict");
}

/* What the optimizer has of a group; `base`: all of its state. 0: none. */
static uint32_t base_of(const struct pickle *p)
{
	uint32_t o = optimizer_of(p), base = pickle_get(p, o, "base_optimizer_state");
	return base ? base : pickle_get(p, o, "optimizer_state_dict");
}

/* The states of n groups, for free(). */
static uint32_t *list_states(const struct pickle *p, int64_t n)
{
	uint32_t base = base_of(p);
	bool elastic = pickle_kind(p, base) == PICKLE_LIST;
	return list_numbered(p, elastic ? base : pickle_get(p, base, "state"), n);
}

/* An integer, an enumeration's value, or the largest of a list. */
static int64_t read_count(const struct pickle *p, uint32_t node, int64_t none)
{
	int64_t most = none, x;
	uint32_t member;
	struct pickle_each it;
	if (pickle_kind(p, node) == PICKLE_OBJECT)
		node = pickle_part(p, node, PICKLE_ARGUMENTS);
	if (!pickle_int(p, node, &x))
		return x;
	if (pickle_kind(p, node) != PICKLE_LIST && pickle_kind(p, node) != PICKLE_TUPLE)
		return none;
	pickle_each(&it, p, node);
	while (pickle_next(&it, &member))
		if (!pickle_int(p, member, &x))
			most = max64(most, x);
	return most;
}

/* BF16_Optimizer, with which ZeRO 1 has gradients in fp32 of a model in bf16, does not tell its stage. */
static int64_t read_stage(const struct pickle *p)
{
	return read_count(p, pickle_get(p, optimizer_of(p), "zero_stage"), 1);
}

static int64_t read_ranks(const struct pickle *p)
{
	return read_count(p, pickle_get(p, optimizer_of(p), "partition_count"), -1);
}

static uint32_t buffers_of(const struct pickle *p)
{
	const char *key = read_stage(p) == 3 ? "fp32_flat_groups"
					     : "single_partition_of_fp32_groups";
	return pickle_get(p, optimizer_of(p), key);
}

/* ---- one file of each rank ---------------------------------------------------- */

/* Reads from some file of the optimizer how many ranks there are. */
static int read_layout(struct zero *z)
{
	enum { MOST_RANKS = 1 << 20 };
	struct archive a;
	scoped_ptr char *path =
		text_printf("%s/%s", z->files.folder.s, z->files.optim.v[0]);
	int rc = archive_of_path(&a, path, z->e);
	if (!rc) {
		z->stage = read_stage(&a.tree);
		z->ranks = read_ranks(&a.tree);
		if (z->stage < 1 || z->stage > 3 || z->ranks < 1 || z->ranks > MOST_RANKS)
			rc = err_set(z->e, EX_UNAVAILABLE,
				"%s: not the optimizer of ZeRO 1, 2 or 3 (zero_stage, "
				"partition_count); " ZERO_UNIVERSAL,
				path);
		close(a.zip.fd);
		archive_close(&a);
	}
	return rc;
}

/* ---- buffers ----------------------------------------------------------------------------------------- */

/* The buffers of one kind of a rank, of all groups. `nodes`: of FP32 the buffers, else the states. */
static int read_kind(struct zero *z, const struct archive *a, int64_t rank,
	enum kind kind, const uint32_t *nodes)
{
	for (int64_t g = 0; g < z->groups; g++) {
		uint32_t node = kind == FP32
					? nodes[g]
					: pickle_field(&a->tree, nodes[g], kinds[kind]);
		struct buffer *b = buffer_of(z, kind, g, rank);
		if (storages_buffer(z->f, (int32_t)rank, a, node, b, z->e))
			return err_prefix(
				z->e, "%s of group %lld: ", kinds[kind], (long long)g);
		if (b->dtype != buffer_of(z, kind, 0, 0)->dtype)
			return err_set(z->e, EX_DATAERR,
				"%s: %s has another type of numbers than the first of rank 0",
				z->f->parts->files[rank], kinds[kind]);
	}
	return 0;
}

/* What must be equal in the files of all ranks. */
static int check_rank(struct zero *z, const struct pickle *p, int64_t rank)
{
	const char *path = z->f->parts->files[rank];
	if (read_stage(p) != z->stage || read_ranks(p) != z->ranks)
		return err_set(z->e, EX_DATAERR,
			"%s: of another run than the other files: of ZeRO %lld and %lld ranks",
			path, (long long)read_stage(p), (long long)read_ranks(p));
	if (p->nodes[buffers_of(p)].n != (uint64_t)z->groups)
		return err_set(z->e, EX_DATAERR,
			"%s: has another number of groups of parameters (%u) than rank 0 "
			"(%lld)",
			path, p->nodes[buffers_of(p)].n, (long long)z->groups);
	return 0;
}

/* AdamW's steps of the groups: numbers, or tensors of one; some optimizers have them with their options. */
static void read_steps(struct zero *z, const struct pickle *p, const uint32_t *states)
{
	uint32_t common = pickle_get(p, optimizer_of(p), "base_optimizer_state_step");
	scoped_ptr uint32_t *groups =
		list_numbered(p, pickle_get(p, base_of(p), "param_groups"), z->groups);
	z->steps = xcalloc((size_t)z->groups + 1, sizeof(*z->steps));
	for (int64_t g = 0; g < z->groups; g++) {
		uint32_t step = pickle_field(p, states[g], "step");
		step = step ? step : common;
		z->steps[g] =
			step ? step
			     : pickle_field(p, groups[z->stage < 3 ? g : 0], "step");
	}
}

/* By the file of rank 0: the groups, and memory for all buffers. */
static int make_buffers(struct zero *z, const struct pickle *p)
{
	uint32_t list = buffers_of(p);
	z->groups = pickle_kind(p, list) == PICKLE_LIST ? p->nodes[list].n : 0;
	int64_t n = KINDS * z->groups * z->ranks + 1;
	size_t each = sizeof(*z->buffers) + sizeof(*z->before);
	if (items_charge(z->f, n * (int64_t)each, z->e))
		return -1;
	z->buffers = xcalloc((size_t)n, sizeof(*z->buffers));
	z->before = xcalloc((size_t)n, sizeof(*z->before));
	return 0;
}

static int read_rank(struct zero *z, int64_t rank)
{
	struct archive a;
	if (storages_open(z->f, (int32_t)rank, &a, z->e))
		return -1;
	const struct pickle *p = &a.tree;
	int rc = rank ? 0 : make_buffers(z, p);
	rc = rc || check_rank(z, p, rank) ? -1 : 0;
	if (!rc) {
		scoped_ptr uint32_t *states = list_states(p, z->groups);
		scoped_ptr uint32_t *buffers = list_numbered(p, buffers_of(p), z->groups);
		if (!rank) {
			z->moments = pickle_field(p, states[0], kinds[EXP_AVG]) != 0;
			read_steps(z, p, states);
		}
		for (enum kind k = FP32; k < KINDS && !rc && (!k || z->moments); k++)
			rc = read_kind(z, &a, rank, k, k ? states : buffers);
	}
	storages_close(z->f, (int32_t)rank, &a);
	return rc;
}

/* ---- parameters -------------------------------------------------------------------------------------- */

/* The dimensions of a torch.Size. -1: it is none. */
static int read_shape(const struct pickle *p, uint32_t node, struct parameter *x)
{
	struct pickle_each it;
	uint32_t member;
	if (pickle_kind(p, node) != PICKLE_TUPLE)
		return -1;
	pickle_each(&it, p, node);
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

/* Copies a name, and charges its bytes. Returns NULL if the node is not a name, or with *rc set. */
static char *copy_text(
	const struct zero *z, const struct pickle *p, uint32_t node, int *rc)
{
	enum { MOST = 4096 };
	size_t n;
	const char *text = pickle_text(p, node, &n);
	struct str out = {0};
	if (text && n <= MOST && !memchr(text, 0, n)) {
		*rc = items_charge(z->f, (int64_t)n, z->e);
		if (*rc)
			return NULL;
		str_puts(&out, "");
		str_add(&out, text, n);
	}
	return out.s;
}

/* Appends a parameter, if its name and shape are possible. */
static int add_parameter(struct zero *z, uint32_t key, uint32_t shape, int64_t group)
{
	struct parameter x = {.group = group};
	int rc = items_charge(z->f, sizeof(x), z->e);
	if (rc || read_shape(&z->model.tree, shape, &x) ||
		!(x.name = copy_text(z, &z->model.tree, key, &rc)))
		return rc ? rc
			  : refuse(z, EX_DATAERR,
				    "the name or shape of a parameter is not possible");
	z->parameters = xgrow(z->parameters, z->n_parameters, sizeof(*z->parameters));
	z->parameters[z->n_parameters++] = x;
	return 0;
}

/* Appends those of a group. `paddings`: of each parameter, of ZeRO 1 and 2; 0: none. */
static int add_group(struct zero *z, uint32_t shapes, uint32_t paddings, int64_t group)
{
	const struct pickle *first = &z->f->parts->archive.tree;
	struct pickle_each it, own;
	uint32_t key, shape, behind;
	int rc = 0;
	pickle_each(&it, &z->model.tree, shapes);
	pickle_each(&own, first, paddings);
	while (!rc && pickle_next(&it, &key) && pickle_next(&it, &shape)) {
		rc = add_parameter(z, key, shape, group);
		int64_t *padding =
			rc ? NULL : &z->parameters[z->n_parameters - 1].padding;
		if (padding && paddings &&
			(!pickle_next(&own, &behind) ||
				pickle_int(first, behind, padding) || *padding < 0 ||
				*padding > 1 << 20))
			rc = refuse(z, EX_DATAERR,
				"param_alignment_paddings are not possible");
	}
	return rc;
}

static int read_parameters(struct zero *z)
{
	const struct pickle *p = &z->model.tree, *first = &z->f->parts->archive.tree;
	uint32_t list = pickle_get(p, p->root, "param_shapes"), shapes;
	uint32_t paddings =
		pickle_get(first, optimizer_of(first), "param_alignment_paddings");
	struct pickle_each it, all;
	if (pickle_kind(p, list) != PICKLE_LIST)
		return err_set(z->e, EX_UNAVAILABLE,
			"%s: has no param_shapes, the names of parameters; " ZERO_UNIVERSAL,
			p->name);
	if (p->nodes[list].n != z->groups)
		return err_set(z->e, EX_DATAERR,
			"%s: %u group%s of parameters, and the optimizer has %lld",
			p->name, p->nodes[list].n, plural(p->nodes[list].n),
			(long long)z->groups);
	pickle_each(&it, p, list);
	pickle_each(&all, first, z->stage < 3 ? paddings : 0);
	for (int64_t g = 0; pickle_next(&it, &shapes); g++) {
		uint32_t own = 0;
		pickle_next(&all, &own);
		if (pickle_kind(p, shapes) != PICKLE_DICT)
			return refuse(z, EX_DATAERR, "param_shapes are not possible");
		if (add_group(z, shapes, own, g))
			return -1;
	}
	return 0;
}

/* ---- items ------------------------------------------------------------------------------------------- */

/* Buffers that are one, a step apart in the list. */
struct vector {
	const struct buffer *first;
	int64_t n, step;
};

/* Sets z->before of them. */
static int64_t vector_size(struct zero *z, const struct vector *v)
{
	int64_t n = 0;
	for (int64_t i = 0; i < v->n; i++) {
		z->before[&v->first[i * v->step] - z->buffers] = n;
		n += v->first[i * v->step].n;
	}
	return n;
}

/* Numbers [first, first + n) of the last item are those of the vector from `from` on, of which it has as
 * many. */
static void add_part(const struct zero *z, const struct vector *v, int64_t from,
	int64_t first, int64_t n)
{
	const int64_t *before = z->before + (v->first - z->buffers);
	int64_t low = 0, high = v->n;
	while (high - low > 1) { /* (the last that begins there, or before) */
		int64_t middle = low + (high - low) / 2;
		*(before[middle * v->step] <= from ? &low : &high) = middle;
	}
	for (int64_t i = low; i < v->n && n; i++) {
		const struct buffer *b = &v->first[i * v->step];
		int64_t at = from - before[i * v->step];
		int64_t some = max64(0, min64(n, b->n - at));
		storages_add(z->f, b, at, first, some);
		from += some;
		first += some;
		n -= some;
	}
}

/* ZeRO 1, 2: the buffers of all ranks for a group; ZeRO 3: of all groups for a rank. */
static struct vector vector_of(const struct zero *z, enum kind kind, int64_t which)
{
	return z->stage < 3 ? (struct vector){buffer_of(z, kind, which, 0), z->ranks, 1}
			    : (struct vector){
				      buffer_of(z, kind, 0, which), z->groups, z->ranks};
}

static int64_t part_of(const struct zero *z, int64_t n)
{
	return (n + z->ranks - 1) / z->ranks;
}

/* The numbers that parameters take of a vector: of each group, or with ZeRO 3 of a rank, [0]. Allocated. */
static int64_t *sizes_of_all(const struct zero *z)
{
	int64_t *n = xcalloc((size_t)z->groups + 1, sizeof(*n));
	for (int64_t i = 0; i < z->n_parameters; i++) {
		const struct parameter *x = &z->parameters[i];
		int64_t *sum = &n[z->stage == 3 ? 0 : x->group];
		*sum += z->stage == 3 ? part_of(z, x->n) : x->n + x->padding;
		*sum = min64(*sum, INT64_MAX / 8);
	}
	return n;
}

/* The end of a group is padded to a multiple of 2 numbers for each rank, which files have of moments, and of
 * fp32 parameters or not. (Parameters that end too early are not covered: items_end().) */
static int check_sizes(struct zero *z)
{
	int64_t align = z->stage == 3 ? 1 : 2 * z->ranks, *sizes = sizes_of_all(z);
	int64_t n = z->stage == 3 ? z->ranks : z->groups;
	int rc = 0;
	for (enum kind k = FP32; k < KINDS && !rc && (!k || z->moments); k++)
		for (int64_t i = 0; i < n && !rc; i++) {
			const struct vector v = vector_of(z, k, i);
			int64_t has = vector_size(z, &v);
			int64_t want = sizes[z->stage == 3 ? 0 : i];
			if ((has + align - 1) / align != (want + align - 1) / align)
				rc = err_set(z->e, EX_DATAERR,
					"%s: the parameters of %s %lld take %lld numbers, and its buffers "
					"of %s have %lld: files of several runs, or offloaded to another "
					"disk",
					z->files.folder.s,
					z->stage == 3 ? "rank" : "group", (long long)i,
					(long long)want, kinds[k], (long long)has);
		}
	free(sizes);
	return rc;
}

/* The name of an item: of the parameter, or of what the optimizer has of it. */
static int begin_item(
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

/* `at`: where it begins in the vector. */
static int add_tensor(struct zero *z, const char *name, const struct parameter *x,
	enum kind kind, int64_t at)
{
	if (begin_item(z, name, kind == FP32 ? NULL : kinds[kind], x))
		return -1;
	z->f->items[z->f->n - 1].dtype = buffer_of(z, kind, x->group, 0)->dtype;
	if (z->stage < 3) {
		const struct vector v = vector_of(z, kind, x->group);
		add_part(z, &v, at, 0, x->n);
		return 0;
	}
	int64_t part = part_of(z, x->n);
	for (int64_t r = 0; r * part < x->n; r++) {
		const struct vector v = vector_of(z, kind, r);
		add_part(z, &v, at, r * part, min64(part, x->n - r * part));
	}
	return 0;
}

static int add_step(struct zero *z, const char *name, int64_t group)
{
	uint32_t step = z->steps[group];
	scoped_ptr char *text = text_printf("optimizer.state.%s.step", name);
	return step ? torch_file_walk(z->f, step, text, z->e) : 0;
}

/* All items of a parameter, under one of its names. */
static int add_items(struct zero *z, const char *name, const struct parameter *x)
{
	for (enum kind k = FP32; k < KINDS && (!k || z->moments); k++)
		if (add_tensor(z, name, x, k, x->at))
			return -1;
	return z->moments ? add_step(z, name, x->group) : 0;
}

/* The other names of parameters that are shared. */
static int add_aliases(struct zero *z)
{
	const struct pickle *p = &z->model.tree;
	struct pickle_each it;
	uint32_t alias, source, shared = pickle_get(p, p->root, "shared_params");
	size_t n = (size_t)z->n_parameters;
	scoped_ptr struct parameter *sorted =
		xcalloc(n + 1, sizeof(*sorted)); /* (begins with its name) */
	int rc = 0;
	memcpy(sorted, z->parameters, n * sizeof(*sorted));
	qsort(sorted, n, sizeof(*sorted), compare_texts);
	pickle_each(&it, p, pickle_kind(p, shared) == PICKLE_DICT ? shared : 0);
	while (!rc && pickle_next(&it, &alias) && pickle_next(&it, &source)) {
		scoped_ptr char *name = copy_text(z, p, alias, &rc);
		scoped_ptr char *of = rc ? NULL : copy_text(z, p, source, &rc);
		const struct parameter *x =
			name && of
				? bsearch(&of, sorted, n, sizeof(*sorted), compare_texts)
				: NULL;
		rc = x ? add_items(z, name, x) : rc;
	}
	return rc;
}

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
		at += z->stage == 3 ? part_of(z, x->n) : x->n + x->padding;
	}
	return z->n_parameters ? add_aliases(z) : 0;
}

/* ---- frozen parameters, which no optimizer has ----------------------------------------------------------- */

static int add_names(
	const struct zero *z, const struct pickle *p, uint32_t list, struct strs *out)
{
	int rc = 0;
	bool dict = pickle_kind(p, list) == PICKLE_DICT;
	struct pickle_each it;
	uint32_t name, other;
	pickle_each(&it, p, list);
	while (!rc && pickle_next(&it, &name) && (!dict || pickle_next(&it, &other))) {
		scoped_ptr char *text = copy_text(z, p, name, &rc);
		if (text)
			strs_add(out, text);
	}
	return rc;
}

/* ZeRO 1, 2: the tensors of the module that are no parameters of the optimizer, no other names of them, and
 * no buffers. The others are rounded copies. */
static int add_frozen(struct zero *z)
{
	const struct pickle *p = &z->model.tree;
	scoped_strs known = {0};
	struct pickle_each it;
	uint32_t key, node;
	int rc = 0;
	for (int64_t i = 0; i < z->n_parameters; i++)
		strs_add(&known, z->parameters[i].name);
	rc = add_names(z, p, pickle_get(p, p->root, "buffer_names"), &known) ||
			     add_names(z, p, pickle_get(p, p->root, "shared_params"),
				     &known)
		     ? -1
		     : 0;
	strs_sort(&known);
	uint32_t module = pickle_get(p, p->root, "module");
	pickle_each(&it, p, pickle_kind(p, module) == PICKLE_DICT ? module : 0);
	while (rc >= 0 && pickle_next(&it, &key) && pickle_next(&it, &node)) {
		scoped_ptr char *name = copy_text(z, p, key, &rc);
		if (name && !(known.n && bsearch(&name, known.v, (size_t)known.n,
						 sizeof(*known.v), compare_texts)))
			rc = storages_tensor(
				z->f, z->model_file, &z->model, node, name, z->e);
	}
	return rc < 0 ? -1 : 0;
}

/* ZeRO 3: each file has its part of each. */
static int read_fragments(
	struct zero *z, const struct archive *a, int64_t rank, int64_t from)
{
	const struct pickle *p = &a->tree;
	uint32_t dict = pickle_get(p, p->root, "frozen_param_fragments"), key, node;
	struct pickle_each it;
	pickle_each(&it, p, pickle_kind(p, dict) == PICKLE_DICT ? dict : 0);
	for (int64_t i = from; i < z->n_parameters; i++) {
		const struct parameter *x = &z->parameters[i];
		struct buffer *b = &z->buffers[(i - from) * z->ranks + rank];
		/* (DeepSpeed lists the shapes and the fragments in one order) */
		if (!pickle_next(&it, &key) || !pickle_next(&it, &node) ||
			!pickle_is(p, key, x->name))
			node = pickle_field(p, dict, x->name);
		if (storages_buffer(
			    z->f, z->model_file + (int32_t)rank, a, node, b, z->e))
			return err_prefix(z->e, "%s: ", x->name);
		if (b->n != part_of(z, x->n) ||
			b->dtype != z->buffers[(i - from) * z->ranks].dtype)
			return err_set(z->e, EX_DATAERR,
				"%s: the part of %s has %lld numbers, not %lld, or others than "
				"those of rank 0",
				p->name, x->name, (long long)b->n,
				(long long)part_of(z, x->n));
	}
	return 0;
}

static int read_all_fragments(struct zero *z, int64_t from)
{
	struct archive a;
	int rc = read_fragments(z, &z->model, 0, from);
	for (int64_t r = 1; r < z->ranks && !rc; r++) {
		int32_t file = z->model_file + (int32_t)r;
		if (storages_open(z->f, file, &a, z->e))
			return -1;
		rc = read_fragments(z, &a, r, from);
		storages_close(z->f, file, &a);
	}
	return rc;
}

static int add_fragments(struct zero *z)
{
	const struct pickle *p = &z->model.tree;
	int64_t from = z->n_parameters;
	int rc = add_group(z, pickle_get(p, p->root, "frozen_param_shapes"), 0, 0);
	if (rc || from == z->n_parameters)
		return rc;
	free(z->buffers); /* (those of the optimizer are used) */
	z->buffers = NULL;
	z->groups = z->n_parameters - from;
	if (items_charge(z->f, z->groups * z->ranks * (int64_t)sizeof(*z->buffers), z->e))
		return -1;
	z->buffers = xcalloc((size_t)(z->groups * z->ranks), sizeof(*z->buffers));
	rc = read_all_fragments(z, from);
	for (int64_t i = from; i < z->n_parameters && !rc; i++) {
		const struct parameter *x = &z->parameters[i];
		const struct buffer *b = buffer_of(z, FP32, i - from, 0);
		int64_t part = part_of(z, x->n);
		rc = begin_item(z, x->name, NULL, x);
		if (rc)
			break;
		z->f->items[z->f->n - 1].dtype = b->dtype;
		for (int64_t r = 0; r * part < x->n; r++)
			storages_add(
				z->f, &b[r], 0, r * part, min64(part, x->n - r * part));
	}
	return rc;
}

/* ---- interface ---------------------------------------------------------------------------------------------- */

static int read_all(struct zero *z)
{
	scoped_strs paths = {0};
	const struct pickle *p = &z->f->parts->archive.tree;
	int rc = zero_files_list(&z->files, z->stage, z->ranks, &paths, z->e);
	z->model_file = (int32_t)z->ranks;
	if (!rc)
		storages_files(z->f, &paths);
	if (rc || archive_of_path(&z->f->parts->archive, z->f->parts->files[0], z->e))
		return -1;
	for (int64_t r = 0; r < z->ranks; r++)
		if (read_rank(z, r))
			return -1;
	if (storages_open(z->f, z->model_file, &z->model, z->e))
		return -1;
	rc = read_parameters(z) || check_sizes(z) || add_parameters(z) ||
	     (z->stage == 3 ? add_fragments(z) : add_frozen(z)) ||
	     torch_file_walk(z->f, pickle_get(p, base_of(p), "param_groups"),
		     "optimizer.param_groups", z->e);
	storages_close(z->f, z->model_file, &z->model);
	return rc || items_end(z->f, z->e) ? -1 : 0;
}

static bool zero_is_in(const char *path)
{
	struct zero_files x;
	if (container_has_safetensors(path))
		return false;
	bool is = zero_files_find(&x, path);
	zero_files_free(&x);
	return is;
}

static int zero_open(struct torch_file *f, struct err *e)
{
	struct zero z = {.f = f, .e = e};
	zero_files_find(&z.files, f->path);
	int rc =
		zero_files_check(&z.files, e) || read_layout(&z) || read_all(&z) ? -1 : 0;
	for (int64_t i = 0; i < z.n_parameters; i++)
		free(z.parameters[i].name);
	free(z.parameters);
	free(z.buffers);
	free(z.before);
	free(z.steps);
	zero_files_free(&z.files);
	return rc;
}

const struct container container_zero = {.is_in = zero_is_in, .open = zero_open};
