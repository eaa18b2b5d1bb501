/* Tests of the emulator, inside the library, for the program that runs them. */
#ifndef EMU_TESTS_H
#define EMU_TESTS_H

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

struct emu_test {
	const char *name;
	bool (*fn)(void); /* says on stderr why it is false */
	const char
		*words; /* of the message with which it must end the program; or NULL */
};

/* Closed by one without a name. */
extern const struct emu_test emu_tests_kernels[], emu_tests_hopper[],
	emu_tests_libraries[];

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

#endif
