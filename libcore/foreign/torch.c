/* PyTorch checkpoints as views: all containers (archive.h), with the names of torchtitan, Hugging
 * Face, nanoGPT, Megatron-LM or nanotron, and AdamW's moments if they have them. */
#include "foreign/foreign.h"
#include "foreign/foreign_internal.h"

#include "dialect/order.h"

#include "engine/options.h"

#include <math.h>

/* ---- the view --------------------------------------------------------------- */

struct torch_view {
	/* Only while opening: */
	const struct open_options *how;
	const struct container *container;

	struct torch_file file;
	struct torch_names names;
	struct model m;
	int moments;		       /* torch_names_has_moments() */
	struct placement at;	       /* where the items of our tensors are */
	const struct torch_item *tied; /* a separately saved output layer; or NULL */
	/* Cache: a whole transposed item, or one layer of a stacked item. */
	const struct torch_item *cached;
	int64_t cached_layer;
	float *whole;
};

/* ---- reading ------------------------------------------------------------------------------- */

static void close_torch(struct ckpt_view *v)
{
	struct torch_view *x = v->with;
	free(v->settings);
	torch_names_close(&x->names);
	torch_close(&x->file);
	placement_release(&x->at);
	model_release(&x->m);
	free(x->whole);
	free(x);
}

/* Returns the row of a source item that has a row of our tensor. */
static int64_t source_row(
	const struct torch_view *x, const struct tensor_source *s, int64_t row)
{
	const struct model_config *c = &x->m.c;
	int64_t width = x->m.head_dim, head = row / width, at = row % width;
	if (s->pairs || s->rotates_partly)
		at = source_channel(&x->m, s, at);
	if (s->fused != NOT_FUSED) { /* [key head][queries, key, value][width] */
		int64_t queries = c->heads / c->kv_heads, key = head, place = queries;
		if (s->fused == FUSED_Q) {
			key = head / queries;
			place = head % queries;
		}
		head = key * (queries + 2) + place + (s->fused == FUSED_V);
	}
	return s->first + head * width + at;
}

/* Reads rows [row, row + n) of an item into the cache. */
static int cache_rows(struct torch_view *x, const struct tensor_source *s, int64_t row,
	int64_t n, struct err *e)
{
	if (x->cached == s->item && x->cached_layer == s->layer)
		return 0;
	x->cached = NULL;
	x->whole = xrealloc(
		x->whole, (size_t)(n * torch_row_size(s->item)) * sizeof(float) + 1);
	if (torch_read(&x->file, s->item, row, n, x->whole, e))
		return -1;
	x->cached = s->item;
	x->cached_layer = s->layer;
	return 0;
}

/* Reads rows of our tensor from columns of the source item. */
static int read_transposed(struct torch_view *x, const struct tensor_source *s,
	int64_t row, int64_t n, float *out, struct err *e)
{
	int64_t inputs = s->item->dims[0], width = s->item->dims[1];
	if (cache_rows(x, s, 0, inputs, e))
		return -1;
	for (int64_t i = 0; i < inputs; i++)
		for (int64_t k = 0; k < n; k++)
			out[k * inputs + i] = x->whole[i * width + s->first + row + k];
	return 0;
}

/* Reads a row of our tensor, of `width` elements. */
static int read_row(struct torch_view *x, const struct tensor_source *s, int64_t row,
	int64_t width, float *out, struct err *e)
{
	bool is_permuted = s->pairs || s->rotates_partly || s->fused != NOT_FUSED;
	int64_t at = is_permuted ? source_row(x, s, row) : s->first + row;
	if (s->layer < 0)
		return torch_read(&x->file, s->item, at, 1, out, e);
	if (cache_rows(x, s, s->layer, 1, e))
		return -1;
	memcpy(out, x->whole + at * width, (size_t)width * sizeof(*out));
	return 0;
}

