/* Names in PyTorch checkpoints. The optimizer identifies a parameter by its name in the model, or
 * by a number. Wrappers (DistributedDataParallel, torch.compile, FSDP) add parts to names, and
 * programs save models and optimizers under keys of their own. */
#include "dialect/dialect.h"

/* ---- names without wrappers ------------------------------------------------------------ */

/* Returns true if a NULL-terminated list has the part. */
static bool is_one_of(const char *const *list, const char *part, size_t n)
{
	while (*list && (strlen(*list) != n || memcmp(*list, part, n) != 0))
		list++;
	return *list;
}

/* Returns true if a part of a name comes from a wrapper, such as FSDP or torch.compile. */
static bool is_wrapper(const char *part, size_t n)
{
	static const char *const wrappers[] = {"module", "_orig_mod",
		"_fsdp_wrapped_module", "_checkpoint_wrapped_module", NULL};
	bool is_known = is_one_of(wrappers, part, n);
	for (int k = 0; dialects[k] && !is_known; k++)
		is_known = dialects[k]->wrappers &&
			   is_one_of(dialects[k]->wrappers, part, n);
	return is_known;
}

char *torch_names_unwrap(const char *name)
{
	struct str out = {0};
	str_puts(&out, "");
	for (size_t n; *name; name += n + (name[n] == '.')) {
		n = strcspn(name, ".");
		if (is_wrapper(name, n))
			continue;
		str_printf(&out, "%s%.*s", out.len ? "." : "", (int)n, name);
	}
	return out.s;
}

/* Lists the items' names without wrappers, sorted. Fails if two tensors get the same name. */
static int list_names(struct torch_names *x, struct err *e)
{
	const struct torch_file *f = x->file;
	x->v = xcalloc((size_t)f->n + 1, sizeof(*x->v));
	for (; x->n < f->n; x->n++)
		x->v[x->n] = (struct torch_name){
			torch_names_unwrap(f->items[x->n].name), &f->items[x->n]};
	qsort(x->v, (size_t)x->n, sizeof(*x->v), compare_texts);
	for (int64_t i = 1; i < x->n; i++)
		if (!strcmp(x->v[i].text, x->v[i - 1].text) &&
			x->v[i].item->kind == TORCH_TENSOR)
			return err_set(e, EX_DATAERR,
				"%s: %s and %s have the same name without wrappers",
				f->path, x->v[i - 1].item->name, x->v[i].item->name);
	return 0;
}

const struct torch_item *torch_names_find_exact(
	const struct torch_names *x, const char *name)
{
	const struct torch_name key = {.text = (char *)name};
	const struct torch_name *found =
		x->n ? bsearch(&key, x->v, (size_t)x->n, sizeof(key), compare_texts)
		     : NULL;
	return found ? found->item : NULL;
}

/* ---- the model ---------------------------------------------------------------------------- */

/* Returns true for a key under which programs save the model. */
static bool is_model_key(const char *part, size_t n)
{
	static const char *const keys[] = {
		"model", "transformer", "state_dict", "model_state_dict", "app", NULL};
	return is_one_of(keys, part, n);
}

/* Returns true if all parts of text[n] are model keys. text[n] ends with a dot or is empty. */
static bool are_model_keys(const char *text, size_t n)
{
	for (size_t at = 0, part; at < n; at += part + 1) {
		part = strcspn(text + at, ".");
		if (!is_model_key(text + at, part))
			return false;
	}
	return true;
}

/* Reports that the file lacks a known token embedding, and the first name that it has. */
static int reject_unknown(const struct torch_names *x, struct err *e)
{
	const char *path = x->file->path, *name = x->n ? x->v[0].text : "";
	bool has_tensors = false;
	for (int64_t i = 0; i < x->n && !has_tensors; i++)
		has_tensors = x->v[i].item->kind == TORCH_TENSOR;
	if (!has_tensors) {
		scoped_str what = {0};
		if (!x->n)
			return err_set(e, EX_DATAERR,
				"%s: not a checkpoint: the file is empty", path);
		torch_describe(x->file, x->v[0].item, &what);
		return err_set(e, EX_DATAERR,
			"%s: not a checkpoint: it has no tensor, and %s%.100s%s is %s",
			path, *name ? "its first value, \"" : "",
			*name ? name : "its only value", *name ? "\"," : "", what.s);
	}
	scoped_str tables = {0};
	for (int k = 0; dialects[k]; k++)
		if (!dialects[k]->marks[0]) /* (another row has the same table) */
			str_printf(&tables, "%s%s (%s)",
				!k		  ? ""
				: dialects[k + 1] ? ", "
						  : " or ",
				dialects[k]->table, dialects[k]->name);
	return err_set(e, EX_UNAVAILABLE,
		"%s: unknown model: no tensor is named %s, with or without model.; %s%.100s; "
		"pt-ckpt(1) lists the supported classes of transformers",
		path, tables.s, *name ? "the first is " : "the only one has no name",
		name);
}

