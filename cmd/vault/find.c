/* Finds the newest step in the vaults of all hosts of which every row has a good copy. */
#include "vault/find.h"

#include "comm/collective.h"

#include <string.h>

void (*vault_at_place)(const char *place, int64_t step);

/* ---- the files of this host ---------------------------------------------------------------- */

/* Maps the complete files of the run that this rank examines: the ranks of a host share its files.
 * Warns of files that are damaged. */
static void open_files(struct vault_found *v, const char *directory, uint64_t run)
{
	const struct comm_place *place = comm_place();
	scoped_strs names = {0};
	struct err e = {0};
	int64_t n_others = 0;
	if (vault_list(directory, run, &names, &n_others, &e))
		warn("%s", e.msg);
	if (n_others && place->local_rank == 0)
		warn("%s: ignored %lld file%s of other runs; remove them if those runs have "
		     "ended",
			directory, (long long)n_others, plural(n_others));
	v->files = xcalloc((size_t)names.n + 1, sizeof(*v->files));
	for (int64_t i = place->local_rank; i < names.n; i += place->local_size) {
		scoped_ptr char *path = text_printf("%s/%s", directory, names.v[i]);
		struct err why = {0};
		int rc = vault_file_open(&v->files[v->n_files], path, run, &why);
		if (!rc)
			v->n_files++;
		else if (rc < 0)
			warn("%s; it is ignored", why.msg);
	}
}

/* Gathers the headers of the files of all ranks. Collective. */
static void gather_headers(struct vault_found *v)
{
	int64_t own = v->n_files, most = comm_max_i64(v->comm, own);
	int size = v->comm->size;
	scoped_ptr int64_t *counts = xcalloc((size_t)size, sizeof(*counts));
	scoped_ptr struct vault_header *mine = xcalloc((size_t)most + 1, sizeof(*mine));
	scoped_ptr struct vault_header *all =
		xcalloc((size_t)(most * size) + 1, sizeof(*all));
	comm_allgather(v->comm, &own, counts, sizeof(own));
	for (int64_t i = 0; i < own; i++)
		mine[i] = *v->files[i].header;
	if (most)
		comm_allgather(v->comm, mine, all, most * (int64_t)sizeof(*mine));
	v->copies = xcalloc((size_t)(most * size) + 1, sizeof(*v->copies));
	for (int r = 0; r < size; r++)
		for (int64_t i = 0; i < counts[r]; i++)
			v->copies[v->n_copies++] =
				(struct vault_file_copy){.header = all[r * most + i],
					.holder = r,
					.file = r == v->comm->rank ? &v->files[i] : NULL};
}

/* ---- sets ------------------------------------------------------------------------------------ */

static bool are_same_set(const struct vault_header *a, const struct vault_header *b)
{
	return a->start == b->start && a->step == b->step && a->ranks == b->ranks &&
	       a->state_xxh3 == b->state_xxh3 && a->state_bytes == b->state_bytes;
}

/* Returns the newest set that was not tried: the index of one of its copies; -1: none. */
static int64_t choose_set(const struct vault_found *v)
{
	int64_t best = -1;
	for (int64_t i = 0; i < v->n_copies; i++) {
		const struct vault_header *h = &v->copies[i].header;
		if (!v->copies[i].tried &&
			(best < 0 || h->step > v->copies[best].header.step))
			best = i;
	}
	return best;
}

/* Begins a set: marks its copies, and counts the ranks that have one. */
static int64_t begin_set(struct vault_found *v, int64_t first)
{
	int64_t n = 0;
	v->header = v->copies[first].header;
	v->parts = xcalloc((size_t)v->header.ranks, sizeof(*v->parts));
	for (int64_t i = 0; i < v->n_copies; i++) {
		struct vault_file_copy *x = &v->copies[i];
		x->is_used = !x->tried && are_same_set(&x->header, &v->header);
		x->tried |= x->is_used;
		if (x->is_used)
			n += !v->parts[x->header.rank].n_copies++;
	}
	return n;
}

