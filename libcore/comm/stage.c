/*
 * Messages to and from the memory of a device that is apart, which the library cannot touch:
 * they go by way of the program's memory. What is sent has been copied when it is begun; what
 * comes is put in its place when it is found to have come, and kernels that are asked for
 * after that see it.
 */
#include "comm/comm.h"

#include <stdlib.h>

static struct device *device;

void comm_device(struct device *d)
{
	device = d && d->apart ? d : NULL;
}

bool stage_needed(const void *p)
{
	return device && device_owns(device, p);
}

const void *stage_send(const void *p, int64_t n_bytes, struct comm_req *r)
{
	if (!stage_needed(p))
		return p;
	r->host = xmalloc((size_t)n_bytes + 1);
	device_get(device, r->host, p, (size_t)n_bytes);
	return r->host;
}

void *stage_recv(void *p, int64_t n_bytes, struct comm_req *r)
{
	if (!stage_needed(p))
		return p;
	r->host = xmalloc((size_t)n_bytes + 1);
	r->came = r->host;
	r->to = p;
	r->to_bytes = n_bytes;
	return r->host;
}

/* What a rank's result was before comes along, since not every rank gets one, nor all of it. */
void stage_coll(
	const struct comm *c, enum coll what, struct coll_args *a, struct comm_req *r)
{
	const struct coll_info *i = &coll_table[what];
	bool sends = stage_needed(a->send), receives = stage_needed(a->recv);
	int64_t block = a->count * (int64_t)comm_type_bytes(a->type);
	int64_t in = sends ? block * (i->send_parts ? 1 : c->size) : 0, out = 0;
	if (receives)
		out = block * (!a->send		      ? coll_blocks(what, c->size)
				      : i->recv_parts ? 1
						      : c->size);
	if (!sends && !receives)
		return;
	r->host = xmalloc((size_t)(in + out) + 1);
	if (sends) {
		device_get(device, r->host, a->send, (size_t)in);
		a->send = r->host;
	}
	if (receives) {
		r->came = r->host + in;
		r->to = a->recv;
		r->to_bytes = out;
		device_get(device, r->came, a->recv, (size_t)out);
		a->recv = r->came;
	}
}

void stage_end(struct comm_req *r)
{
	if (r->to)
		device_put(device, r->to, r->came, (size_t)r->to_bytes);
	free(r->host);
	r->host = r->came = NULL;
	r->to = NULL;
}
