/* Results of pt-collbench: what is wrong in one is said; what is taken can be compared and drawn, and the fits are
 * numbers. */
#include "tests/fuzz/hostile.h"
#include "collbench/table.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const objects[] = {"/", "/collective", "/size", "/count", "/type",
	"/redop", "/root", "/comm", "/group", "/group_ranks", "/group_hosts", "/groups",
	"/out_of_place/time", "/out_of_place/typical", "/out_of_place/noise",
	"/out_of_place/digest", "/in_place/busbw", "/in_place/iters", "/in_place", "/fit",
	"/fit/collective", "/fit/comm", "/fit/group_ranks", "/fit/group_hosts",
	"/fit/groups", "/fit/alpha", "/fit/beta", "/fit/error", NULL};
static const struct h5_field fields[] = {{"format", H5_TEXT, 0, false, ""},
	{"version", H5_I64, 0, false, ""}, {"names", H5_TEXT, 0, false, ""},
	{"doc", H5_TEXT, 0, false, ""}, {"meta_xxh3", H5_U64, 0, false, ""}, {0}};

static void make(struct hostile *t)
{
	struct bench_row rows[4];
	struct bench_table table = {.rows = rows, .n_rows = ARRAY_LEN(rows)};
	struct bench_file file = {.overwrite = true};
	struct bench_about about = {.format = "pt-collbench",
		.version = BENCH_VERSION,
		.created_by = "a fuzzer",
		.started = "now",
		.settings = "",
		.host = "here"};
	struct comm *c = comm_self("alone");
	struct err e = {0};
	char path[4200];
	snprintf(path, sizeof(path), "%s", fuzz_path("seed.h5"));
	file.path = path;
	for (int i = 0; i < 4; i++) {
		rows[i] = (struct bench_row){.size = 8 << 3 * i,
			.count = 2 << 3 * i,
			.type = COMM_F32,
			.root = -1,
			.library = -1,
			.group_ranks = 2,
			.group_hosts = 1,
			.groups = 1,
			.result = {bench_not_measured, bench_not_measured}};
		for (int p = 0; p < N_COLL_PLACES; p++) {
			rows[i].result[p].time = rows[i].result[p].typical = 1 + i;
			rows[i].result[p].noise = rows[i].result[p].busbw = 1;
		}
	}
	table_add_fits(&table);
	FUZZ_ON(table.n_fits != 1);
	FUZZ_ON(bench_file_begin(&file, c, &e));
	FUZZ_ON(bench_file_end(&file, c, &table, &about, &e));
	free(table.fits);
	comm_free(c);
	hostile_init(t, path, objects, fields);
}

static void check_fits(const struct bench_fit *f, int64_t n)
{
	for (int64_t i = 0; i < n; i++, f++) {
		FUZZ_ON(f->collective < 0 || f->collective >= N_BENCH);
		FUZZ_ON(f->library < 0 || f->library >= N_LIBRARIES);
		FUZZ_ON(f->group_ranks < 1 || f->group_hosts < 1 || f->groups < 1);
		FUZZ_ON(!(f->alpha >= 0) || !(f->beta >= 0) || isinf(f->alpha + f->beta));
	}
}

static void use(struct bench_table *t)
{
	struct str text = {0};
	struct err e = {0};
	struct bench_judged *judged = table_judge(t, t, 0.05);
	table_update_verdicts(judged, judged, t->n_rows);
	table_compare(t, t, judged, &text, &e);
	free(judged);
	table_print_fits(t);
	for (int64_t i = 0; i < t->n_rows; i++)
		table_print_row(t, &t->rows[i]);
	str_clear(&text);
	struct bench_curves curves;
	table_make_curves(t, PICTURE_TIME, false, &curves);
	graph_text(
		&curves.graph, &(struct graph_style){MARKS_ASCII, false, 60, 12}, &text);
	bench_curves_release(&curves);
	str_free(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	static struct hostile good;
	struct bytes b = {data, n};
	struct err e = {0};
	struct bench_table t = {.n_rows = 0};
	struct bench_fit *fits;
	int64_t n_fits;
	if (!good.image.len)
		make(&good);
	const char *path = hostile_make(&good, &b);
	if (!bench_fits_read(path, &fits, &n_fits, &e)) {
		check_fits(fits, n_fits);
		free(fits);
	}
	e.code = 0;
	int rc = bench_file_read(path, &t, &e);
	FUZZ_ON((rc != 0) != (e.code != 0));
	if (rc)
		return 0;
	check_fits(t.fits, t.n_fits);
	use(&t);
	table_release(&t);
	return 0;
}
