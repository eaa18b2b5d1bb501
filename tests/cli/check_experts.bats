#!/usr/bin/env bats
# pt-check: steps of mixtures of experts by transformers (tests/golden/make_moe_steps.py makes them).
load helpers

STEPS=$BATS_TEST_DIRNAME/../golden/moe-steps

check() { # CLASS AFTER OPTION...
	pt-check "$STEPS/$1/${BEFORE:-0}.pt" "$STEPS/$1/$2.pt" --batch "$STEPS/batch.pt" --clip 0 -p fp32 "${@:3}"
}

@test "right steps of Mixtral, Qwen2-MoE, Qwen3-MoE and dots1: stacks of experts, as in memory" {
	local class
	for class in mixtral:21 qwen2:35 qwen3:25 dots1:28; do
		reports 0 'verdict: the step is right' check "${class%:*}" 1
		[[ $output == *"grads   ${class#*:} of ${class#*:} within bounds"* ]]
		says "update  ${class#*:} of ${class#*:} within bounds"
	done
	says 'experts 64 choices of a token; 0 may turn by rounding'
	reports 0 'verdict: the step is right' env BEFORE=bf16-0 "$BASH" -c "$(declare -f check); STEPS='$STEPS' check qwen3 bf16 -p bf16"
}

@test "a tensor per matrix of an expert, as in saved files, has the same numbers" {
	local class
	for class in mixtral qwen3; do
		BEFORE=split-0 reports 0 'verdict: the step is right' check $class split-1
		for step in 0 1; do
			pt-ckpt diff --optimizer "$STEPS/$class/$step.pt" "$STEPS/$class/split-$step.pt"
		done
	done
}

@test "torchtitan: names and stacks of its experts, and the bias of the choice" {
	local titan=$BATS_TEST_DIRNAME/../golden/titan-steps score
	for score in softmax sigmoid; do
		reports 0 'verdict: the step is right' pt-check -c "$titan/$score.json" "$titan/$score"-[01].pt \
			--batch "$titan/batch.pt" --clip 0 -p fp32
		says 'grads   25 of 25 within bounds'
	done
	# a bias of a softmax router counts in the choice, not in the gates
	reports 0 'verdict: the step is right' pt-check -c "$titan/softmax.json" "$titan"/softmax-bias-[01].pt \
		--batch "$titan/batch.pt" --clip 0 -p fp32 --balance none
	says 'grads   25 of 25 within bounds'
	# no other program has such a model
	reports 69 'layers.0.moe.expert_bias_E is not zero: a bias of experts is supported only with sigmoid scores' \
		pt-ckpt verify --model-config "$titan/softmax.json" "$titan/softmax-1.pt"
}

@test "scores that are all equal: a right step is neither right nor wrong" {
	BEFORE=ties-0 reports 2 'verdict: not decided: rounding may turn so many choices of experts' check mixtral ties
	says 'experts 128 choices of a token; 128 may turn by rounding'
}

@test "an expert that is a separate tensor and has no tokens may have been skipped" {
	reports 2 'give the batch (--batch)' pt-check "$STEPS"/qwen3/split-[01].pt
	reports 0 'verdict: nothing is wrong that shows without a batch' pt-check "$STEPS"/qwen3/[01].pt
	printf '\1\0\1\0\1\0\1\0' >few.u16
	reports 2 'no token of the batch chose expert ' pt-check "$STEPS"/qwen3/split-[01].pt --batch few.u16 --shape 1,4 -p fp32
}

@test "each bug is wrong, and named" {
	while IFS='|' read -r class name text; do
		reports 1 "$text" check "$class" "$name" --balance none
	done <<'END'
mixtral|experts-4-times|(4): the gradients of experts are 4 times as large: not divided by the ranks of expert parallelism?
mixtral|experts-half|(4): the gradients of experts are 2 times too small: divided once more by the ranks of expert parallelism?
mixtral|three-experts|(21): as if a token had one expert more
qwen3|no-router|layers.1.router.weight (model.model.layers.1.mlp.gate.weight) (1): no gradient
qwen3|detached-gates|as if the gates were detached: no gradient reached the router
qwen3|detached-input|(20): as if the router's input were detached
qwen3|no-norm|(25): as if the gates of a token were not divided by their sum
qwen2|norm|(35): as if the gates of a token were divided by their sum
qwen2|no-shared|as if the shared expert were not added
dots1|no-scale|(28): as if the gates were not multiplied by routed_scaling_factor
dots1|no-groups|(28): as if experts were chosen without groups
END
}

