/* A nanotron checkpoint: a directory with
 *
 *   model/PATH/model_NAME[_pp-rank-P-of-PP_tp-rank-T-of-TP].safetensors
 *              one tensor, or the part of a tensor-parallel rank; the metadata list its slices
 *   optimizer/optimizer_pp-P-of-PP_[dp-D-of-DP_]tp-T-of-TP[_exp-0-of-1].pt
 *              torch.save(): state by index, the name of each index, perhaps fp32 parameters
 *
 * Optimizer tensors are sliced like their parameter. With ZeRO 1 (dp- in the file name) each is
 * flat and sharded over dp ranks. If a tensor is not sharded, all tp ranks save its state; if it is
 * tied, several pipeline stages do. The first one becomes the item, the rest become copies. */
#include "archive/nanotron.h"

#include "base/file.h"

enum kind { FP32, EXP_AVG, EXP_AVG_SQ, STEP, KINDS };
static const char *const kinds[KINDS] = {NULL, "exp_avg", "exp_avg_sq", "step"};

/* A tensor of a parameter's state in an optimizer file. */
struct state {
	char *name;
	enum kind kind;
	int64_t tp, dp, pp, n;
	double decay; /* weight decay of its group; -1: unknown */
	struct buffer b;
};

static bool nanotron_matches(const char *path)
{
	scoped_str model = {0};
	str_printf(&model, "%s/model", path);
	return directory_has_file(path, "checkpoint_metadata.json") &&
	       file_is_directory(model.s);
}

static int by_name_and_rank(const void *a, const void *b)
{
	const struct nanotron_part *x = a, *y = b;
	int order = strcmp(x->name, y->name);
	return order ? order : (x->tp > y->tp) - (x->tp < y->tp);
}

/* The name (node) of the optimizer's parameter `number`, and the weight decay of its group. */
struct numbered_name {
	int64_t number;
	uint32_t name;
	double decay;
};

/* Returns the names of an optimizer's parameters, sorted by number, for free(). Sets *n. */
static struct numbered_name *list_numbered_names(const struct pickle *p, int64_t *n)
{
	struct pickle_each it;
	uint32_t key, name, dict = pickle_get(p, p->root, "names");
	struct numbered_name *v = NULL;
	pickle_begin(&it, p, pickle_kind(p, dict) == PICKLE_DICT ? dict : 0);
	for (*n = 0; pickle_next(&it, &key) && pickle_next(&it, &name);) {
		struct numbered_name x = {.name = name, .decay = -1};
		if (pickle_int(p, key, &x.number))
			continue;
		v = xgrow(v, *n, sizeof(*v));
		v[(*n)++] = x;
	}
	if (*n)
		qsort(v, (size_t)*n, sizeof(*v), compare_int64);
	return v;
}

/* Returns the entry of the sorted list v whose number is the integer of a node, or NULL. */
static struct numbered_name *find_numbered_name(
	struct numbered_name *v, int64_t n, const struct pickle *p, uint32_t node)
{
	struct numbered_name key = {.name = 0};
	return n && !pickle_int(p, node, &key.number)
		       ? bsearch(&key, v, (size_t)n, sizeof(*v), compare_int64)
		       : NULL;
}

/* Sets the weight decays of v[n]. Reads at most n members: a file may repeat a group. */
static void read_decays(const struct pickle *p, struct numbered_name *v, int64_t n)
{
	int64_t left = n;
	struct pickle_each groups, it;
	uint32_t group, id;
	pickle_begin(&groups, p, pickle_get(p, p->root, "param_groups"));
	while (left > 0 && pickle_next(&groups, &group)) {
		uint32_t decay = pickle_field(p, group, "weight_decay");
		pickle_begin(&it, p, pickle_field(p, group, "params"));
		for (; left > 0 && pickle_kind(p, decay) == PICKLE_REAL &&
			pickle_next(&it, &id);
			left--) {
			struct numbered_name *found = find_numbered_name(v, n, p, id);
			if (found)
				found->decay = p->nodes[decay].as.real;
		}
	}
}

