#!/usr/bin/env bats
# pt-check: files of PyTorch's optimizers: rates per group, other optimizers, other betas, rounding.
# (tests/golden/make_check_steps.py makes the steps.)
load helpers

STEPS=$BATS_TEST_DIRNAME/../golden/check-steps

check() { # BEFORE AFTER OPTION...
	pt-check -c "$STEPS/config.json" "$STEPS/$1.pt" "$STEPS/$2.pt" --batch "$STEPS/batch.pt" --clip 0 "${@:3}"
}

@test "rates per group: the file decides, not --lr" {
	for lr in -1 1e-3; do
		reports 0 'verdict: the step is right' check step-1 step-2 --lr=$lr
		says 'note    layers.0.attention_norm.weight (model.model.layers.0.input_layernorm.weight) and 2 more: learning rate 0.002, but most have 0.001'
		reports 1 'finding layers.0.attention.wo.weight (model.model.layers.0.self_attn.o_proj.weight): learning rate 0.002 instead of 0.001' \
			check step-1 rate-of-one-2 --lr=$lr
		reports 1 'and 2 more: learning rate 0.001, but its group in the file has 0.002' \
			check step-1 rate-of-norms-2 --lr=$lr
	done
	reports 0 'verdict: the step is right' check step-0 step-1
	# at the end of a schedule, the next rate in the file is 0 for all groups
	reports 1 'self_attn.o_proj.weight): has a gradient, but no update' check step-0 ended-1
	says 'verdict: wrong: 1 finding'
}

@test "gradient ascent is reported with the option that causes it" {
	reports 1 'gradients are negated: the loss is negated, or maximized (maximize=True in the file)' check step-0 maximize-1
	reports 0 'note    the optimizer has maximize=True' pt-check -c "$STEPS/config.json" "$STEPS"/{step-0,maximize-1}.pt
}

@test "the update of another optimizer is not checked, and the verdict names it" {
	reports 0 'update  NOT checked: the optimizer is AMSGrad' check step-1 amsgrad-2
	says 'verdict: the step is right, but its update was not checked'
	reports 0 'update  NOT checked: the optimizer is NAdam' check step-0 nadam-1
	code_of 0 check step-1 amsgrad-2 --json
	jq -e '.verdict == "right" and .update.checked == false and (.update.reason | contains("AMSGrad")) and
		.gradients.checked and .moments.checked and .scale.checked and .scale.reason == null' <<<"$output"
}

@test "missing moments exit with 2, and the message lists what the file has" {
	reports 2 'moments not found: ' check step-0 muon-1
	says 'the file has exp_avg (optimizer.adamw), exp_avg_sq (optimizer.adamw), momentum_buffer (optimizer.muon)'
	[ "$(messages)" -eq 1 ]
	reports 2 'momentum_buffer (optimizer.muon)' pt-check -c "$STEPS/config.json" "$STEPS"/{step-0,muon-1}.pt
	reports 2 'exp_avg_sq (optimizer), momentum_buffer (optimizer)' check step-0 mixed-1
}

@test "a wrong beta1, exchanged betas, gradients that were not zeroed" {
	reports 1 'finding exp_avg: as if beta1 were 0.95 instead of 0.9' check step-0 beta1-1
	says 'verdict: wrong: 1 finding'
	reports 1 'finding exp_avg: as if beta1 were 0.95 instead of 0.9' check step-1 exchanged-2
	says 'finding exp_avg_sq: as if beta2 were 0.9 instead of 0.95: are the betas exchanged?'
	says 'update  12 of 12 within bounds'
	reports 1 '(12): the gradients of the step before were not set to zero (zero_grad)' check step-1 kept-2
	says 'verdict: wrong: 1 finding'
}

@test "values in bf16, stochastic rounding and a reset step count are notes" {
	reports 0 'note    parameters: all values are bf16 numbers' check step-0 bf16-1
	says 'note    exp_avg_sq: all values are bf16 numbers (12 of 12 tensors)'
	says 'its parameters are rounded to bf16 stochastically'
	not grep -q 'exp_avg: all' <<<"$output"
	reports 0 "note    the optimizer's step count before the step is 0, but its moments are not zero" check reset-1 reset-2
	code_of 0 check step-1 step-2
	not grep -qE 'bf16|step before' <<<"$output"
}

@test "the embedding of pad_token_id has no gradient as an input" {
	local name
	for name in padding padding-tied; do
		reports 0 'note    the embedding of token 5 (pad_token_id) has no gradient as an input' \
			check "$name-0" "$name-1" -c "$STEPS/$name.json"
		says 'verdict: the step is right'
		code_of 0 check "$name-0" "$name-1" -c "$STEPS/$name.json" --reference fp32
		jq 'del(.pad_token_id)' "$STEPS/$name.json" >none.json
		code_of 1 check "$name-0" "$name-1" -c none.json
		# a gradient that the class would leave out is right, too
		jq '.pad_token_id = 5' "$STEPS/config.json" >with.json
		code_of 0 check step-0 step-1 -c with.json
		not grep -q pad_token_id <<<"$output"
	done
}
