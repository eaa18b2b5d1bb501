/* The router of a mixture of experts: its settings. */
#include "model/router.h"

struct router model_router(const struct pass *p)
{
	const struct model_config *c = &p->m->c;
	return (struct router){.kind = (enum router_kind)c->router,
		.normalize = c->router_norm,
		.scale = (float)c->router_scale,
		.experts = c->experts,
		.per_row = c->experts_per_token,
		.groups = c->router_groups,
		.top_groups = c->router_top_groups,
		.seq_rows = p->rows / p->c.batch};
}
