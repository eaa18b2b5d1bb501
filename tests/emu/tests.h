/* Tests of the emulator, which are in the library; build/tests/test_emu runs them. */
#pragma once

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

struct emu_test {
	const char *name;
	bool (*fn)(void);  /* false: reason on stderr */
	const char *words; /* of the message with which the program must end, or NULL */
};

/* The last has no name. */
extern const struct emu_test emu_tests_kernels[], emu_tests_hopper[],
	emu_tests_libraries[], emu_tests_races[];

#ifdef __cplusplus
}
#endif

#define EMU_EXPECT(cond)                                                           \
	do {                                                                       \
		if (!(cond)) {                                                     \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #cond); \
			return false;                                              \
		}                                                                  \
	} while (0)