/* Reads rows of a stack of experts. */
static int read_stack(struct torch_view *x, const struct tensor_source *s,
	const struct ckpt_rows *r, float *out, struct err *e)
{
	const struct tensor *t = &x->m.tensors[r->tensor];
	const int64_t rows = t->dims[0] / t->blocks, width = t->dims[1];
	for (int64_t i = 0, n; i < r->n; i += n, out += n * width) {
		const struct block_source *b = &s->blocks[(r->row + i) / rows];
		int64_t at = (r->row + i) % rows;
		n = min64(r->n - i, rows - at);
		at += b->first;
		if (!b->item) {
			memset(out, 0, (size_t)(n * width) * sizeof(*out));
			continue;
		}
		if (b->item->ndim == 2) {
			if (torch_read(&x->file, b->item, at, n, out, e))
				return -1;
			continue;
		}
		/* (a row of the item is an expert, or all experts of a layer) */
		const int64_t all = torch_row_size(b->item) / width;
		const struct tensor_source first = {.item = b->item, .layer = at / all};
		if (cache_rows(x, &first, first.layer, 1, e))
			return -1;
		memcpy(out, x->whole + at % all * width,
			(size_t)(n * width) * sizeof(*out));
	}
	return 0;
}

/* Reads rows of one of our tensors from its source in the file; zeros if that is missing. */
static int read_torch(
	const struct ckpt_view *v, const struct ckpt_rows *r, float *out, struct err *e)
{
	struct torch_view *x = v->with;
	const struct tensor_source *s = get_source(&x->at, r->group, r->tensor);
	int64_t width = ckpt_row_size(&v->tensors[r->tensor]);
	if (!s->item) {
		memset(out, 0, (size_t)(r->n * width) * sizeof(*out));
		return 0;
	}
	if (s->blocks)
		return read_stack(x, s, r, out, e);
	if (s->transposed)
		return read_transposed(x, s, r->row, r->n, out, e);
	if (!s->pairs && !s->rotates_partly && s->fused == NOT_FUSED && s->layer < 0)
		return torch_read(&x->file, s->item, s->first + r->row, r->n, out, e);
	for (int64_t i = 0; i < r->n; i++)
		if (read_row(x, s, r->row + i, width, out + i * width, e))
			return -1;
	return 0;
}

void append_item_range(const struct torch_item *t, int64_t first, int64_t n, bool columns,
	struct str *out)
{
	str_puts(out, t->name);
	if (t->ndim && n < t->dims[columns])
		str_printf(out, "[%s%lld:%lld]", columns ? ":, " : "", (long long)first,
			(long long)(first + n));
}

/* Appends a tensor's name in the file, and its range of rows if it is one range. */
static void append_file_name(const struct ckpt_view *v, int tensor, struct str *out)
{
	const struct torch_view *x = v->with;
	const struct tensor_source *s = get_source(&x->at, CKPT_MODEL, tensor);
	int64_t rows = x->m.tensors[tensor].dims[0];
	if (!s->item)
		return;
	const struct tensor_source *mean = get_source(&x->at, SOURCE_MEANS, tensor);
	const bool is_stack = mean->blocks && mean->item && mean->item->ndim > 2;
	if (s->blocks && s->item->ndim == 2)
		str_printf(out, "%s and %d more tensors%s", s->item->name,
			x->m.tensors[tensor].blocks - 1,
			is_stack ? ", one stack in the optimizer" : "");
	else if (s->blocks)
		str_puts(out, s->item->name);
	else if (s->fused != NOT_FUSED || s->layer >= 0) /* not one range of rows */
		str_puts(out, s->item->name);
	else
		append_item_range(s->item, s->first, rows, s->transposed, out);
}

/* ---- copies, and tensors that must not be lost ------------------------------------------- */

static int by_address(const void *a, const void *b)
{
	const struct torch_item *x = *(const struct torch_item *const *)a,
				*y = *(const struct torch_item *const *)b;
	return (x > y) - (x < y);
}

/* Lists the distinct items of the parameters, sorted by address. Returns their number. */
static int64_t list_used_items(const struct torch_view *x, const struct torch_item **out)
{
	int64_t n = 0, n_all = 0;
	for (int i = 0; i < x->m.n_tensors; i++) {
		const struct tensor_source *s = get_source(&x->at, CKPT_MODEL, i);
		if (s->item && !s->blocks)
			out[n_all++] = s->item;
		for (int b = 0; s->blocks && b < x->m.tensors[i].blocks; b++)
			if (s->blocks[b].item)
				out[n_all++] = s->blocks[b].item;
	}
	qsort(out, (size_t)n_all, sizeof(*out), by_address);
	for (int64_t i = 0; i < n_all; i++)
		if (!n || out[n - 1] != out[i])
			out[n++] = out[i];
	return n;
}

/* Sets x->tied to an output layer that is saved separately from the embedding that it is tied to.
 * Fails if they differ, unless the caller accepts that. */
