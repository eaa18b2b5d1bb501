#!/usr/bin/env bats
# Rehearses tests/bench/gpu_lab in an environment that has nothing but the pack of tests/bench/gpu_machine:
# the emulated GPU in the place of a real one, toy models, a script in the place of PyTorch.
load helpers

setup() {
	cd "$BATS_TEST_TMPDIR" || exit 1
	[ -e "$BUILD/emu/pt-cuda.so" ] || skip 'nvcc and its headers are not here'
	root=$(realpath "$BATS_TEST_DIRNAME/../..")
	if [ ! -e "$BATS_FILE_TMPDIR/packed/env" ]; then
		XZ_OPT=-0 LIBRARY=$BUILD/emu/pt-cuda.so "$root/tests/bench/gpu_machine" "$BUILD" "$BATS_FILE_TMPDIR/packed"
		printf '#!/bin/bash\nexec "$PEER" "$@"\n' >"$BATS_FILE_TMPDIR/python3"
		# A sanitizer that finds nothing.
		printf '#!/bin/bash\nwhile [[ $1 == --* ]]; do shift 2; done\nexec "$@"\n' \
			>"$BATS_FILE_TMPDIR/compute-sanitizer"
		chmod +x "$BATS_FILE_TMPDIR"/{python3,compute-sanitizer}
	fi
	cat >peer <<'END'
#!/bin/bash
case $* in
*torch_gpt.py*) printf 'torch\t2\ncudnn\t9\ntps\t1000\nmem\t2000000000\ntps\t3000\ntps\t2000\n' ;;
*torch_attn.py*) printf '#\tflash: none\nfwd\t64\t128\tcudnn\t300\t0.1\n' ;;
esac
END
	chmod +x peer
}

lab() { # PARTS NAME=VALUE...: in an environment that is empty but for the variables of the pack
	env -i PATH="$BATS_FILE_TMPDIR:/usr/bin:/bin" HOME="$PWD" PEER="$PWD/peer" PT_EMU_GUARD=no \
		TINY=yes PART="$1" PT_HOME="$BATS_FILE_TMPDIR/unpacked" \
		PT_NCCL="$BATS_FILE_TMPDIR/unpacked/build/pt-cuda.so" "${@:2}" bash -c '
		. "$1/env" && cd "$2" && [ "$(command -v pt-train)" = "$PT_HOME/build/pt-train" ] &&
			tests/bench/gpu_lab "$3"' bash "$BATS_FILE_TMPDIR/packed" "$root" "$PWD/out"
}

measured() { # WORK HOW MEASURE: how often
	awk -F '\t' -v k="$1 $2 $3" '$1 " " $2 " " $3 == k && $4 != ""' out/rows.tsv | wc -l
}

@test "every measurement of pt-train has its row, and none fails" {
	lab 1,9,10
	for how in exact fast float8 float8+fast; do
		[ "$(measured gpt2-124m $how tokens/s)" -ge 1 ]
		[ "$(measured gpt2-124m $how 'ms a step, attn_bwd')" -ge 1 ]
	done
	for work in gpt2-1.5b llama-1b talk; do
		[ "$(measured $work exact tokens/s)" -ge 1 ]
		[ "$(measured $work exact GB)" -ge 1 ]
	done
	[ "$(measured attn-bwd-64-128 exact TFLOP/s)" -ge 1 ]
	for work in start-124m start-1.5b start-cpu; do
		[ "$(measured $work exact 's to step 1')" -ge 1 ]
	done
	[ "$(measured 'copy 65536' exact GB/s)" -eq 1 ]
	[ "$(measured gpt2-1.5b exact+--offload=params tokens/s)" -ge 1 ]
	not grep FAILED out/errors.txt
	[ "$(find out -type f | wc -l)" -le 8 ]
}

@test "exact sums of gradients have their rows and verdicts" {
	lab 2 PATTERN=test_kernels_grid
	[ "$(measured 'sums, block of 8B' '8 leaves' GB/s)" -eq 1 ]
	for how in exact+accumulate exact+accumulate+--cuda-graph; do
		[ "$(measured gpt2-124m $how tokens/s)" -eq 1 ]
		[ "$(measured gpt2-124m $how 'part of a step, grid_sum')" -eq 1 ]
	done
	grep -q $'^E[.]4: .*\t14 PASS\tyes$' out/verdict.tsv
	[ "$(awk -F '\t' '$1 ~ /^E[.]/ && $1 !~ /loss of a step/ && $4 == "not run"' out/verdict.tsv)" = '' ]
	not grep FAILED out/errors.txt
}

@test "tests, PyTorch, losses, switches and a sanitizer have their rows" {
	lab 6,7,8,11,13,14,17
	[ "$(measured gpt2-124m torch tokens/s)" -eq 1 ]
	grep -q $'^gpt2-124m\ttorch\ttokens/s\t2000\t' out/rows.tsv # the median
	grep -q $'^gpt2-124m\ttorch\tGB\t2.00\t' out/rows.tsv
	[ "$(measured attn-fwd-64-128 cudnn TFLOP/s)" -eq 1 ]
	for seed in 1 2 3; do
		[ "$(measured talk-loss seed-$seed 'val_loss after 6 steps')" -eq 1 ]
	done
	[ "$(measured gpt2-124m exact+--cuda-graph tokens/s)" -eq 2 ]
	[ "$(measured gpt2-124m exact+PT_ATTENTION=mma tokens/s)" -ge 2 ]
	[ "$(measured 'all tests' check-gpu 'not ok')" -eq 1 ]
	[ "$(measured 'all tests' memcheck 'not ok')" -eq 1 ]
}

@test "if PyTorch hangs, fails or has too little memory, the rows of pt-train are complete" {
	for end in 'sleep 1000' 'echo broken >&2; exit 1' 'exit 3'; do
		rm -rf out
		printf '#!/bin/bash\n%s\n' "$end" >peer
		lab 11,12 ITEM_LIMIT=30
		[ "$(measured gpt2-124m exact tokens/s)" -eq 1 ]
		[ "$(measured llama-1b exact tokens/s)" -eq 1 ]
		[ "$(grep -c 'FAILED: .*:torch' out/errors.txt)" -ge 4 ]
		not grep -q 'torch' out/rows.tsv
	done
}

@test "NCCL passes all checks, and its absence is told" {
	lab 4,5,15,16
	[ "$(awk -F '\t' '$3 == "result" && $4 == "PASS"' out/rows.tsv | wc -l)" -eq 73 ]
	[ "$(awk -F '\t' '$1 ~ /^D[.]/ && $4 == "yes"' out/verdict.tsv | wc -l)" -eq 8 ]
	[ "$(measured 'ranks_nccl, 2 ranks, GPU' check-nccl ok)" -eq 1 ]
	grep -q 'tests of functions, not of speed' out/tests.txt
	[ ! -e out/errors.txt ]
	[ "$(find out -type f | wc -l)" -le 8 ]
	rm -r out
	lab 5,15 PT_NCCL=/none 2>said
	grep -q 'there is no NCCL: PT_NCCL is /none' said
	grep -q 'env: tests of NCCL will be skipped' said
	grep -q '^check-nccl, ranks_nccl: skipped: there is no NCCL' out/errors.txt
	[ "$(awk -F '\t' '$3 == "result" && $4 != "not run"' out/rows.tsv | wc -l)" -eq 0 ]
	not grep -q $'^D.*\tyes$' out/verdict.tsv
}