/* Appends the tensor of a node to t->states. */
static int add_state(struct nanotron *t, int64_t rank, const struct archive *a,
	const struct numbered_name *name, enum kind kind, uint32_t node)
{
	const struct nanotron_rank *r = &t->ranks[rank];
	struct tensor_info d;
	struct state x = {.kind = kind,
		.tp = r->tp,
		.dp = max64(0, r->dp),
		.pp = r->pp,
		.decay = name->decay,
		.b = {.file = (int32_t)rank}};
	int64_t n_elements = 1;
	size_t n;
	const char *text = pickle_text(&a->tree, name->name, &n);
	int rc = storages_describe(a, node, &d, &x.b, t->e);
	if (rc) /* (a step may be a plain number) */
		return rc < 0 ? -1 : 0;
	bool is_plain = text && !memchr(text, 0, n);
	for (int i = d.ndim - 1; i >= 0; i--) {
		is_plain = is_plain && (d.dims[i] == 1 || d.stride[i] == n_elements);
		n_elements *= d.dims[i];
	}
	x.n = n_elements;
	if (!is_plain)
		return err_set(t->e, EX_UNAVAILABLE,
			"%s: an optimizer tensor has an invalid name, or is not contiguous",
			t->f->parts->files[rank]);
	if (items_charge(t->f, (int64_t)(sizeof(x) + n),
		    t->e)) /* (one text may be the name of many) */
		return -1;
	x.name = xmalloc(n + 1);
	memcpy(x.name, text, n);
	x.name[n] = '\0';
	t->states = xgrow(t->states, t->n_states, sizeof(*t->states));
	t->states[t->n_states++] = x;
	return 0;
}

/* Appends the states in the optimizer file of a rank to t->states. */
static int read_rank(struct nanotron *t, int64_t rank)
{
	struct archive a;
	struct pickle_each it;
	uint32_t key, node;
	int64_t n_names;
	if (storages_open(t->f, (int32_t)rank, &a, t->e))
		return -1;
	const struct pickle *p = &a.tree;
	scoped_ptr struct numbered_name *names = list_numbered_names(p, &n_names);
	uint32_t dict = pickle_get(p, p->root, "state");
	int rc = 0;
	read_decays(p, names, n_names);
	pickle_begin(&it, p, pickle_kind(p, dict) == PICKLE_DICT ? dict : 0);
	while (!rc && pickle_next(&it, &key) && pickle_next(&it, &node)) {
		const struct numbered_name *found =
			find_numbered_name(names, n_names, p, key);
		for (enum kind k = EXP_AVG; k < KINDS && !rc; k++)
			rc = found ? add_state(t, rank, &a, found, k,
					     pickle_field(p, node, kinds[k]))
				   : err_set(t->e, EX_DATAERR,
					     "%s: \"names\" lacks a parameter that has "
					     "optimizer state",
					     a.zip.name);
	}
	dict = pickle_get(p, p->root, "gradient_accumulator");
	pickle_begin(&it, p, pickle_kind(p, dict) == PICKLE_DICT ? dict : 0);
	while (!rc && pickle_next(&it, &key) && pickle_next(&it, &node))
		rc = add_state(
			t, rank, &a, &(struct numbered_name){.name = key}, FP32, node);
	storages_close(t->f, (int32_t)rank, &a);
	return rc;
}

static int by_parameter_and_rank(const void *a, const void *b)
{
	const struct state *x = a, *y = b;
	int order = strcmp(x->name, y->name);
	const int64_t v[][2] = {
		{x->kind, y->kind}, {x->pp, y->pp}, {x->tp, y->tp}, {x->dp, y->dp}};
	for (size_t i = 0; i < ARRAY_LEN(v) && !order; i++)
		order = (v[i][0] > v[i][1]) - (v[i][0] < v[i][1]);
	return order;
}

/* Sets *out to the states of a parameter, of one kind, from all ranks. Returns their number. */
static int64_t find_states(const struct nanotron *t, const char *name, enum kind kind,
	const struct state **out)
{
	const struct state key = {.name = (char *)name, .kind = kind};
	int64_t low = 0, high = t->n_states, n = 0;
	while (low < high) {
		int64_t middle = low + (high - low) / 2;
		if (by_parameter_and_rank(&t->states[middle], &key) < 0)
			low = middle + 1;
		else
			high = middle;
	}
	*out = low < t->n_states ? &t->states[low] : NULL;
	while (low + n < t->n_states && !strcmp((*out)[n].name, name) &&
		(*out)[n].kind == kind)
		n++;
	return n;
}

/* A box of the whole tensor, and where its elements are stored. */
struct box {
	int64_t begin[TORCH_MAX_DIMS], sizes[TORCH_MAX_DIMS], at;
	int32_t file;
	uint32_t entry;
};

struct boxes {
	struct box *v;
	int64_t n;
};

static int by_begin(const void *a, const void *b)
{
	const struct box *x = a, *y = b;
	int order = 0;
	for (int i = 0; i < TORCH_MAX_DIMS && !order; i++)
		order = (x->begin[i] > y->begin[i]) - (x->begin[i] < y->begin[i]);
	return order;
}

