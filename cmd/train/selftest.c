/* The self-test of a run: lists its kernels, divides them among ranks, and keeps results. */
#include "train/selftest.h"

#include <sys/stat.h>

#include "edit/edit.h"
#include "plan/plan.h"

/* ---- kernel calls outside the steps ---------------------------------------------- */

/* Calls the kernels that compress messages between the workers of local SGD. */
static void call_wire_kernels(struct device *d, const struct edit_config *c, struct mat x)
{
	const struct kernels *k = d->k;
	const struct rng_stream rng = {.first = 0};
	int64_t n_picked = max64(1, (int64_t)(c->wire_density * (double)x.cols));
	bool wide = x.cols > 1 << 16;
	if (c->wire == EDIT_WIRE_BF16) {
		k->round(d, x, x, DT_BF16, 1);
		k->round_stochastic(d, x, &rng);
		k->narrow(d, NULL, x, DT_BF16);
		k->widen(d, x, NULL, DT_BF16);
	} else if (c->wire == EDIT_WIRE_INT8) {
		k->quantize(d, x, NULL, NULL, NULL);
		k->quantize(d, x, NULL, NULL, &rng);
		k->dequantize(d, x, NULL, NULL);
	} else if (c->wire == EDIT_WIRE_SPARSE) {
		k->keep_largest(d, x, n_picked);
		k->topk_pack(d, NULL, NULL, wide, x, n_picked);
		k->topk_scatter(d, x, NULL, NULL, wide, n_picked);
	}
}

/* Calls the kernels of a synchronization of local SGD, on a device that only records calls. */
static void call_sync_kernels(struct device *d, const struct train_opts *o, struct mat x)
{
	static float m;
	const struct kernels *k = d->k;
	const struct edit_config *c = &o->edit.config;
	const struct keep keep = {.density = 1};
	const struct combine combine = {.workers = (int)o->edit.workers,
		.vote = c->reducer == EDIT_GTA ? c->consensus : SIGN_VOTE_NONE,
		.normalize = c->reducer != EDIT_MEAN && c->normalize};
	bool adamw = c->outer == EDIT_OUTER_ADAMW;
	const struct update_part part = {.m = adamw || c->momentum > 0 ? &m : NULL,
		.v = adamw ? &m : NULL,
		.n = mat_size(x)};
	k->combine(d, NULL, NULL, mat_size(x), &combine);
	k->add(d, x, x, x);
	k->sub(d, x, x, x);
	k->exact_sumsq(d, NULL, &x, 1);
	optimizers[adamw ? OPTIMIZER_ADAMW : OPTIMIZER_SGD]->update(d, &part, 1, NULL);
	if (c->delay)
		k->axpby(d, x, 0, x, 1);
	if (c->sparsify)
		k->keep_largest(d, x, max64(1, (int64_t)(c->density * (double)x.cols)));
	if (c->sparsify)
		k->keep_random(d, x, &keep);
	for (int shift = 24; shift >= 0 && c->sparsify; shift -= 8)
		k->count_sizes(d, NULL, x, 0, shift);
	if (c->sparsify)
		k->keep_sizes(d, x, 0);
	call_wire_kernels(d, c, x);
}

/* Calls the kernels of --check-replicas and --check-memory for n words and `terms` pieces. */
static void call_checksum_kernels(struct device *d, int64_t n, int64_t terms)
{
	const struct word_part part = {.n = n};
	d->k->checksum_word(d, NULL, NULL, NULL, NULL, terms);
	d->k->word_sums(d, NULL, &part, 1, NULL,
		grid_check_key(0)); /* its trial calls the other */
}

/* Calls the kernels that sign an audited micro-batch: results and leaves may have 16 bits. */
static void call_audit_kernels(struct device *d, const struct train_opts *o, struct mat x)
{
	const struct grid_check check = {.first = 0};
	const struct grid_part parts[] = {{.leaf = x.p}, {.sum = (const int64_t *)x.p}};
	x.type = o->dtype == PRECISION_FP32   ? DT_F32
		 : o->dtype == PRECISION_FP16 ? DT_F16
					      : DT_BF16;
	d->k->hash(d, NULL, x, 0, 0, x.cols);
	for (size_t i = 0; i < ARRAY_LEN(parts); i++)
		d->k->grid_sum(d,
			&(struct grid_sum){.parts = &parts[i],
				.n_parts = 1,
				.leaf_type = x.type,
				.n = mat_size(x),
				.check = &check},
			NULL);
}

