/* planner: ranks within hosts, goodput, stragglers, bounds against plans, fits of a network. */
#include "tests/support/support.h"

#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "plan/network.h"
#include "collbench/table.h"
#include "comm/collective.h"
#include "comm/simulate.h"
#include "schedule/schedule.h"
#include "plan/planner.h"

TEST(ranks_of_a_host)
{
	struct cluster c = {.links = {.host_ranks = 8}};
	assert_int_equal(host_ranks_of(&c, 4, 1), 4);
	assert_int_equal(host_ranks_of(&c, 16, 1), 8);
	assert_int_equal(host_ranks_of(&c, 16, 4), 2);
	assert_int_equal(host_ranks_of(&c, 16, 16), 1);
}

/* The interval that is best by the formula is best among others, and the simulation agrees. */
TEST(goodput_is_daly)
{
	struct reliability x = {
		.failures = 1, .checkpoint = 10, .restart = 120, .slow = 1};
	struct goodput best, other, simulated;
	goodput_compute(&x, 1024, 5, &best);
	assert_true(best.interval > 240 &&
		    best.interval < 280); /* sqrt(2 x 10 x 3600) = 268 */
	goodput_simulate(&x, 1024, 5, 1e5, 1, &simulated);
	assert_true(fabs(simulated.fraction - best.fraction) < 0.005);
	for (double factor = 0.5; factor <= 2; factor *= 4) {
		x.interval = factor * best.interval;
		goodput_compute(&x, 1024, 5, &other);
		assert_true(other.fraction < best.fraction);
	}
	x.failures = 0;
	x.interval = 0;
	goodput_compute(&x, 1024, 5, &other);
	assert_true(other.fraction == 1);
}

static double tau(const struct search *s)
{
	double same = 0, other = 0;
	for (int64_t i = 0; i < s->n; i++)
		for (int64_t k = 0; k < i; k++) {
			double x = (s->best[i].times.step - s->best[k].times.step) *
				   (s->best[i].bound_step - s->best[k].bound_step);
			same += x > 0;
			other += x < 0;
		}
	return (same - other) / (same + other);
}

/* mean: the least geometric mean of the bounds of times over the plans. */
static void compare_bounds(const char *more, double mean)
{
	char text[512];
	snprintf(text, sizeof(text),
		"arch = llama\nlayers = 4\nheads = 8\ndim = 1024\nffn-dim = 2816\n"
		"context = 1024\nvocab = 4096\ndtype = bf16\nbatch = 8\nmicro-batch = 1\n"
		"device = cuda\n%s",
		more);
	struct train_opts o;
	struct model m;
	struct search s;
	struct err e = {0};
	struct request r = {.o = &o, .m = &m, .hosts = 1, .ranks = 4, .show = 10};
	assert_int_equal(cluster_parse("h100,gpus=4", &r.cluster, &e), 0);
	assert_int_equal(opts_from_text(&train_program, &o, text, false, &e), 0);
	assert_int_equal(options_check(&o, &e), 0);
	assert_int_equal(model_init(&m, &o.model, 0, &e), 0);
	assert_int_equal(search_run(&r, &s, &e), 0);
	assert_int_equal(s.planned, s.enumerated);
	assert_true(s.n > 300);
	double time = 0, memory = 0;
	for (int64_t i = 0; i < s.n; i++) {
		const struct choice *c = &s.best[i];
		assert_int_equal(c->planned, BY_WHOLE_PLAN);
		assert_true(c->bound_bytes <= c->memory.total);
		assert_true(c->bound_step <= 1.15 * c->times.step);
		memory += log(c->bound_bytes / c->memory.total);
		time += log(c->bound_step / c->times.step);
	}
	print_message("  %lld layouts: tau %.2f, of the plans' means %.2f and %.2f\n",
		(long long)s.n, tau(&s), exp(time / (double)s.n),
		exp(memory / (double)s.n));
	assert_true(tau(&s) > 0.65);
	assert_true(time / (double)s.n > log(mean));
	assert_true(memory / (double)s.n > log(0.7));
	search_release(&s);
	model_release(&m);
}

/* Of all layouts of a small model on 4 GPUs. */
TEST(bounds_are_below_plans)
{
	compare_bounds("", 0.8);
	compare_bounds("head-dim = 256\nbias = qkv\n", 0.8);
	compare_bounds("residual-dtype = bf16\n", 0.8);
	compare_bounds("qk-norm = yes\n", 0.8);
	compare_bounds("experts = 4\nexpert-dim = 1024\nshared-expert-dim = 512\n", 0.75);
}

