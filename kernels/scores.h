/* The scores of a router that are functions of one logit (an X-macro): define
 * SCORE(id, word, score, slope) before including this file, which expands SCORE for each function
 * and then undefines it. The softmax over all logits is not in it.
 *	id	ROUTER_id is its number
 *	word	the value of --router
 *	score	the score of logit z, a positive number
 *	slope	the derivative of the score's logarithm by z, as a function of the score s
 * Expressions may use LOGISTIC(x), EXP(x), LOG1P(x) and EXPM1(x), which each device, and the
 * float64 reference of the tests, define in their precision. */
#ifdef SCORE
SCORE(SIGMOID, "sigmoid", LOGISTIC(z), 1 - s)
#undef SCORE
#endif
