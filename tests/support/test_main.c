/* main() of the test programs that define none. */
#include "tests/support/support.h"

int main(void)
{
	return tests_run();
}
