/* Event files of TensorBoard: records with right checksums and any contents, and bytes as they are. */
#include "tests/fuzz/fuzz.h"
#include "logs/logs.h"
#include "run/tfevents.h"

#include <string.h>

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
		struct str record = {0};
		str_add(&record, b.p, len);
		tfevents_put_record(&file, &record);
		str_free(&record);
		b.p += len, b.n -= len;
	}
	static struct log_options how = {.format = "tensorboard"};
	FUZZ_ON(!how.formats && log_options_load(&how, &e));
	int rc = log_read(&l, fuzz_file("events", file.s, file.len), &how, &e);
	FUZZ_ON((rc != 0) != (e.code != 0));
	for (int64_t i = 1; !rc && i < l.n_rows; i++)
		FUZZ_ON(!(run_log_value(&l, i, COL_STEP) >
			  run_log_value(&l, i - 1, COL_STEP)));
	if (!rc)
		run_log_free(&l);
	str_free(&file);
	return 0;
}
