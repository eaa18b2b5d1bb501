/* Compares the copies of state on several ranks, by pieces with the same id. */
#include "tests/support/copies.h"

#include "referee/pieces.h"

struct copy {
	uint64_t id, hash;
	bool exists;
};

static int compare_ids(const void *x, const void *y)
{
	const struct copy *a = x, *b = y;
	return (a->id > b->id) - (a->id < b->id);
}

bool test_copies_agree(struct store *s)
{
	struct comm *world = s->c.mesh->world;
	scoped_ptr struct state_piece *list = NULL;
	int64_t n = state_pieces_list(s, &list), most = comm_max_i64(world, n);
	scoped_ptr struct copy *own = xcalloc((size_t)most + 1, sizeof(*own));
	scoped_ptr struct copy *all =
		xcalloc((size_t)(most * world->size) + 1, sizeof(*all));
	bool agree = true;
	state_pieces_hash(s, list, n);
	for (int64_t i = 0; i < n; i++)
		own[i] = (struct copy){list[i].id, list[i].hash, true};
	comm_allgather(world, own, all, most * (int64_t)sizeof(*own));
	qsort(all, (size_t)(most * world->size), sizeof(*all), compare_ids);
	for (int64_t i = 1; i < most * world->size; i++)
		agree &= !all[i - 1].exists || all[i].id != all[i - 1].id ||
			 all[i].hash == all[i - 1].hash;
	return agree;
}