/* Returns true if layer 0, or any layer after a *, has all marks of the dialect. */
static bool has_marks(const struct torch_names *x, const struct dialect *d)
{
	bool has_all = true;
	for (size_t k = 0; k < ARRAY_LEN(d->marks) && d->marks[k]; k++) {
		scoped_ptr char *end = *d->marks[k] == '*'
					       ? xstrdup(d->marks[k] + 1)
					       : text_printf("layers.0.%s", d->marks[k]);
		int64_t i = 0;
		while (i < x->n && !text_ends(x->v[i].text, end))
			i++;
		has_all &= i < x->n;
	}
	return has_all;
}

/* Sets x->table to the embedding with the shortest prefix, and x->dialect. False: none. */
static bool choose_table(struct torch_names *x)
{
	enum { MAX_PREFIX = 256 }; /* (each of its parts is looked up) */
	for (int64_t i = 0; i < x->n; i++)
		for (int k = 0; dialects[k]; k++) {
			const char *text = x->v[i].text, *table = dialects[k]->table;
			size_t n = strlen(text) -
				   min64((int64_t)strlen(text), (int64_t)strlen(table));
			if (x->v[i].item->kind != TORCH_TENSOR ||
				!text_ends(text, table) || n > MAX_PREFIX ||
				!are_model_keys(text, n) ||
				(x->table && n >= x->prefix.len) ||
				!has_marks(x, dialects[k]))
				continue;
			str_clear(&x->prefix);
			str_add(&x->prefix, text, n);
			x->dialect = dialects[k];
			x->table = x->v[i].item;
		}
	return x->table && x->table->ndim == 2;
}

int torch_names_open(struct torch_names *x, const struct torch_file *f, struct err *e)
{
	*x = (struct torch_names){.file = f};
	if (list_names(x, e))
		return -1;
	return choose_table(x) ? 0 : reject_unknown(x, e);
}

int torch_names_open_partial(struct torch_names *x, const struct torch_file *f,
	const struct model *m, struct err *e)
{
	const struct dialect *best = NULL;
	int max_n = 0;
	*x = (struct torch_names){.file = f};
	if (list_names(x, e))
		return -1;
	if (choose_table(x))
		return 0;
	x->table = NULL;
	for (int k = 0; dialects[k]; k++) {
		int n = 0;
		x->dialect = dialects[k];
		for (int i = 0; i < m->n_tensors && !dialects[k]->fused; i++)
			n += stems_find_item(x, m->tensors[i].name) != NULL;
		best = n > max_n ? dialects[k] : best;
		max_n = n > max_n ? n : max_n;
	}
	x->dialect = best;
	return best ? 0 : reject_unknown(x, e);
}

void torch_names_close(struct torch_names *x)
{
	for (int64_t i = 0; i < x->n; i++)
		free(x->v[i].text);
	free(x->v);
	free(x->order);
	str_free(&x->prefix);
	*x = (struct torch_names){.file = NULL};
}

/* Returns the name without the prefix model. or transformer. of Hugging Face's classes. */
static const char *strip_outer_module(const char *name)
{
	static const char *const outer[] = {"model.", "transformer."};
	for (size_t i = 0; i < ARRAY_LEN(outer); i++)
		if (!strncmp(name, outer[i], strlen(outer[i])))
			return name + strlen(outer[i]);
	return name;
}