static int check_tied(struct torch_view *x, const struct torch_item *copy, struct err *e)
{
	const struct torch_item *table = x->names.table;
	struct torch_difference d;
	if (!table || !has_shape(copy, 2, table->dims[0], torch_row_size(table)))
		return report_wrong_shape(&x->at, copy, e);
	if (torch_share_elements(&x->file, copy, table))
		return 0;
	x->tied = copy;
	if (x->how->copies_may_differ)
		return 0;
	if (torch_compare(&x->file, table, copy, &d, e))
		return -1;
	return d.n ? err_set(e, EX_DATAERR,
			     "%s: %s differs from %s, but the model ties them",
			     x->file.path, copy->name, table->name)
		   : 0;
}

/* Compares a copy with the original `first` (NULL: nothing), sets *c, and calls report(). */
static int compare_copy(struct torch_view *x, const struct torch_item *first,
	struct ckpt_copy *c, const struct torch_item *copy, ckpt_report_copy *report,
	void *arg, struct err *e)
{
	static const char *const kinds[] = {"exp_avg", "exp_avg_sq", "step"};
	struct torch_difference d;
	if (!first || torch_compare(&x->file, first, copy, &d, e))
		return first ? -1 : 0;
	c->name = copy->name;
	c->kind = "parameters";
	for (size_t i = 0; i < ARRAY_LEN(kinds); i++)
		if (text_ends(copy->name, kinds[i]))
			c->kind = kinds[i];
	c->n = torch_rows(copy) * torch_row_size(copy);
	c->differ = d.n;
	c->at = d.first;
	memcpy(c->value, d.value, sizeof(d.value));
	c->distance = d.distance;
	report(arg, c);
	return 0;
}

/* Compares each copy with its original, and the output layer with a tied embedding. */
static int compare_copies(
	const struct ckpt_view *v, ckpt_report_copy *report, void *arg, struct err *e)
{
	struct torch_view *x = v->with;
	for (int64_t i = 0; i < x->file.n_copies; i++) {
		const struct torch_copy *copy = &x->file.copies[i];
		struct ckpt_copy c = {.whose = copy->owner, .first = copy->item_owner};
		if (compare_copy(x, torch_find(&x->file, copy->item.name), &c,
			    &copy->item, report, arg, e))
			return -1;
	}
	if (!x->tied)
		return 0;
	struct ckpt_copy c = {
		.whose = "the output layer", .first = "the embedding that it is tied to"};
	return compare_copy(x, x->names.table, &c, x->tied, report, arg, e);
}

/* Returns true for buffers that are computed, not trained. */
static bool is_buffer(const char *name)
{
	static const char *const ends[] = {".attn.bias", ".attn.masked_bias",
		".rotary_emb.inv_freq", "rope.freqs", "freqs_cis", ".rope.cache",
		".moe.tokens_per_expert", ".moe.tokens_per_expert_E"};
	for (size_t i = 0; i < ARRAY_LEN(ends); i++)
		if (text_ends(name, ends[i]))
			return true;
	return false;
}

/* Returns true if a name has the prefix of a model's tensors in any dialect. */
static bool is_model_name(const char *name)
{
	for (int k = 0; dialects[k]; k++)
		for (const char *const *part = dialects[k]->parts; *part; part++)
			if (!strncmp(name, *part, strlen(*part)))
				return true;
	return false;
}

/* Returns true for a name of torchtitan's bias of a router. */
static bool is_titan_bias(const char *name)
{
	return text_ends(name, ".moe.expert_bias") ||
	       text_ends(name, ".moe.expert_bias_E");
}

/* Gives softmax routers a bias if the file has one. (The rate is not used.) */
static void add_softmax_bias(const struct torch_view *x, struct model_config *c)
{
	for (int64_t i = 0; i < x->names.n && c->router == ROUTER_SOFTMAX; i++)
		if (x->how->reads_softmax_bias && is_titan_bias(x->names.v[i].text))
			c->router_bias_rate = 1e-3;
}

/* Returns true for torchtitan's bias of a softmax router, which pt's models lack. Fails if it is
 * not zero. */
