/* Who computed wrongly, from the results of several ranks (audit_plan.h). */
#include "referee/audit_plan.h"

const char *const audit_verdict_names[] = {
	"equal", "sporadic", "persistent", "undecided", NULL};

/* Returns true if most of the other ranks have this result. */
static bool others_agree(const struct audit_opinions *o, uint64_t x)
{
	int n = 0;
	for (int i = 0; i < o->n_others; i++)
		n += o->other[i] == x;
	return 2 * n > o->n_others;
}

/* A rank that is its own referee finds only faults that do not return. */
static struct audit_finding judge_alone(const struct audit_opinions *o)
{
	bool agrees =
		o->a_again == o->b_again && (o->a_again == o->a || o->a_again == o->b);
	return (struct audit_finding){
		.verdict = agrees ? AUDIT_SPORADIC : AUDIT_PERSISTENT, .a = true};
}

/* Returns true if one of two ranks is right, by its result and the result of its second attempt,
 * and by the attempts of the other rank: the result of most of the other ranks. Without other
 * ranks, a rank that has twice the same result is right, if the other rank contradicts itself. */
static bool is_right(const struct audit_opinions *o, uint64_t x, uint64_t again,
	uint64_t y, uint64_t y_again)
{
	return o->n_others ? others_agree(o, x) : x == again && y != y_again;
}

struct audit_finding audit_judge(const struct audit_opinions *o)
{
	if (o->a == o->b)
		return (struct audit_finding){.verdict = AUDIT_EQUAL};
	if (o->alone)
		return judge_alone(o);
	if (is_right(o, o->b, o->b_again, o->a, o->a_again))
		return (struct audit_finding){
			.verdict = o->a_again == o->b ? AUDIT_SPORADIC : AUDIT_PERSISTENT,
			.a = true};
	if (is_right(o, o->a, o->a_again, o->b, o->b_again))
		return (struct audit_finding){
			.verdict = o->b_again == o->a ? AUDIT_SPORADIC : AUDIT_PERSISTENT,
			.b = true};
	return (struct audit_finding){.verdict = AUDIT_UNDECIDED, .a = true, .b = true};
}

bool audit_is_software(int differing, int pairs)
{
	const int of_one_rank = 2; /* a rank computes in two pairs */
	return differing > of_one_rank && 2 * differing > pairs;
}