/* Appends the boxes of a buffer that holds elements [from, from + b->n) of a part. */
static void add_boxes(struct boxes *out, const struct nanotron_part *x,
	const struct buffer *b, int64_t from)
{
	int64_t width = 1;
	for (int i = 1; i < x->tensor.ndim; i++)
		width *= x->tensor.dims[i];
	for (int64_t k = 0; k < x->n_slices; k++) {
		const struct nanotron_slices *s = &x->slices[k];
		int64_t first = s->row * width, end = first + s->rows * width;
		int64_t at = max64(first, from), left = min64(end, from + b->n) - at;
		while (left > 0) {
			struct box new = {.file = b->file, .entry = b->entry};
			int64_t n = storages_next_box(x->tensor.ndim, s->sizes,
				at - first, left, new.begin, new.sizes);
			for (int i = 0; i < x->tensor.ndim; i++)
				new.begin[i] += s->begin[i];
			new.at = b->at + (at - from) * dtype_size(b->dtype);
			out->v = xgrow(out->v, out->n, sizeof(*out->v));
			out->v[out->n++] = new;
			at += n;
			left -= n;
		}
	}
}

/* Appends the boxes of a part's state that pipeline stage pp and rank tp saved. Sets *dtype. */
static int add_states(struct nanotron *t, const struct nanotron_part *x, enum kind kind,
	int64_t pp, int64_t tp, struct boxes *out, int *dtype)
{
	const struct state *s;
	int64_t n = find_states(t, x->name, kind, &s), from = 0, size = 1, found = 0;
	for (int i = 0; i < x->tensor.ndim; i++)
		size *= x->tensor.dims[i];
	for (int64_t i = 0; i < n && from <= size; i++) {
		struct buffer b = s[i].b;
		b.n = s[i].n;
		if (s[i].pp != pp || s[i].tp != tp)
			continue;
		if (*dtype >= 0 && *dtype != b.dtype)
			return err_set(t->e, EX_DATAERR,
				"%s: the dtype of %s differs from the other ranks",
				t->f->parts->files[b.file], x->name);
		*dtype = b.dtype;
		add_boxes(out, x, &b, from);
		from += b.n;
		found++;
	}
	return !found || from == size
		       ? 0
		       : err_set(t->e, EX_DATAERR,
				 "%s: the optimizer state of %s has %s elements than its "
				 "%lld parameters on tp rank %lld: the files may be of "
				 "several runs",
				 t->f->path, x->name, from < size ? "fewer" : "more",
				 (long long)size, (long long)tp);
}

/* Appends an item without chunks for a parameter, or for its state. `part`: NULL for a scalar. */
static int add_empty_item(struct nanotron *t, const char *name, enum kind kind, int dtype,
	const struct nanotron_part *part)
{
	scoped_str text = {0};
	if (kind == FP32)
		str_puts(&text, name);
	else
		str_printf(&text, "optimizer.state.%s.%s", name, kinds[kind]);
	struct torch_item *item = items_add(t->f, text.s, text.len, t->e);
	if (!item)
		return -1;
	item->kind = TORCH_TENSOR;
	item->dtype = dtype;
	item->ndim = part ? part->tensor.ndim : 0;
	if (part)
		memcpy(item->dims, part->whole, sizeof(item->dims));
	return 0;
}

/* Appends box b to the last item as a chunk. A chunk outside of archives gets its place at once. */
static void add_chunk(struct nanotron *t, const struct box *b, bool in_archive)
{
	struct chunk *c = items_add_chunk(t->f, b->begin, b->sizes);
	c->file = b->file;
	c->node = b->entry;
	c->at = b->at;
	if (!in_archive)
		chunk_set_place(c, b->at);
}

/* Appends the tensor of one kind of which x is a part. Sorts the boxes, its chunks. */
static int add_tensor_item(struct nanotron *t, const struct nanotron_part *x,
	enum kind kind, int dtype, struct boxes *boxes, bool in_archive)
{
	if (add_empty_item(t, x->name, kind, dtype, x))
		return -1;
	if (boxes->n)
		qsort(boxes->v, (size_t)boxes->n, sizeof(*boxes->v), by_begin);
	for (int64_t i = 0; i < boxes->n; i++)
		add_chunk(t, &boxes->v[i], in_archive);
	return 0;
}

