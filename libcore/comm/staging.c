/*
 * Staging: MPI cannot access the memory of a discrete device, so messages to and from it use host
 * buffers. Data to be sent are copied to the host when the request starts; received data are copied
 * to the device when a test finds the request complete, before kernels that are enqueued later.
 */
#include "comm/comm_internal.h"
#include "kernels/kernels.h"

#include <stdlib.h>

static struct device *device;

void comm_device(struct device *d)
{
	device = d && d->discrete ? d : NULL;
}

bool staging_needed(const void *p)
{
	return device && device_owns(device, p);
}

/* The bytes of a request's two buffers; a message has one. */
static void buffer_bytes(
	const struct comm *c, const struct comm_request *r, int64_t *in, int64_t *out)
{
	const struct coll_args *a = &r->a;
	const struct coll_info *i = &coll_table[r->coll];
	int64_t block = a->count * (int64_t)comm_type_bytes(a->type);
	*in = r->kind == COMM_COLLECTIVE && !i->send_parts ? block * c->size : block;
	*out = block;
	if (r->kind == COMM_COLLECTIVE && !a->send)
		*out = block * coll_blocks(r->coll, c->size);
	else if (r->kind == COMM_COLLECTIVE && !i->recv_parts)
		*out = block * c->size;
}

/* The previous contents of a collective's result buffer are staged too, because some ranks get no
 * result, or only a part. */
void staging_begin(const struct comm *c, struct comm_request *r)
{
	struct coll_args *a = &r->a;
	bool sends = staging_needed(a->send), receives = staging_needed(a->recv);
	int64_t in, out;
	if (!sends && !receives)
		return;
	buffer_bytes(c, r, &in, &out);
	in = sends ? in : 0;
	out = receives ? out : 0;
	r->host = xmalloc((size_t)(in + out) + 1);
	if (sends) {
		device_get(device, r->host, a->send, (size_t)in);
		a->send = r->host;
	}
	if (!receives)
		return;
	if (r->kind != COMM_RECV)
		device_get(device, r->host + in, a->recv, (size_t)out);
	if (r->kind != COMM_SEND) {
		r->received = r->host + in;
		r->to = a->recv;
		r->to_bytes = out;
	}
	a->recv = r->host + in;
}

void staging_end(struct comm_request *r)
{
	if (r->to)
		device_put(device, r->to, r->received, (size_t)r->to_bytes);
	free(r->host);
	r->host = r->received = NULL;
	r->to = NULL;
}
