/*
 * The tests of kernels for a GPU in one program, since a start takes a second there.
 *   test_kernels [NAME...]   these, in this order, or all
 * Before each, "# begin NAME" is printed, and "# end NAME CODE SECONDS" after it. One that takes
 * TEST_SECONDS ends the program.
 */
#include "tests/support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef PROGRAMS /* the Makefile lists all of them */
#define PROGRAMS PROGRAM(test_kernels_xent)
#endif

#define PROGRAM(name) int name(void);
PROGRAMS
#undef PROGRAM

static const struct program {
	const char *name;
	int (*run)(void);
} programs[] = {
#define PROGRAM(name) {#name, name},
	PROGRAMS};

static int run(const struct program *p)
{
	double begin = clock_seconds();
	printf("# begin %s\n", p->name);
	fflush(stdout);
	const char *most = getenv("TEST_SECONDS");
	alarm(most ? (unsigned)atoi(most) : 0);
	int rc = p->run();
	alarm(0);
	fflush(stderr);
	printf("# end %s %d %.0f\n", p->name, rc, clock_seconds() - begin);
	fflush(stdout);
	return rc;
}

static const struct program *find(const char *name)
{
	for (size_t i = 0; i < ARRAY_LEN(programs); i++)
		if (!strcmp(programs[i].name, name))
			return &programs[i];
	die(EX_USAGE, "there is no %s", name);
}

int main(int argc, char **argv)
{
	int failed = 0;
	setvbuf(stdout, NULL, _IOLBF,
		0); /* so that what is said is known if a test dies */
	for (int i = 1; i < argc; i++)
		failed += run(find(argv[i])) != 0;
	for (size_t i = 0; i < ARRAY_LEN(programs) && argc == 1; i++)
		failed += run(&programs[i]) != 0;
	return failed > 0;
}
