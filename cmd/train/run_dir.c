/* Chooses, locks and checks the run directory; removes checkpoints of an earlier run. */
#include "train/train_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

/* Returns true if the log in a run directory has a step, or is damaged. Exits if it cannot be
 * read. */
static bool has_rows(const char *dir)
{
	enum { HEADER = 1 << 20 };
	scoped_str path = {0}, text = {0};
	struct run_log l;
	struct err e = {0};
	str_printf(&path, "%s/journal.txt", dir);
	int fd = file_open_plain(path.s, O_RDONLY);
	bool has = fd >= 0;
	if (has && !file_read_rest(fd, path.s, HEADER, &text, &e))
		has = text.s && strstr(text.s, "\nstep=");
	if (fd >= 0)
		close(fd);
	die_io(&e);
	str_clear(&path);
	str_printf(&path, "%s/run.h5", dir);
	fd = has ? -1 : file_open_plain(path.s, O_RDONLY);
	if (fd < 0)
		return has;
	close(fd);
	has = run_log_read(&l, path.s, &e) || l.n_rows;
	die_io(&e);
	run_log_free(&l);
	return has;
}

/* Returns true if the directory holds a run with a row or a checkpoint. */
static bool holds_run(const char *dir)
{
	int64_t *steps;
	scoped_ptr char *path = text_printf("%s/checkpoints", dir);
	int64_t n = ckpt_list(path, &steps, &(struct err){0});
	free(steps);
	return n > 0 || has_rows(dir);
}

/* Fails if the directory has a run that would be overwritten, unless the options permit it. */
static int check_no_run_to_lose(
	const struct run *r, const char *dir, const struct train_opts *o, struct err *e)
{
	if (o->overwrite || o->resume || r->base->start_over || !holds_run(dir))
		return 0;
	return err_set(e, EX_USAGE,
		"%s holds a run: --resume auto continues it, --overwrite starts a new one, --out "
		"names another directory",
		dir);
}

/* Chooses --out, or a new directory run-NNN; mkdir() never gives two programs the same. */
static int choose_dir(
	struct run *r, struct str *out, const struct train_opts *o, struct err *e)
{
	if (o->out) {
		str_puts(out, o->out);
		r->dir.created = !file_exists(out->s);
		return check_no_run_to_lose(r, out->s, o, e);
	}
	r->dir.created = true;
	for (int n = 1; n == 1 || errno == EEXIST; n++) {
		str_clear(out);
		str_printf(out, "run-%03d", n);
		if (!mkdir(out->s, 0777))
			return 0;
	}
	return err_errno(e, out->s);
}

/* Removes all checkpoints, first the link latest.h5, which would point to a missing one. */
static void remove_checkpoints(const char *dir)
{
	scoped_ptr char *latest = text_printf("%s/latest.h5", dir);
	unlink(latest);
	ckpt_remove_after(dir, -1, -1);
}

/* Removes the checkpoints of workers from this one on: the earlier run had more of them. */
static void remove_worker_checkpoints(const struct run *r, int64_t worker)
{
	scoped_str dir = {0};
	for (;; worker++) {
		str_clear(&dir);
		str_printf(&dir, "%s/worker-%lld/checkpoints", r->dir.path,
			(long long)worker);
		if (!file_exists(dir.s))
			break;
		remove_checkpoints(dir.s);
	}
}

/* Locks the directory on rank 0, and removes unfinished checkpoints; at a new start, also the
 * checkpoints of all workers but the first. Fails if another run has begun there meanwhile. */
static int lock_dir(struct run *r, const struct train_opts *o, struct err *e)
{
	struct str path = {0};
	double max_wait_secs = o->resume || r->base->start_over ? PATIENCE_SECS : 0;
	int64_t *steps;
	if (r->base->lock) {
		r->dir.lock = r->base->lock - 1;
		ckpt_remove_unfinished(r->dir.ckpt_path);
		return 0;
	}
	str_printf(&path, "%s/journal.txt", r->dir.path);
	r->dir.created_journal = !file_exists(path.s);
	str_free(&path);
	if (journal_lock(r->dir.path, true, max_wait_secs, &r->dir.lock, e)) {
		r->dir.created_journal = false;
		r->dir.created &= e->code != EX_USAGE; /* another program made it */
		return -1;
	}
	int64_t n = ckpt_list(r->dir.ckpt_path, &steps, &(struct err){0});
	free(steps);
	if (!check_no_run_to_lose(r, r->dir.path, o, &(struct err){0}))
		ckpt_remove_unfinished(r->dir.ckpt_path);
	if (r->base->start_over && n > 0 && o->resolved.worker > 0)
		remove_checkpoints(
			r->dir.ckpt_path); /* the first worker has none to resume from */
	else if (r->base->start_over && n > 0 && !r->dir.created)
		return err_set(e, EX_USAGE, "%s: another pt-train has begun a run here",
			r->dir.path);
	return check_no_run_to_lose(r, r->dir.path, o, e);
}

/* Checks at the start that the directory is writable, before the first checkpoint needs it. */
static int check_writable(const char *dir, struct err *e)
{
	return access(dir, W_OK | X_OK) ? err_errno(e, dir) : 0;
}

/* Returns a hash of what workers must share: the data, or with --data-per-rank the vocabulary. */
static int64_t hash_shared_data(const struct run *r, const struct train_opts *o)
{
	scoped_str packed = {0};
	uint64_t hash = r->data.hash;
	if (o->data_per_rank) {
		tokenizer_pack(&r->data.tokenizer, &packed);
		hash = hash_bytes(packed.s, packed.len, 0);
	}
	return (int64_t)hash;
}

