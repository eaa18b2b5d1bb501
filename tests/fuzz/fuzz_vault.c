/* Files of a vault: a good one with other numbers in places, whose hashes are right or wrong; and
 * any bytes. What is accepted has its rows within the file. */
#include "tests/fuzz/fuzz.h"
#include "tests/support/vault_file.h"

#include "base/file.h"

#include <string.h>

static void read_anything(const struct str *file)
{
	vault_test_read(fuzz_file("vault", file->s, file->len));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct bytes b = {data, n};
	static struct str good;
	struct str file = {0};
	struct err e = {0};
	if (!good.len) {
		const char *path = fuzz_path("good");
		vault_test_write(path);
		FUZZ_ON(file_read(path, 1 << 20, &good, &e));
	}
	uint8_t how = take_byte(&b);
	str_add(&file, good.s, good.len);
	while (how & 1 && b.n) { /* numbers of the header, the records and the state */
		size_t at = (size_t)take_byte(&b) * 8;
		int64_t value = take_number(&b);
		at += how & 2 ? 4096 : 0;
		memcpy(file.s + at, &value, sizeof(value));
	}
	if (!(how & 1)) { /* bytes in place of the state, or of all */
		size_t at = how & 2 ? 4096 + 4 * sizeof(struct vault_record) : 0;
		size_t length = b.n < file.len - at ? b.n : file.len - at;
		memcpy(file.s + at, b.p, length);
	}
	if (how & 4)
		vault_test_seal(file.s, (int64_t)file.len);
	read_anything(&file);
	str_free(&file);
	return 0;
}
