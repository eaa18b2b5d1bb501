/* Good HDF5 files made bad, as bytes say. */
#pragma once

#include "tests/fuzz/fuzz.h"
#include "h5/h5.h"

/* A good file, and the names that are in it or that a reader asks for; both lists end with
 * NULL. */
struct hostile {
	struct str image;
	const char *const *objects;
	const struct h5_field *fields;
	struct sealed_span {
		size_t begin, end, sum; /* bytes under one of HDF5's checksums, and it */
	} * spans;
	int n_spans;
};

/* From the file at `path`, which it removes. */
void hostile_init(struct hostile *t, const char *path, const char *const *objects,
	const struct h5_field *fields);

/* Writes the file as the bytes want it. Either through HDF5: attributes, datasets, links of
 * any type and shape, and a seal that fits: then HDF5 has made it, and takes no harm.
 * Or with bytes of the file altered, and HDF5's own checksums made to fit, and perhaps the
 * seal: then HDF5 may do anything with it, and hostile_raw is set. */
const char *hostile_make(const struct hostile *t, struct bytes *b);
extern bool hostile_raw;
