/* A forward and a backward of the model over ranks of tensor, sequence and context
 * parallelism: the loss and every leaf of every gradient have the bits of one rank.
 * ranks: 4
 *
 * The store here keeps each leaf as it was pushed, so that nothing hides in a sum. */
#include "tests/support/models.h"
#include "tests/support/ranks.h"
#include "model/pass.h"

#include <stdlib.h>
#include <string.h>

enum { BATCH = 3 };

/* ---- a store that keeps leaves --------------------------------------------------- */

struct ledger {
	const struct model *m;
	int64_t n_leaves, n_floats;
	float *x;
	int64_t *pushed;	 /* how often */
	int64_t wrong;		 /* calls that break the rules of the store */
	float *params, *buffers; /* [tensor][slice] */
	const float *shown;	 /* the buffer of a leaf that the store is to have next */
	struct arena memory;
};

static struct ledger *ledger;

static int64_t leaves_of(const struct model *m, const struct tensor *t)
{
	return (int64_t)t->slices * t->uses * m->cp * t->users_per_slice;
}

/* Floats of a slice, or of a leaf, each on a cache line. */
static int64_t room_of(const struct tensor *t)
{
	return round_up(t->rows * t->cols, 16);
}

/* Where the leaves of a tensor begin: their number, and in floats. */
static void find_tensor(const struct model *m, const struct tensor *of, int64_t *leaf,
	int64_t *at, int64_t *param)
{
	*leaf = *at = *param = 0;
	for (const struct tensor *t = m->tensors; t < of; t++) {
		*leaf += leaves_of(m, t);
		*at += leaves_of(m, t) * room_of(t);
		*param += t->slices * room_of(t);
	}
}

static bool is_here(const struct tensor *t, int slice)
{
	return slice >= t->first && slice < t->first + t->local;
}

void store_use(struct store *s, int unit, int next)
{
	(void)s, (void)unit, (void)next;
}

void store_done(struct store *s, int unit, bool backward)
{
	(void)s, (void)unit, (void)backward;
}

void store_reduce(struct store *s, int unit, int use)
{
	(void)s, (void)unit, (void)use;
}

int store_tile_unit(const struct store *s, int unit, int tile, int slice)
{
	(void)s, (void)unit, (void)tile, (void)slice;
	return -1;
}

struct mat store_operand(struct store *s, const struct tensor *t, int slice)
{
	(void)s, (void)t, (void)slice;
	return (struct mat){0};
}

float *store_amax(const struct store *s, const struct tensor *t)
{
	(void)s, (void)t;
	return NULL; /* no matmul is in float8 */
}

struct mat store_param(struct store *s, const struct tensor *t, int slice)
{
	int64_t leaf, at, param;
	(void)s;
	find_tensor(ledger->m, t, &leaf, &at, &param);
	ledger->wrong += !is_here(t, slice);
	return mat(ledger->params + param + slice * room_of(t), t->rows, t->cols);
}

/* A slice's leaf while it is written. */
static float *buffer_of(const struct tensor *t, int slice)
{
	int64_t leaf, at, param;
	find_tensor(ledger->m, t, &leaf, &at, &param);
	ledger->wrong += !is_here(t, slice);
	return ledger->buffers + param + slice * room_of(t);
}

struct mat store_leaf(struct store *s, const struct tensor *t, int slice)
{
	(void)s;
	return mat(buffer_of(t, slice), t->rows, t->cols);
}

void store_leaf_done(struct store *s, const struct tensor *t, int slice)
{
	(void)s;
	ledger->wrong += ledger->shown != buffer_of(t, slice);
	ledger->shown = NULL;
}

void store_add_leaf(struct store *s, const struct tensor *t, int slice, struct mat x)
{
	(void)s;
	ledger->wrong += ledger->shown != x.p || x.type != DT_F32 || !is_here(t, slice);
	ledger->shown = NULL;
}

/* The models of this test have no experts. */
struct mat store_leaf_block(
	struct store *s, const struct tensor *t, int slice, int expert)
{
	(void)s;
	(void)t;
	BUG_ON(slice + expert >= 0);
	return (struct mat){0};
}

void store_leaf_block_done(struct store *s, const struct tensor *t, int slice, int expert)
{
	store_leaf_block(s, t, slice, expert);
}

void store_add_leaf_block(
	struct store *s, const struct tensor *t, int slice, int expert, struct mat x)
{
	(void)x;
	store_leaf_block(s, t, slice, expert);
}

void store_leaves_written(struct store *s, const struct tensor *t, int slice, int64_t n)
{
	(void)n;
	store_leaf_block(s, t, slice, 0);
}

void store_for_each_part(struct store *s, bool counted, unsigned reads, unsigned writes,
	store_visit *fn, void *arg)
{
	(void)counted;
	(void)reads;
	(void)writes;
	(void)fn;
	(void)arg;
	store_leaf_block(s, NULL, 0, 0);
}

