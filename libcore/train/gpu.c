/* Which device a run is on: what a GPU cannot do, who asks for one, its products, its peak. */
#include "train/train.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The most that kernels of a GPU hold of a head, and of a row of the residual stream. */
enum { MOST_HEAD = 256, MOST_DIM = 32768 };

/* What of a run is for CPUs only; NULL: nothing. */
static const char *for_cpus(const struct train_opts *o)
{
	const struct model_config *m = &o->model;
	const struct {
		bool asked;
		const char *what;
	} some[] = {
		{o->edit.workers > 0 && o->offload != OFFLOAD_NONE,
			"--edit-workers with --offload is for CPUs, for now"},
		{o->offload_to,
			"--offload-to is for CPUs, and what a GPU offloads goes to "
			"the memory of its host"},
		{m->dim / max64(1, m->heads) > MOST_HEAD,
			"heads of more than 256 channels (dim / heads) are for CPUs"},
		{m->dim > MOST_DIM, "a --dim of more than 32768 is for CPUs"},
	};
	for (size_t i = 0; i < ARRAY_LEN(some); i++)
		if (some[i].asked)
			return some[i].what;
	return NULL;
}

/* What is said by a word, and is no file. */
static bool says(const struct train_opts *o, const char *word)
{
	return o->algorithms && !strcmp(o->algorithms, word);
}

static bool measures(const struct train_opts *o)
{
	return says(o, "measure") || (!o->algorithms && o->numerics == NUMERICS_FAST);
}

/* In its steps; it may be a worker that trains apart. */
static bool is_alone(const struct train_opts *o)
{
	for (int a = 0; a < N_AXES; a++)
		if (o->degree[a] > 1)
			return false;
	return true;
}

/* A graph is of one stream, and has the arguments of the step that was captured: it has no room
 * for copies beside it, for messages that the host sends, and for fragments that arrive. */
static int check_graph(const struct train_opts *o, enum device_kind kind, struct err *e)
{
	if (!o->graph)
		return 0;
	if (kind == DEVICE_CPU)
		return err_set(e, EX_USAGE, "--cuda-graph needs a GPU");
	if (o->offload != OFFLOAD_NONE)
		return err_set(
			e, EX_USAGE, "--cuda-graph is not supported with --offload");
	if (!is_alone(o))
		return err_set(
			e, EX_USAGE, "--cuda-graph is not supported with several ranks");
	if (o->edit.delay > 0)
		return err_set(e, EX_USAGE,
			"--cuda-graph is not supported with --edit-sync-delay");
	return 0;
}

int train_device(const struct train_opts *o, enum device_kind *kind, struct err *e)
{
	const char *what = for_cpus(o);
	*kind = what && o->device == DEVICE_AUTO ? DEVICE_CPU
						 : (enum device_kind)o->device;
	if (*kind == DEVICE_CUDA && what)
		return err_set(e, EX_USAGE,
			"device cuda: %s: change that, or give --device cpu", what);
	if (*kind == DEVICE_CPU && o->numerics == NUMERICS_FAST)
		return err_set(e, EX_USAGE,
			"--numerics fast needs a GPU: a CPU has only --numerics exact");
	if (*kind == DEVICE_CPU && o->offload && !o->offload_to)
		return err_set(e, EX_USAGE,
			"--offload on a CPU needs --offload-to DIRECTORY, on a fast disk");
	if (*kind == DEVICE_CPU && o->self_test == SELF_TEST_YES)
		return err_set(e, EX_USAGE,
			"--self-test needs a GPU, whose kernels it compares with the CPU's");
	if (*kind == DEVICE_CPU && o->profile)
		return err_set(
			e, EX_USAGE, "--profile needs a GPU; for a CPU there is perf(1)");
	if (train_profile(o, &(int64_t){0}, &(int64_t){0}, e) || check_graph(o, *kind, e))
		return -1;
	if (*kind == DEVICE_CPU && o->algorithms)
		return err_set(
			e, EX_USAGE, "--gemm-algorithms needs a GPU: a CPU has only one");
	return 0;
}

