/* Checks whether a trainer fits into memory, and decides what it may allocate. */
#include "plan/fit.h"

/* Returns the bytes that all `sharers` of a GPU or a host need together; `key` identifies the
 * device. With several hosts, or sharers from other workers, each counts as the largest rank.
 * Collective. */
static double shared_bytes(
	const struct trainer *t, int64_t key, int sharers, int64_t own_bytes)
{
	struct need {
		int64_t key, n_bytes;
	} own = {key, own_bytes}, *all = xcalloc((size_t)t->world->size, sizeof(*all));
	int64_t sum = 0, largest = 0;
	int n = 0;
	comm_allgather(t->world, &own, all, sizeof(own));
	for (int r = 0; r < t->world->size; r++) {
		sum += all[r].key == key ? all[r].n_bytes : 0;
		n += all[r].key == key;
		largest = max64(largest, all[r].n_bytes);
	}
	free(all);
	return comm_place()->n_hosts == 1 && n == sharers ? (double)sum
							  : (double)largest * sharers;
}

/* Rejects a trainer that does not fit into the memory of its GPU. Collective. */
static int check_gpu_memory(const struct trainer *t, const struct plan *p, struct err *e)
{
	char need[NUM_TEXT], has[NUM_TEXT];
	int64_t planned = plan_on_device(p);
	double bytes = (double)planned, available = (double)t->o.memory;
	if (!t->o.memory) { /* the kernels' workspace is allocated already */
		bytes = shared_bytes(
			t, t->d.number, t->d.sharers, planned - DEVICE_WORK_BYTES);
		available = (double)t->memory.gpu_free;
	}
	if (bytes <= available)
		return 0;
	return err_set(e, EX_FAILED,
		"out of memory: the GPU needs %s%s, and has %s; --dry-run shows "
		"the plan, and a smaller --micro-batch, --recompute full, --offload or "
		"--dtype bf16 need less",
		text_bytes(need, bytes),
		t->d.sharers > 1 && !t->o.memory ? " for the ranks that share it" : "",
		text_bytes(has, available));
}

/* Rejects a trainer that does not fit: otherwise the first step, which touches all planned
 * memory, would be killed. Sets *copy_allowed if a checkpoint's copy fits too. Collective. */
static int fit_memory(
	const struct trainer *t, const struct plan *p, bool *copy_allowed, struct err *e)
{
	const struct comm_place *place = comm_place();
	char need[NUM_TEXT], has[NUM_TEXT];
	bool discrete = t->d.discrete;
	int64_t available = memory_available(), limit = discrete ? 0 : t->o.memory;
	int64_t own = plan_total(p) - p->copy_bytes - (discrete ? plan_on_device(p) : 0);
	int64_t largest = comm_max_i64(t->world, own);
	double bytes = shared_bytes(t, 0, place->local_size, own);
	double copy = shared_bytes(t, 0, place->local_size, p->copy_bytes);
	if (discrete && check_gpu_memory(t, p, e))
		return -1;
	if (limit && largest > limit)
		return err_set(e, EX_FAILED,
			"out of memory: a rank needs %s, and --memory is %s; "
			"--dry-run shows the plan",
			text_bytes(need, (double)largest),
			text_bytes(has, (double)limit));
	bool copy_fits = !available || bytes + copy < (double)available;
	if (limit && comm_max_i64(t->world, plan_total(p)) > limit)
		copy_fits = false;
	if (copy_fits && t->o.ckpt && !t->o.ckpt_wait && !options_offload(&t->o))
		*copy_allowed = true;
	if (!available || bytes < (double)available)
		return 0;
	return err_set(e, EX_FAILED,
		"out of memory: %d rank%s on %s need%s %s, and %s are free; --dry-run shows "
		"the plan",
		place->local_size, plural(place->local_size), place->host,
		place->local_size == 1 ? "s" : "", text_bytes(need, bytes),
		text_bytes(has, (double)available));
}

/* Returns true if the copy of a checkpoint fits on all ranks, else warns. Collective. */
static bool agree_on_copies(const struct trainer *t, bool own_copy_fits, int64_t n_bytes)
{
	bool all_fit = comm_min_i64(t->world, own_copy_fits);
	if (!all_fit && n_bytes)
		state_warn_no_copy(t, n_bytes);
	return all_fit;
}

/* Returns the bytes that this rank may use, including workspace that a GPU's kernels have. */
static int64_t memory_limit(const struct trainer *t)
{
	if (t->d.discrete && !t->o.memory)
		return t->memory.gpu_free / max64(1, t->d.sharers) + DEVICE_WORK_BYTES;
	return plan_limit(&t->o, comm_place()->local_size);
}

/* Plans this rank. Recompute auto: sets o.recompute to the least that fits. Collective. */
static void choose_recompute_and_plan(struct trainer *t, struct plan *p)
{
	bool is_auto = t->o.recompute == RECOMPUTE_AUTO;
	int64_t limit = memory_limit(t);
	if (is_auto)
		t->o.recompute = RECOMPUTE_NONE;
	for (;; t->o.recompute++) {
		plan_make(&t->o, &t->model, t->world->rank, p);
		int64_t own_bytes = plan_needed(&t->o, p);
		if (!is_auto || t->o.recompute == RECOMPUTE_FULL)
			break;
		if (!limit || comm_max_i64(t->world, own_bytes > limit) == 0)
			break;
	}
	if (is_auto)
		info("recompute: %s", recompute_names[t->o.recompute]);
}

int fit_trainer(
	struct trainer *t, struct plan *p, struct trainer_sizes *sizes, struct err *e)
{
	bool copy_allowed = false;
	choose_recompute_and_plan(t, p);
	if (!t->o.eval_only) { /* an evaluation touches little memory */
		fit_memory(t, p, &copy_allowed, e);
		start_times_add(&t->start, START_PLAN);
		if (comm_agree(t->world, e)) {
			trainer_abandon(t);
			return -1;
		}
		copy_allowed = agree_on_copies(t, copy_allowed, p->copy_bytes);
	}
	if (!copy_allowed)
		p->copy_bytes = 0;
	*sizes = (struct trainer_sizes){.run = p->run_bytes,
		.micro = p->micro_bytes,
		.scratch = p->scratch_bytes,
		.gradients = p->gradients_bytes,
		.gradient_memory = p->gradient_memory,
		.offloaded = p->store.offloaded,
		.copy = p->copy_bytes,
		.copies = copy_allowed};
	return 0;
}

int trainer_open(struct trainer *t, const struct train_opts *o, struct comm *world,
	struct dataset *data, struct plan *p, struct err *e)
{
	struct plan own;
	struct trainer_sizes sizes;
	if (trainer_prepare(t, o, world, data, e) || trainer_connect(t, world, NULL, e) ||
		fit_trainer(t, p ? p : &own, &sizes, e))
		return -1;
	return trainer_build(t, &sizes, e);
}
