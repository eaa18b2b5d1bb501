/* Characters: UTF-8, and the classes of Unicode. */
#include "token/unicode_internal.h"

#include <pthread.h>
#include <string.h>

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
