/* The table of all causes, in the order in which they are tried (an X-macro). Define CAUSE(scope,
 * needs, test, text, kind) before including this file; gradients leave out the kind. See struct
 * cause in search.h. To add a cause, add a row here and write its test. */
#include "check/search.h"

#ifdef CAUSE
CAUSE(TRY_FIRST, IF_REFERENCE | IF_MOST, explained_by_clipped_tensors,
	"each tensor is clipped by itself, to the norm %s, not by the norm of all gradients")
CAUSE(TRY_FIRST, IF_REFERENCE | IF_MOST, explained_by_clipped_shards,
	"each shard is clipped by its own norm, which is not summed over the ranks; shards of "
	"the rows, of %s")

CAUSE(TRY_FIRST, IF_REFERENCE, explained_by_factor_of_experts,
	"the gradients of experts are %s")

CAUSE(TRY_TENSOR, 0, explained_by_untying,
	"no gradient, and the values of the embedding: does the run tie them "
	"(tie_word_embeddings)?")
CAUSE(TRY_TENSOR, 0, has_no_gradient,
	"no gradient: it is not trained (--freeze), or the backward pass does not reach it")
CAUSE(TRY_TENSOR, 0, explained_by_own_clip,
	"clipped by its own norm, not by the norm of all gradients")
CAUSE(TRY_TENSOR, 0, explained_by_no_clip, "not clipped, unlike other tensors")
CAUSE(TRY_TENSOR, IF_SURE, explained_by_factor, "%s times what it should be")
CAUSE(TRY_TENSOR, IF_REFERENCE, explained_by_experts_of_stack, "%s")
CAUSE(TRY_TENSOR, IF_SURE, explained_by_slices, "dim %s times")
CAUSE(TRY_TENSOR, 0, explained_by_transposition, "transposed")
CAUSE(TRY_TENSOR, 0, explained_by_halves,
	"rows of heads are in halves instead of pairs (rotary positions)")
CAUSE(TRY_TENSOR, 0, explained_by_pairs,
	"rows of heads are in pairs instead of halves (rotary positions)")
CAUSE(TRY_TENSOR, 0, explained_by_exchange, "the gradient of %s")
CAUSE(TRY_TENSOR, IF_SEARCH, explained_by_embedding_rows, "%s")
CAUSE(TRY_TENSOR, IF_REFERENCE | IF_SURE, explained_by_order_of_slices,
	"dim %s, counted from 0")
CAUSE(TRY_TENSOR, IF_REFERENCE | IF_SURE, explained_by_value,
	"as if each element were clipped to %s")
CAUSE(TRY_TENSOR, IF_REFERENCE, explained_by_exchanged_means,
	"its moments before the step were the moments of %s")
CAUSE(TRY_TENSOR, IF_REFERENCE | IF_SURE, explained_by_decay,
	"the gradient plus %s: weight decay before the moments (L2)")

CAUSE(TRY_STEP, IF_REFERENCE | IF_MOST, explained_by_kept_gradients,
	"the gradients of the step before were not set to zero (zero_grad), and this step's "
	"gradients were added to them")
CAUSE(TRY_STEP, IF_REFERENCE | IF_MOST, explained_by_lost_moments,
	"as if the moments were zero before the step")
CAUSE(TRY_STEP, IF_SEARCH, explained_by_balance, "as if %s")
CAUSE(TRY_STEP, IF_SEARCH, explained_by_router_gradient, "as if %s")
CAUSE(TRY_STEP, IF_SEARCH, explained_by_local_experts, "as if %s")
CAUSE(TRY_STEP, IF_FUNCTION, explained_by_router, "as if %s")
CAUSE(TRY_STEP, IF_FUNCTION, explained_by_adapter_scale,
	"as if the scale of the adapters were %s")
CAUSE(TRY_STEP, IF_FUNCTION, explained_by_unit_weights,
	"as if all targets had the weight 1")
CAUSE(TRY_STEP, IF_SEARCH | IF_MOST, explained_by_sequences, "sequences %s")
CAUSE(TRY_STEP, IF_SEARCH | IF_MOST, explained_by_missing_reduce_scatter,
	"each of %s has the gradient of its own sequences in its shards: the reduce-scatter is "
	"missing")
