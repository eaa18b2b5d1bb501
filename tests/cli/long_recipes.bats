#!/usr/bin/env bats
# Rows of the recipes that start many ranks.
load helpers

recipes=$BATS_TEST_DIRNAME/../../share/recipes

@test "convergence: the test sets on 32 and 64 ranks, with two seeds" {
	for tool in bible gnuplot; do
		command -v $tool >/dev/null || skip "no $tool"
	done
	cd "$BATS_TEST_TMPDIR"
	unset PT_DATA
	STEPS=2 SEEDS='1 2' ROWS='^(3d|4d|cp)$' "$recipes/convergence" whole >out 2>err || {
		cat out err
		return 1
	}
	grep -q '^| FSDP 8, CP 8 .* identical to fsdp  *| 0 |' whole/table.md
	[ "$(grep -c '^| FSDP 8, TP 2, .* within 0.05, identical to float8 ' whole/table.md)" -eq 2 ]
	[ -s whole/loss-1.svg ]
	[ -s whole/loss-2.svg ]
	tail -n 1 out | grep -q '^10 runs, 0 failed'
}

@test "local-sgd: less is sent, and the loss is near" {
	STEPS=16 SEEDS=1 WINDOWS=8 TOLERANCE=5 "$recipes/local-sgd" whole >out 2>err || {
		cat out err
		return 1
	}
	[ "$(grep -cE '^(data-parallel|post-local-sgd|diloco|edit|a-edit) .*%' out)" -eq 5 ]
	# in 16 steps there is one synchronization
	awk -F'\t' '$1 == "data-parallel" { all = $4 }
		$1 == "edit" && !($4 > 0.05 * all && $4 < 0.08 * all) { exit 1 }' whole/table.tsv
}

@test "check-fsdp: a later step in bf16, four ranks, two more bugs" {
	cd "$BATS_TEST_TMPDIR"
	export PYTHON=${PT_PYTHON:-python3}
	"$PYTHON" -c 'import torch.distributed.fsdp' 2>/dev/null || skip 'no PyTorch (PT_PYTHON=PYTHON)'
	STEP=3 PRECISION=bf16 code_of 0 "$recipes/check-fsdp" whole
	says 'grads   21 of 21 within bounds'
	says "at the optimizer's step 3"
	BUG=shard RANKS=2 code_of 1 "$recipes/check-fsdp" other
	says 'dim 0 in 2 slices: '
	BUG=sum RANKS=2 code_of 1 "$recipes/check-fsdp" other
	says 'not divided by the 2 data-parallel ranks'
}

@test "check-trainer: the bugs of released programs" {
	export PYTHON=${PT_PYTHON:-python3}
	"$PYTHON" -c 'import accelerate, torch, transformers' >/dev/null 2>&1 || skip 'no transformers (PT_PYTHON=PYTHON)'
	CASE=cache reports 1 'as if attention saw all documents of a sequence' "$recipes/check-trainer" cache
	CASE=accumulate reports 1 'sequences have weights 0.7609' "$recipes/check-trainer" accumulate
	# (of transformers 5.24)
	CASE=labels reports 1 ': 0.9583 times' "$recipes/check-trainer" labels
}

@test "check-deepspeed: ZeRO 3 in bf16 on three ranks, and two bugs" {
	cd "$BATS_TEST_TMPDIR"
	export PYTHON=${PT_PYTHON:-python3}
	"$PYTHON" -c 'import deepspeed, transformers' >/dev/null 2>&1 || skip 'no DeepSpeed (PT_PYTHON=PYTHON)'
	STAGE=3 RANKS=3 STEP=3 PRECISION=bf16 code_of 0 "$recipes/check-deepspeed" whole
	says 'grads   21 of 21 within bounds'
	says "at the optimizer's step 3"
	BUG=lost code_of 1 "$recipes/check-deepspeed" other
	says 'sequences 5 6 7 8 of 8 do not count'
	STAGE=1 BUG=twice code_of 1 "$recipes/check-deepspeed" other
	says 'layers.1.feed_forward.w3.weight (1): 2 times what it should be'
}