const struct torch_item *torch_names_find_prefixed(const struct torch_names *x,
	const char *begin, const char *name, const char *end, bool shorter)
{
	scoped_str text = {0};
	const struct torch_item *found = NULL;
	const char *prefix = x->prefix.s ? x->prefix.s : "";
	for (const char *from = prefix; !found; from = strchr(from, '.') + 1) {
		for (size_t n = strlen(from);; n--) {
			for (int i = 0; i < 2 && !found; i++) {
				str_clear(&text);
				str_printf(&text, "%s%.*s%s%s", begin, (int)n, from,
					i ? strip_outer_module(name) : name, end);
				found = torch_names_find_exact(x, text.s);
			}
			if (found || !n)
				break;
			while (n > 1 && from[n - 2] != '.')
				n--;
		}
		if (!shorter || !*from)
			break;
	}
	return found;
}

const struct torch_item *torch_names_find(const struct torch_names *x, const char *name)
{
	const struct torch_item *found =
		torch_names_find_prefixed(x, "", name, "", false);
	if (!found && !strcmp(name, "output.weight")) /* torchtitan since 2025 */
		found = torch_names_find_prefixed(x, "", "lm_head.weight", "", false);
	return found && found->kind == TORCH_TENSOR ? found : NULL;
}

/* ---- the optimizer -------------------------------------------------------------------------- */

static const char *const optimizers[] = {"optimizer.", "optim.", "optimizer_state_dict.",
	"app.optimizer.", "app.optim.",
	"optimizer.optimizer_state_dict."}; /* DeepSpeed without ZeRO, 16-bit models */

/* Returns the optimizer state `what` under the parameter's number; NULL: missing. */
static const struct torch_item *find_numbered_state(
	const struct torch_names *x, const struct torch_item *item, const char *what)
{
	scoped_str name = {0};
	const struct torch_item *found = NULL;
	for (int64_t i = 0; i < x->n_order; i++)
		for (size_t k = 0;
			x->order[i] == item && k < ARRAY_LEN(optimizers) && !found; k++) {
			str_clear(&name);
			str_printf(&name, "%sstate.%lld.%s", optimizers[k], (long long)i,
				what);
			found = torch_names_find_exact(x, name.s);
		}
	return found;
}

const struct torch_item *torch_names_find_state(const struct torch_names *x,
	const char *name, const struct torch_item *item, const char *what)
{
	scoped_str begin = {0};
	const struct torch_item *found = NULL;
	if (x->order)
		return item ? find_numbered_state(x, item, what) : NULL;
	scoped_ptr char *end = text_printf(".%s", what);
	for (size_t k = 0; k < ARRAY_LEN(optimizers) && !found; k++) {
		str_clear(&begin);
		str_printf(&begin, "%sstate.", optimizers[k]);
		found = torch_names_find_prefixed(x, begin.s, name, end, true);
		if (!found && !strcmp(name, "output.weight"))
			found = torch_names_find_prefixed(
				x, begin.s, "lm_head.weight", end, true);
	}
	return found && found->kind == TORCH_TENSOR ? found : NULL;
}

/* Returns true if a tensor other than a step has a name with this prefix. */
static bool has_state_below(const struct torch_names *x, const char *begin)
{
	int64_t low = 0, high = x->n;
	while (low < high) {
		int64_t middle = low + (high - low) / 2;
		if (strcmp(x->v[middle].text, begin) < 0)
			low = middle + 1;
		else
			high = middle;
	}
	for (; low < x->n && !strncmp(x->v[low].text, begin, strlen(begin)); low++)
		if (x->v[low].item->kind == TORCH_TENSOR &&
			!text_ends(x->v[low].text, ".step"))
			return true;
	return false;
}

/* Sets *out to the optimizer's name or number of a parameter; "": unknown. */
static void set_state_name(
	const struct torch_names *x, const struct torch_item *parameter, struct str *out)
{
	scoped_ptr char *name = torch_names_unwrap(parameter->name);
	str_puts(out, "");
	if (!x->order)
		str_puts(out, name + (strncmp(name, "model.", 6) ? 0 : 6));
	for (int64_t i = 0; i < x->n_order; i++)
		if (x->order[i] == parameter)
			str_printf(out, "%lld", (long long)i);
}

bool torch_names_has_state(
	const struct torch_names *x, const struct torch_item *parameter)
{
	scoped_str name = {0}, begin = {0};
	bool found = false;
	if (parameter)
		set_state_name(x, parameter, &name);
	for (size_t k = 0; k < ARRAY_LEN(optimizers) && name.len && !found; k++) {
		str_clear(&begin);
		str_printf(&begin, "%sstate.%s.", optimizers[k], name.s);
		found = has_state_below(x, begin.s);
	}
	return found;
}