static bool is_softmax_bias(
	struct torch_view *x, const struct torch_item *t, const char *name, struct err *e)
{
	enum { MAX_EXPERTS = 4096 };
	float bias;
	if (!is_titan_bias(name) || x->m.c.router != ROUTER_SOFTMAX || t->ndim != 1 ||
		t->dims[0] > MAX_EXPERTS)
		return false;
	for (int64_t i = 0; i < t->dims[0]; i++) {
		if (torch_read(&x->file, t, i, 1, &bias, e))
			return true;
		if (bias != 0) {
			err_set(e, EX_UNAVAILABLE,
				"%s: %s is not zero: a bias of experts is supported only with "
				"sigmoid scores",
				x->file.path, t->name);
			return true;
		}
	}
	return true;
}

/* Fails if the file has a tensor that the model lacks. `used`: from list_used_items(). */
static int check_all_used(struct torch_view *x, const struct torch_item *const *used,
	int64_t n, struct err *e)
{
	const struct dialect *d = x->names.dialect;
	const char *prefix = x->names.prefix.s ? x->names.prefix.s : "";
	for (int64_t i = 0; i < x->names.n; i++) {
		const struct torch_item *t = x->names.v[i].item;
		const char *name = x->names.v[i].text;
		bool has_prefix = !strncmp(name, prefix, strlen(prefix));
		name += has_prefix ? strlen(prefix) : 0;
		if (t->kind != TORCH_TENSOR || !is_model_name(name) || is_buffer(name) ||
			bsearch(&t, used, (size_t)n, sizeof(*used), by_address) ||
			(d->is_copy && d->is_copy(&x->names, name)))
			continue;
		if (is_softmax_bias(x, t, name, e)) {
			if (e->code)
				return -1;
			continue;
		}
		bool copy = text_ends(name, "output.weight") ||
			    text_ends(name, "lm_head.weight");
		if (x->m.tie && copy ? check_tied(x, t, e)
				     : err_set(e, EX_DATAERR,
					       "%s: %s is not a tensor of the model",
					       x->file.path, t->name))
			return -1;
	}
	return 0;
}

/* Reads AdamW's step. pt-train has one for all parameters: warns if the file has several. */
static int read_step(struct torch_view *x, int64_t *step, struct err *e)
{
	scoped_str name = {0};
	double first = -1, v;
	int64_t n;
	int rc = 0;
	if (x->names.dialect->read_step)
		return x->names.dialect->read_step(&x->file, &x->names, step, e);
	for (int i = 0; i < x->m.n_tensors && !rc; i++) {
		const struct torch_item *moment = get_source(&x->at, 1, i)->item;
		if (!moment)
			continue;
		str_clear(&name);
		str_printf(&name, "%.*sstep",
			(int)(strlen(moment->name) - strlen(source_groups[1])),
			moment->name);
		const struct torch_item *s = torch_find(&x->file, name.s);
		v = 0;
		rc = s ? torch_read_numbers(&x->file, s, 1, &v, &n, e)
		       : err_set(e, EX_DATAERR, "%s: %s is missing", x->file.path,
				 name.s);
		if (!rc && (!n || !(v >= 0 && v < 0x1p53)))
			rc = err_set(e, EX_DATAERR,
				"%s: %s is not a valid number of steps", x->file.path,
				name.s);
		if (!rc && first >= 0 && v != first)
			warn("%s: AdamW's step is %g for some parameters, but %s is %g",
				x->file.path, first, name.s, v);
		first = fmax(first, v);
	}
	*step = rc || first < 0 ? 0 : (int64_t)first;
	return rc;
}

/* Replaces parameters by the optimizer's fp32 ones, if it has them. (Before the first step, when
 * their order is unknown, both are equal.) */
static int use_masters(struct torch_view *x, struct err *e)
{
	scoped_ptr const struct torch_item **list = torch_names_list_masters(&x->names);
	int rc = 0;
	for (int i = 0; i < x->m.n_tensors && *list && !rc; i++) {
		struct tensor_source *s = get_source(&x->at, CKPT_MODEL, i);
		if (s->blocks)
			return err_set(e, EX_UNAVAILABLE,
				"%s: fp32_groups of a mixture of experts are not supported",
				x->file.path);
		for (int64_t k = 0; s->item && k < x->names.n_order; k++) {
			if (x->names.order[k] != s->item)
				continue;
			if (!list[k] || list[k]->ndim != s->item->ndim ||
				memcmp(list[k]->dims, s->item->dims,
					sizeof(s->item->dims)) != 0)
				rc = err_set(e, EX_DATAERR,
					"%s: fp32_groups differ in shape from %s",
					x->file.path, s->item->name);
			else
				s->item = list[k];
			break;
		}
	}
	return rc;
}

