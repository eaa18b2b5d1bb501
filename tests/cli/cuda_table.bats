#!/usr/bin/env bats
# Matmul algorithms that tests/bench/algorithm_table chooses, on a GPU or the emulated one.
load helpers

setup() {
	gpu_setup
}

on_gpu() { # OPTION...
	timeout -k 1 900 pt-train "${TINY[@]}" --layers 2 --dim 32 --peak-flops 1e12 --device cuda "$@"
}

absent() { # PATTERN FILE
	[ "$(grep -c "$@")" -eq 0 ]
}

@test "without an algorithm for 16 bits, fp32 computes each shape and says so once; without one that is exact, more are asked for" {
	! real_gpu || skip 'a real cuBLASLt has the algorithms'
	make_shard
	local o=(-n 3 --dtype bf16 --self-test no)
	on_gpu "${o[@]}" -o usual >usual.rows 2>err
	absent 'no algorithm' err
	PT_EMU_ALGORITHMS="split" on_gpu "${o[@]}" -o late >/dev/null 2>err
	absent 'no algorithm' err
	cmp usual/checkpoints/latest.h5 late/checkpoints/latest.h5
	local how
	for how in none only-split; do
		PT_EMU_ALGORITHMS=$how on_gpu "${o[@]}" -o "$how" >/dev/null 2>err
		pt-compare --rtol 1e-3 usual "$how"
		grep 'warning: linear_bwd_w: matmul with .* cuBLASLt has no algorithm without split-K .* converting them to fp32, .* MB$' err
		[ "$(grep -c 'no algorithm' err)" -ge 6 ]
		[ "$(grep 'no algorithm' err | sort | uniq -d | wc -l)" -eq 0 ]
	done
	cmp none/checkpoints/latest.h5 only-split/checkpoints/latest.h5
}

@test "algorithm_table: the quickest candidates that exact runs may use, for --gemm-algorithms" {
	make_shard
	local o=(-n 2 --no-ckpt --self-test no) line
	PT_LAB_CANDIDATES=rows on_gpu "${o[@]}" -o first >/dev/null
	# the times are made up: the first that exact runs may use is slower than the second, then it is not
	awk -F '\t' -v OFS='\t' '!/^#/ { $11 = $3 == "exact" && $4 == 0 ? 10 : 5 } { print }' rows >quick
	awk -F '\t' -v OFS='\t' '!/^#/ { $11 = 10 } { print }' rows >same
	"$BATS_TEST_DIRNAME/../bench/algorithm_table" same >table
	[ "$(wc -l <table)" -eq 1 ]
	"$BATS_TEST_DIRNAME/../bench/algorithm_table" quick quick >table
	[ "$(wc -l <table)" -gt 5 ]
	[ "$(head -n 1 table)" = "$(head -n 1 first/algorithms)" ]
	on_gpu "${o[@]}" --gemm-algorithms table -o second >/dev/null 2>err
	absent 'not available' err
	while read -r line; do
		grep -qxF "$line" second/algorithms
		absent -xF "$line" first/algorithms
	done < <(tail -n +2 table)
	# what nobody can have measured, and what is no table
	sed -i '2s/.\{128\}$/'"$(printf '%0128d' 0)"'/' table
	on_gpu "${o[@]}" --gemm-algorithms table -o third >/dev/null 2>err
	grep 'not available' err
	sed -i '3s/ [0-9]* / -1 /' table
	run on_gpu "${o[@]}" --gemm-algorithms table -o fourth
	[ "$status" -eq 65 ]
	[[ $output == *'table: '*'line 3'* ]]
	: >table
	run on_gpu "${o[@]}" --gemm-algorithms table -o fourth
	[ "$status" -eq 65 ]
	[[ $output == *'table: the file is empty'* ]]
}