static void end_set(struct vault_found *v)
{
	for (int64_t q = 0; v->parts && q < v->header.ranks; q++) {
		free(v->parts[q].records);
		free(v->parts[q].holder);
		free(v->parts[q].damaged);
		free(v->parts[q].own);
	}
	for (int64_t i = 0; i < v->n_copies; i++) {
		free(v->copies[i].good);
		v->copies[i].good = NULL;
	}
	free(v->parts);
	v->parts = NULL;
	v->n_damaged = 0;
	ckpt_close(v->ckpt);
	v->ckpt = NULL;
}

/* Sets v->ckpt to the state of the set, which a rank that has it sends. Collective. */
static int share_state(struct vault_found *v, int64_t first, struct err *e)
{
	const struct vault_file_copy *x = &v->copies[first];
	scoped_ptr char *bytes = xmalloc((size_t)x->header.state_bytes);
	scoped_ptr char *name =
		text_printf("%s, step %lld", v->directory, (long long)v->header.step);
	if (x->file)
		memcpy(bytes, x->file->state, (size_t)x->header.state_bytes);
	comm_bcast(v->comm, bytes, x->header.state_bytes, x->holder);
	v->ckpt = vault_unpack_state(name, bytes, x->header.state_bytes, e);
	if (v->ckpt && v->ckpt->info.step != v->header.step)
		err_set(e, EX_DATAERR, "%s: the state is of step %lld", name,
			(long long)v->ckpt->info.step);
	return e->code ? -1 : 0; /* (equal on all ranks) */
}

/* Warns of the records of a file whose rows are not good. */
static void warn_of_rows(
	const struct vault_found *v, const struct vault_file *f, const uint8_t *good)
{
	int64_t n = f->header->n_records, n_bad = 0;
	for (int64_t i = 0; i < n; i++) {
		const struct vault_record *r = &f->records[i];
		if (good[i])
			continue;
		if (!n_bad++)
			warn("%s: rows %lld to %lld of %s in %s do not have their hash: this "
			     "copy of them is not used",
				f->path, (long long)r->block.row,
				(long long)(r->block.row + r->block.rows - 1),
				v->ckpt->tensors[r->tensor].name,
				v->ckpt->groups.v[r->group]);
	}
	if (n_bad > 1)
		warn("%s: %lld records of %lld are damaged", f->path, (long long)n_bad,
			(long long)n);
}

/* Finds out which rows are good in the files of this rank. */
static void check_own_files(struct vault_found *v)
{
	for (int64_t c = 0; c < v->n_copies; c++) {
		struct vault_file_copy *x = &v->copies[c];
		struct err e = {0};
		if (!x->is_used || !x->file)
			continue;
		if (vault_check_records(x->file, v->ckpt, &e)) {
			warn("%s; it is ignored", e.msg);
			continue;
		}
		x->good = xcalloc((size_t)x->header.n_records, 1);
#pragma omp parallel for schedule(dynamic)
		for (int64_t i = 0; i < x->header.n_records; i++)
			x->good[i] = vault_has_good_rows(x->file, i);
		warn_of_rows(v, x->file, x->good);
	}
}

/* Sets the records of a part, which the holder of a copy sends. Collective. */
static void share_records(const struct vault_found *v, const struct vault_file_copy *x,
	struct vault_part *p)
{
	size_t n = (size_t)x->header.n_records;
	p->n = x->header.n_records;
	p->records_xxh3 = x->header.records_xxh3;
	p->records = xcalloc(n, sizeof(*p->records));
	p->holder = xmalloc(n * sizeof(*p->holder));
	p->damaged = xcalloc(n, 1);
	p->own = xcalloc(n, sizeof(*p->own));
	for (size_t i = 0; i < n; i++)
		p->holder[i] = -1;
	if (x->file)
		memcpy(p->records, x->file->records, n * sizeof(*p->records));
	comm_bcast(v->comm, p->records, p->n * (int64_t)sizeof(*p->records), x->holder);
}

