/* Speed of byte-pair encoding, without files and without shards; MB/s of text.
 *   bench_token VOCABULARY MODEL TEXT   one thread: the first pass over the text, and the best of later ones
 *   bench_token VOCABULARY MODEL -N     a word of N bytes: seconds */
#include "base/file.h"
#include "token/token.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Of this thread's processor: other programs on the machine change it less. */
static double seconds(void)
{
	struct timespec t;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double encode(struct encoder *s, const struct str *text, uint32_t *out)
{
	struct err e = {0};
	int64_t n_out, most = 1 << 18; /* as pt-prepare reads a file */
	double begin = seconds();
	for (int64_t at = 0, n = (int64_t)text->len, used; at < n; at += used) {
		int64_t now = min64(n - at, most);
		used = encoder_encode(
			s, text->s + at, now, at + now == n, out, now, &n_out, &e);
		if (used < 0)
			die_err(&e);
		most = used ? 1 << 18 : 2 * now;
	}
	return seconds() - begin;
}

/* Letters in no order, without a space. */
static void make_word(struct str *text, int64_t n)
{
	for (int64_t i = 0; i < n; i++)
		str_putc(text, (char)('a' + hash_mix((uint64_t)i) % 26));
}

int main(int argc, char **argv)
{
	struct vocab v;
	struct bpe_rules r;
	struct str text = {0};
	struct err e = {0};
	if (argc != 4)
		die(EX_USAGE, "usage: bench_token VOCABULARY MODEL TEXT|-N");
	if (bpe_read(&v, &r, argv[1], bpe_model_find(argv[2]), NULL, &e))
		die_err(&e);
	if (argv[3][0] == '-')
		make_word(&text, atoll(argv[3] + 1));
	else if (file_read(argv[3], INT32_MAX, &text, &e))
		die_err(&e);
	struct bpe *b = bpe_open(&v, &r, &e);
	struct encoder *s = b ? encoder_open(b, &e) : NULL;
	if (!s)
		die_err(&e);
	uint32_t *out = xmalloc(max64(text.len, 1 << 18) * sizeof(*out));
	double first = encode(s, &text, out), best = first;
	if (argv[3][0] == '-') {
		printf("%.3f\n", first);
		return 0;
	}
	for (int i = 0; i < 5; i++) {
		double here = encode(s, &text, out);
		best = here < best ? here : best;
	}
	printf("%.0f %.0f\n", (double)text.len / first / 1e6,
		(double)text.len / best / 1e6);
	return 0;
}