/* Records the kernel calls of a run outside its steps, by a device that only plans. */
static void record_other_calls(
	const struct train_opts *o, const struct model *m, struct kernel_calls *calls)
{
	enum { ROWS = 100 };
	static float x;
	struct device d;
	const struct model_config *c = &m->c;
	device_open_plan(&d, DEVICE_CUDA);
	device_plan_record(&d, calls);
	for (int i = 0; i < m->n_tensors; i++)
		init_rows(&d, &m->tensors[i], o->seed, 0, mat(&x, ROWS, c->dim));
	if (o->edit.workers)
		call_sync_kernels(&d, o, mat(&x, ROWS, c->dim));
	if (o->ckpt || o->hash_tensors || o->referee > 0)
		d.k->hash(&d, NULL, mat(&x, ROWS, c->dim), 0, 0, 0);
	if (o->check_replicas || o->check_memory)
		call_checksum_kernels(&d, ROWS * c->dim, m->n_tensors);
	if (o->referee > 0)
		call_audit_kernels(&d, o, mat(&x, ROWS, c->dim));
}

void selftest_calls(
	const struct train_opts *o, struct model *m, int rank, struct kernel_calls *calls)
{
	plan_kernel_calls(o, m, rank, calls);
	record_other_calls(o, m, calls);
}

/* ---- results of earlier runs ------------------------------------------------------- */

/* Appends $XDG_CACHE_HOME/pt/self-test-KEY, or the same in ~/.cache; -1: neither is set. */
static int append_cache_path(uint64_t key, struct str *dir, struct str *path)
{
	const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
	if (cache && *cache == '/')
		str_printf(dir, "%s/pt", cache);
	else if (home && *home == '/')
		str_printf(dir, "%s/.cache/pt", home);
	else
		return -1;
	str_printf(path, "%s/self-test-%016llx", dir->s, (unsigned long long)key);
	return 0;
}

/* Returns true if the self-test has passed before: it then wrote a file with exactly this text. */
static bool has_passed(uint64_t key, const struct str *test)
{
	scoped_str dir = {0}, path = {0}, text = {0};
	struct stat st;
	return !append_cache_path(key, &dir, &path) && !stat(path.s, &st) &&
	       S_ISREG(st.st_mode) &&
	       !file_read(path.s, test->len + 1, &text, &(struct err){0}) &&
	       text.len == test->len && !memcmp(text.s, test->s, test->len);
}

/* Saves the result. If that fails, the next run tests again. */
static void save_result(uint64_t key, const struct str *test)
{
	scoped_str dir = {0}, path = {0};
	struct err e = {0};
	if (!append_cache_path(key, &dir, &path) && !file_make_directory(dir.s, &e))
		file_replace(path.s, test, &e);
}

/* Appends all that the result depends on; the device's name includes the driver and libraries. */
static void describe_test(
	const struct trainer *t, const struct kernel_calls *calls, struct str *test)
{
	scoped_str algorithms = {0};
	const char *attention = getenv("PT_ATTENTION"), *off = getenv("PT_LAB_OFF");
	device_algorithms((struct device *)&t->d, &algorithms);
	str_printf(test, "pt %s, %s\npt-cuda.so 0x%016llx\n", PT_VERSION, t->d.name,
		(unsigned long long)device_plugin_hash());
	str_printf(test, "numerics %s, algorithms 0x%016llx, attention %s, off %s\n",
		t->o.numerics == NUMERICS_FAST ? "fast" : "exact",
		(unsigned long long)hash_bytes(
			algorithms.s ? algorithms.s : "", algorithms.len, 0),
		attention ? attention : "auto", off ? off : "");
	kernel_calls_text(calls, test);
}

/* ---- testing ----------------------------------------------------------------------- */