void train_device_sharers(struct train_opts *o, struct comm *all)
{
	struct comm_place place;
	enum device_kind kind;
	comm_place(&place);
	bool none = train_device(o, &kind, &(struct err){0}) || kind == DEVICE_CPU;
	uint64_t mine = none ? 0 : device_gpu(place.local_rank);
	uint64_t *each = xcalloc((size_t)all->size, sizeof(*each));
	comm_allgather(all, &mine, each, sizeof(mine));
	o->gpu_sharers = 0;
	for (int r = 0; r < all->size && mine; r++)
		o->gpu_sharers += each[r] == mine;
	free(each);
}

int train_device_open(struct train_opts *o, struct device *d, struct err *e)
{
	enum device_kind kind;
	struct comm_place place;
	comm_place(&place);
	const struct device_options how = {.threads = (int)o->threads,
		.exact = o->numerics == NUMERICS_EXACT,
		.measure = measures(o),
		.memory_bytes = o->memory,
		.ranks = place.local_size,
		.rank = place.local_rank,
		.sharers = o->gpu_sharers};
	if (train_device(o, &kind, e) || device_open(d, kind, &how, e))
		return -1;
	o->device = d->apart ? DEVICE_CUDA : DEVICE_CPU;
	if (train_device(o, &kind, e)) { /* where auto is the CPU */
		device_close(d);
		return -1;
	}
	return 0;
}

int train_device_agree(
	struct train_opts *o, struct comm *world, struct device *d, struct err *e)
{
	enum device_kind kind;
	bool all = comm_min_i64(world, d->apart);
	if (all || !d->apart)
		return 0;
	device_close(d);
	device_cpu(d, (int)o->threads);
	o->device = DEVICE_CPU;
	return train_device(o, &kind, e);
}

void train_device_identity(const struct device *d, struct str *out)
{
	str_puts(out, d->apart ? device_name(d) : device_blas());
}

/* ---- FIRST:LAST ------------------------------------------------------------------- */

int train_profile(
	const struct train_opts *o, int64_t *first, int64_t *last, struct err *e)
{
	char *end;
	*first = *last = 0;
	if (!o->profile)
		return 0;
	*first = strtoll(o->profile, &end, 10);
	*last = *end == ':' ? strtoll(end + 1, &end, 10) : *first;
	if (*end || *first < 1 || *last < *first)
		return err_set(e, EX_USAGE,
			"profile '%s': give the first step and the last, as in 10:12",
			o->profile);
	if (*first > o->steps)
		return err_set(e, EX_USAGE, "profile '%s': the run has %lld steps",
			o->profile, (long long)o->steps);
	return 0;
}

/* ---- which algorithm each product has ---------------------------------------------- */

/* FOLDER/algorithms of the run that a checkpoint, FOLDER/checkpoints/X.h5, is of; it may be named
 * by a link or by a folder. */
static void beside_checkpoint(const char *name, struct str *out)
{
	char *file = ckpt_find_file(name), *slash;
	for (int i = 0; i < 2 && (slash = strrchr(file, '/')); i++)
		*slash = '\0';
	str_printf(out, "%s/algorithms", file);
	free(file);
}

/* Empty text: there are none to take. */
static void read_algorithms(const struct train_opts *o, const char *from,
	struct str *path, struct str *text, struct err *e)
{
	enum { MOST = 1 << 20 };
	bool named = o->algorithms && !says(o, "measure") && !says(o, "first");
	if (named)
		str_puts(path, o->algorithms);
	else if (from)
		beside_checkpoint(from, path);
	if (!named && !(from && file_exists(path->s)))
		return;
	if (!file_read(path->s, MOST, text, e) && !text->len)
		err_set(e, EX_DATAERR, "%s: is empty", path->s);
}

int train_algorithms_take(struct device *d, const struct train_opts *o, const char *from,
	struct comm *all, struct err *e)
{
	struct str path = {0}, text = {0}; /* of the path rank 0 alone knows */
	if (!d->apart)
		return 0;
	if (all->rank == 0)
		read_algorithms(o, from, &path, &text, e);
	if (!comm_agree(all, e)) {
		comm_bcast_str(all, &text, 0);
		if (text.len && device_take_algorithms(d, text.s, e) && path.len)
			err_prefix(e, "%s: ", path.s);
		comm_agree(all, e);
	}
	str_free(&path);
	str_free(&text);
	return e->code ? -1 : 0;
}

/* Ranks in their order, so that rank 0's choice counts where it has such a product; a pipeline's
 * last stage has others. */
