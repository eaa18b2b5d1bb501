#!/usr/bin/env bats
# Rehearses tests/bench/gpu_lab with nothing but the pack of tests/bench/gpu_machine, in an empty directory: the
# emulated GPU in the place of a real one, toy models, a script in the place of PyTorch.
load helpers

setup() {
	cd "$BATS_TEST_TMPDIR" || exit 1
	[ -e "$BUILD/emu/pt-cuda.so" ] || skip 'nvcc and its headers are not here'
	root=$(realpath "$BATS_TEST_DIRNAME/../..")
	home=$BATS_FILE_TMPDIR/unpacked
	if [ ! -e "$BATS_FILE_TMPDIR/packed/env" ]; then
		XZ_OPT=-0 LIBRARY=$BUILD/emu/pt-cuda.so "$root/tests/bench/gpu_machine" "$BUILD" "$BATS_FILE_TMPDIR/packed"
		printf '#!/bin/bash\n[ "$1" != -c ] || exec /usr/bin/python3 "$@"\nexec "$PEER" "$@"\n' >"$BATS_FILE_TMPDIR/python3"
		# A sanitizer that finds nothing.
		printf '#!/bin/bash\nwhile [[ $1 == --* ]]; do shift 2; done\nexec "$@"\n' \
			>"$BATS_FILE_TMPDIR/compute-sanitizer"
		chmod +x "$BATS_FILE_TMPDIR"/{python3,compute-sanitizer}
		# (the pack keeps the path of the Python that is first in PATH)
		env -i PATH="$BATS_FILE_TMPDIR:/usr/bin:/bin" PEER=true PT_HOME="$home" PT_EMU_GUARD=no bash -c '. "$1/env"' bash "$BATS_FILE_TMPDIR/packed"
	fi
	cat >peer <<'END2'
#!/bin/bash
case $* in
*torch_gpt.py*) printf 'torch\t2\ncudnn\t9\ntps\t1000\nmem\t2000000000\ntps\t3000\ntps\t2000\n' ;;
*torch_attn.py*) printf '#\tflash: none\nfwd\t64\t128\tcudnn\t300\t0.1\n' ;;
esac
END2
	chmod +x peer
}

# Until the end of a test, a script of the lines on standard input is in the place of a file, which is $kept for it.
replace() { # FILE
	replaced=$home/$1
	mv "$replaced" "$PWD/kept"
	{ printf '#!/bin/bash\nkept=%q\n' "$PWD/kept" && cat; } >"$replaced"
	chmod +x "$replaced"
}

teardown() {
	[ ! -e "$BATS_TEST_TMPDIR/kept" ] || mv "$BATS_TEST_TMPDIR/kept" "$replaced"
}

lab() { # PARTS NAME=VALUE...: in an environment that is empty except for the variables of the pack
	env -i PATH="$BATS_FILE_TMPDIR:/usr/bin:/bin" HOME="$PWD" PEER="$PWD/peer" PT_EMU_GUARD=no \
		TINY=yes PART_LIMIT=1000 PART="$1" PT_HOME="$home" PT_NCCL="$home/build/pt-cuda.so" "${@:2}" bash -c '
		. "$1/env"
		[ "$(command -v pt-train)" = "$PT_HOME/build/pt-train" ] && gpu_lab "$2"' \
		bash "$BATS_FILE_TMPDIR/packed" "$PWD/out" >said 2>&1
}

measured() { # WORK HOW MEASURE: how often
	awk -F '\t' -v k="$1 $2 $3" '$1 " " $2 " " $3 == k && $4 != ""' out/rows.tsv | wc -l
}

first_screen() { # PATTERN...: each is in the first 24 lines of the summary
	local pattern
	head -n 24 out/summary.txt | cut -c 1-250
	for pattern; do
		head -n 24 out/summary.txt | grep -E -- "$pattern" >/dev/null || { echo "missing: $pattern" && false; }
	done
}

