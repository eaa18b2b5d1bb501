/* Which device a run is on: what a GPU cannot do, who asks for one, and its products. */
#include "train/train.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What of a run is for CPUs only; NULL: nothing. */
static const char *for_cpus(const struct train_opts *o)
{
	const struct {
		bool asked;
		const char *what;
	} some[] = {
		{o->edit.workers > 0 && o->offload != OFFLOAD_NONE,
			"--edit-workers with --offload is for CPUs, for now"},
		{o->offload_to,
			"--offload-to is for CPUs, and what a GPU offloads goes to "
			"the memory of its host"},
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

/* A graph has the arguments of the step that it was made of. */
static int check_graph(const struct train_opts *o, enum device_kind kind, struct err *e)
{
	if (!o->graph)
		return 0;
	if (kind == DEVICE_CPU)
		return err_set(e, EX_USAGE,
			"graph is for GPUs: a CPU is asked for each kernel as it comes");
	if (o->model.dropout > 0)
		return err_set(e, EX_USAGE,
			"graph does not go with dropout, which draws other numbers in "
			"each step");
	if (o->offload != OFFLOAD_NONE)
		return err_set(e, EX_USAGE,
			"graph does not go with offload, whose copies go on beside the "
			"kernels");
	if (!is_alone(o))
		return err_set(e, EX_USAGE,
			"graph does not go with several ranks, whose messages the host "
			"sends");
	if (o->edit.delay > 0)
		return err_set(e, EX_USAGE,
			"graph does not go with edit-sync-delay, whose fragments are on "
			"their way while steps are computed");
	return 0;
}

int train_device(const struct train_opts *o, enum device_kind *kind, struct err *e)
{
	const char *what = for_cpus(o);
	*kind = what && o->device == DEVICE_AUTO ? DEVICE_CPU
						 : (enum device_kind)o->device;
	if (*kind == DEVICE_CUDA && what)
		return err_set(e, EX_USAGE,
			"device cuda: %s: leave that away, or give --device cpu", what);
	if (*kind == DEVICE_CPU && o->numerics == NUMERICS_FAST)
		return err_set(e, EX_USAGE,
			"numerics fast is for GPUs: on a CPU there is only exact");
	if (*kind == DEVICE_CPU && o->offload && !o->offload_to)
		return err_set(e, EX_USAGE,
			"offload %s needs a folder: --offload-to FOLDER, on a fast disk",
			offload_names[o->offload]);
	if (*kind == DEVICE_CPU && o->profile)
		return err_set(e, EX_USAGE, "profile is for GPUs: perf(1) is for CPUs");
	if (check_graph(o, *kind, e))
		return -1;
	if (*kind == DEVICE_CPU && o->algorithms)
		return err_set(e, EX_USAGE,
			"algorithms are those of a GPU's products: on a CPU there is "
			"one");
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
	return 0;
}

/* ---- which algorithm each product has ---------------------------------------------- */

/* FOLDER/algorithms of the run that a checkpoint, FOLDER/checkpoints/X.h5, is of. */
static void beside_checkpoint(const char *checkpoint, struct str *out)
{
	int slashes = 0;
	size_t n = strlen(checkpoint);
	while (n && slashes < 2)
		slashes += checkpoint[--n] == '/';
	if (slashes == 2)
		str_add(out, checkpoint, n + 1);
	else if (slashes == 1) /* it is called by a name in the folder of checkpoints */
		str_puts(out, "../");
	str_puts(out, "algorithms");
}

int train_algorithms_take(
	struct device *d, const struct train_opts *o, const char *from, struct err *e)
{
	enum { MOST = 1 << 20 };
	struct str path = {0}, text = {0};
	int rc = 0;
	bool named = o->algorithms && !says(o, "measure") && !says(o, "first");
	if (named)
		str_puts(&path, o->algorithms);
	else if (from && d->apart)
		beside_checkpoint(from, &path);
	if (path.len && (named || file_exists(path.s))) {
		rc = file_read(path.s, MOST, &text, e) ||
		     device_take_algorithms(d, text.s, e);
		if (rc)
			err_prefix(e, "%s: ", path.s);
	}
	str_free(&path);
	str_free(&text);
	return rc;
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
	for (int r = 0; r < all->size && !rc; r++) {
		str_clear(&text);
		if (r == all->rank)
			str_add(&text, mine.s, mine.len);
		comm_bcast_str(all, &text, r);
		rc = device_take_algorithms(&t->d, text.s, e);
	}
	str_free(&mine);
	str_free(&text);
	return rc;
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
