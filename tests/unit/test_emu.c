/* The emulator of a GPU, on which the kernels of kernels/cuda are tested: its own tests, which
 * are in the library emu/pt-cuda.so, each in a process of its own. */
#include "tests/support/support.h"
#include "tests/emu/tests.h"

#include <dlfcn.h>
#include <libgen.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_TESTS = 120 };

static char *library(void)
{
	char self[4096];
	struct str path = {0};
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
	assert_true(n > 0);
	self[n] = 0;
	str_printf(&path, "%s/../emu/pt-cuda.so", dirname(self));
	return path.s;
}

static void run(void **state)
{
	const struct emu_test *t = *state;
	struct str said = {0};
	char text[4096];
	ssize_t n;
	int to[2], status;
	assert_int_equal(pipe(to), 0);
	pid_t pid = fork();
	if (pid == 0) {
		dup2(to[1], STDERR_FILENO);
		close(to[0]);
		alarm(300);
		signal(SIGSEGV, SIG_DFL); /* they are cmocka's */
		signal(SIGABRT, SIG_DFL);
		_exit(t->fn() ? 0 : 1);
	}
	close(to[1]);
	while ((n = read(to[0], text, sizeof(text))) > 0)
		str_add(&said, text, (size_t)n);
	close(to[0]);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	if (!t->words && status)
		fail_msg("status %x: %s", (unsigned)status, said.s ? said.s : "");
	if (t->words && (!status || !said.s || !strstr(said.s, t->words)))
		fail_msg("status %x; not `%s` but: %s", (unsigned)status, t->words,
			said.s ? said.s : "");
	str_free(&said);
}

int main(void)
{
	static const char *const lists[] = {"emu_tests_kernels", "emu_tests_hopper",
		"emu_tests_libraries", "emu_tests_races"};
	struct CMUnitTest tests[MAX_TESTS];
	size_t n = 0;
	if (access(library(), F_OK)) {
		printf("1..1\nok 1 - all # SKIP built without CUDA\n");
		return 0;
	}
	/* (the tests open no device, and this program has none of what one would call) */
	void *so = dlopen(library(), RTLD_LAZY | RTLD_LOCAL);
	if (!so)
		die(EX_FAILED, "%s", dlerror());
	for (size_t i = 0; i < ARRAY_LEN(lists); i++) {
		const struct emu_test *t = dlsym(so, lists[i]);
		for (; t && t->name; t++) {
			BUG_ON(n == MAX_TESTS);
			tests[n++] = (struct CMUnitTest){
				t->name, run, NULL, NULL, (void *)(uintptr_t)t};
		}
	}
	BUG_ON(n < ARRAY_LEN(lists));
	return _cmocka_run_group_tests("emulator", tests, n, NULL, NULL);
}