/* Adds the good rows in a copy of a part. The copies of a part have equal records. Collective. */
static void add_copy(struct vault_found *v, const struct vault_file_copy *x)
{
	struct vault_part *p = &v->parts[x->header.rank];
	int64_t n = x->header.n_records;
	uint8_t usable = x->good != NULL;
	comm_bcast(v->comm, &usable, 1, x->holder);
	if (!usable ||
		(p->records && (p->n != n || p->records_xxh3 != x->header.records_xxh3)))
		return;
	if (!p->records)
		share_records(v, x, p);
	scoped_ptr uint8_t *good = xcalloc((size_t)n, 1);
	if (x->good)
		memcpy(good, x->good, (size_t)n);
	comm_bcast(v->comm, good, n, x->holder);
	for (int64_t i = 0; i < n; i++) {
		v->n_damaged += !good[i] && !p->damaged[i];
		p->damaged[i] |= !good[i];
		if (!good[i])
			continue;
		if (p->holder[i] < 0)
			p->holder[i] = x->holder;
		if (x->file && !p->own[i])
			p->own[i] = x->file->map + x->file->records[i].at;
	}
}

/* Returns true if every element of all tensors and groups is in a good record, once. */
static bool is_complete(const struct vault_found *v)
{
	const struct ckpt *c = v->ckpt;
	size_t n_all = (size_t)c->n_tensors * (size_t)c->groups.n;
	scoped_ptr int64_t *elements = xcalloc(n_all, sizeof(*elements));
	for (int64_t q = 0; q < v->header.ranks; q++)
		for (int64_t i = 0; i < v->parts[q].n; i++) {
			const struct vault_record *r = &v->parts[q].records[i];
			if (v->parts[q].holder[i] < 0)
				return false;
			elements[r->group * c->n_tensors + r->tensor] +=
				r->block.rows * r->block.cols;
		}
	for (size_t i = 0; i < n_all; i++) {
		const struct ckpt_tensor *t = &c->tensors[i % (size_t)c->n_tensors];
		bool has_state = i < (size_t)c->n_tensors || !t->stateless;
		if (elements[i] != (has_state ? ckpt_size(t) : 0))
			return false;
	}
	return true;
}

/* Returns 0 if the run can resume from the set. Collective. */
static int check_set(struct vault_found *v, int64_t first, ckpt_usable *usable, void *arg,
	struct err *e)
{
	if (share_state(v, first, e))
		return -1;
	check_own_files(v);
	for (int64_t i = 0; i < v->n_copies; i++)
		if (v->copies[i].is_used)
			add_copy(v, &v->copies[i]);
	if (!is_complete(v))
		return err_set(
			e, EX_DATAERR, "%s: some rows have no good copy", v->ckpt->path);
	if (v->comm->rank == 0)
		usable(arg, v->ckpt, e);
	return comm_agree(v->comm, e);
}

struct vault_found *vault_find(struct comm *world, const char *directory, uint64_t run,
	ckpt_usable *usable, void *arg)
{
	struct vault_found *v = xcalloc(1, sizeof(*v));
	v->comm = world;
	v->directory = xstrdup(directory);
	open_files(v, directory, run);
	gather_headers(v);
	for (int64_t first; (first = choose_set(v)) >= 0; end_set(v)) {
		struct err e = {0};
		if (begin_set(v, first) < v->header.ranks)
			continue; /* ranks were killed while they wrote this step */
		if (!check_set(v, first, usable, arg, &e))
			return v;
		if (world->rank == 0)
			warn("%s; looking for an older state", e.msg);
	}
	if (v->n_copies && world->rank == 0)
		warn("%s: no step has all its rows; looking for a checkpoint", directory);
	vault_found_free(v);
	return NULL;
}

struct ckpt *vault_found_ckpt(const struct vault_found *v)
{
	return v->ckpt;
}

uint64_t vault_found_start(const struct vault_found *v)
{
	return v->header.start;
}

void vault_describe_damage(const struct vault_found *v, struct str *out)
{
	if (v->n_damaged)
		str_printf(out, "%s%lld damaged record%s replaced by copies",
			out->len ? "; " : "", (long long)v->n_damaged,
			plural(v->n_damaged));
}

void vault_found_free(struct vault_found *v)
{
	if (!v)
		return;
	end_set(v);
	for (int64_t i = 0; i < v->n_files; i++)
		vault_file_close(&v->files[i]);
	free(v->files);
	free(v->copies);
	free(v->directory);
	free(v);
}
