/* Characters: UTF-8, and the classes of Unicode. */
#include "token/unicode_internal.h"

#include <pthread.h>
#include <string.h>

enum { CODE_POINTS = 0x110000 };

static uint8_t classes[CODE_POINTS];

static void expand(void)
{
	for (int i = 0; i < unicode_n_runs; i++) {
		uint32_t begin = unicode_runs[i] >> 3;
		uint32_t end =
			i + 1 < unicode_n_runs ? unicode_runs[i + 1] >> 3 : CODE_POINTS;
		memset(classes + begin, (int)(unicode_runs[i] & 7), end - begin);
	}
}

const uint8_t *char_classes(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	pthread_once(&once, expand);
	return classes;
}

int utf8_decode(const char *text, int64_t n, uint32_t *code)
{
	const uint8_t *p = (const uint8_t *)text;
	if (p[0] < 0x80) {
		*code = p[0];
		return 1;
	}
	int len = p[0] >= 0xf0 ? 4 : p[0] >= 0xe0 ? 3 : 2;
	if (p[0] < 0xc2 || p[0] > 0xf4)
		return -1;
	uint32_t c = p[0] & (0xffu >> (len + 1));
	for (int i = 1; i < len; i++) {
		if (i >= n)
			return 0;
		if ((p[i] & 0xc0) != 0x80)
			return -1;
		c = c << 6 | (p[i] & 0x3f);
	}
	static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
	if (c < least[len] || c >= CODE_POINTS || (c >= 0xd800 && c < 0xe000))
		return -1;
	*code = c;
	return len;
}

int utf8_encode(uint32_t c, uint8_t out[AT_LEAST(4)])
{
	if (c < 0x80) {
		out[0] = (uint8_t)c;
		return 1;
	}
	int len = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
	for (int i = len - 1; i > 0; i--, c >>= 6)
		out[i] = (uint8_t)(0x80 | (c & 0x3f));
	out[0] = (uint8_t)(0xf00u >> len | c);
	return len;
}
