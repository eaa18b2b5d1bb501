#!/usr/bin/env bats
# pt-check: checkpoints of Hugging Face's Trainer and of accelerate, as they are (tests/golden/make_trainer.py).
load helpers

TORCH=$BATS_TEST_DIRNAME/../golden/torch

@test "checkpoint-N of Trainer: the class's order of parameters, and no moments before the first step" {
	reports 0 'verdict: the step is right' pt-check --clip 0.5 --grad-norm 0.917222 --lr 1e-3 \
		"$TORCH/trainer/checkpoint-0" "$TORCH/trainer/checkpoint-1" --batch "$TORCH"/trainer/batch-?.pt
	says 'grads   24 of 24 within bounds'
	says 'weight decay 0.1 of 15 tensors, none of 9'
}

@test "save_state of accelerate: safetensors and torch.save beside optimizer.bin" {
	reports 0 'verdict: the step is right' pt-check \
		"$TORCH/accelerate/step-1" "$TORCH/accelerate/step-2" --batch "$TORCH/accelerate/batch.pt"
	says '/step-1: torch, 20 tensors'
	says 'moments 20 of 20 within bounds'
}

@test "an optimizer beside the model that is damaged, or numbers another model's parameters" {
	cp -r "$TORCH/trainer" .
	for byte in 100 30000 59000; do
		cp "$TORCH/trainer/checkpoint-1/optimizer.pt" trainer/checkpoint-1/optimizer.pt
		printf '\xff' | dd of=trainer/checkpoint-1/optimizer.pt bs=1 seek=$byte conv=notrunc status=none
		reports 65 'optimizer.pt: ' pt-check trainer/checkpoint-? --batch trainer/batch-?.pt
	done
	cp "$TORCH/accelerate/step-2/optimizer.bin" trainer/checkpoint-1/optimizer.pt
	reports 69 'the optimizer has 16 parameters by number, the model 24' pt-check trainer/checkpoint-?
}