static int by_order(const void *a, const void *b)
{
	const struct torch_item *x = *(const struct torch_item *const *)a,
				*y = *(const struct torch_item *const *)b;
	return (x->order > y->order) - (x->order < y->order);
}

/* Removes the items that no optimizer has from a list of n. Returns their number. */
static int64_t drop_buffers(
	const struct torch_view *x, const struct torch_item **list, int64_t n)
{
	for (int i = 0; i < x->m.n_tensors; i++) {
		const struct torch_item *item = get_source(&x->at, CKPT_MODEL, i)->item;
		int64_t k = 0;
		while (k < n && list[k] != item)
			k++;
		if (!is_buffer_of_router(&x->m.tensors[i]) || k == n)
			continue;
		n--;
		memmove(list + k, list + k + 1, (size_t)(n - k) * sizeof(*list));
	}
	return n;
}

/* Returns true if an item has elements of a tensor. */
static bool has_item(
	const struct torch_view *x, int tensor, const struct torch_item *item)
{
	const struct tensor_source *s = get_source(&x->at, CKPT_MODEL, tensor);
	bool found = s->item == item;
	for (int b = 0; s->blocks && b < x->m.tensors[tensor].blocks && !found; b++)
		found = s->blocks[b].item == item;
	return found;
}

/* Marks the items that no trained tensor uses as frozen. */
static void set_frozen(
	const struct torch_view *x, struct torch_parameter *list, int64_t n)
{
	for (int64_t k = 0; k < n; k++)
		list[k].frozen = true;
	for (int i = 0; i < x->m.n_tensors; i++)
		for (int64_t k = 0; k < n && !x->m.tensors[i].frozen; k++)
			if (has_item(x, i, list[k].item))
				list[k].frozen = false;
}

/* Returns true if two lists of numbered parameters differ. */
static bool differ(const struct torch_names *a, const struct torch_names *b)
{
	return a->n_order != b->n_order ||
	       memcmp(a->order, b->order, (size_t)a->n_order * sizeof(*a->order)) != 0;
}

/* Maps the numbers of an optimizer to parameters in one of the orders of the model's class. Fails
 * unless exactly one order fits. */
static int map_by_class(struct torch_view *x, struct torch_parameter *list, struct err *e)
{
	static const struct class_order orders[] = {
		{true, false}, {true, true}, {false, false}, {false, true}};
	const bool has_freeze = x->how->freeze && x->how->freeze->n;
	const size_t n_orders = x->m.c.experts ? ARRAY_LEN(orders) : 1;
	struct torch_names found = x->names;
	struct err first = {0};
	bool is_ambiguous = false;
	for (size_t i = 0; i < n_orders; i++) {
		struct err error = {0};
		bool several = false;
		const int64_t n = stems_list_in_order(&x->at, orders[i], list, &error);
		if (has_freeze && n > 0)
			set_frozen(x, list, n);
		x->names.order = NULL;
		int rc = n < 0 || torch_names_set_order(
					  &x->names, &x->file, list, n, &several, &error);
		is_ambiguous |= several;
		if (rc && (several || !first.code))
			first = error;
		if (rc || !x->names.order)
			continue;
		if (!found.order) {
			found = x->names;
			continue;
		}
		is_ambiguous |= differ(&found, &x->names);
		free(x->names.order);
	}
	x->names = found;
	if (found.order && !is_ambiguous)
		return 0;
	if (is_ambiguous && !(first.code && !found.order))
		return err_set(e, EX_UNAVAILABLE,
			"%s: the optimizer numbers its parameters, and the shapes of the experts "
			"allow several orders; save the names, too, by "
			"AdamW(model.named_parameters())",
			x->file.path);
	*e = first;
	return first.code ? -1 : 0;
}

/* Maps the numbers of an optimizer to parameters. `used`: the items of all n parameters. */
static int map_numbers(
	struct torch_view *x, const struct torch_item **used, int64_t n, struct err *e)
{
	if (!x->moments)
		return 0;
	bool sorted_by_name = false, is_numbered = false, several;
	n = drop_buffers(x, used, n);
	for (int64_t i = 0; i < n; i++) {
		sorted_by_name = sorted_by_name || used[i]->order < 0;
		is_numbered = is_numbered ||
			      torch_names_find_numbered(&x->names, "state", i, "exp_avg");
	}
	if (!is_numbered)
		return 0;
	scoped_ptr struct torch_parameter *list =
		xcalloc((size_t)foreign_max(&x->m) + 1, sizeof(*list));
	if (sorted_by_name)
		return map_by_class(x, list, e);
	qsort(used, (size_t)n, sizeof(*used), by_order);
	for (int64_t i = 0; i < n; i++)
		list[i].item = used[i];
	if (x->how->freeze && x->how->freeze->n)
		set_frozen(x, list, n);
	return torch_names_set_order(&x->names, &x->file, list, n, &several, e);
}