static bool planning; /* there is nothing where a leaf is */

/* Keeps a leaf, which is shown just before the store has it. */
static void keep_leaf(void *with, const struct result *r)
{
	const struct pass *p = with;
	const struct tensor *t = r->tensor;
	if (r->extent != EXTENT_LEAF)
		return;
	int64_t cp = ledger->m->cp, chunk = p->cp.first + r->at.chunk, leaf, at, param;
	int user = tensor_slice_user(t, p->tp.first + r->at.slice);
	find_tensor(ledger->m, t, &leaf, &at, &param);
	ledger->wrong += ledger->shown || r->use < 0 || r->use >= t->uses || chunk < 0 ||
			 chunk >= cp || user < 0 || user >= t->users_per_slice;
	int64_t i =
		((r->slice * t->uses + r->use) * cp + chunk) * t->users_per_slice + user;
	ledger->pushed[leaf + i]++;
	ledger->shown = r->x.p;
	if (planning)
		return;
	memcpy(ledger->x + at + i * room_of(t), r->x.p,
		(size_t)(t->rows * t->cols) * sizeof(float));
}

/* Parameters are a function of their place in the whole tensor. */
static void fill_slice(const struct tensor *t, int slice, float *p)
{
	uint64_t key = hash_str(t->name);
	float around = t->init == INIT_ONE ? 1 : 0;
	for (int64_t i = 0; i < t->rows * t->cols; i++) {
		int64_t at = tensor_index(t, slice, i / t->cols) + i % t->cols;
		p[i] = around + 0.2f * (float)test_normal(key, at);
	}
}

static void ledger_open(struct ledger *l, const struct model *m)
{
	*l = (struct ledger){.m = m};
	int64_t params;
	find_tensor(m, m->tensors + m->n_tensors, &l->n_leaves, &l->n_floats, &params);
	arena_init(&l->memory, "leaves",
		(size_t)(l->n_floats + 2 * params) * sizeof(float) + 128);
	l->x = arena_floats(&l->memory, l->n_floats);
	l->params = arena_floats(&l->memory, params);
	l->buffers = arena_floats(&l->memory, params);
	l->pushed = xcalloc((size_t)l->n_leaves, sizeof(*l->pushed));
	float *p = l->params;
	for (const struct tensor *t = m->tensors; t < m->tensors + m->n_tensors; t++)
		for (int slice = 0; slice < t->slices; slice++, p += room_of(t))
			fill_slice(t, slice, p);
}

static void ledger_close(struct ledger *l)
{
	arena_release(&l->memory);
	free(l->pushed);
}

/* ---- a pass ---------------------------------------------------------------------- */

/* How it is computed. */
struct layout {
	int tp, cp, threads;
	bool sp, gather_kv, async, split; /* split: the backward in two parts */
	enum recompute recompute;
	int64_t recompute_every;
};

static struct model model_of(const struct model_config *c)
{
	struct model m;
	struct err e = {0};
	if (model_init(&m, c, 0, &e))
		die_err(&e);
	return m;
}

struct memory {
	struct arena run, micro, scratch;
};

/* What a pass is made of. */
struct trial {
	struct device d;
	struct pass p;
	struct acts a;
	struct block_grads *grads; /* of a backward in two parts */
	struct observer observer;
	struct stage all;
};

static void trial_open(struct trial *b, struct model *m, struct mesh *mesh,
	const struct layout *l, struct memory *mem)
{
	static struct store store;
	b->d.scratch = &mem->scratch;
	b->all = (struct stage){0, m->c.layers, true, true};
	struct pass_config c = {.mesh = mesh,
		.batch = BATCH,
		.seed = 11,
		.sp = l->sp,
		.async_tp = l->async,
		.gather_kv = l->gather_kv};
	pass_init(&b->p, m, &b->d, &store, &c, &mem->run);
	pass_recompute(&b->p, l->recompute, max64(1, l->recompute_every), &mem->micro);
	acts_alloc(&b->p, &b->all, &b->a, &mem->micro);
	b->grads = l->split ? grads_alloc(&b->p, &b->all, &mem->micro) : NULL;
	b->observer = (struct observer){.see = keep_leaf, .with = &b->p};
	b->p.observer = &b->observer;
	b->p.micro.first_sample = 7;
	b->p.micro.counted = BATCH - 1;
	pass_step_begin(&b->p, &(struct pass_step){.number = 2, .loss_scale = 0.25f});
}

static void go(struct trial *b)
{
	b->p.micro.train = true;
	model_forward(&b->p, &b->all, &b->a);
	if (b->grads) {
		model_backward_x(&b->p, &b->all, &b->a, b->grads);
		model_backward_w(&b->p, &b->all, &b->a, b->grads);
	} else {
		model_backward(&b->p, &b->all, &b->a);
	}
	acts_release(&b->a);
	free(b->grads);
}

