/* The vault of a run (--vault): how it is found, when it is written, and what is reported. */
#include "train/train_internal.h"

#include "base/file.h"
#include "base/trace.h"

#include <math.h>
#include <signal.h>
#include <sys/random.h>

/* ---- the number of a run ------------------------------------------------------------------- */

static char *number_path(const char *dir)
{
	return text_printf("%s/vault.txt", dir);
}

/* Reads the number that files of the run's vault have; 0: none. */
static uint64_t read_number(const char *dir)
{
	scoped_ptr char *path = number_path(dir);
	scoped_str text = {0};
	unsigned long long number = 0;
	if (file_exists(path) && file_read(path, 64, &text, &(struct err){0}))
		return 0;
	return text.s && sscanf(text.s, "%16llx", &number) == 1 ? number : 0;
}

static uint64_t draw_number(void)
{
	uint64_t x = 0;
	while (!x)
		if (getrandom(&x, sizeof(x), 0) != sizeof(x))
			x = hash_mix((uint64_t)(clock_wall() * 1e9));
	return x;
}

int run_vault_write_number(struct run *r, struct err *e)
{
	uint64_t old = 0; /* number of the run that this one overwrites */
	if (!r->vault.vault)
		return 0;
	if (run_is_first(r) && r->base->vault_run != r->vault.run) {
		scoped_ptr char *path = number_path(r->dir.path);
		scoped_str text = {0};
		old = read_number(r->dir.path);
		str_printf(&text, "%016llx\n", (unsigned long long)r->vault.run);
		file_replace(path, &text, e);
	}
	if (comm_agree(r->world, e))
		return -1;
	comm_bcast(r->world, &old, sizeof(old), 0);
	if (old && comm_place()->local_rank == 0)
		vault_remove(r->t.o.vault, old, &(struct vault_kept){0});
	return 0;
}

/* ---- resuming ------------------------------------------------------------------------------ */

static int check_usable(void *context, const struct ckpt *c, struct err *e)
{
	return state_check(c, e) || local_sgd_check_usable(context, c, e) ? -1 : 0;
}

void run_vault_find(const struct train_opts *o, struct comm *world, struct job_base *b)
{
	bool is_auto = o->resume && !strcmp(o->resume, "auto");
	if (!o->out || !is_auto || o->dry_run || o->eval_only)
		return;
	if (!o->vault && world->rank == 0 && read_number(o->out))
		warn("the run has used --vault; without it, the newest checkpoint is resumed, "
		     "and newer state in memory is ignored");
	if (!o->vault)
		return;
	if (world->rank == 0)
		b->vault_run = read_number(o->out);
	comm_bcast(world, &b->vault_run, sizeof(b->vault_run), 0);
	if (b->vault_run)
		b->vault = vault_find(
			world, o->vault, b->vault_run, check_usable, (void *)o);
}

int run_vault_load(struct run *r, struct err *e)
{
	struct vault_found *v = r->base->vault;
	return state_load_from(&r->t, vault_found_ckpt(v), vault_load, v, e);
}

/* Saves a checkpoint that was due at the step that the run resumes from, if the run was killed
 * before the checkpoint was complete. */
void run_vault_save_missed(struct run *r)
{
	const struct trainer *t = &r->t;
	const struct train_opts *o = &t->o;
	if (!r->base->vault || r->saver.saved_step == t->step || !t->step)
		return;
	bool due = o->ckpt_every && t->step % o->ckpt_every == 0;
	bool best = o->ckpt_best && o->eval_every && t->step % o->eval_every == 0 &&
		    t->val_loss == t->best_val_loss;
	if (best)
		r->saver.eval_step = t->step;
	if (due || best)
		save_now(r, due ? "in time" : "the best", SAVE_AND_WAIT);
}

/* ---- kills, for tests ---------------------------------------------------------------------- */

static struct kill {
	int64_t rank, step; /* rank -1: none */
	char place[16];
} kill_at = {.rank = -1};
static int kill_rank;

static void kill_if_due(const char *place, int64_t step)
{
	if (kill_at.rank == kill_rank && kill_at.step == step &&
		!strcmp(kill_at.place, place))
		raise(SIGKILL);
}

int run_kill_open(const struct train_opts *o, const struct comm *world, struct err *e)
{
	static const char *const places[] = {"step", "copy", "seal", "send", "restore"};
	const char *text = o->inject_kill;
	char rank[24], step[24];
	if (!text)
		return 0;
	bool ok =
		sscanf(text, "%23[0-9]:%23[0-9]:%15s", rank, step, kill_at.place) == 3 &&
		!parse_int(rank, &kill_at.rank) && !parse_int(step, &kill_at.step);
	bool known = false;
	for (size_t i = 0; i < ARRAY_LEN(places); i++)
		known |= !strcmp(kill_at.place, places[i]);
	if (!ok || !known)
		return err_set(e, EX_USAGE,
			"--inject-kill '%s': expected RANK:STEP:PLACE; PLACE is step, copy, seal, "
			"send or restore",
			text);
	if (kill_at.rank >= world->size)
		return err_set(e, EX_USAGE, "--inject-kill '%s': there are only %d ranks",
			text, world->size);
	kill_rank = world->rank;
	vault_at_place = kill_if_due;
	return 0;
}

