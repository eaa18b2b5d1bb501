/* planner: estimates against published memory, ranks within hosts, goodput, fits of a network. */
#include "tests/support/support.h"

#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "collbench/table.h"
#include "comm/collective.h"
#include "comm/simulate.h"
#include "planner/planner.h"

/* Megatron-LM in 16 bits: with tensor parallelism alone, and with sequence parallelism and
 * recomputation of attention (Korthikanti et al. 2022, arXiv 2205.05198, table 2). */
static const struct kept kept_tp[] = {{.dim = 17, .whole = 5, .scores = 5}};
static const struct kept kept_seqsel[] = {{.dim = 17}};

/* GiB of a rank in figure 1 of that paper: parameters and optimizer, activations without
 * recomputation, and with sequence parallelism and selective recomputation. The values are those that
 * github.com/calculon-ai/calculon, calculon/llm/validation.py, compares itself with. */
static const struct {
	double layers, dim, heads;
	int pp;
	int64_t stages, micro;
	double state, none, seqsel;
} models[] = {
	{48, 6144, 64, 1, 1, 4, 45.5625, 59.25, 9.5625},
	{96, 12288, 96, 8, 3, 1, 45.5625, 66.84375, 12.3515625},
	{105, 20480, 128, 35, 3, 1, 31.640625, 114.0234375, 23.076171875},
	{128, 25600, 160, 64, 1, 1, 32.958984375, 131.25, 26.5625},
};

static double activations(int i, const struct kept *kept, double *state)
{
	struct practice p = {.param_bytes = 2,
		.grad_bytes = 4,
		.optimizer_bytes = 12,
		.gather_bytes = 2,
		.kept = kept};
	struct shape s = {.layers = models[i].layers,
		.dim = models[i].dim,
		.heads = models[i].heads,
		.kv_dim = models[i].dim,
		.ffn_dim = 4 * models[i].dim,
		.vocab = 51200,
		.context = 2048,
		.tied = true};
	struct layout l = {.degree = {models[i].pp, 1, 1, 1, 8},
		.schedule = models[i].stages > 1 ? SCHEDULE_INTERLEAVED : SCHEDULE_1F1B,
		.stages = models[i].stages,
		.micro_batch = models[i].micro,
		.n_micro = 1000};
	struct memory m;
	s.block = 12 * s.dim * s.dim;
	s.embedding = 0; /* the published state is that of the blocks */
	estimate_memory(&s, &l, &p, &m);
	*state = (m.params + m.grads + m.optimizer) / (1 << 30);
	return m.activations / (1 << 30);
}

static void near(double x, double published, const char *what, int i)
{
	if (!(fabs(x / published - 1) <= 0.05))
		fail_msg("%s of model %d: %g, published %g", what, i, x, published);
}

static void published_memory(void **state)
{
	(void)state;
	for (int i = 0; i < (int)ARRAY_LEN(models); i++) {
		double bytes;
		near(activations(i, kept_tp, &bytes), models[i].none, "activations", i);
		near(bytes, models[i].state, "state", i);
		near(activations(i, kept_seqsel, &bytes), models[i].seqsel,
			"activations with sequence parallelism", i);
	}
}

static void ranks_of_a_host(void **state)
{
	(void)state;
	struct cluster c = {.links = {.host_ranks = 8}};
	assert_int_equal(ranks_here(&c, 4, 1), 4);
	assert_int_equal(ranks_here(&c, 16, 1), 8);
	assert_int_equal(ranks_here(&c, 16, 4), 2);
	assert_int_equal(ranks_here(&c, 16, 16), 1);
}

/* The interval that is best by the formula is best among others, and the simulation agrees. */
static void goodput_is_daly(void **state)
{
	(void)state;
	struct reliability x = {
		.failures = 1, .checkpoint = 10, .restart = 120, .slow = 1};
	struct goodput best, other, simulated;
	goodput_expect(&x, 1024, 5, &best);
	assert_true(best.interval > 240 &&
		    best.interval < 280); /* sqrt(2 x 10 x 3600) = 268 */
	goodput_simulate(&x, 1024, 5, 1e5, 1, &simulated);
	assert_true(fabs(simulated.fraction - best.fraction) < 0.005);
	for (double factor = 0.5; factor <= 2; factor *= 4) {
		x.interval = factor * best.interval;
		goodput_expect(&x, 1024, 5, &other);
		assert_true(other.fraction < best.fraction);
	}
	x.failures = 0;
	x.interval = 0;
	goodput_expect(&x, 1024, 5, &other);
	assert_true(other.fraction == 1);
}

