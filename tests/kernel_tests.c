/*
 * The tests of kernels for a GPU in one program, since a start takes a second there.
 *   test_kernels [NAME...]   these, in this order, or all
 * Before each, "# begin NAME" is printed, and "# end NAME CODE SECONDS" after it.
 */
#include "tests/support/support.h"

#include <stdio.h>
#include <string.h>

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
	int rc = p->run();
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
