/* Copies the state into the vault of this host after an update, and sends it to the next host. */
#include "vault/vault.h"

#include "base/file.h"
#include "comm/requests.h"
#include "engine/state.h"

#include <errno.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

/* A rank of the previous host, and the files with its copies on this host. */
struct mirror {
	int rank;
	struct vault_layout layout;
	struct vault_file file[VAULT_SLOTS];
	struct vault_header received;
};

/* Buffers in pinned memory through which a GPU copies rows, job by job, in turn. */
enum { N_BUFFERS = 8 };
struct staging {
	int stream;   /* all copies follow its work: the device's work up to the update */
	char *memory; /* [N_BUFFERS][max_bytes] */
	int64_t n_begun; /* jobs whose rows were requested from the device */
	int64_t n_done;	 /* jobs whose rows are in the file */
	uint64_t ticket[N_BUFFERS];
};

struct vault {
	struct trainer *t;
	struct vault_config c;
	char *directory;
	bool made_directory;
	int n_hosts, to; /* the rank that gets this rank's files; -1: a single host */
	struct mirror *from;
	int n_from;
	struct vault_layout layout;
	struct vault_file own[VAULT_SLOTS];
	int64_t host_bytes;
	int64_t n_copies, step;
	double delay; /* seconds for which completing the last copy delayed the next step */
	bool is_settled; /* vault_settle() was called after the last copy */
	/* Messages of the last copy. */
	struct comm *comm; /* NULL: a single host */
	struct comm_requests messages;
	int slot; /* slot whose messages are in flight; -1: none */
	bool waiting;
	bool polls; /* poll_vault() is called while this rank waits */
	/* The copy that is being made. */
	struct vault_file *file; /* NULL: rows are only counted */
	bool is_open; /* a GPU still copies rows to the file, which has no seal yet */
	int64_t state_bytes; /* bytes of the state in the file */
	int group;
	struct copy_job {
		const float *from;
		struct vault_record *record;
	} * jobs;
	int64_t n_jobs, n_records, row_bytes;
	int64_t max_bytes;	/* of the rows of a record */
	struct staging staging; /* for a GPU */
};