static double tau(const struct search *s)
{
	double same = 0, other = 0;
	for (int64_t i = 0; i < s->n; i++)
		for (int64_t k = 0; k < i; k++) {
			double x =
				(s->best[i].times.step - s->best[k].times.step) *
				(s->best[i].estimated_step - s->best[k].estimated_step);
			same += x > 0;
			other += x < 0;
		}
	return (same - other) / (same + other);
}

static int ascending(const void *a, const void *b)
{
	const double *x = a, *y = b;
	return (*x > *y) - (*x < *y);
}

/* Of all layouts of a small model on 4 GPUs: tau 0.71, and memory 0.80 to 1.31 of the plan, in the middle
 * 0.985. */
static void estimates_are_near_plans(void **state)
{
	static const char text[] =
		"arch = llama\nlayers = 4\nheads = 8\ndim = 1024\nffn-dim = 2816\n"
		"context = 1024\nvocab = 4096\ndtype = bf16\nbatch = 8\nmicro-batch = 1\n"
		"device = cuda\n";
	struct train_opts o;
	struct model m;
	struct search s;
	struct err e = {0};
	struct request r = {.o = &o, .m = &m, .hosts = 1, .ranks = 4, .show = 10};
	(void)state;
	assert_int_equal(cluster_parse("h100,gpus=4", &r.cluster, &e), 0);
	assert_int_equal(opts_from_text(&train_program, &o, text, false, &e), 0);
	assert_int_equal(options_check(&o, &e), 0);
	assert_int_equal(model_init(&m, &o.model, 0, &e), 0);
	assert_int_equal(search_run(&r, &s, &e), 0);
	assert_int_equal(s.planned, s.enumerated);
	assert_true(s.n > 300);
	double *ratio = xcalloc((size_t)s.n, sizeof(*ratio));
	for (int64_t i = 0; i < s.n; i++) {
		assert_true(s.best[i].exact);
		ratio[i] = s.best[i].estimated_bytes / s.best[i].memory.total;
	}
	qsort(ratio, (size_t)s.n, sizeof(*ratio), ascending);
	assert_true(tau(&s) > 0.65);
	assert_true(ratio[0] > 0.72 && ratio[s.n - 1] < 1.4);
	assert_true(fabs(ratio[s.n / 2] - 1) < 0.08);
	free(ratio);
	search_free(&s);
	model_free(&m);
}

static void stragglers(void **state)
{
	(void)state;
	struct reliability x = {.slow = 2, .probability = 0.001};
	struct goodput g, simulated;
	goodput_expect(&x, 1000, 1, &g);
	assert_true(fabs(g.slowdown - (2 - pow(0.999, 1000))) < 1e-12);
	goodput_simulate(&x, 1000, 1, 100, 1, &simulated);
	assert_true(fabs(simulated.slowdown - g.slowdown) < 0.01);
}

/* A result of pt-collbench with rows of time alpha + beta size, of 3 sizes for each fit. */
static void put_result(const char *path, const struct bench_fit *fits, int n_fits)
{
	struct bench_row rows[64] = {0};
	struct bench_table t = {.rows = rows};
	struct bench_file file = {.path = path};
	struct bench_about about = {.format = "pt-collbench",
		.version = BENCH_VERSION,
		.created_by = "a test",
		.started = "now",
		.settings = "calls=none",
		.host = "here"};
	struct comm *c = comm_self("alone");
	struct err e = {0};
	for (int i = 0; i < 3 * n_fits; i++) {
		const struct bench_fit *f = &fits[i / 3];
		const int64_t size = 64 << 10 * (i % 3);
		struct bench_row *r = &rows[t.n_rows++];
		*r = (struct bench_row){.collective = f->collective,
			.size = size,
			.count = size / 4,
			.type = COMM_F32,
			.redop = COMM_SUM,
			.root = -1,
			.library = f->library,
			.group_ranks = f->group_ranks,
			.group_hosts = f->group_hosts,
			.groups = 1,
			.result = {bench_nothing, bench_nothing}};
		r->result[0].time = r->result[0].typical =
			1e6 * (f->alpha + f->beta * (double)size);
		r->result[0].noise = 0.01;
	}
	table_fit(&t);
	assert_int_equal(t.n_fits, n_fits);
	assert_int_equal(bench_file_begin(&file, c, &e), 0);
	assert_int_equal(bench_file_end(&file, c, &t, &about, &e), 0);
	free(t.fits);
	comm_free(c);
}