void torch_names_describe_state(const struct torch_names *x, struct str *out)
{
	enum { MAX_KEYS = 6 };
	scoped_strs keys = {0};
	for (int64_t i = 0; i < x->n && keys.n < MAX_KEYS; i++) {
		const char *text = x->v[i].text, *state = strstr(text, ".state.");
		const char *key = strrchr(text, '.');
		if (strncmp(text, "optim", 5) != 0 || !state || key < state + 6 ||
			x->v[i].item->kind != TORCH_TENSOR || !strcmp(key, ".step"))
			continue;
		scoped_ptr char *what = text_printf(
			"%.60s (%.*s)", key + 1, (int)min64(60, state - text), text);
		bool is_new = true;
		for (int64_t k = 0; k < keys.n; k++)
			is_new &= strcmp(keys.v[k], what) != 0;
		if (is_new)
			strs_add(&keys, what);
	}
	for (int64_t k = 0; k < keys.n; k++)
		str_printf(out, "%s%s", k ? ", " : "", keys.v[k]);
}

/* Returns true if DeepSpeed saved fp32 parameters concatenated, without names. */
static bool has_flat_groups(const struct torch_names *x)
{
	static const char groups[] = "optimizer.fp32_groups_flat";
	for (int64_t i = 0; i < x->n; i++)
		if (!strncmp(x->v[i].text, groups, strlen(groups)))
			return true;
	return false;
}

const struct torch_item **torch_names_list_masters(const struct torch_names *x)
{
	const struct torch_item **list = xcalloc((size_t)x->n_order + 1, sizeof(*list));
	char name[64];
	for (int64_t i = 0, group = 0, k = 0; i < x->n_order;) {
		snprintf(name, sizeof(name), "optimizer.fp32_groups.%lld.%lld",
			(long long)group, (long long)k);
		const struct torch_item *t = torch_names_find_exact(x, name);
		if (t && t->kind == TORCH_TENSOR) {
			list[i++] = t;
			k++;
		} else if (k) {
			group++;
			k = 0;
		} else {
			break;
		}
	}
	return list;
}

int torch_names_has_moments(const struct torch_names *x, struct err *e)
{
	if (x->dialect->has_moments)
		return x->dialect->has_moments(x, e);
	if (has_flat_groups(x))
		return err_set(e, EX_UNAVAILABLE,
			"%s: DeepSpeed without ZeRO saved fp32 parameters and moments of a 16-bit "
			"model without parameter names and shapes; train with "
			"zero_optimization {\"stage\": 1}",
			x->file->path);
	for (int64_t i = 0; i < x->n; i++)
		for (size_t k = 0; k < ARRAY_LEN(optimizers); k++)
			if (x->v[i].item->kind == TORCH_TENSOR &&
				!strncmp(x->v[i].text, optimizers[k],
					strlen(optimizers[k])) &&
				!strncmp(x->v[i].text + strlen(optimizers[k]), "state.",
					6) &&
				text_ends(x->v[i].text, ".exp_avg"))
				return 1;
	return 0;
}

const struct torch_item *torch_names_next_option(
	const struct torch_names *x, const char *key, int64_t *at)
{
	const struct torch_item *found = NULL;
	scoped_ptr char *end = text_printf(".%s", key);
	for (; *at < x->n && !found; ++*at)
		for (size_t k = 0; k < ARRAY_LEN(optimizers) && !found; k++) {
			const char *text = x->v[*at].text;
			size_t n = strlen(optimizers[k]);
			if (!strncmp(text, optimizers[k], n) &&
				!strncmp(text + n, "param_groups.", 13) &&
				text_ends(text, end))
				found = x->v[*at].item;
		}
	return found;
}

const struct torch_item *torch_names_find_numbered(
	const struct torch_names *x, const char *kind, int64_t n, const char *what)
{
	scoped_str name = {0};
	const struct torch_item *found = NULL;
	for (size_t k = 0; k < ARRAY_LEN(optimizers) && !found; k++) {
		str_clear(&name);
		str_printf(
			&name, "%s%s.%lld.%s", optimizers[k], kind, (long long)n, what);
		found = torch_names_find_exact(x, name.s);
	}
	return found;
}