void run_kill_before_step(const struct run *r)
{
	kill_if_due("step", r->t.step + 1);
}

/* ---- writing ------------------------------------------------------------------------------- */

/* Completes a copy that a GPU makes. If there is one after each step, it is on the next host, too,
 * before the next step is reported: whatever is lost then, one step is computed again at most. */
static void settle_copy(void *run, enum step_moment moment)
{
	const struct run_vault *v = &((struct run *)run)->vault;
	bool each_step = v->every == 1;
	if (!v->vault)
		return;
	trace_begin("vault", -1);
	if (moment == STEP_BEFORE_GRAPH)
		vault_complete(v->vault);
	else
		vault_settle(v->vault, each_step, each_step && moment == STEP_LAUNCHED);
	trace_end();
}

int run_vault_open(struct run *r, struct err *e)
{
	const struct train_opts *o = &r->t.o;
	char text[NUM_TEXT];
	struct vault_config c = {.directory = o->vault, .keep_step = -1};
	if (!o->vault || o->eval_only)
		return 0;
	c.run = r->base->vault_run ? r->base->vault_run : draw_number();
	c.start = draw_number();
	comm_bcast(r->world, &c.run, sizeof(c.run), 0);
	comm_bcast(r->world, &c.start, sizeof(c.start), 0);
	r->vault.run = c.run;
	if (r->base->vault) {
		c.keep_start = vault_found_start(r->base->vault);
		c.keep_step = r->t.step;
	}
	r->vault.vault = vault_open(&r->t, &c, e);
	if (!r->vault.vault)
		return -1;
	info("vault: %s of memory per host in %s, %s",
		text_bytes(text, (double)vault_host_bytes(r->vault.vault)), o->vault,
		vault_n_hosts(r->vault.vault) > 1 ? "with a copy on the next host"
						  : "on a single host");
	r->vault.every = max64(1, o->vault_every);
	r->vault.step = r->t.step;
	r->t.in_step = settle_copy;
	r->t.in_step_with = r;
	return 0;
}

/* Sets the smallest period that costs at most 1 % of the time, from the seconds of the last copy
 * and of a step. Collective. */
static void set_period(struct run *r, double seconds, double step_seconds)
{
	enum { MAX_PERIOD = 10000 };
	struct run_vault *v = &r->vault;
	double ratio = step_seconds > 0 ? ceil(seconds / (0.01 * step_seconds)) : 1;
	int64_t every = ratio < 1 ? 1 : ratio < MAX_PERIOD ? (int64_t)ratio : MAX_PERIOD;
	every = comm_max_i64(r->world, every);
	bool differs = every > 2 * v->every || 2 * every < v->every;
	if (v->n_copies == 2 || differs) {
		scoped_ptr char *text = text_printf(
			"vault: a copy takes %.3g s and a step %.3g s: one copy every %lld "
			"step%s",
			seconds, step_seconds, (long long)every, plural(every));
		info("%s", text);
		report_event(r, "%s", text);
	}
	v->every = every;
}

/* Copies the state, or ends the vault if that fails. Returns false then. Collective. */
static bool copy_state(struct run *r)
{
	struct run_vault *v = &r->vault;
	struct err e = {0};
	if (!vault_copy(v->vault, &e)) {
		v->n_copies++;
		v->step = r->t.step;
		r->t.wrong_step = 0; /* what was wrong has been replaced before the copy */
		return true;
	}
	if (run_is_first(r))
		warn("%s; the run continues without a vault", e.msg);
	report_event(r, "the vault failed: %s", e.msg);
	vault_close(v->vault, VAULT_STAYS);
	v->vault = NULL;
	return false;
}

void run_vault_copy(struct run *r, bool now)
{
	struct run_vault *v = &r->vault;
	const double begin = clock_seconds();
	if (!v->vault || v->step == r->t.step || (!now && r->t.step < v->step + v->every))
		return;
	if (!save_check_state(r, "a copy to the vault"))
		return;
	int64_t steps = r->t.step - v->step;
	double delay = vault_delay(v->vault);
	if (!copy_state(r))
		return;
	double end = clock_seconds();
	/* (the first copy touches new memory) */
	if (v->n_copies > 1 && !r->t.o.vault_every)
		set_period(r, end - begin + delay,
			(begin - v->ended - delay) / (double)steps);
	v->ended = end;
}

void run_vault_close(struct run *r, enum vault_end end)
{
	if (r->vault.vault)
		vault_close(r->vault.vault, end);
	r->vault.vault = NULL;
}

void run_vault_withdraw_wrong(struct run *r)
{
	struct vault *v = r->vault.vault;
	int64_t step = r->t.wrong_step;
	if (!v || !step || vault_step(v) != step)
		return;
	vault_withdraw(v);
	report_event(
		r, "the copy of step %lld in the vault is withdrawn", (long long)step);
}

void run_vault_copy_restored(struct run *r)
{
	if (r->vault.vault && r->base->vault && r->t.step < r->t.o.steps)
		copy_state(r);
	r->vault.ended = clock_seconds();
}