# Gradients of p.grad, saved before the step, of the models above.
check_grads() { # CLASS NAME OPTION...
	pt-check "${BEFORE:-$STEPS/$1/0.pt}" ${AFTER:-} --grads "$STEPS/$1/$2.pt" --batch "$STEPS/batch.pt" \
		-c "${CONFIG:-$STEPS/$1/config.json}" -p fp32 "${@:3}"
}

@test "gradients of experts: which bug explains them" {
	while IFS='|' read -r class name balance text; do
		reports 1 "$text" check_grads "$class" "grads-$name" --balance "$balance"
		says 'verdict: wrong: '
		[ "$(grep -c ': as if ' <<<"$output")" -le 1 ]
	done <<'END'
mixtral|swapped|none|layers.0.experts.w2.weight, layers.0.experts.w13.weight (2): expert 1: the gradient of expert 2; expert 2: the gradient of expert 1
mixtral|idle|none|layers.1.experts.w2.weight, layers.1.experts.w13.weight (2): expert 3: no gradient
mixtral|halves|none|layers.*.experts.w13.weight (2): W1 and W3 of all experts have each other's gradients
mixtral|summed|none|(4): each expert has the sum of the gradients of 2 experts, one of each rank: summed over ranks that have other experts?
mixtral|first-gates|none|(17): as if the gates had a gradient only from the experts of the first of 2 ranks of expert parallelism
mixtral|own-gates|none|(17): as if the gates had a gradient only from the experts of the sequence's own of 2 ranks of expert parallelism
mixtral|own-inputs|none|(16): as if the input of the experts had a gradient only from the experts of the sequence's own of 2 ranks
mixtral|input-slice|none|(16): as if the input of the experts had the gradient of slice 0 of 2 of their hidden layers: not summed over the tensor
mixtral|softmax-twice|hf=0.05|(17): as if the balance loss took the softmax of scores that are a softmax already
mixtral|chosen-only|hf=0.05|(17): as if only the tokens that chose an expert counted in its mean score in the balance loss
mixtral|first-choice|hf=0.05|(17): as if only the first choice of a token counted in the fractions of the balance loss
mixtral|last-layer|megatron=0.05|(8): as if only layer 1 had a balance loss
qwen2|no-shared-gate|none|(33): as if the shared expert were not multiplied by its gate
dots1|scaled-twice|none|(28): as if the gates were multiplied by routed_scaling_factor twice
dots1|by-best|none|(28): as if a group of experts counted by its best score, not by its two best
dots1|biased|none|(28): as if the gates were scores with the bias of the choice
dots1|shared-divided|none|(28): as if the shared expert were divided by routed_scaling_factor
dots1|shared-scaled|none|(28): as if the shared expert were multiplied by routed_scaling_factor, too
END
	jq '.topk_group = 3' "$STEPS/dots1/config.json" >config.json
	CONFIG=config.json BEFORE=$STEPS/dots1/grads-masked-zero-0.pt reports 1 '(28): as if the experts of other groups had the score 0, not minus infinity' \
		check_grads dots1 grads-masked-zero --balance none
	jq '.moe_intermediate_size = 8' "$STEPS/qwen2/config.json" >config.json
	CONFIG=config.json BEFORE=$STEPS/qwen2/grads-transposed-0.pt reports 1 '(4): the gradients of all experts are transposed' \
		check_grads qwen2 grads-transposed --balance none
}

