#!/usr/bin/env bats
# pt-check --grads, weights of targets, and adapters of PEFT (LoRA): steps of PyTorch in tests/golden/torch/steps.
load helpers

setup() {
	cd "$BATS_TEST_TMPDIR" || return
	cp -r "$BATS_TEST_DIRNAME/../golden/torch/steps/." .
}

@test "right gradients of PyTorch, in one file, with weights of targets" {
	reports 0 'verdict: the gradients are right, but the update was not checked' \
		pt-check base --grads grads.pt --batch batch.pt
	says 'given   grads.pt: gradients of 21 of 21 tensors'
	reports 0 'targets with weights; loss ' pt-check base --grads weighted.safetensors --batch weighted.pt --divide-by 50
	says 'verdict: the gradients are right'
	reports 1 'scale: all gradients are 0.64 times' pt-check --clip 0 base --grads weighted.safetensors --batch weighted.pt
	reports 1 'verdict: wrong' pt-check base --grads weighted.safetensors --batch batch.pt
	code_of 0 pt-check --json base --grads grads.pt --batch batch.pt
	jq -e '.after == null and .verdict == "right" and .gradients_given' <<<"$output"
}

@test "gradients that cannot be read, and options that do not belong together" {
	reports 69 'the gradient of lm_head.weight is a call of torch' pt-check base --grads sharded.pt --batch batch.pt
	reports 69 'full_tensor()' pt-check base --grads sharded.pt --batch batch.pt
	reports 69 'unknown model: no tensor is named' pt-check base --grads batch.pt --batch batch.pt
	reports 74 'none.pt: No such file' pt-check base --grads none.pt --batch batch.pt
	reports 64 'needs the tokens of the step' pt-check base --grads grads.pt
	reports 64 'give only one of these options' pt-check --two-runs base base --grads grads.pt
	reports 64 'give two checkpoints' pt-check base --batch batch.pt
	head -c 9000 grads.pt >short.pt
	code_of 65 pt-check base --grads short.pt --batch batch.pt
	reports 64 "not 'counted', 'weights' or a number" pt-check base --grads grads.pt --batch batch.pt --divide-by 0
}

@test "right steps of adapters: the first, the next, with gradients, in one file" {
	for step in 0 1; do
		reports 0 'verdict: the step is right' \
			pt-check lora/step-$step lora/step-$((step + 1)) --batch batch.pt
		says "learning rate 0.01 at the optimizer's step $((step + 1))"
	done
	says 'grads   12 of 12 within bounds'
	says 'weight decay: 0.1 (12 tensors)'
	reports 0 'verdict: nothing is wrong that shows without a batch' pt-check lora/step-0 lora/step-1
	reports 0 'verdict: the step is right' pt-check lora/step-1 lora/step-2 --batch batch.pt --grads lora/grads-1.pt
	reports 0 'verdict: the step is right' pt-check --base base lora/step-1/full.pt lora/step-2 --batch batch.pt
	reports 0 'verdict: the gradients are right' pt-check lora/step-1 --batch batch.pt --grads lora/grads-1.pt
	reports 0 'the gradients of both runs are the same' pt-check --two-runs lora/step-1 lora/step-1/full.pt --base base
}

@test "wrong steps of adapters" {
	reports 1 'scale: all gradients are 2 times: is the scale of the adapters alpha?' \
		pt-check lora/step-0 lora/alpha-1 --batch batch.pt --clip 0
	# the scale in the file differs from the run's
	for n in 0 1 2; do
		sed -i 's/"lora_alpha": 6/"lora_alpha": 12/' lora/step-$n/adapter_config.json
	done
	reports 1 'as if the scale of the adapters were divided by r once more' \
		pt-check lora/step-1 lora/step-2 --batch batch.pt
	# the adapters were not updated
	for n in 1 2; do
		sed -i 's/"lora_alpha": 12/"lora_alpha": 6/' lora/step-$n/adapter_config.json
	done
	cp lora/step-1/adapter_model.safetensors lora/step-2
	reports 1 'no parameter changed, and the learning rate is 0.01' \
		pt-check --lr 0.01 lora/step-1 lora/step-2 --batch batch.pt
	# A and B are exchanged
	sed -i 's/lora_A/lora_X/g; s/lora_B/lora_A/g; s/lora_X/lora_B/g' lora/step-2/adapter_model.safetensors
	reports 65 'are A and B exchanged?' pt-check lora/step-1 lora/step-2 --batch batch.pt
}

@test "adapters that are not supported are rejected by name" {
	try() { # CODE TEXT KEY VALUE
		sed "s|\"$3\": [^,]*|\"$3\": $4|" adapter_config.json >lora/step-0/adapter_config.json
		reports "$1" "$2" pt-check lora/step-0 lora/step-1 --batch batch.pt --base base
	}
	cp lora/step-0/adapter_config.json .
	try 69 'adapters with use_dora are not supported' use_dora true
	try 69 'adapters with modules_to_save are not supported' modules_to_save '["lm_head"]'
	try 69 'bias "all" is not supported' bias '"all"'
	try 69 'lora_dropout is 0.1' lora_dropout 0.1
	try 69 'peft_type "IA3" is not supported' peft_type '"IA3"'
	try 69 'init_lora_weights "pissa" is not supported' init_lora_weights '"pissa"'
	try 69 'is a regular expression' alpha_pattern '{"q_.*": 3}'
	try 65 'r is 4, but the adapter of model.layers.0' r 4
	try 65 'must be numbers' lora_alpha '"x"'
	try 65 'not a JSON object' base_model_name_or_path '"base"}'
	cp adapter_config.json lora/step-0
	cd lora || return
	reports 64 'the base model "base" is not a directory here; give --base DIR' \
		pt-check step-0 step-1 --batch ../batch.pt
	reports 64 '--freeze is not supported for adapters' pt-check --freeze norm step-0 step-1 --batch ../batch.pt --base ../base
	reports 65 'the file adapter_config.json with lora_alpha and r is missing' pt-check grads-1.pt step-1 --batch ../batch.pt --base ../base
}