/* Removes calls that another rank tests: on a shared GPU, the first rank with a call tests it. All
 * ranks read earlier results before any rank writes new ones. Collective over `all`. */
static void divide_calls(struct comm *all, uint64_t gpu, struct kernel_calls *calls)
{
	size_t n = (size_t)comm_max_i64(all, calls->n) + 1;
	scoped_ptr uint64_t *own = xcalloc(n, sizeof(*own));
	scoped_ptr uint64_t *each = xcalloc((size_t)all->size * n, sizeof(*each));
	own[0] = gpu;
	for (int64_t i = 0; i < calls->n; i++)
		own[1 + i] = hash_str(calls->texts[i].s);
	comm_allgather(all, own, each, (int64_t)(n * sizeof(*own)));
	for (int64_t i = calls->n; i-- > 0;) {
		bool is_tested_elsewhere = false;
		for (size_t r = 0; r < (size_t)all->rank && !is_tested_elsewhere; r++)
			for (size_t j = 1; j < n && each[r * n] == gpu; j++)
				is_tested_elsewhere |= each[r * n + j] == own[1 + i];
		if (is_tested_elsewhere)
			kernel_calls_remove(calls, i);
	}
}

/* Returns the number of threads of the CPU's kernels. */
static int test_threads(const struct trainer *t)
{
	return t->o.threads
		       ? (int)t->o.threads
		       : (int)max64(1, cpu_count() / max64(1, comm_place()->local_size));
}

int selftest_repeat(struct trainer *t, struct err *e)
{
	struct kernel_calls calls = {0};
	struct selftest_work work;
	struct selftest r;
	int64_t used, free_bytes;
	selftest_calls(&t->o, &t->model, t->world->rank, &calls);
	selftest_measure(&calls, &work);
	device_memory(&t->d, &used, &free_bytes);
	bool fits = (int64_t)work.gpu_bytes <= free_bytes;
	int rc = fits ? selftest_run(&t->d, test_threads(t), &calls, &r, e) : 0;
	if (!fits)
		warn("self-test: too little free memory on %s", t->d.name);
	kernel_calls_release(&calls);
	return rc;
}

/* Runs the self-test of the device's kernels, and sets *r. Returns -1 with *e set if
 * results are wrong. */
static int run_test(
	struct trainer *t, struct kernel_calls *calls, struct selftest *r, struct err *e)
{
	if (!selftest_run(&t->d, test_threads(t), calls, r, e))
		return 0;
	err_prefix(e, "self-test: %s gives wrong results: ", t->d.name);
	struct err text = *e;
	return err_set(e, EX_FAILED,
		"%s; the cause is a broken GPU, driver or compiler%s; nothing was trained; "
		"--self-test no trains anyway",
		text.msg,
		getenv("PT_LAB_OFF")
			? ""
			: ", or a kernel that fails on it (PT_LAB_OFF=all selects older kernels)");
}

int selftest_kernels(struct trainer *t, struct comm *all, struct str *out, struct err *e)
{
	struct kernel_calls calls = {0};
	struct selftest r = {0};
	scoped_str test = {0};
	if (t->o.self_test == SELF_TEST_NO || !t->d.discrete)
		return 0;
	selftest_calls(&t->o, &t->model, t->world->rank, &calls);
	describe_test(t, &calls, &test);
	uint64_t key = hash_bytes(test.s, test.len, 0);
	bool passed = t->o.self_test == SELF_TEST_AUTO && has_passed(key, &test);
	divide_calls(all, device_gpu_id(comm_place()->local_rank), &calls);
	bool due = !passed && calls.n;
	if (due)
		run_test(t, &calls, &r, e);
	int rc = comm_agree(all, e);
	if (!rc && !passed)
		save_result(key, &test);
	if (due)
		str_printf(out,
			"self-test passed: %lld kernel calls, errors up to %.2g of the "
			"tolerance (%s), %.2f s",
			(long long)r.n_calls, r.worst, r.closest, r.seconds);
	else
		str_printf(out, "self-test passed before");
	str_printf(out, "; 0x%016llx", (unsigned long long)key);
	if (!rc)
		info("%s", out->s);
	kernel_calls_release(&calls);
	return rc;
}