/* Memory, as the planning device finds that it is needed, and bytes that would be sent. */
static int64_t plan_pass(struct model *m, const struct mesh *real, const struct layout *l,
	struct memory *mem)
{
	struct memory size;
	struct mesh mesh;
	struct trial b;
	arena_measure(&size.run, "run");
	arena_measure(&size.micro, "micro");
	arena_measure(&size.scratch, "scratch");
	mesh_plan(&mesh, real->degree, mesh_rank(real->degree, real->coord));
	device_open_plan(&b.d, DEVICE_CPU);
	trial_open(&b, m, &mesh, l, &size);
	planning = true;
	go(&b);
	planning = false;
	arena_init(&mem->run, "run", size.run.peak_bytes);
	arena_init(&mem->micro, "micro", size.micro.peak_bytes);
	arena_init(&mem->scratch, "scratch", size.scratch.peak_bytes);
	int64_t sent = mesh_bytes_sent(&mesh);
	comm_free(mesh.world);
	mesh_close(&mesh);
	return sent;
}

static void load(struct pass *p)
{
	int64_t window = p->m->c.context + 1;
	int32_t *ids = xcalloc((size_t)(BATCH * window), sizeof(*ids));
	for (int64_t i = 0; i < BATCH * window; i++)
		ids[i] = (int32_t)((double)p->m->c.vocab * test_uniform(5, i));
	pass_load(p, ids);
	free(ids);
}

/* Collective over the mesh's world. Every rank gets the loss of all, and its own leaves. */
static double run_pass(const struct model_config *c, struct mesh *mesh,
	const struct layout *l, struct ledger *out, struct model *m)
{
	struct memory mem;
	struct trial b;
	*m = model_of(c);
	int here = m->tp / l->tp;
	tensors_place(m->tensors, m->n_tensors,
		&(struct tensor_part){
			.n = m->tp, .first = mesh->coord[AXIS_TP] * here, .local = here});
	ledger_open(out, m);
	ledger = out;
	int64_t before = mesh_bytes_sent(mesh), planned = plan_pass(m, mesh, l, &mem);
	memset(out->pushed, 0, (size_t)out->n_leaves * sizeof(*out->pushed));
	device_open_cpu(&b.d, l->threads);
	trial_open(&b, m, mesh, l, &mem);
	load(&b.p);
	go(&b);
	out->wrong += mesh_bytes_sent(mesh) - before != planned;
	struct exact loss = pass_loss(&b.p);
	pass_release(&b.p);
	comm_sum_i64(mesh->world, (int64_t *)&loss, EXACT_WORDS);
	arena_release(&mem.run);
	arena_release(&mem.micro);
	arena_release(&mem.scratch);
	return exact_round(&loss);
}

/* ---- comparing ------------------------------------------------------------------- */

/* A run alone, with all virtual slices and chunks. */
struct control {
	struct model m;
	struct ledger leaves;
	double loss;
};

static void control_open(struct control *x, const struct model_config *c)
{
	struct mesh alone;
	mesh_alone(&alone);
	x->loss = run_pass(c, &alone, &(struct layout){.tp = 1, .cp = 1, .threads = 1},
		&x->leaves, &x->m);
	comm_free(alone.world);
	mesh_close(&alone);
}

static void control_close(struct control *x)
{
	ledger_close(&x->leaves);
	model_release(&x->m);
}

/* The leaves that were pushed here have the bits of the control's; says the first that has
 * not. */
static int64_t count_different(const struct ledger *x, const struct ledger *want)
{
	int64_t leaf = 0, at = 0, different = 0;
	for (int i = 0; i < x->m->n_tensors; i++) {
		const struct tensor *t = &x->m->tensors[i];
		size_t n_bytes = (size_t)(t->rows * t->cols) * sizeof(float);
		int64_t n = leaves_of(x->m, t);
		for (int64_t j = 0; j < n; j++, leaf++, at += room_of(t)) {
			if (!x->pushed[leaf] || !memcmp(x->x + at, want->x + at, n_bytes))
				continue;
			if (!different++)
				print_error("rank %d: leaf %lld of %s differs\n",
					world->rank, (long long)j, t->name);
		}
	}
	return different;
}

/* Leaves that were not pushed once, over all ranks. */
static int64_t count_lost(struct comm *c, struct ledger *x)
{
	int64_t lost = 0;
	comm_sum_i64(c, x->pushed, x->n_leaves);
	for (int64_t i = 0; i < x->n_leaves; i++)
		lost += x->pushed[i] != 1;
	return lost;
}

