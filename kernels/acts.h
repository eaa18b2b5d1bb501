/*
 * The activation functions (an X-macro): define ACT(id, name, kind, word, hf, hf_too, megatron)
 * before including this file, which expands ACT for each function and then undefines it.
 *	id		ACT_id is its number in kernels, ACTC_id its number in the values of --act
 *	name		name() and name_slope() are the function and its derivative, in each
 *			file that computes them
 *	kind		PLAIN: a function of W1 h. GATED: a function of W1 h and W3 h
 *	word		the value of --act
 *	hf, hf_too	its name in Hugging Face's config.json, and an accepted alias; or NULL
 *	megatron	the option of Megatron-LM; NULL: none
 */
#ifndef ACT
#include <stddef.h>
#else
ACT(GELU_TANH, gelu_tanh, PLAIN, "gelu-tanh", "gelu_new", "gelu_pytorch_tanh", NULL)
ACT(GELU, gelu, PLAIN, "gelu", "gelu", NULL, NULL)
ACT(SWIGLU, swiglu, GATED, "swiglu", "silu", "swish", "--swiglu")
ACT(GEGLU_TANH, geglu_tanh, GATED, "geglu-tanh", "gelu_pytorch_tanh", "gelu_new", NULL)
#undef ACT
#endif