/* Warns of tensors without moments that --freeze does not name; fails if no tensor has moments. */
static int check_moments(
	const struct torch_view *x, const struct torch_item *const *means, struct err *e)
{
	int n_missing = 0, n_frozen = 0, first = -1;
	for (int i = 0; i < x->m.n_tensors; i++) {
		n_missing += !means[i];
		n_frozen += !means[i] && x->m.tensors[i].frozen;
		if (!means[i] && !x->m.tensors[i].frozen && first < 0)
			first = i;
	}
	if (n_missing == x->m.n_tensors)
		return err_set(e, EX_UNAVAILABLE,
			"%s: the file has moments of AdamW, but not under the names of the "
			"model's tensors",
			x->file.path);
	if (first >= 0)
		warn("%s: exp_avg is missing for %d of %d tensors, such as %s: their moments are "
		     "taken as zeros",
			x->file.path, n_missing - n_frozen, x->m.n_tensors,
			x->m.tensors[first].name);
	return 0;
}

/* Adds moments and optimizer settings to the view if the file has them. Fails if tensors are
 * unused. */
static int add_moments(struct torch_view *x, struct ckpt_view *v, struct err *e)
{
	scoped_ptr const struct torch_item **used =
		xcalloc((size_t)foreign_max(&x->m) + 1, sizeof(*used));
	int64_t n = list_used_items(x, used);
	int rc = check_all_used(x, used, n, e) || map_numbers(x, used, n, e);
	if (rc)
		return -1;
	if (!x->moments) {
		torch_names_describe_state(&x->names, &v->other_state);
		return 0;
	}
	for (int g = 1; g < SOURCE_GROUPS; g++) {
		if (x->names.dialect->set_sources(&x->at, g, e))
			return -1;
		strs_add(&v->groups, source_groups[g]);
	}
	scoped_ptr const struct torch_item **means =
		xcalloc((size_t)x->m.n_tensors + 1, sizeof(*means));
	for (int i = 0; i < x->m.n_tensors; i++)
		means[i] = get_source(&x->at, 1, i)->item;
	for (int i = 0; i < x->m.n_tensors && !v->other_state.len; i++)
		if (!means[i] && torch_names_has_state(&x->names,
					 get_source(&x->at, CKPT_MODEL, i)->item))
			torch_names_describe_state(&x->names, &v->other_state);
	v->settings = xcalloc((size_t)x->m.n_tensors + 1, sizeof(*v->settings));
	rc = check_moments(x, means, e) ||
	     torch_read_settings(
		     &x->file, &x->names, means, x->m.n_tensors, v->settings, e) ||
	     torch_read_variant(&x->file, &x->names, &v->optimizer, e);
	return rc || use_masters(x, e) || read_step(x, &v->info.step, e) ||
			       torch_config_append_adamw(
				       &v->config, &x->file, &x->names, e)
		       ? -1
		       : 0;
}

/* ---- the format ---------------------------------------------------------------------------- */

/* Opens a checkpoint as a view, with the moments of the optimizer if the file has them. Marks the
 * tensors that --freeze names as frozen. */
static int load_model(
	struct torch_view *x, struct ckpt_view *v, const char *path, struct err *e)
{
	struct model_config c;
	if (torch_open_as(&x->file, x->container, path, e) ||
		torch_config_check_class(x->file.path, x->how->config, e) ||
		torch_names_open(&x->names, &x->file, e) ||
		(x->moments = torch_names_has_moments(&x->names, e)) < 0 ||
		torch_config_read(
			&c, &x->at.pairs, &x->file, &x->names, x->how->config, e))
		return -1;
	add_softmax_bias(x, &c);
	if (model_init(&x->m, &c, 0, e)) {
		e->code = EX_DATAERR;
		return err_prefix(e, "%s: ", path);
	}
	if (x->how->freeze && x->how->freeze->n &&
		options_mark_frozen(&x->m, x->how->freeze, e))
		return -1;
	x->at.names = &x->names;
	x->at.m = &x->m;
	placement_init(&x->at);
	convert_init_view(v, &x->m, path);
	return x->names.dialect->set_sources(&x->at, CKPT_MODEL, e) ||
			       add_moments(x, v, e)
		       ? -1
		       : 0;
}

