/* Sources of a model's tensors: code that all dialects share. */
#include "dialect/dialect.h"

const char *const source_groups[SOURCE_GROUPS] = {"model", "exp_avg", "exp_avg_sq"};

#define DIALECT_POINTER(name) &dialect_##name,
const struct dialect *const dialects[] = {DIALECTS(DIALECT_POINTER) NULL};

struct tensor_source *get_source(const struct placement *x, int group, int tensor)
{
	return &x->sources[group * x->m->n_tensors + tensor];
}

void placement_init(struct placement *x)
{
	x->sources =
		xcalloc(SOURCE_GROUPS * (size_t)x->m->n_tensors, sizeof(*x->sources));
}

void placement_release(struct placement *x)
{
	for (int i = 0; x->sources && i < SOURCE_GROUPS * x->m->n_tensors; i++)
		free(x->sources[i].blocks);
	free(x->sources);
	x->sources = NULL;
}

void set_block(
	struct placement *x, int group, int tensor, int block, struct block_source s)
{
	struct tensor_source *stack = get_source(x, group, tensor);
	if (!stack->blocks) {
		*stack = (struct tensor_source){.item = s.item, .layer = -1};
		stack->blocks = xcalloc(
			(size_t)x->m->tensors[tensor].blocks, sizeof(*stack->blocks));
	}
	stack->blocks[block] = s;
}

bool is_buffer_of_router(const struct tensor *t)
{
	return text_ends(t->name, ".router.bias");
}

const struct torch_item *find_group_item(const struct placement *x, int group,
	const char *name, const struct torch_item *parameter)
{
	return group ? torch_names_find_state(
			       x->names, name, parameter, source_groups[group])
		     : torch_names_find(x->names, name);
}

int report_missing(const struct placement *x, int group, const char *name, struct err *e)
{
	const char *path = x->names->file->path;
	if (x->allows_missing)
		return 0;
	return group ? 0 : err_set(e, EX_DATAERR, "%s: tensor %s is missing", path, name);
}

bool has_rotated_rows(const struct tensor *t)
{
	return strstr(t->name, ".attention.wq.") || strstr(t->name, ".attention.wk.");
}

/* Returns an index in our order, where channel j rotates with j + width / 2, unless s differs. */
int64_t source_channel(
	const struct model *m, const struct tensor_source *s, int64_t channel)
{
	int64_t half = m->head_dim / 2, j = channel % half, second = channel / half;
	int64_t rotated = s->rotates_partly && m->c.rotary ? m->c.rotary / 2 : half;
	if (channel >= 2 * half)
		return channel;
	if (j >= rotated)
		return 2 * rotated + second * (half - rotated) + j - rotated;
	return s->pairs ? 2 * j + second : second * rotated + j;
}

bool has_shape(const struct torch_item *t, int ndim, int64_t rows, int64_t width)
{
	return t->ndim == ndim && t->dims[0] == rows &&
	       (ndim == 1 || t->dims[1] == width);
}

int report_wrong_shape(
	const struct placement *x, const struct torch_item *t, struct err *e)
{
	return err_set(e, EX_DATAERR,
		"%s: the shape of %s, [%lld%s%lld], does not fit the model",
		x->names->file->path, t->name, (long long)torch_rows(t),
		t->ndim == 1 ? " x " : ", ", (long long)torch_row_size(t));
}