static void call_place(const struct vault *v, const char *place)
{
	if (vault_at_place)
		vault_at_place(place, v->step);
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* Copies the rows of a job from host memory, and sets their hash. */
static void copy_rows(const struct vault *v, int64_t job, const void *from)
{
	struct vault_record *r = v->jobs[job].record;
	char *to = v->file->map + r->at;
	memcpy(to, from, (size_t)vault_record_bytes(r));
	r->xxh3 = hash_bytes(to, (size_t)vault_record_bytes(r), 0);
}

static char *buffer_of(const struct vault *v, int64_t job)
{
	return v->staging.memory + job % N_BUFFERS * v->max_bytes;
}

/* Begins to copy the rows of the next jobs to free buffers. */
static void fill_buffers(struct vault *v)
{
	struct staging *s = &v->staging;
	struct device *d = &v->t->d;
	int stream = device_stream_use(d, s->stream);
	for (; s->n_begun < min64(v->n_jobs, s->n_done + N_BUFFERS); s->n_begun++) {
		const struct copy_job *job = &v->jobs[s->n_begun];
		s->ticket[s->n_begun % N_BUFFERS] =
			device_copy_begin(d, true, buffer_of(v, s->n_begun), job->from,
				(size_t)vault_record_bytes(job->record), 0);
	}
	device_stream_use(d, stream);
}

/* Copies what is in the buffers to the file, and begins to fill them again. Never waits. */
static void advance_jobs(struct vault *v)
{
	struct staging *s = &v->staging;
	int64_t ready = s->n_done;
	while (ready < s->n_begun &&
		device_stream_reached(&v->t->d, s->ticket[ready % N_BUFFERS]))
		ready++;
#pragma omp parallel for schedule(dynamic) if (ready - s->n_done > 1)
	for (int64_t i = s->n_done; i < ready; i++)
		copy_rows(v, i, buffer_of(v, i));
	s->n_done = ready;
	fill_buffers(v);
}

/* Orders the copies of a GPU after the work that is enqueued now. */
static void begin_jobs(struct vault *v)
{
	struct device *d = &v->t->d;
	uint64_t mark = device_stream_mark(d);
	int stream = device_stream_use(d, v->staging.stream);
	device_stream_wait(d, mark);
	device_stream_use(d, stream);
	v->staging.n_begun = v->staging.n_done = 0;
	fill_buffers(v);
}

/* Completes the jobs that a GPU has begun. */
static void end_jobs(struct vault *v)
{
	struct staging *s = &v->staging;
	while (s->n_done < v->n_jobs) {
		device_host_wait(&v->t->d, s->ticket[s->n_done % N_BUFFERS]);
		advance_jobs(v);
	}
	v->n_jobs = 0;
}

/* Copies the rows of the jobs, and sets their hashes. */
static void run_jobs(struct vault *v)
{
	if (v->t->d.discrete) {
		begin_jobs(v);
		end_jobs(v);
		return;
	}
#pragma omp parallel for schedule(dynamic)
	for (int64_t i = 0; i < v->n_jobs; i++)
		copy_rows(v, i, v->jobs[i].from);
	v->n_jobs = 0;
}

/* Adds records and jobs for the rows of a part in one group, or counts them. */
static void add_part(void *arg, const struct part *x)
{
	enum { MAX_FLOATS = 1 << 18 };
	struct vault *v = arg;
	const struct store *s = v->t->store;
	int64_t width = tensor_width(x->t), index = tensor_index(x->t, x->slice, x->row);
	int64_t rows = max64(1, MAX_FLOATS / x->cols);
	for (int64_t row = 0; row < x->rows; row += rows) {
		struct vault_record r = {.group = v->group,
			.tensor = (int32_t)(x->t - s->c.tensors),
			.block = {index / width + row, min64(rows, x->rows - row),
				index % width, x->cols}};
		int64_t n = v->n_records++;
		if (v->file) {
			BUG_ON(n >= v->layout.n_records);
			r.at = v->file->header->data_at + v->row_bytes;
			v->file->records[n] = r;
			v->jobs[v->n_jobs++] = (struct copy_job){
				x->state[v->group] + row * x->cols, &v->file->records[n]};
		}
		v->max_bytes = max64(v->max_bytes, vault_record_bytes(&r));
		v->row_bytes += round_up(vault_record_bytes(&r), VAULT_ALIGN);
	}
	if (v->file && store_offloads(s, v->group)) /* the part's memory is lent */
		run_jobs(v);
}

/* Calls add_part() for all rows that this rank counts, group by group. */
static void visit_rows(struct vault *v, struct vault_file *file)
{
	struct store *s = v->t->store;
	v->file = file;
	v->n_records = v->row_bytes = 0;
	for (v->group = 0; v->group < s->c.groups.n; v->group++) {
		store_for_each_part(s, true, STORE_BIT(v->group), 0, add_part, v);
		if (file && v->group == 0)
			call_place(v, "copy");
	}
}

/* ---- messages to the next host --------------------------------------------------------------- */

/* Calls fn for the parts of a file's bytes after its header, which are one message each. */
static void for_each_message(struct vault *v, struct vault_file *f, int peer, bool send)
{
	const int64_t most = (int64_t)1 << 28, begin = (int64_t)sizeof(*f->header);
	for (int64_t at = begin; at < f->file_bytes; at += most) {
		int64_t n = min64(most, f->file_bytes - at);
		if (send)
			comm_send(&v->messages, f->map + at, n, peer, COMM_TAG(VAULT, 2));
		else
			comm_recv(&v->messages, f->map + at, n, peer, COMM_TAG(VAULT, 2));
	}
}

/* Gives the copies of the previous host their seals, when all messages have arrived. */
static void seal_copies(struct vault *v)
{
	for (int i = 0; i < v->n_from; i++)
		vault_file_adopt(&v->from[i].file[v->slot], &v->from[i].received);
	v->slot = -1;
}

/* Advances the copy of a GPU, and the messages of the last copy. */
static void poll_vault(void *arg)
{
	struct vault *v = arg;
	if (v->is_open && !v->waiting && !v->t->d.capturing)
		advance_jobs(v);
	if (v->slot >= 0 && !v->waiting && comm_test(&v->messages))
		seal_copies(v);
}

/* Starts sending this rank's file, and receiving the files of the previous host. */
static void start_messages(struct vault *v, int slot)
{
	struct vault_file *own = &v->own[slot];
	if (!v->comm)
		return;
	for_each_message(v, own, v->to, true);
	comm_send(&v->messages, own->header, sizeof(*own->header), v->to,
		COMM_TAG(VAULT, 2));
	for (int i = 0; i < v->n_from; i++) {
		struct mirror *m = &v->from[i];
		vault_file_break(&m->file[slot]);
		for_each_message(v, &m->file[slot], m->rank, false);
		comm_recv(&v->messages, &m->received, sizeof(m->received), m->rank,
			COMM_TAG(VAULT, 2));
	}
	comm_start(&v->messages);
	v->slot = slot;
}

static void wait_for_messages(struct vault *v)
{
	if (v->slot < 0)
		return;
	v->waiting = true;
	comm_wait(&v->messages);
	v->waiting = false;
	seal_copies(v);
}

/* ---- opening --------------------------------------------------------------------------------- */

/* What all ranks know of each other. */
struct rank_facts {
	int64_t host, local_rank, local_size;
	struct vault_layout layout;
};

/* Returns the rank on the next host that gets the files of a rank. */
static int find_receiver(const struct rank_facts *all, int size, int rank, int n_hosts)
{
	int64_t host = (all[rank].host + 1) % n_hosts;
	for (int i = 0; i < size; i++)
		if (all[i].host == host &&
			all[i].local_rank == all[rank].local_rank % all[i].local_size)
			return i;
	BUG_ON(true);
}

/* Gathers the sizes of all ranks' files, and decides who sends to whom. Collective. */
static void plan_copies(struct vault *v)
{
	struct comm *c = v->t->world;
	const struct comm_place *place = comm_place();
	const struct rank_facts own = {
		place->host_number, place->local_rank, place->local_size, v->layout};
	scoped_ptr struct rank_facts *all = xcalloc((size_t)c->size, sizeof(*all));
	int64_t data_at;
	comm_allgather(c, &own, all, sizeof(own));
	v->n_hosts = place->n_hosts;
	v->to = v->n_hosts > 1 ? find_receiver(all, c->size, c->rank, v->n_hosts) : -1;
	v->from = xcalloc((size_t)c->size, sizeof(*v->from));
	for (int i = 0; i < c->size; i++) {
		int64_t n_bytes =
			VAULT_SLOTS * vault_file_bytes(&all[i].layout, &data_at);
		int to = v->n_hosts > 1 ? find_receiver(all, c->size, i, v->n_hosts) : -1;
		if (all[i].host == own.host)
			v->host_bytes += n_bytes;
		if (to >= 0 && all[to].host == own.host)
			v->host_bytes += n_bytes;
		if (to == c->rank)
			v->from[v->n_from++] =
				(struct mirror){.rank = i, .layout = all[i].layout};
	}
}

/* Fails if the file system has too little space for the files of all ranks of this host. */
static int check_space(const struct vault *v, struct err *e)
{
	struct statvfs fs;
	char need[NUM_TEXT], have[NUM_TEXT];
	const struct vault_kept none = {.start = v->c.start};
	if (statvfs(v->directory, &fs))
		return err_errno(e, v->directory);
	double space = (double)fs.f_bavail * (double)fs.f_frsize +
		       (double)vault_removable_bytes(v->directory, v->c.run, &none);
	if (!fs.f_blocks || (double)v->host_bytes <= space)
		return 0;
	return err_set(e, EX_USAGE,
		"--vault %s: too small: two states of this host%s need %s (%lld bytes), but only "
		"%s (%.0f bytes) are free",
		v->directory, v->comm ? " and of the previous one" : "",
		text_bytes(need, (double)v->host_bytes), (long long)v->host_bytes,
		text_bytes(have, space), space);
}

static int create_file(const struct vault *v, struct vault_file *f, int rank, int slot,
	const struct vault_layout *l, struct err *e)
{
	scoped_str path = {0};
	const struct vault_name n = {.run = v->c.run,
		.start = v->c.start,
		.is_copy = rank != v->t->world->rank,
		.rank = rank,
		.slot = slot};
	const struct vault_header h = {.run = v->c.run,
		.start = v->c.start,
		.rank = rank,
		.ranks = v->t->world->size};
	vault_print_path(&path, v->directory, &n);
	return vault_file_create(f, path.s, l, &h, e);
}

/* Creates the files of a slot. Collective. */
static int create_files(struct vault *v, int slot, struct err *e)
{
	int rc = create_file(v, &v->own[slot], v->t->world->rank, slot, &v->layout, e);
	for (int i = 0; i < v->n_from && !rc; i++)
		rc = create_file(v, &v->from[i].file[slot], v->from[i].rank, slot,
			&v->from[i].layout, e);
	return comm_agree(v->t->world, e);
}

/* Removes files of earlier starts. keeps: except those that this start has resumed from. */
static void remove_earlier_files(const struct vault *v, bool keeps)
{
	struct vault_kept keep = {.start = v->c.start};
	if (keeps) {
		keep.keep_start = v->c.keep_start;
		keep.keep_step = v->c.keep_step;
	}
	if (comm_place()->local_rank == 0)
		vault_remove(v->directory, v->c.run, &keep);
}

/* Measures the files, without a collective. */
static void measure(struct vault *v)
{
	struct ckpt_write w = state_describe(v->t);
	scoped_str state = {0};
	vault_pack_state(&w, &state);
	state_free_description(&w);
	visit_rows(v, NULL);
	v->layout = (struct vault_layout){.n_records = v->n_records,
		.state_bytes = (int64_t)state.len,
		.row_bytes = v->row_bytes};
	v->jobs = xcalloc((size_t)v->n_records + 1, sizeof(*v->jobs));
}

/* Allocates the buffers of a GPU. */
static void open_staging(struct vault *v, struct err *e)
{
	struct device *d = &v->t->d;
	int64_t n_bytes = N_BUFFERS * v->max_bytes;
	if (!d->discrete || !n_bytes)
		return;
	v->staging.stream = device_stream_open(d, false);
	v->staging.memory = device_shared(d, (size_t)n_bytes);
	if (!v->staging.memory)
		err_set(e, EX_FAILED, "out of pinned memory: --vault needs %lld bytes",
			(long long)n_bytes);
}

struct vault *vault_open(struct trainer *t, const struct vault_config *c, struct err *e)
{
	struct vault *v = xcalloc(1, sizeof(*v));
	*v = (struct vault){.t = t,
		.c = *c,
		.directory = xstrdup(c->directory),
		.step = -1,
		.slot = -1,
		.is_settled = true};
	measure(v);
	open_staging(v, e);
	if (!mkdir(c->directory, 0700))
		v->made_directory = true;
	else if (errno != EEXIST)
		err_errno(e, c->directory);
	if (comm_agree(t->world, e)) {
		vault_close(v, VAULT_WITHDRAWN);
		return NULL;
	}
	plan_copies(v);
	if (v->n_hosts > 1)
		v->messages.c = v->comm = comm_dup(t->world, "vault");
	v->polls = v->comm || t->d.discrete;
	if (v->polls)
		comm_background_begin(poll_vault, v);
	remove_earlier_files(v, true);
	comm_barrier(t->world);
	check_space(v, e);
	if (comm_agree(t->world, e) || create_files(v, 0, e)) {
		vault_close(v, VAULT_WITHDRAWN);
		return NULL;
	}
	return v;
}

/* ---- copying --------------------------------------------------------------------------------- */

/* Begins to write the state of this step into a file of this rank. */
static void begin_file(struct vault *v, struct vault_file *f, const struct ckpt_write *w)
{
	scoped_str state = {0};
	vault_file_break(f);
	visit_rows(v, f);
	vault_pack_state(w, &state);
	memcpy(f->state, state.s, state.len);
	v->state_bytes = (int64_t)state.len;
	v->is_open = v->t->d.discrete;
	if (v->is_open)
		begin_jobs(v);
	else
		run_jobs(v);
}

/* Completes a file, and starts sending it to the next host. */
static void end_file(struct vault *v)
{
	v->waiting = true;
	if (v->is_open)
		end_jobs(v);
	v->waiting = v->is_open = false;
	call_place(v, "seal");
	vault_file_seal(v->file, v->step, v->state_bytes);
	start_messages(v, (int)(v->file - v->own));
	call_place(v, "send");
}

/* Returns the seconds since `begin` if the device has no work left that was enqueued before `mark`,
 * so that it may have waited. */
static double delay_since(const struct vault *v, double begin, uint64_t mark)
{
	return device_stream_reached(&v->t->d, mark) ? clock_seconds() - begin : 0;
}

void vault_complete(struct vault *v)
{
	const double begin = clock_seconds();
	if (!v->is_open)
		return;
	uint64_t mark = device_stream_mark(&v->t->d);
	end_file(v);
	v->delay += delay_since(v, begin, mark);
}

void vault_settle(struct vault *v, bool sent, bool all)
{
	vault_complete(v);
	if (v->is_settled)
		return;
	v->is_settled = true;
	const double begin = clock_seconds();
	uint64_t mark = device_stream_mark(&v->t->d);
	if (sent)
		wait_for_messages(v);
	if (all)
		comm_barrier(v->t->world);
	v->delay += delay_since(v, begin, mark);
}

int vault_copy(struct vault *v, struct err *e)
{
	int slot = (int)(v->n_copies % VAULT_SLOTS);
	vault_complete(v);
	wait_for_messages(v);
	/* (its all-reduce is a barrier: the previous copy is complete on all hosts) */
	struct ckpt_write w = state_describe(v->t);
	int rc = 0;
	if (v->n_copies == 1 && !v->own[1].path) {
		remove_earlier_files(v, false);
		comm_barrier(v->t->world);
		rc = create_files(v, 1, e);
	}
	if (!rc) {
		v->step = v->t->step;
		v->delay = 0;
		v->is_settled = false;
		begin_file(v, &v->own[slot], &w);
		if (!v->is_open)
			end_file(v);
		v->n_copies++;
	}
	state_free_description(&w);
	return rc;
}

double vault_delay(const struct vault *v)
{
	return v->delay;
}

int64_t vault_step(const struct vault *v)
{
	return v->step;
}

int64_t vault_host_bytes(const struct vault *v)
{
	return v->host_bytes;
}

int vault_n_hosts(const struct vault *v)
{
	return v->n_hosts;
}

void vault_withdraw(struct vault *v)
{
	if (v->step < 0)
		return;
	vault_complete(v);
	wait_for_messages(v);
	v->step = -1;
	int slot = (int)(--v->n_copies % VAULT_SLOTS);
	vault_file_break(&v->own[slot]);
	for (int i = 0; i < v->n_from; i++)
		vault_file_break(&v->from[i].file[slot]);
}

/* Closes a file, and removes it if the start of the run has failed. */
static void close_file(struct vault_file *f, enum vault_end end)
{
	if (f->path && end == VAULT_WITHDRAWN)
		unlink(f->path);
	vault_file_close(f);
}

/* Removes all files of the run. Collective. */
static void remove_files(const struct vault *v)
{
	comm_barrier(v->t->world);
	if (comm_place()->local_rank == 0)
		vault_remove(v->directory, v->c.run, &(struct vault_kept){0});
	comm_barrier(v->t->world);
}

void vault_close(struct vault *v, enum vault_end end)
{
	vault_complete(v);
	if (v->comm)
		wait_for_messages(v);
	if (v->polls)
		comm_background_end(poll_vault, v);
	if (v->staging.memory)
		device_shared_free(&v->t->d, v->staging.memory);
	if (v->comm) {
		comm_requests_release(&v->messages);
		comm_free(v->comm);
	}
	for (int slot = 0; slot < VAULT_SLOTS; slot++) {
		close_file(&v->own[slot], end);
		for (int i = 0; i < v->n_from; i++)
			close_file(&v->from[i].file[slot], end);
	}
	if (end == VAULT_ENDS)
		remove_files(v);
	if (end != VAULT_STAYS && v->made_directory)
		rmdir(v->directory);
	free(v->from);
	free(v->jobs);
	free(v->directory);
	free(v);
}