CAUSE(TRY_STEP, IF_FUNCTION, explained_by_targets, "as if %s")
CAUSE(TRY_STEP, IF_FUNCTION, explained_by_function, "as if %s")
CAUSE(TRY_STEP, IF_FUNCTION, explained_by_smoothing, "as if labels were smoothed by %s")
CAUSE(TRY_STEP, IF_FUNCTION, explained_by_z_loss,
	"as if the loss had a z-loss: %s times the square of log(sum of exp(logits))")
CAUSE(TRY_STEP, IF_FUNCTION, explained_by_entropy,
	"as if the loss had another term: %s times the sum of p log p (the negative entropy)")
CAUSE(TRY_STEP, IF_SEARCH | IF_MOST, explained_by_missing_all_reduce,
	"as if each tensor-parallel rank %s")
CAUSE(TRY_STEP, IF_FUNCTION, explained_by_old_parameters, "as if %s: gathered too early")
CAUSE(TRY_STEP, IF_FUNCTION, explained_by_divided_logits,
	"as if logits were divided by %s")
CAUSE(TRY_STEP, IF_FUNCTION, explained_by_multiplied_logits,
	"as if logits were multiplied by %s")
CAUSE(TRY_STEP, IF_FUNCTION, explained_by_capped_scores,
	"as if scores of attention were softly capped: %s")
CAUSE(TRY_STEP, IF_FUNCTION, explained_by_capped_logits,
	"as if logits were softly capped: %s")
CAUSE(TRY_STEP, IF_FUNCTION, explained_by_no_window,
	"as if attention had no sliding window")
CAUSE(TRY_STEP, IF_FUNCTION, explained_by_window,
	"as if attention had a sliding window of %s tokens, including the query's own")
CAUSE(TRY_STEP, IF_FUNCTION, explained_by_stretch, "as if %s")
CAUSE(TRY_STEP, IF_FUNCTION, explained_by_window_of_layer, "as if %s")
CAUSE(TRY_STEP, IF_FUNCTION, explained_by_theta, "as if rope theta were %s")
CAUSE(TRY_STEP, IF_FUNCTION, explained_by_zero_logits,
	"as if the vocabulary had %s more tokens, whose logits are 0: is it padded?")
CAUSE(TRY_STEP, IF_FUNCTION, explained_by_layer, "as if %s")
CAUSE(TRY_STEP, IF_FUNCTION, explained_by_stretch_of_layer, "as if %s")
CAUSE(TRY_STEP, IF_FUNCTION, explained_by_swapped_layers,
	"as if layers %s were exchanged")
CAUSE(TRY_STEP, IF_SEARCH, explained_by_path, "as if %s")
CAUSE(TRY_STEP, IF_SEARCH, explained_by_sums, "")
CAUSE(TRY_STEP, IF_SEARCH | IF_FEW, explained_by_sequences, "sequences %s")
/* (bf16 may hide most tensors' other parts) */
CAUSE(TRY_STEP, IF_SEARCH | IF_FEW | IF_FORWARD, explained_by_smoothing,
	"as if labels were smoothed by %s")
CAUSE(TRY_STEP, IF_SEARCH | IF_FEW | IF_FORWARD, explained_by_z_loss,
	"as if the loss had a z-loss: %s times the square of log(sum of exp(logits))")

CAUSE(TRY_STEP, 0, explained_by_few, "")

CAUSE(TRY_STEP, 0, are_only_norms_rounded,
	"only norms are wrong, by up to %s: are their gradients computed or summed in "
	"bf16?")
CAUSE(TRY_STEP, 0, are_norms,
	"only norms are wrong: with sequence parallelism each tensor-parallel rank has a part "
	"of their gradients; are the parts not summed over the ranks?")
CAUSE(TRY_STEP, IF_REFERENCE | IF_FEW, are_rounded_sums,
	"off by up to %s, like rounding to bf16: are these gradients computed or summed in "
	"bf16?")
CAUSE(TRY_STEP, IF_NO_REFERENCE | IF_NO_CAUSE, is_always_true, "no known cause")
CAUSE(TRY_STEP, IF_NO_CAUSE, seems_partly_bf16,
	"beyond the bounds of fp32, but within the bounds of bf16: was a part of the run in bf16 "
	"(--precision)?")
CAUSE(TRY_STEP, IF_NO_CAUSE, seems_all_bf16,
	"beyond the bounds of fp32, but within the bounds of bf16: was the run in bf16 "
	"(--precision), or does the function differ slightly?")
CAUSE(TRY_STEP, IF_NO_SEARCH | IF_NO_CAUSE, is_always_true,
	"no cause was searched: the model is too large; check a step with fewer layers")
