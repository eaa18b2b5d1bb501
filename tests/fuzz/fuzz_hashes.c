/* Hashes of tensors, as pt-train --hash-tensors writes them: read, printed, compared. */
#include "tests/fuzz/fuzz.h"
#include "compare/locate.h"

#include <stdlib.h>
#include <string.h>

/* What was read is printed as lines that are read as the same. */
static void read_back(const struct tensor_hashes *l)
{
	struct str text = {0};
	for (int64_t i = 0; i < l->n; i++) {
		const struct tensor_hash *a = &l->of[i];
		struct tensor_hash b;
		str_clear(&text);
		tensor_hash_print(a, &text);
		FUZZ_ON(tensor_hash_parse(text.s, text.len - 1, &b));
		FUZZ_ON(a->step != b.step || a->micro != b.micro || a->phase != b.phase);
		FUZZ_ON(a->elements != b.elements || a->nonfinite != b.nonfinite);
		FUZZ_ON(a->hash != b.hash || memcmp(&a->max, &b.max, sizeof(a->max)));
		FUZZ_ON(a->replicas_differ != b.replicas_differ ||
			strcmp(a->name, b.name));
	}
	str_free(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct bytes b = {data, n};
	struct err e = {0};
	struct tensor_hashes l[2] = {{0}};
	struct str out = {0};
	int64_t show = take_byte(&b);
	const void *cut = b.n ? memchr(b.p, '\0', b.n) : NULL;
	size_t first = cut ? (size_t)((const uint8_t *)cut - b.p) : b.n;
	int rc = tensor_hashes_read(&l[0], fuzz_file("control", b.p, first), &e);
	if (!rc && cut)
		rc = tensor_hashes_read(
			&l[1], fuzz_file("test", b.p + first + 1, b.n - first - 1), &e);
	FUZZ_ON((rc != 0) != (e.code != 0));
	if (!rc) {
		read_back(&l[0]);
		int64_t differ = locate_in_lists(&l[0], &l[1], show, &out);
		FUZZ_ON(differ < 0 || (differ > 0) != (out.len > 0));
	}
	str_free(&out);
	tensor_hashes_free(&l[0]);
	tensor_hashes_free(&l[1]);
	return 0;
}
