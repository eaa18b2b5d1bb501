#!/usr/bin/env bats
# pt-check: unmodified checkpoints of Hugging Face's Trainer and of accelerate (tests/golden/make_trainer.py).
load helpers

TORCH=$BATS_TEST_DIRNAME/../golden/torch

check_trainer() { # OPTION...
	pt-check "$TORCH/trainer/checkpoint-0" "${AFTER:-$TORCH/trainer/checkpoint-1}" "$@" \
		--batch "$TORCH"/trainer/batch-?.pt
}

@test "checkpoint-N of Trainer: the class's order of parameters, and no moments before the first step" {
	reports 0 'verdict: the step is right' check_trainer
	says 'grads   24 of 24 within bounds'
	says 'weight decay: 0.1 (15 tensors), none (9)'
}

@test "save_state of accelerate: safetensors and torch.save next to optimizer.bin" {
	reports 0 'verdict: the step is right' pt-check \
		"$TORCH/accelerate/step-1" "$TORCH/accelerate/step-2" --batch "$TORCH/accelerate/batch.pt"
	says '/step-1: torch, 20 tensors'
	says 'moments 20 of 20 within bounds'
}

@test "an optimizer file that is damaged, or has another model's number of parameters" {
	cp -r "$TORCH/trainer" .
	for byte in 100 30000 50000; do
		cp "$TORCH/trainer/checkpoint-1/optimizer.pt" trainer/checkpoint-1/optimizer.pt
		printf '\xff' | dd of=trainer/checkpoint-1/optimizer.pt bs=1 seek=$byte conv=notrunc status=none
		reports 65 'optimizer.pt: ' pt-check trainer/checkpoint-? --batch trainer/batch-?.pt
	done
	cp "$TORCH/accelerate/step-2/optimizer.bin" trainer/checkpoint-1/optimizer.pt
	reports 69 'the optimizer numbers its parameters (16) and does not name them, and the model has 24 tensors' pt-check trainer/checkpoint-?
}

# Writes the run's trainer_state.json, changed by a filter.
state() { # JQ-FILTER
	jq "$1" "$TORCH/trainer/checkpoint-1/trainer_state.json" >after/trainer_state.json
}

@test "loss, norm, rate and clipping come from Trainer's files, unless options override them" {
	cp -r "$TORCH/trainer/checkpoint-1" after
	AFTER=after
	code_of 0 check_trainer
	says 'run     loss 3.4738428592681885, grad_norm 0.947139322757721, learning rate 0.001, clipping to 0.5, 2 micro-batches, from'
	says 'loss 3.473843, logged 3.47384 (float64)'
	says 'clipping to 0.5 gives 0.527905'
	code_of 1 check_trainer --clip 0.4 --grad-norm 0.947 --loss 3.474 --lr 0.001 --accumulation 1
	not grep -q '^run ' <<<"$output"
	says 'clipping to 0.4 gives 0.42232'
	code_of 0 check_trainer --json
	says '"from_files": "loss 3.4738428592681885, '

	state '.log_history[0].grad_norm *= 2'
	reports 1 'finding scale: ' check_trainer
	state '.log_history[0].loss *= 2'
	code_of 0 check_trainer # (the gradients are right: a note)
	says 'note    loss: 6.94769 was logged'
}

@test "ambiguous values in Trainer's files are ignored" {
	cp -r "$TORCH/trainer/checkpoint-1" after
	AFTER=after
	state '.log_history[0].learning_rate = 0' # the next step's rate, as in optimizer.pt
	code_of 0 check_trainer
	says 'grad_norm 0.947139322757721, clipping to 0.5,'
	state '.global_step = 3' # not the step after checkpoint-0
	code_of 0 check_trainer
	says 'run     clipping to 0.5, 2 micro-batches, from'
	state '.log_history[0].step = 2 | .global_step = 2' # the mean of two steps
	cp -r "$TORCH/trainer/checkpoint-0" before
	echo '{"global_step": 1}' >before/trainer_state.json
	code_of 0 pt-check before after --batch "$TORCH"/trainer/batch-?.pt
	says 'run     grad_norm 0.947139322757721, learning rate'

	for bad in '[]' '{"log_history": NaN}' '{'; do
		echo "$bad" >after/trainer_state.json
		code_of 0 check_trainer
		says 'after/trainer_state.json: '
		says '; the file is ignored'
	done
	head -c 3000 "$TORCH/trainer/checkpoint-1/training_args.bin" >after/training_args.bin
	code_of 0 check_trainer
	says 'after/training_args.bin: '
	rm after/training_args.bin
	mkfifo after/training_args.bin
	code_of 0 timeout 20 pt-check "$TORCH/trainer/checkpoint-0" after --batch "$TORCH"/trainer/batch-?.pt
	says 'as if clipped to 0.5 (--clip 0.5?)'
}

@test "the precision comes from Trainer's files" {
	cp -r "$TORCH/trainer/checkpoint-1" after
	jq '.dtype = "bfloat16"' "$TORCH/trainer/checkpoint-1/config.json" >after/config.json
	AFTER=after
	code_of 0 check_trainer
	says 'clipping to 0.5, precision bf16, 2 micro-batches'
	code_of 0 check_trainer -p fp32
	says 'clipping to 0.5, 2 micro-batches'
}

@test "checkpoint-N of Trainer, of mixtures of experts: safetensors per matrix, numbered stacks in the optimizer" {
	local of
	for of in mixtral:21 qwen2_moe:35 qwen3_moe:25 olmoe:25 dots1:28 qwen3_moe-4:25; do
		set -- "$TORCH/trainer-moe/${of%:*}"
		reports 0 'verdict: the step is right' pt-check "$1"/checkpoint-[01] --batch "$1"/batch-?.pt \
			-p fp32 --clip 0.5 --balance none
		says "grads   ${of#*:} of ${of#*:} within bounds"
		says "moments ${of#*:} of ${of#*:} within bounds"
	done
	# the router may be before or after the experts, and the shapes do not show which
	reports 69 'the shapes of the experts allow several orders' pt-check "$TORCH"/trainer-moe/square-4/checkpoint-[01]
}

@test "an optimizer skips an expert without tokens only if the expert is a tensor of its own there" {
	printf '\1\0\1\0\1\0\1\0' >few.u16
	reports 2 'no token of the batch chose expert ' pt-check "$TORCH"/trainer-moe/qwen3_moe-4/checkpoint-[01] --batch few.u16 --shape 1,4 -p fp32
	reports 1 'verdict: wrong' pt-check "$TORCH"/trainer-moe/qwen3_moe/checkpoint-[01] --batch few.u16 --shape 1,4 -p fp32 --balance none
}