# The quarter of an hour, on a machine where each kernel is right.
@test "parts 1 to 12 have their rows, and nothing is red" {
	lab 1,2,3,4,5,6,8,9,10,11,12 GPUS=2 PT_EMU_GPUS=2
	tail -n 3 said
	for model in gpt2-124m gpt2-124m+float8 gpt2-1.5b llama-1b; do
		[ "$(awk -F '\t' -v how=$model '$1 == "self-test" && $2 == how { print $4 }' out/rows.tsv)" = PASS ]
	done
	for work in gpt2-124m gpt2-1.5b llama-1b talk; do
		for how in exact exact+PT_LAB_OFF=all "exact+--gemm-algorithms=$PWD/out/algorithms"; do
			[ "$(measured $work "$how" tokens/s)" -eq 1 ] || { echo "$work $how" && false; }
		done
		[ "$(measured $work "exact+PT_LAB_CANDIDATES=$PWD/out/candidates.tsv" tokens/s)" -eq 0 ]
	done
	for how in dp fsdp; do
		[ "$(measured gpt2-124m exact+$how 'tokens/s per GPU')" -eq 1 ]
	done
	[ "$(awk -F '\t' '$1 == "nccl-layouts" && $4 == "PASS"' out/rows.tsv | wc -l)" -ge 8 ]
	[ "$(measured nccl-speed 'allreduce, 2 GPUs' 'GB/s of the bus, 80000 bytes')" -le 1 ]
	[ "$(measured 'sums, block of 8B' '8 leaves' GB/s)" -eq 1 ]
	[ "$(measured 'matmul_hopper, lag 300x72x520' exact 'ulps apart from cuBLASLt')" -eq 1 ]
	[ "$(measured talk-loss seed-1 'val_loss after 6 steps')" -eq 1 ]
	[ "$(measured attn_bwd-64-128 exact 'us a launch')" -eq 1 ]
	first_screen '^preflight: driver none, cuBLASLt [0-9.]+, NCCL .*: good$' '^commit: ' '^machine code: the emulated GPU' \
		'^RED: nothing$' '^WARNINGS: 0$'
	[ ! -s out/errors.txt ]
}

@test "the part of experts has its rows" {
	lab 31
	for model in {qwen3-moe,mixtral-moe,dots-moe+--expert-capacity=1}; do
		[ "$(awk -F '\t' -v how=$model '$1 == "self-test" && $2 == how { print $4 }' out/rows.tsv)" = PASS ]
	done
	for how in fp32+--expert-capacity=1 bf16; do
		[ "$(awk -F '\t' -v how=$how '$1 == "experts-run" && $2 == how && $3 == "result" { print $4 }' out/rows.tsv)" = PASS ]
	done
	[ "$(measured 'groups_bwd_w, 64 rows 4x64x64' exact 'of cuBLASLt')" -eq 1 ]
	[ "$(measured 'no matmuls toy' exact 'of a layer')" -eq 1 ]
	[ "$(measured qwen3-moe exact 'part of the experts, no matmuls')" -eq 1 ]
	[ "$(measured qwen3-moe exact+PT_LAB_ON=groups tokens/s)" -eq 1 ]
	[ "$(measured 'groups_bwd_w, 64 rows 4x64x64' exact+PT_LAB_ON=groups 'of cuBLASLt')" -eq 1 ]
	[ "$(measured 'slots_drop 64 rows, toy' exact us)" -eq 1 ]
	[ "$(measured qwen3-moe exact+--expert-capacity=1 tokens/s)" -eq 1 ]
	[ "$(awk -F '\t' '$1 ~ /^G[.][01]/ && $4 == "yes"' out/verdict.tsv | wc -l)" -eq 2 ]
	first_screen '^RED: nothing$'
}

@test "the part of checks has its rows" {
	lab 32
	for how in fp32 bf16; do
		for work in flips audits; do
			[ "$(awk -F '\t' -v work=$work -v how=$how '$1 == work && $2 == how && $3 == "result" { print $4 }' out/rows.tsv)" = PASS ]
		done
	done
	for how in --check-sums=yes --referee={0.05,1} --cuda-graph+--referee=0.05; do
		[ "$(measured gpt2-124m exact+accumulate+$how tokens/s)" -eq 1 ]
	done
	[ "$(awk -F '\t' '$1 ~ /^H[.]1/ && $4 == "yes"' out/verdict.tsv | wc -l)" -eq 2 ]
	first_screen '^RED: nothing$'
}