@test "a wrong coefficient of the balance loss: which number it may be" {
	reports 0 'verdict: the gradients are right' check_grads mixtral grads-right-balance --balance hf=0.05
	while IFS='|' read -r given text; do
		reports 1 "$text" check_grads mixtral grads-right-balance --balance "hf=$given"
	done <<'END'
0.025|hf=0.05, 2 times --balance: multiplied by the experts of a token or the layers with experts, or added twice?
0.2|hf=0.05, 0.25 times --balance: divided by the experts?
0.00078125|hf=0.05, 64 times --balance: multiplied by the tokens or the targets?
0.03|hf=0.05, 1.667 times --balance
END
}

@test "the update of a bias that balances the experts" {
	while IFS='|' read -r code name text; do
		AFTER=$STEPS/dots1/bias-$name.pt reports "$code" "$text" check_grads dots1 grads-right --balance none
	done <<'END'
0|right|bias    1 router: changed by 0.01 times the signs of mean count - count
0|centered|bias    1 router: changed by 0.01 times the signs of mean count - count, minus the mean change
1|reversed|update of the bias: it changed in the opposite direction
1|half|update of the bias: as if only part 1 of 2 of the sequences counted
1|doubled|update of the bias: as if choices counted twice, but only once in the mean
1|each-micro|update of the bias: as if it were updated after each of 4 micro-batches
1|first-choice|update of the bias: as if only the first choice of a token counted
1|rounded|update of the bias: as if it were rounded to bf16
0|unknown|note    layers.1.router.bias (model.model.layers.1.mlp.gate.e_score_correction_bias): update of the bias: not a rate times
END
	# a bias that does not change
	AFTER=$STEPS/dots1/0.pt reports 64 'the same file' check_grads dots1 grads-right --balance none
	reports 0 'verdict: the step is right' check dots1 1
	not grep -q '^bias' <<<"$output"
}

# Runs two steps with a bias and eight sequences of a token each time, and checks the second one.
@test "steps of pt-train: the bias follows --router-bias and --router-bias-center" {
	make_text >text.txt
	head -c 17 text.txt >window
	export PT_DATA=window.h5
	pt-prepare -q -t byte -f 0 window -o window.h5
	od -An -v -w1 -tx1 window | while read -r x; do printf '%b\0' "\\x$x"; done >batch.u16
	for options in '' --router-bias-center; do
		rm -rf run other
		# shellcheck disable=SC2086
		set -- -b 1 -m 1 --eval-every 0 --warmup 1 --ckpt-every 1 --keep 0 --arch llama --experts 4 --experts-per-token 2 \
			--expert-dim 12 --router sigmoid --balance-loss 0
		tiny "$@" -o run --steps 1 --router-bias 0.01 $options >log
		tiny "$@" -o run/next --steps 2 --router-bias 0.01 $options --resume run/checkpoints/step-00000001.h5 >log
		reports 0 'bias    ' pt-check run/checkpoints/step-00000001.h5 run/next/checkpoints/step-00000002.h5 --batch batch.u16 --shape 1,17 -p fp32
		says 'verdict: the step is right'
	done
}

@test "without --balance, a wrong gradient may come from a balance loss that is not known" {
	reports 2 'verdict: not decided: the gradients differ, but may have a loss that balances the experts' check qwen2 no-shared
	reports 1 'verdict: wrong' check qwen2 no-shared --balance none
}

@test "the loss that balances the experts: which form the gradients have, and a wrong coefficient" {
	reports 0 'note    the gradients have a loss that balances the experts: --balance hf=0.01' check qwen2 balance
	says 'balance loss 0.0'
	reports 0 'grads   35 of 35 within bounds' check qwen2 balance --balance hf=0.01
	not grep -q '^note' <<<"$output"
	reports 1 '(27): as if the balance loss were hf=0.01' check qwen2 balance --balance none
	reports 1 '(27): as if the balance loss were hf=0.01, 0.5 times --balance' check qwen2 balance --balance hf=0.02
	reports 1 '(27): as if the balance loss were hf=0.01' check qwen2 balance --balance deepseek=0.01
	reports 1 '(27): as if there were no balance loss, not megatron=0.01' check qwen2 1 --balance megatron=0.01
	for text in hf none=1 hf= switch=1 hf=-1; do
		reports 64 "--balance '$text': not auto, none, hf=X, megatron=X, deepseek=X or megatron-seq=X" check qwen2 1 --balance "$text"
	done
}