/* Appends a parameter of n parts (in fp32 if the optimizer has it), or a tensor of its state. */
static int add_item(
	struct nanotron *t, const struct nanotron_part *x, int64_t n, enum kind kind)
{
	struct boxes boxes = {0};
	const struct state *s;
	int dtype = -1, rc = 0;
	int64_t pp = find_states(t, x->name, kind, &s) ? s->pp : 0;
	for (int64_t i = 0; i < n && !rc; i++)
		rc = add_states(t, &x[i], kind, pp, x[i].tp, &boxes, &dtype);
	bool in_archive = dtype >= 0;
	for (int64_t i = 0; i < n && !rc && kind == FP32 && !in_archive; i++) {
		struct buffer b = {.file = x[i].file,
			.dtype = safetensors_dtype(&x[i].tensor),
			.at = x[i].tensor.offset,
			.n = 1};
		for (int k = 0; k < x->tensor.ndim; k++)
			b.n *= x[i].tensor.dims[k];
		if (i && safetensors_dtype(&x[i].tensor) != safetensors_dtype(&x->tensor))
			rc = err_set(t->e, EX_DATAERR,
				"%s: the dtype differs from the other files",
				t->f->parts->files[b.file]);
		add_boxes(&boxes, &x[i], &b, 0);
	}
	if (!rc && (in_archive || kind == FP32))
		rc = add_tensor_item(t, x, kind,
			in_archive ? dtype : safetensors_dtype(&x->tensor), &boxes,
			in_archive);
	free(boxes.v);
	return rc;
}

/* Moves the last item, saved by `copy`, to the copies. `is_whole`: name the tp ranks, too. */
static void move_to_copies(struct nanotron *t, const struct state *copy,
	const struct state *first, bool is_whole)
{
	const int64_t *n = t->ranks[0].sizes;
	char text[2][64];
	for (int i = 0; i < 2; i++) {
		const struct state *s = i ? first : copy;
		int at = n[0] > 1 || !is_whole ? snprintf(text[i], sizeof(text[i]),
							 "pp %lld", (long long)s->pp)
					       : 0;
		if (is_whole)
			at += snprintf(text[i] + at, sizeof(text[i]) - (size_t)at,
				"%stp %lld", at ? " " : "", (long long)s->tp);
		if (copy->kind == STEP && n[1] > 1)
			snprintf(text[i] + at, sizeof(text[i]) - (size_t)at, " dp %lld",
				(long long)s->dp);
	}
	items_move_to_copies(t->f, text[0], text[1]);
}

/* Appends copies of a parameter of n parts, or of its state, that other pipeline stages saved, and
 * other tp ranks if it is not sharded. */
static int add_copies(
	struct nanotron *t, const struct nanotron_part *x, int64_t n, enum kind kind)
{
	const struct state *s;
	int64_t n_states = find_states(t, x->name, kind, &s);
	bool is_whole = n == 1 && !memcmp(x->whole, x->tensor.dims, sizeof(x->whole));
	for (int64_t i = 1; i < n_states; i++) {
		struct boxes boxes = {0};
		int dtype = -1, rc = 0;
		bool same =
			s[i].pp == s[i - 1].pp && (!is_whole || s[i].tp == s[i - 1].tp);
		if (same || (s[i].pp == s->pp && (!is_whole || s[i].tp == x->tp)))
			continue;
		for (int64_t k = 0; k < n && !rc; k++)
			rc = add_states(t, &x[k], kind, s[i].pp,
				is_whole ? s[i].tp : x[k].tp, &boxes, &dtype);
		if (!rc && dtype >= 0)
			rc = add_tensor_item(t, x, kind, dtype, &boxes, true);
		if (!rc && dtype >= 0)
			move_to_copies(t, &s[i], s, is_whole);
		free(boxes.v);
		if (rc)
			return -1;
	}
	return 0;
}

/* Appends the step counter of a parameter, and as copies the counters of all other ranks. */
static int add_step(struct nanotron *t, const struct nanotron_part *x)
{
	const struct state *s;
	int64_t n = find_states(t, x->name, STEP, &s);
	for (int64_t i = 0; i < n; i++) {
		if (s[i].n != 1)
			continue;
		if (add_empty_item(t, x->name, STEP, s[i].b.dtype, NULL))
			return -1;
		add_chunk(t,
			&(struct box){.at = s[i].b.at,
				.file = s[i].b.file,
				.entry = s[i].b.entry},
			true);
		if (i)
			move_to_copies(t, &s[i], s, true);
	}
	return 0;
}

/* Appends each parameter with its optimizer state, and the copies of other ranks. Fails if the
 * parts of a parameter give it different shapes. */
