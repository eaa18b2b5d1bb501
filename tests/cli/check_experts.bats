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
	# a bias of a softmax router counts in the next step's choice, so not in this step's
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
		reports 64 "--balance '$text': not auto, none, hf=X, megatron=X or deepseek=X" check qwen2 1 --balance "$text"
	done
}

@test "steps of pt-train: each form of the balance loss, from the checkpoint" {
	make_text >text.txt
	head -c 17 text.txt >window
	export PT_DATA=window.h5
	pt-prepare -q -t byte -f 0 window -o window.h5
	od -An -v -w1 -tx1 window | while read -r x; do printf '%b\0' "\\x$x"; done >batch.u16
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
	done
}

@test "what a mixture of experts does not allow" {
	reports 64 '--reference fp32 does not show how near the choices of experts are' check qwen3 1 --reference fp32
	reports 69 'two runs of a mixture of experts cannot be compared' pt-check --two-runs "$STEPS"/qwen3/1.pt "$STEPS"/qwen3/no-norm.pt
	jq '.num_experts = 6 | .num_local_experts = 6' "$STEPS/qwen3/config.json" >config.json
	reports 65 'the number of experts is 6, but the shapes of the tensors give 5' check qwen3 1 -c config.json
}
