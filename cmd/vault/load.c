/* Loads the rows of a vault into a store: each rank requests the rows that it needs and has not
 * mapped from a rank that has a good copy. */
#include "comm/requests.h"
#include "vault/find.h"

/* The record i of part q. */
struct vault_request {
	int64_t part, record;
};

/* Requests from one rank, or to it. */
struct request_list {
	struct vault_request *v;
	int64_t n;
};

struct loading {
	struct vault_found *found;
	struct store *store;
	/* The index in the store of each group and tensor of the set; -1: none. */
	int *group, *tensor;
	struct request_list *wanted,
		*asked; /* [ranks]: from this rank, from other ranks */
	float *rows;
};

/* ---- which rows ---------------------------------------------------------------------------- */

/* Maps the groups and tensors of the set to the groups and tensors of the store. */
static int map_names(struct loading *x, const int *from, struct err *e)
{
	const struct ckpt *c = x->found->ckpt;
	const struct store_config *s = &x->store->c;
	x->group = xmalloc((size_t)c->groups.n * sizeof(*x->group));
	x->tensor = xmalloc((size_t)c->n_tensors * sizeof(*x->tensor));
	for (int64_t g = 0; g < c->groups.n; g++)
		x->group[g] = -1;
	for (int g = 0; g < s->groups.n; g++)
		if (from[g] >= 0)
			x->group[from[g]] = g;
	for (int i = 0; i < c->n_tensors; i++)
		x->tensor[i] = -1;
	for (int i = 0; i < s->n_tensors; i++) {
		const struct tensor *t = &s->tensors[i];
		const int k = ckpt_find(c, t->name);
		if (k < 0 || c->tensors[k].dims[0] != t->dims[0] ||
			ckpt_row_size(&c->tensors[k]) != tensor_width(t))
			return err_set(e, EX_DATAERR, "%s: %s has another shape", c->path,
				t->name);
		x->tensor[k] = i;
	}
	return 0;
}

static bool needs_record(const struct loading *x, const struct vault_record *r)
{
	int group = x->group[r->group], tensor = x->tensor[r->tensor];
	return group >= 0 && tensor >= 0 &&
	       !(x->store->c.tensors[tensor].frozen && group != STORE_PARAM) &&
	       store_has_rows(x->store, tensor, r->block.row, r->block.rows);
}

static void store_record(
	const struct loading *x, const struct vault_record *r, const void *rows)
{
	store_write_block(
		x->store, x->group[r->group], x->tensor[r->tensor], &r->block, rows);
}

/* Stores the rows that this rank has mapped, and lists the other ones that it needs. */
static void store_own_rows(struct loading *x)
{
	const struct vault_found *v = x->found;
	for (int64_t q = 0; q < v->header.ranks; q++) {
		const struct vault_part *p = &v->parts[q];
		for (int64_t i = 0; i < p->n; i++) {
			const struct vault_record *r = &p->records[i];
			struct request_list *l = &x->wanted[p->holder[i]];
			if (!needs_record(x, r))
				continue;
			if (p->own[i]) {
				store_record(x, r, p->own[i]);
				continue;
			}
			l->v = xgrow(l->v, l->n, sizeof(*l->v));
			l->v[l->n++] = (struct vault_request){q, i};
		}
		comm_poll();
	}
}

/* ---- messages ------------------------------------------------------------------------------ */

/* Sends the lists of requests to the holders. Collective. */
static void exchange_requests(struct loading *x)
{
	struct comm *c = x->found->comm;
	scoped_ptr int64_t *n_wanted = xcalloc((size_t)c->size, sizeof(*n_wanted));
	scoped_ptr int64_t *n_asked = xcalloc((size_t)c->size, sizeof(*n_asked));
	struct comm_requests r = {.c = c};
	for (int i = 0; i < c->size; i++)
		n_wanted[i] = x->wanted[i].n;
	comm_run(c, COLL_ALLTOALL,
		&(struct coll_args){
			.send = n_wanted, .recv = n_asked, .count = 1, .type = COMM_I64});
	for (int i = 0; i < c->size; i++)
		comm_send(&r, x->wanted[i].v,
			n_wanted[i] * (int64_t)sizeof(*x->wanted->v), i,
			COMM_TAG(VAULT, 0));
	for (int i = 0; i < c->size; i++) {
		struct request_list *l = &x->asked[i];
		l->n = n_asked[i];
		l->v = xcalloc((size_t)l->n + 1, sizeof(*l->v));
		comm_recv(&r, l->v, l->n * (int64_t)sizeof(*l->v), i, COMM_TAG(VAULT, 0));
	}
	comm_start(&r);
	comm_wait(&r);
	comm_requests_release(&r);
}

/* Starts sending the rows that other ranks need, from the mapped files. */
static void send_rows(struct loading *x, struct comm_requests *r)
{
	const struct vault_found *v = x->found;
	for (int i = 0; i < v->comm->size; i++)
		for (int64_t k = 0; k < x->asked[i].n; k++) {
			const struct vault_request *q = &x->asked[i].v[k];
			const struct vault_part *p = &v->parts[q->part];
			BUG_ON(!p->own[q->record]);
			comm_send(r, p->own[q->record],
				vault_record_bytes(&p->records[q->record]), i,
				COMM_TAG(VAULT, 1));
		}
	comm_start(r);
}

/* Receives the rows that this rank needs, one record after the other. */
static void receive_rows(struct loading *x)
{
	const struct vault_found *v = x->found;
	for (int i = 0; i < v->comm->size; i++)
		for (int64_t k = 0; k < x->wanted[i].n; k++) {
			const struct vault_request *q = &x->wanted[i].v[k];
			const struct vault_record *record =
				&v->parts[q->part].records[q->record];
			int64_t n_bytes = vault_record_bytes(record);
			struct comm_requests r = {.c = v->comm};
			x->rows = xrealloc(x->rows, (size_t)n_bytes);
			comm_recv(&r, x->rows, n_bytes, i, COMM_TAG(VAULT, 1));
			comm_start(&r);
			comm_wait(&r);
			comm_requests_release(&r);
			store_record(x, record, x->rows);
		}
}

static void release_loading(struct loading *x)
{
	for (int i = 0; i < x->found->comm->size; i++) {
		free(x->wanted[i].v);
		free(x->asked[i].v);
	}
	free(x->wanted);
	free(x->asked);
	free(x->group);
	free(x->tensor);
	free(x->rows);
}

int vault_load(void *found, struct store *s, const int *from, struct err *e)
{
	struct vault_found *v = found;
	size_t size = (size_t)v->comm->size;
	struct loading x = {.found = v,
		.store = s,
		.wanted = xcalloc(size, sizeof(*x.wanted)),
		.asked = xcalloc(size, sizeof(*x.asked))};
	struct comm_requests sends = {.c = v->comm};
	map_names(&x, from, e);
	int rc = comm_agree(v->comm, e);
	if (!rc)
		store_own_rows(&x);
	if (!rc && vault_at_place)
		vault_at_place("restore", v->header.step);
	if (!rc && size > 1) {
		exchange_requests(&x);
		send_rows(&x, &sends);
		receive_rows(&x);
		comm_wait(&sends);
	}
	comm_requests_release(&sends);
	release_loading(&x);
	return rc;
}