/* Returns true if torch_describe() may have described None, which DCP saves as "a value". */
static bool may_be_none(const struct str *what)
{
	return !strcmp(what->s, "None") || !strcmp(what->s, "a value");
}

/* Fails if a gradient is neither a tensor nor None, such as a DTensor's shard. */
static int check_gradient_values(const struct torch_view *x, struct err *e)
{
	const char *prefix = x->names.prefix.s ? x->names.prefix.s : "";
	for (int64_t i = 0; i < x->names.n; i++) {
		const struct torch_item *t = x->names.v[i].item;
		const char *name = x->names.v[i].text;
		scoped_str what = {0};
		name += strncmp(name, prefix, strlen(prefix)) ? 0 : strlen(prefix);
		if (t->kind == TORCH_TENSOR || !is_model_name(name))
			continue;
		torch_describe(&x->file, t, &what);
		if (!may_be_none(&what))
			return err_set(e, EX_UNAVAILABLE,
				"%s: the gradient of %s is %s, not a tensor; save "
				"p.grad.full_tensor() of a DTensor, or save the dictionary with "
				"torch.distributed.checkpoint",
				x->file.path, t->name, what.s);
	}
	return 0;
}

/* Opens a file of gradients as a view with the tensors of how->gradients_of. Sets how->found. */
static int load_gradients(
	struct torch_view *x, struct ckpt_view *v, const char *path, struct err *e)
{
	if (convert_model(x->how->gradients_of, &x->m, e) ||
		torch_open_as(&x->file, x->container, path, e))
		return -1;
	struct err value_error = {0};
	int rc = torch_names_open_partial(&x->names, &x->file, &x->m, e);
	if (check_gradient_values(
		    x, &value_error)) /* explains also why names are missing */
		*e = value_error;
	if (rc || e->code)
		return -1;
	if (x->names.dialect->fused)
		return err_set(e, EX_UNAVAILABLE,
			"%s: gradients with the names of %s are not supported", path,
			x->names.dialect->name);
	x->at = (struct placement){
		.names = &x->names, .m = &x->m, .allows_missing = true};
	placement_init(&x->at);
	convert_init_view(v, &x->m, path);
	scoped_ptr const struct torch_item **used =
		xcalloc((size_t)foreign_max(&x->m) + 1, sizeof(*used));
	if (x->names.dialect->set_sources(&x->at, CKPT_MODEL, e) ||
		check_all_used(x, used, list_used_items(x, used), e))
		return -1;
	for (int i = 0; i < x->m.n_tensors; i++)
		x->how->found[i] = get_source(&x->at, CKPT_MODEL, i)->item != NULL;
	return 0;
}

static const void *probe_torch(const char *path)
{
	return find_container(path);
}

/* Opens a PyTorch checkpoint as a view. `probed`: its container. */
static int open_torch(struct ckpt_view *v, const char *path, const void *probed,
	const struct open_options *how, struct err *e)
{
	struct torch_view *x = xcalloc(1, sizeof(*x));
	*v = (struct ckpt_view){0};
	x->how = how;
	x->container = probed;
	int rc = how->gradients_of ? load_gradients(x, v, path, e)
				   : load_model(x, v, path, e);
	v->read = read_torch;
	v->copies = compare_copies;
	v->file_name = append_file_name;
	v->close = close_torch;
	v->with = x;
	if (rc)
		ckpt_view_close(v);
	return rc;
}

static bool is_torch_name(const char *path)
{
	(void)path;
	return false;
}

/* Fails: PyTorch checkpoints cannot be written. */
static int save_torch(const struct ckpt_view *v, const struct model *m, const char *path,
	const struct convert_opts *o, struct err *e)
{
	(void)v, (void)m, (void)o;
	return err_set(e, EX_USAGE,
		"%s: PyTorch checkpoints can be read, but not written; PyTorch loads the output of "
		"--to huggingface",
		path);
}

const struct convert_format convert_torch = {
	.name = "torch",
	.help = "PyTorch checkpoints: files of torch.save, directories of DCP",
	.probe = probe_torch,
	.is_name = is_torch_name,
	.open = open_torch,
	.save = save_torch,
};
