/* Event files of TensorBoard: records with right checksums and any contents, and bytes as they are. */
#include "tests/fuzz/fuzz.h"
#include "logs/logs.h"

#include <string.h>

static uint32_t masked_crc(const void *p, size_t n)
{
	uint32_t c = UINT32_MAX;
	for (size_t i = 0; i < n; i++) {
		c ^= ((const uint8_t *)p)[i];
		for (int k = 0; k < 8; k++)
			c = c >> 1 ^ (c & 1 ? UINT32_C(0x82f63b78) : 0);
	}
	c = ~c;
	return (c >> 15 | c << 17) + UINT32_C(0xa282ead8);
}

static void add_record(struct str *file, const void *p, uint64_t n)
{
	uint32_t crc = masked_crc(&n, sizeof(n));
	str_add(file, &n, sizeof(n));
	str_add(file, &crc, sizeof(crc));
	str_add(file, p, n);
	crc = masked_crc(p, n);
	str_add(file, &crc, sizeof(crc));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct bytes b = {data, n};
	struct err e = {0};
	struct run_log l;
	struct str file = {0};
	uint8_t plain = take_byte(&b);
	if (plain == 0xff)
		str_add(&file, b.p, b.n);
	while (plain != 0xff && b.n) {
		size_t len = take_byte(&b);
		len = len < b.n ? len : b.n;
		add_record(&file, b.p, len);
		b.p += len, b.n -= len;
	}
	int rc = log_read(&l, fuzz_file("events", file.s, file.len), "tensorboard", &e);
	FUZZ_ON((rc != 0) != (e.code != 0));
	for (int64_t i = 1; !rc && i < l.n_rows; i++)
		FUZZ_ON(!(run_log_value(&l, i, COL_STEP) >
			  run_log_value(&l, i - 1, COL_STEP)));
	if (!rc)
		run_log_free(&l);
	str_free(&file);
	return 0;
}