int run_dir_open(struct run *r, const struct train_opts *o, struct err *e)
{
	struct str dir = {0}, ckpt = {0};
	if (r->all->rank == 0)
		choose_dir(r, &dir, o, e);
	if (comm_agree(r->all, e)) {
		r->error_agreed = true;
		return -1;
	}
	comm_bcast_str(r->all, &dir, 0);
	int64_t hash = r->local.sync ? hash_shared_data(r, o) : 0;
	if (comm_min_i64(r->all, hash) != comm_max_i64(r->all, hash)) {
		r->error_agreed = true;
		return err_set(e, EX_USAGE, "the workers have different %s",
			o->data_per_rank ? "vocabularies: " ONE_VOCABULARY : "data");
	}
	if (o->resolved.worker > 0) { /* the first worker has the directory itself */
		str_printf(&dir, "/worker-%d", o->resolved.worker);
		r->dir.created = !file_exists(dir.s);
	}
	str_printf(&ckpt, "%s/checkpoints", dir.s);
	r->dir.path = dir.s;
	r->dir.ckpt_path = ckpt.s;
	if (run_is_first(r) && !file_make_directory(ckpt.s, e) &&
		!file_check_link(ckpt.s, e) && !check_writable(dir.s, e) &&
		!(o->ckpt && check_writable(ckpt.s, e)))
		lock_dir(r, o, e);
	return comm_agree(r->world, e);
}

/* Checks access to the directory of checkpoints for 1.5 s: network file systems may be late. */
int run_dir_check(const struct run *r, const struct train_opts *o, struct err *e)
{
	enum { MAX_WAIT_MS = 1500 };
	double begin = clock_seconds();
	if (!o->ckpt || o->load == LOAD_BROADCAST)
		return 0;
	while (access(r->dir.ckpt_path, W_OK | X_OK) &&
		clock_seconds() - begin < MAX_WAIT_MS / 1e3)
		clock_sleep(0.05);
	if (access(r->dir.ckpt_path, W_OK | X_OK))
		err_set(e, EX_IOERR,
			"%s: %s, on %s; without a shared file system, give "
			"--ckpt-load broadcast, with which rank 0 writes for all",
			r->dir.ckpt_path, strerror(errno), comm_place()->host);
	return comm_agree(r->world, e);
}

/* Sets *to, a bool, if this line of a journal records that a checkpoint was written. */
static int find_checkpoint_event(void *to, const char *line, size_t len, struct err *e)
{
	char begin[128], word[24], next[16];
	(void)e;
	snprintf(begin, sizeof(begin), "%.*s", (int)min64((int64_t)len, sizeof(begin)),
		line);
	if (sscanf(begin, "# event %*s step=%*s %23s %15s", word, next) == 2 &&
		!strcmp(word, "checkpoint") && strcmp(next, "failed:"))
		*(bool *)to = true;
	return 0;
}

/* Returns true if a worker has no checkpoint, and its journal records none. */
static bool has_never_saved(const char *ckpt_path)
{
	scoped_str journal = {0}, rest = {0};
	int64_t *steps;
	bool is_recorded = false;
	bool none = ckpt_list(ckpt_path, &steps, &(struct err){0}) == 0;
	free(steps);
	const char *slash =
		strrchr(ckpt_path, '/'); /* (not .., since it may be a link) */
	str_printf(&journal, "%.*s/journal.txt", (int)(slash - ckpt_path), ckpt_path);
	int fd = none ? file_open_plain(journal.s, O_RDONLY) : -1;
	none = fd >= 0 && !file_read_lines(fd, journal.s, find_checkpoint_event,
				  &is_recorded, &rest, &(struct err){0});
	if (fd >= 0)
		close(fd);
	return none && !is_recorded;
}

bool run_dir_has_just_begun(const struct ckpt *c)
{
	scoped_str path = {0};
	bool none = false;
	for (int64_t w = 1; w < c->info.workers && !c->info.worker && !none; w++) {
		str_clear(&path);
		ckpt_worker_path(&path, c->path, w);
		char *slash = strrchr(path.s, '/');
		if (!slash || !strcmp(path.s, c->path))
			break;
		*slash = '\0';
		none = has_never_saved(path.s);
	}
	return none;
}

void run_dir_open_record(const struct run *r)
{
	if (!r->dir.path || r->all->size == 1)
		return;
	scoped_ptr char *path =
		text_printf("%s/flight-record.%d", r->dir.path, r->all->rank);
	comm_flight_open(path, &(struct err){0}); /* a host may not see the directory */
}

int run_dir_archive_log(const struct run *r, struct err *e)
{
	return r->base->start_over && has_rows(r->dir.path)
		       ? journal_archive(r->dir.path, e)
		       : 0;
}

void run_dir_undo(struct run *r)
{
	scoped_ptr char *path =
		text_printf("%s/journal.txt", r->dir.path ? r->dir.path : "");
	if (r->dir.created_journal)
		unlink(path);
	if (r->dir.created && r->dir.path) { /* rmdir() removes only empty directories */
		rmdir(r->dir.ckpt_path);
		rmdir(r->dir.path);
	}
}

void run_dir_clear(const struct run *r, const struct train_opts *o)
{
	scoped_ptr char *log = text_printf("%s/run.h5", r->dir.path);
	if (run_is_first(r)) {
		remove_checkpoints(r->dir.ckpt_path);
		unlink(log);
	}
	if (r->all->rank == 0)
		remove_worker_checkpoints(r, max64(1, o->edit.workers));
}