/* Collective over the world. */
static int64_t compare(const struct model_config *c, const struct layout *l,
	const struct control *control)
{
	int size = l->tp * l->cp;
	int degree[N_AXES] = {1, 1, 1, l->cp, l->tp};
	int64_t wrong = 0;
	struct comm *some = comm_split(world, world->rank < size ? 0 : -1, "some");
	if (some) {
		struct mesh mesh;
		struct ledger leaves;
		struct model m;
		mesh_open(&mesh, some, degree);
		double loss = run_pass(c, &mesh, l, &leaves, &m);
		wrong += memcmp(&loss, &control->loss, sizeof(loss)) != 0;
		wrong += leaves.wrong + count_different(&leaves, &control->leaves);
		wrong += count_lost(some, &leaves);
		ledger_close(&leaves);
		model_release(&m);
		mesh_close(&mesh);
		comm_free(some);
	}
	wrong = comm_max_i64(world, wrong);
	if (wrong)
		print_error("virtual %s on tp=%d cp=%d%s%s: %lld things differ\n",
			c->virtual_degrees, l->tp, l->cp, l->sp ? " sp" : "",
			l->gather_kv ? " gather" : "", (long long)wrong);
	return wrong;
}

/* Every layout of up to as many ranks as there are. */
static int64_t compare_all(const struct model_config *c)
{
	struct control control;
	int64_t wrong = 0;
	control_open(&control, c);
	assert_int_equal(control.leaves.wrong, 0);
	for (int tp = 1; tp <= world->size; tp++)
		for (int cp = 1; tp * cp <= world->size; cp++) {
			if (control.m.tp % tp || control.m.cp % cp)
				continue;
			struct layout l = {.tp = tp, .cp = cp, .threads = 1 + tp % 2};
			for (int i = 0; i < 4; i++) {
				l.sp = i & 1;
				l.gather_kv = i >> 1;
				l.async = i == 0 || i == 3;
				l.split = i == 2;
				l.recompute = i == 1   ? RECOMPUTE_FULL
					      : i == 3 ? RECOMPUTE_SELECTIVE
						       : RECOMPUTE_NONE;
				l.recompute_every = 1 + i / 2;
				wrong += compare(c, &l, &control);
			}
		}
	control_close(&control);
	return wrong;
}

/* ---- models ---------------------------------------------------------------------- */

static void check_all(struct model_config c)
{
	static const char *const virtual[] = {
		"tp=1,cp=1", "tp=4,cp=1", "tp=1,cp=4", "tp=2,cp=2", "tp=4,cp=4"};
	for (size_t i = 0; i < ARRAY_LEN(virtual); i++) {
		c.virtual_degrees = virtual[i];
		assert_int_equal(compare_all(&c), 0);
	}
}

TEST(gpt2_on_any_layout)
{
	struct model_config c = small_gpt2;
	c.dropout = 0.2;
	check_all(c);
}

TEST(llama_on_any_layout)
{
	check_all(small_llama);
}

/* One head of keys and values, which all slices share. */
TEST(one_kv_head)
{
	struct model_config c = small_llama;
	c.kv_heads = 1;
	c.dropout = 0.1;
	c.tie = YES;
	c.bias = YES;
	check_all(c);
}

/* Six slices on two ranks and on three: no rank has a node of its own of the tree, and ranks
 * share a head of keys and values. */
TEST(uneven_slices)
{
	struct model_config c = small_llama;
	c.heads = 6;
	c.kv_heads = 3;
	c.dim = 36;
	c.virtual_degrees = "tp=6,cp=2";
	assert_int_equal(compare_all(&c), 0);
}

/* Virtual degrees are other arithmetic, and the same function. */
TEST(virtual_degrees_are_no_other_function)
{
	static const char *const virtual[] = {"tp=2", "tp=4", "cp=4", "tp=4,cp=2"};
	struct control one, other;
	struct model_config c = small_llama;
	control_open(&one, &c);
	for (size_t i = 0; i < ARRAY_LEN(virtual); i++) {
		c.virtual_degrees = virtual[i];
		control_open(&other, &c);
		assert_near(other.loss, one.loss, 1e-5 * one.loss);
		control_close(&other);
	}
	control_close(&one);
}

/* The comparison finds what it should: other dropout, other leaves. */
TEST(comparison_finds_differences)
{
	struct control control;
	struct model_config c = small_gpt2;
	struct layout l = {.tp = 2, .cp = 1, .threads = 1};
	c.virtual_degrees = "tp=2";
	control_open(&control, &c);
	assert_int_equal(compare(&c, &l, &control), 0);
	control.leaves.x[0] += 1;
	assert_true(compare(&c, &l, &control) > 0);
	control.leaves.x[0] -= 1;
	control.loss += 1;
	assert_true(compare(&c, &l, &control) > 0);
	control_close(&control);
}

int main(void)
{
	ranks_open();
	return ranks_close(ranks_run());
}