@test "a wrong kernel makes the self-test red, and each switch is tried" {
	lab 1 PT_EMU_BREAK=rope
	first_screen '^RED: 2$' 'self-test of llama-1b fails with every switch' 'FAIL self-test: llama-1b: exit code 1: .*rope'
	[ "$(awk -F '\t' '$2 ~ /^llama-1b[+]PT_LAB_OFF/' out/rows.tsv | wc -l)" -ge 13 ]
}

@test "a wrong matmul is red, and so is an item that hangs, which costs its own limit" {
	replace build/tests/bench_kernels <<<'[[ $* != *pairs* ]] || exec sleep 1000
		exec "$kept" "$@"'
	lab 10,12 PT_EMU_BREAK=matmul_hopper
	first_screen '^RED: 2' 'FAILED: matmul:exact: exit code 1' 'computes wrongly' 'FAILED: pairs:exact: out of time'
	[ "$(awk -F '\t' '$1 ~ /^F: matmuls/ { print $4 }' out/verdict.tsv)" = no ]
	# In spite of it, the kernels were measured.
	[ "$(measured 'copy 65536' exact GB/s)" -eq 1 ]
}

@test "a warning of a program that succeeds is on the first screen" {
	replace build/pt-train <<<'echo "pt-train: warning: cuBLASLt does not multiply float8 in 2 runs" >&2
		exec "$kept" "$@"'
	lab 11
	first_screen '^RED: nothing$' '^WARNINGS: 1$' '  talk-loss:seed-1: .*does not multiply float8'
}

@test "without cuBLASLt nothing is measured, and what to do is said" {
	replace build/pt-cuda.so </dev/null
	echo 'int x;' | gcc -x c -shared -o libcublasLt.so.99 -Wl,-soname,libcublasLt.so.99 -
	echo 'int y;' | gcc -x c -shared -o "$replaced" - -Wl,--no-as-needed -L. -l:libcublasLt.so.99
	code_of 1 lab 1,2
	[ ! -s out/rows.tsv ]
	first_screen 'cuBLASLt none.*NOT good' 'libcublasLt.so.99 is missing; PT_FETCH=yes installs it'
}

@test "tests, PyTorch, switches and a sanitizer have their rows" {
	lab 16,18,20,21,22 PATTERN=test_device
	[ "$(measured gpt2-124m torch tokens/s)" -eq 1 ]
	grep -q $'^gpt2-124m\ttorch\ttokens/s\t2000\t' out/rows.tsv # the median
	grep -q $'^gpt2-124m\ttorch\tGB\t2.00\t' out/rows.tsv
	[ "$(measured attn-fwd-64-128 cudnn TFLOP/s)" -eq 1 ]
	[ "$(measured gpt2-124m exact+--cuda-graph tokens/s)" -eq 1 ]
	[ "$(measured gpt2-124m exact+PT_ATTENTION=mma tokens/s)" -eq 1 ]
	for work in start-124m start-1.5b start-cpu; do
		[ "$(measured $work exact 's to step 1')" -eq 1 ]
	done
	not grep FAILED out/errors.txt
}

@test "if PyTorch hangs, fails or has too little memory, the rows of pt-train are complete" {
	for end in 'sleep 1000' 'echo broken >&2; exit 1' 'exit 3'; do
		rm -rf out
		printf '#!/bin/bash\n%s\n' "$end" >peer
		lab 20 ITEM_LIMIT=30
		[ "$(measured gpt2-124m exact tokens/s)" -eq 1 ]
		[ "$(measured llama-1b exact tokens/s)" -eq 1 ]
		[ "$(grep -c 'FAILED: .*:torch' out/errors.txt)" -ge 4 ]
		not grep -q 'torch' out/rows.tsv
	done
}

@test "NCCL passes all checks, and its absence is told" {
	lab 9,14,24,25
	[ "$(awk -F '\t' '$3 == "result" && $4 == "FAIL"' out/rows.tsv | wc -l)" -eq 0 ]
	[ "$(awk -F '\t' '$1 ~ /^D[.]/ && $4 == "yes"' out/verdict.tsv | wc -l)" -eq 9 ]
	rm -r out
	lab 14,24 PT_NCCL=/none
	grep -q 'NCCL none (its checks are skipped' said
	[ "$(awk -F '\t' '$3 == "result" && $4 != "not run"' out/rows.tsv | wc -l)" -eq 0 ]
	not grep -q $'^D.*\tyes$' out/verdict.tsv
}
