#!/usr/bin/env bats
# Steps of PyTorch that pt.save_step saved.
load helpers

@test "save_step: right and broken steps of DDP, FSDP2, accelerate and Trainer" {
	export PT_PYTHON=${PT_PYTHON:-python3}
	"$PT_PYTHON" -c 'import accelerate, torch, transformers' >/dev/null 2>&1 || skip 'no transformers (PT_PYTHON=PYTHON)'
	code_of 0 "$PT_PYTHON" "$BATS_TEST_DIRNAME/../python/check_steps.py"
	[ "$(grep -c '^ok - ' <<<"$output")" -eq 11 ]
}