@test "Megatron-LM's balance losses count the highest scores, without the bias and groups of the choice" {
	local form other
	for form in megatron megatron-seq; do
		reports 0 'verdict: the gradients are right' check_grads dots1 grads-$form --balance $form=0.05
		not grep -q '^note' <<<"$output"
		reports 0 "loss that balances the experts: --balance $form=0.05" check_grads dots1 grads-$form
		reports 1 "as if the balance loss were $form=0.05" check_grads dots1 grads-$form --balance deepseek=0.05
		reports 1 "$form=0.05, 0.5 times --balance" check_grads dots1 grads-$form --balance $form=0.1
	done
	reports 1 'as if the balance loss were megatron=0.05' check_grads dots1 grads-megatron --balance megatron-seq=0.05
}

@test "steps with the names of Megatron-LM and torchtitan: which definition of the balance loss fits" {
	local names=$BATS_TEST_DIRNAME/../golden/moe-names
	set -- -c "$STEPS/dots1/config.json" --batch "$STEPS/batch.pt" -p fp32
	# the common state of Megatron-core 0.16 is in a file of its own
	reports 0 '--balance megatron=0.05' pt-check "$names"/megatron-step-[01] "$@"
	says 'verdict: the step is right'
	says "at the optimizer's step 1"
	reports 1 'as if the balance loss were megatron=0.05' pt-check "$names"/megatron-step-[01] "$@" --balance none
	reports 0 '--balance megatron=0.05' pt-check "$names/titan-dots1.pt" --grads "$names/grads-titan.pt" "$@"
	cp -r "$names/megatron-step-1" after
	rm after/common.pt
	reports 65 'after: common_state has no valid optimizer step' pt-check "$names/megatron-step-0" after "$@"
	head -c 500 "$names/megatron-step-1/common.pt" >after/common.pt
	reports 65 'after/common.pt: ' pt-check "$names/megatron-step-0" after "$@"
	rm after/common.pt
	mkfifo after/common.pt
	reports 65 'common_state has no valid optimizer step' timeout 20 pt-check "$names/megatron-step-0" after "$@"
}

@test "steps of pt-train: each form of the balance loss, from the checkpoint" {
	make_text >text.txt
	head -c 17 text.txt >window
	export PT_DATA=window.h5
	pt-prepare -q -t byte -f 0 window -o window.h5
	od -An -v -w1 -tx1 window | while read -r x; do printf '%b\0' "\\x$x"; done >batch.u16
	tail -c 17 text.txt | od -An -v -w1 -tx1 | while read -r x; do printf '%b\0' "\\x$x"; done >other.u16
	for options in '' '--balance-over sequence --router-z-loss 0.01' '--balance-over model --router sigmoid --router-bias 0.01' \
		'--balance-loss 0 --shared-expert-dim 8 --shared-expert-gate'; do
		rm -rf run
		# shellcheck disable=SC2086
		tiny -b 1 -m 1 --eval-every 0 --warmup 1 --ckpt-every 1 --keep 0 --arch llama -o run --steps 3 \
			--experts 4 --experts-per-token 2 --expert-dim 12 $options >log
		for step in 2 3; do
			reports 0 'verdict: the step is right' pt-check run/checkpoints/step-0000000{$((step - 1)),$step}.h5 \
				--batch batch.u16 --shape 1,17 -p fp32
		done
		# of other tokens: all causes are tried, also those with another number of choices
		reports 1 'no known cause' pt-check run/checkpoints/step-0000000{2,3}.h5 --batch other.u16 --shape 1,17 -p fp32
	done
}

@test "what a mixture of experts does not allow" {
	reports 64 '--reference fp32 does not show how near the choices of experts are' check qwen3 1 --reference fp32
	reports 69 'two runs of a mixture of experts cannot be compared' pt-check --two-runs "$STEPS"/qwen3/1.pt "$STEPS"/qwen3/no-norm.pt
	jq '.num_experts = 6 | .num_local_experts = 6' "$STEPS/qwen3/config.json" >config.json
	reports 65 'the number of experts is 6, but the shapes of the tensors give 5' check qwen3 1 -c config.json
}