CAUSE(TRY_STEP, IF_NO_CAUSE, has_right_forward_pass, "no known cause: %s?")
CAUSE(TRY_STEP, IF_NO_CAUSE, has_some_right_tensors, "no known cause")
CAUSE(TRY_STEP, IF_MOST | IF_NO_CAUSE, has_similar_directions,
	"no known cause: all gradients have about the right direction (cosines of %s or "
	"more): is dropout on, or does the function differ slightly?")
CAUSE(TRY_STEP, IF_NO_CAUSE, has_only_batch_tokens,
	"no known cause: exactly the batch's tokens have gradients in the embedding, so the "
	"batch belongs to this step: is it another function, or other targets?")
CAUSE(TRY_STEP, IF_NO_CAUSE, describe_batch_mismatch,
	"no known cause: is it the batch of this step, of all ranks and micro-batches?%s")

CAUSE(TRY_UPDATES, IF_ALSO, explained_by_rule, "update: as if %s", FINDING_STEP)
CAUSE(TRY_UPDATES, IF_ALSO, explained_by_standstill,
	"no parameter changed, and the learning rate is %s", FINDING_STEP)
CAUSE(TRY_UPDATES, IF_ALSO, explained_by_no_rate,
	"no parameter changed: a learning rate of 0, as at the start of a warm-up, or no update",
	FINDING_NOTE)
CAUSE(TRY_UPDATES, IF_ALSO, explained_by_decay_alone,
	"update: missing: the parameters only shrank, %s, as by weight decay",
	FINDING_STEP)
CAUSE(TRY_UPDATES, 0, explained_by_no_update,
	"update: missing: no tensor moved along it, and the learning rate is %s",
	FINDING_STEP)
CAUSE(TRY_UPDATES, IF_ALSO, explained_by_ascent,
	"update: it has the wrong sign: the learning rate that explains it is %s",
	FINDING_STEP)
CAUSE(TRY_UPDATES, IF_ALSO, explained_by_other_rate, "learning rate %s", FINDING_STEP)

CAUSE(TRY_UPDATE, 0, is_not_finite, "not finite", FINDING_NOT_FINITE)
CAUSE(TRY_UPDATE, 0, has_frozen_gradient, "is frozen (--freeze), but has a gradient",
	FINDING_FROZEN)
CAUSE(TRY_UPDATE, IF_ALSO, has_frozen_decay,
	"is frozen (--freeze), but changed: weight decay alone makes it smaller",
	FINDING_FROZEN)
CAUSE(TRY_UPDATE, IF_ALSO, has_frozen_update, "is frozen (--freeze), but changed",
	FINDING_FROZEN)
CAUSE(TRY_UPDATE, IF_NO_REFERENCE, is_dead,
	"no gradient: it is not trained (--freeze), or the backward does not reach it",
	FINDING_NO_GRADIENT)
CAUSE(TRY_UPDATE, 0, is_unchanged, "has a gradient, but did not change", FINDING_UPDATE)
CAUSE(TRY_UPDATE, 0, has_stochastic_rounding,
	"update: its parameters are rounded to bf16 stochastically: each is one of the two "
	"bf16 values next to AdamW's result",
	FINDING_NOTE)
CAUSE(TRY_UPDATE, 0, explained_by_update_slices, "update: dim %s", FINDING_UPDATE)
CAUSE(TRY_UPDATE, 0, has_other_update,
	"the update differs from AdamW's update with these moments", FINDING_UPDATE)
CAUSE(TRY_UPDATE, 0, has_no_update,
	"has a gradient, but no update: at most weight decay changed it", FINDING_UPDATE)
CAUSE(TRY_UPDATE, 0, has_opposite_update,
	"update: it has the opposite sign: learning rate %s", FINDING_UPDATE)
CAUSE(TRY_UPDATE, 0, has_wrong_rate, "learning rate %s", FINDING_UPDATE)
CAUSE(TRY_UPDATE, 0, lacks_own_rate, "learning rate %s", FINDING_UPDATE)
CAUSE(TRY_UPDATE, 0, has_own_rate, "learning rate %s", FINDING_NOTE)
CAUSE(TRY_UPDATE, IF_ALSO, has_wrong_decay, "weight decay %s", FINDING_UPDATE)

CAUSE(TRY_REST, 0, explained_by_no_decay, "no tensor decays, and weight decay is %s",
	FINDING_STEP)
#undef CAUSE
#endif