int train_algorithms_agree(struct trainer *t, struct comm *all, struct err *e)
{
	struct str mine = {0}, text = {0};
	int rc = 0;
	if (!t->d.apart || !measures(&t->o) || all->size == 1)
		return 0;
	trainer_rehearse(t);
	device_algorithms(&t->d, &mine);
	device_forget_algorithms(&t->d);
	for (int r = 0; r < all->size; r++) {
		str_clear(&text);
		if (r == all->rank)
			str_add(&text, mine.s, mine.len);
		comm_bcast_str(all, &text, r);
		rc = rc ? rc : device_take_algorithms(&t->d, text.s, e);
	}
	str_free(&mine);
	str_free(&text);
	return comm_agree(all, e);
}

int train_algorithms_keep(struct device *d, const char *folder, struct err *e)
{
	struct str path = {0}, text = {0};
	struct durable file;
	device_algorithms(d, &text);
	str_printf(&path, "%s/algorithms", folder);
	durable_begin(&file, path.s);
	int fd = open(file.tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
	bool failed = fd < 0 || write_all(fd, text.s, text.len);
	if (fd >= 0 && close(fd))
		failed = true;
	int rc = failed ? err_set(e, EX_IOERR, "%s: %s", file.tmp, strerror(errno)) : 0;
	if (failed)
		durable_abort(&file);
	else
		rc = durable_commit(&file, e);
	str_free(&path);
	str_free(&text);
	return rc;
}

/* ---- peak ------------------------------------------------------------------------ */

/* What products of a run take. */
static enum dtype operands_of(const struct train_opts *o)
{
	static const enum dtype types[] = {DT_F32, DT_BF16, DT_F16, DT_BF16};
	return types[o->dtype];
}

static struct mat numbers(struct device *d, struct arena *a, int64_t n, enum dtype type)
{
	struct mat x = mat_take(a, n, n, type);
	float *some = xmalloc((size_t)(n * n) * sizeof(*some));
	for (int64_t i = 0; i < n * n; i++)
		some[i] = (float)(i % 7);
	struct mat from = mat_take(a, n, n, DT_F32);
	device_put(d, from.p, some, (size_t)mat_bytes(from));
	d->k->round(d, x, from, type, 1);
	free(some);
	return x;
}

static int64_t room_of_products(int64_t n)
{
	return n * n * (int64_t)sizeof(float) * 5 + 4096;
}

/* The rate of products of n x n matrices, the best of a few. */
static double measure_products(struct device *d, enum dtype type, int64_t n)
{
	struct arena a;
	double best = 0;
	int64_t most_bytes = d->most_bytes; /* of the run, which this is no part of */
	device_arena(d, &a, "a product", (size_t)room_of_products(n));
	struct mat x = numbers(d, &a, n, type), w = numbers(d, &a, n, type);
	struct mat y = mat_take(&a, n, n, type);
	for (int i = 0; i < 4; i++) {
		device_wait(d);
		double begin = clock_seconds();
		d->k->linear_fwd(d, y, x, w, (struct mat){0});
		device_wait(d);
		double rate = 2.0 * (double)(n * n * n) / (clock_seconds() - begin);
		best = rate > best ? rate : best;
	}
	device_arena_release(d, &a);
	d->most_bytes = most_bytes;
	return best;
}

/* Of products that take some milliseconds at least, where they are not very large, and have
 * room beside the run. */
static double measure_peak(struct device *d, enum dtype type)
{
	const double enough = 5e-3;
	double rate = 0;
	int64_t used, room;
	device_memory(d, &used, &room);
	type = d->narrow ? type : DT_F32;
	for (int64_t n = 512; n <= 8192; n *= 2) {
		if (room && room_of_products(n) > room / max64(1, d->sharers))
			break;
		rate = measure_products(d, type, n);
		if (2.0 * (double)(n * n * n) / rate > enough)
			break;
	}
	return rate;
}

double train_peak(const struct train_opts *o, struct device *d)
{
	enum dtype type = operands_of(o);
	double peak = 0;
	bool measure = o->peak_flops && !strcmp(o->peak_flops, "measure");
	if (o->peak_flops && !measure)
		parse_double(o->peak_flops, &peak);
	else if (d->apart && !measure)
		peak = device_peak(d, type);
	if (measure || (d->apart && peak <= 0))
		peak = measure_peak(d, type);
	return peak;
}