TEST(stragglers)
{
	struct reliability x = {.slow = 2, .probability = 0.001};
	struct goodput g, simulated;
	goodput_compute(&x, 1000, 1, &g);
	assert_true(fabs(g.slowdown - (2 - pow(0.999, 1000))) < 1e-12);
	goodput_simulate(&x, 1000, 1, 100, 1, &simulated);
	assert_true(fabs(simulated.slowdown - g.slowdown) < 0.01);
}

/* Four pipelines of two stages. If they wait in each micro-batch, slow ranks on different stages of two
 * pipelines delay a step more than either pipeline alone; and no draw makes waiting faster. */
TEST(pipelines_wait)
{
	const struct reliability job = {.slow = 3, .probability = 0.15};
	struct choice c = {.l = {.degree = {2, 1, 4, 1, 1},
				   .schedule = SCHEDULE_1F1B,
				   .stages = 1,
				   .micro_batch = 1,
				   .n_micro = 8},
		.times = {.computation = 8 * 3, .step = 27}};
	int slower = 0;
	for (uint64_t seed = 0; seed < 50; seed++) {
		struct straggling x = {&job, seed, false};
		struct straggled apart, together;
		straggled_step(&c, &x, &apart);
		x.together = true;
		straggled_step(&c, &x, &together);
		assert_near(apart.without, 27, 1e-9); /* 8 + 1 micro-batches of 3 s */
		assert_near(together.without, 27, 1e-9);
		assert_true(together.step >= apart.step);
		assert_int_equal(together.slow, apart.slow > 0);
		assert_int_equal(apart.step > apart.without, apart.slow > 0);
		slower += together.step > apart.step;
	}
	assert_true(slower > 5);
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
			.result = {bench_not_measured, bench_not_measured}};
		r->result[0].time = r->result[0].typical =
			1e6 * (f->alpha + f->beta * (double)size);
		r->result[0].noise = 0.01;
	}
	table_add_fits(&t);
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
	assert_int_equal(network_read(c, hosts, path, &e), 0);
	unlink(path);
}

/* 100 GB/s and 3 x 10 us within a host; 8 ranks of a host share 10 GB/s of each, and 160 us are two times
 * 3 x 10 us and 20 us of the network. */
TEST(measured_network)
{
	static const struct bench_fit fits[] = {
		{COLL_ALLGATHER, LIBRARY_NCCL, 8, 1, 1, 30e-6, 7.0 / 8 / 100e9, 0},
		{COLL_ALLREDUCE, LIBRARY_NCCL, 16, 2, 1, 100e-6, 2 * 15.0 / 16 / 10e9 / 8,
			0}};
	struct cluster c;
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
TEST(exchanges_are_not_shared)
{
	static const struct bench_fit fits[] = {
		{COLL_ALLTOALL, LIBRARY_MPI, 16, 2, 1, 50e-6, 8.0 / 16 / 10e9, 0},
		{COLL_SENDRECV, LIBRARY_MPI, 16, 2, 1, 20e-6, 1 / 10e9, 0}};
	struct cluster c;
	for (int i = 0; i < 2; i++) {
		measure(&fits[i], 1, "cpu,gpus=8", 2, &c);
		assert_near(c.links.link[LINK_NETWORK].bytes_per_second / 10e9, 1, 1e-6);
	}
	assert_near(c.links.link[LINK_NETWORK].latency / 20e-6, 1, 1e-4);
}

/* NCCL of GPUs, and MPI of CPUs. */
TEST(library_of_training)
{
	static const struct bench_fit fits[] = {
		{COLL_ALLGATHER, LIBRARY_MPI, 2, 1, 1, 10e-6, 0.5 / 1e9, 0},
		{COLL_ALLGATHER, LIBRARY_NCCL, 2, 1, 1, 10e-6, 0.5 / 300e9, 0}};
	struct cluster c;
	measure(fits, 2, "h100", 1, &c);
	assert_near(c.links.link[LINK_HOST].bytes_per_second / 300e9, 1, 1e-6);
	measure(fits, 2, "cpu", 1, &c);
	assert_near(c.links.link[LINK_HOST].bytes_per_second / 1e9, 1, 1e-6);
	measure(fits, 1, "h100", 1, &c);
	assert_near(c.links.link[LINK_HOST].bytes_per_second / 1e9, 1, 1e-6);
}

TEST(failing_restarts_end)
{
	struct reliability x = {
		.failures = 200, .checkpoint = 10, .restart = 600, .slow = 1};
	struct goodput g;
	goodput_simulate(&x, 8, 1, 1000, 1, &g);
	assert_true(g.fraction >= 0 && g.fraction < 0.01);
}