static int add_items(struct nanotron *t)
{
	for (int64_t i = 0, k; i < t->n_parts; i = k) {
		const struct nanotron_part *x = &t->parts[i];
		for (k = i + 1; k < t->n_parts && !strcmp(t->parts[k].name, x->name); k++)
			if (t->parts[k].tensor.ndim != x->tensor.ndim ||
				memcmp(t->parts[k].whole, x->whole, sizeof(x->whole)) !=
					0)
				return err_set(t->e, EX_DATAERR,
					"%s: the tensor's shape differs from the other ranks",
					t->f->parts->files[t->parts[k].file]);
		for (enum kind kind = FP32; kind < STEP; kind++)
			if (add_item(t, x, k - i, kind) || add_copies(t, x, k - i, kind))
				return -1;
		if (add_step(t, x))
			return -1;
	}
	return 0;
}

/* Appends the weight decay of each parameter, if rank 0 has a group with this value to refer to.
 * Rank 0's groups lack the parameters of other pipeline stages. */
static int add_decays(struct nanotron *t)
{
	enum { MAX_GROUPS = 16 };
	const struct pickle *p = &t->f->parts->archive.tree;
	struct pickle_each groups;
	uint32_t group, nodes[MAX_GROUPS], n = 0;
	pickle_begin(&groups, p, pickle_get(p, p->root, "param_groups"));
	while (n < MAX_GROUPS && pickle_next(&groups, &group)) {
		uint32_t decay = pickle_field(p, group, "weight_decay"), k = 0;
		while (k < n && p->nodes[nodes[k]].as.real != p->nodes[decay].as.real)
			k++;
		if (k == n && pickle_kind(p, decay) == PICKLE_REAL)
			nodes[n++] = decay;
	}
	for (int64_t i = 0; i < t->n_states; i++) {
		const struct state *x = &t->states[i];
		scoped_str name = {0};
		uint32_t k = 0;
		while (k < n && p->nodes[nodes[k]].as.real != x->decay)
			k++;
		if (k == n || x->kind != EXP_AVG ||
			(i && !strcmp(x[-1].name, x->name) && x[-1].kind == x->kind))
			continue;
		str_printf(&name, "optimizer.param_groups.%s.weight_decay", x->name);
		struct torch_item *item = items_add(t->f, name.s, name.len, t->e);
		if (!item)
			return -1;
		item->node = nodes[k];
	}
	return 0;
}

/* Reads the files of all ranks, and appends all items. */
static int read_files(struct nanotron *t)
{
	struct torch_parts *p = t->f->parts;
	int rc = nanotron_list_ranks(t);
	scoped_ptr char *path = text_printf("%s/model", t->f->path);
	rc = rc || nanotron_list_parts(t, path, "", 0) ? -1 : 0;
	storages_add_files(t->f, &t->paths);
	for (int64_t i = 0; i < t->n_parts && !rc; i++)
		rc = nanotron_read_part(t, &t->parts[i]);
	if (t->n_parts)
		qsort(t->parts, (size_t)t->n_parts, sizeof(*t->parts), by_name_and_rank);
	for (int64_t i = 0; i < t->n_ranks && !rc; i++)
		rc = read_rank(t, i);
	if (t->n_states)
		qsort(t->states, (size_t)t->n_states, sizeof(*t->states),
			by_parameter_and_rank);
	rc = rc || add_items(t) ? -1 : 0;
	/* (the groups of all ranks have the same options) */
	if (!rc && t->n_ranks)
		rc = archive_open_path(&p->archive, p->files[0], t->e) ||
		     torch_file_add_items(t->f,
			     pickle_get(&p->archive.tree, p->archive.tree.root,
				     "param_groups"),
			     "optimizer.param_groups", t->e);
	if (!rc && t->n_ranks)
		rc = add_decays(t);
	return rc || items_finish(t->f, t->e) ? -1 : 0;
}

/* Appends the items of the checkpoint in directory f->path, and frees all temporary lists. */
static int nanotron_open(struct torch_file *f, struct err *e)
{
	struct nanotron t = {.f = f, .e = e};
	int rc = read_files(&t);
	for (int64_t i = 0; i < t.n_parts; i++) {
		free(t.parts[i].name);
		free(t.parts[i].slices);
	}
	for (int64_t i = 0; i < t.n_states; i++)
		free(t.states[i].name);
	for (int64_t i = 0; i < t.n_ranks; i++)
		free(t.ranks[i].name);
	free(t.parts);
	free(t.states);
	free(t.ranks);
	strs_free(&t.paths);
	return rc;
}

const struct container container_nanotron = {
	.matches = nanotron_matches, .open = nanotron_open};
