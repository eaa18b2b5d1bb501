/* The scores of a router that are functions of one logit (an X-macro): define SCORE(id, name, word)
 * before including this file, which expands SCORE for each function and then undefines it. The softmax
 * over all logits is not in it.
 *	id	ROUTER_id is its number
 *	name	name_score(z) is the score, a positive number, and name_log_slope(s) the derivative of its
 *		logarithm as a function of the score, in each file that computes them:
 *		kernels/cpu/route.c, kernels/cuda/route.cu and tests/support/experts_ref.c
 *	word	the value of --router */
#ifdef SCORE
SCORE(SIGMOID, sigmoid, "sigmoid")
#undef SCORE
#endif