/* The simulated seconds of an all-reduce of all ranks. */
static double allreduce_seconds(const struct cluster *c, int ranks, int64_t n_bytes)
{
	static double computed;
	simulate_begin(&c->links, &computed);
	struct comm *w = comm_planned("world", 0, ranks, false);
	struct comm_requests r = {.c = w};
	comm_enqueue(&r, COLL_ALLREDUCE,
		&(struct coll_args){
			.count = n_bytes / 4, .type = COMM_F32, .op = COMM_SUM});
	comm_start(&r);
	comm_wait(&r);
	double seconds = simulate_now();
	comm_free(w);
	simulate_end();
	return seconds;
}
static void measure(const struct bench_fit *fits, int n, const char *name, int hosts,
	struct cluster *c)
{
	char path[] = "planner-fits.h5";
	struct err e = {0};
	put_result(path, fits, n);
	assert_int_equal(cluster_parse(name, c, &e), 0);
	assert_int_equal(network_measured(c, hosts, path, &e), 0);
	unlink(path);
}

/* 100 GB/s and 3 x 10 us within a host; 8 ranks of a host share 10 GB/s of each, and 160 us are two times
 * 3 x 10 us and 20 us of the network. */
static void measured_network(void **state)
{
	static const struct bench_fit fits[] = {
		{COLL_ALLGATHER, LIBRARY_NCCL, 8, 1, 1, 30e-6, 7.0 / 8 / 100e9, 0},
		{COLL_ALLREDUCE, LIBRARY_NCCL, 16, 2, 1, 100e-6, 2 * 15.0 / 16 / 10e9 / 8,
			0}};
	struct cluster c;
	(void)state;
	measure(fits, ARRAY_LEN(fits), "h100", 2, &c);
	assert_near(c.links.link[LINK_HOST].bytes_per_second / 100e9, 1, 1e-6);
	assert_near(c.links.link[LINK_HOST].latency / 10e-6, 1, 1e-4);
	assert_near(c.links.link[LINK_NETWORK].bytes_per_second / 10e9, 1, 1e-6);
	assert_near(c.links.link[LINK_NETWORK].latency / 20e-6, 1, 1e-4);
	for (int64_t n = 64 << 10; n <= 64 << 20; n <<= 10)
		assert_near(allreduce_seconds(&c, 16, n) /
				    (100e-6 + fits[1].beta * (double)n),
			1, 1e-4);
}

/* What ranks of a host send to others is shared in rings only. */
static void exchanges_are_not_shared(void **state)
{
	static const struct bench_fit fits[] = {
		{COLL_ALLTOALL, LIBRARY_MPI, 16, 2, 1, 50e-6, 8.0 / 16 / 10e9, 0},
		{COLL_SENDRECV, LIBRARY_MPI, 16, 2, 1, 20e-6, 1 / 10e9, 0}};
	struct cluster c;
	(void)state;
	for (int i = 0; i < 2; i++) {
		measure(&fits[i], 1, "cpu,gpus=8", 2, &c);
		assert_near(c.links.link[LINK_NETWORK].bytes_per_second / 10e9, 1, 1e-6);
	}
	assert_near(c.links.link[LINK_NETWORK].latency / 20e-6, 1, 1e-4);
}

/* NCCL of GPUs, and MPI of CPUs. */
static void library_of_training(void **state)
{
	static const struct bench_fit fits[] = {
		{COLL_ALLGATHER, LIBRARY_MPI, 2, 1, 1, 10e-6, 0.5 / 1e9, 0},
		{COLL_ALLGATHER, LIBRARY_NCCL, 2, 1, 1, 10e-6, 0.5 / 300e9, 0}};
	struct cluster c;
	(void)state;
	measure(fits, 2, "h100", 1, &c);
	assert_near(c.links.link[LINK_HOST].bytes_per_second / 300e9, 1, 1e-6);
	measure(fits, 2, "cpu", 1, &c);
	assert_near(c.links.link[LINK_HOST].bytes_per_second / 1e9, 1, 1e-6);
	measure(fits, 1, "h100", 1, &c);
	assert_near(c.links.link[LINK_HOST].bytes_per_second / 1e9, 1, 1e-6);
}

static void failing_restarts_end(void **state)
{
	(void)state;
	struct reliability x = {
		.failures = 200, .checkpoint = 10, .restart = 600, .slow = 1};
	struct goodput g;
	goodput_simulate(&x, 8, 1, 1000, 1, &g);
	assert_true(g.fraction >= 0 && g.fraction < 0.01);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(published_memory),
		cmocka_unit_test(ranks_of_a_host),
		cmocka_unit_test(goodput_is_daly),
		cmocka_unit_test(stragglers),
		cmocka_unit_test(estimates_are_near_plans),
		cmocka_unit_test(measured_network),
		cmocka_unit_test(exchanges_are_not_shared),
		cmocka_unit_test(library_of_training),
		cmocka_unit_test(failing_restarts_end),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
