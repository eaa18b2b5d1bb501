#!/usr/bin/env bats
# pt-train: --dtype, as a user sees it.
load helpers
export SETUP=make_shard

THREE=(--layers 3 --eval-every 0)

@test "the precision is told, and is part of the arithmetic" {
	for dtype in fp32 bf16 fp16 float8; do
		tiny "${THREE[@]}" -n 3 --dtype $dtype -o $dtype >$dtype.out
		grep -q "^# arith dtype = $dtype\$" $dtype/journal.txt
	done
	for dtype in bf16 fp16 float8; do
		run pt-compare fp32 $dtype
		[ "$status" -eq 1 ]
		[[ $output == *"dtype: fp32, $dtype"* ]]
	done
	pt-train --layers 3 -d data.h5 -n 1 --no-ckpt --dtype bf16 -o said 2>err >/dev/null
	grep -q 'compute  *bf16, ' err
}

@test "fp16: a scale that is too large is logged, skips steps and comes down" {
	tiny "${THREE[@]}" -n 30 --dtype fp16 --loss-scale 1e9 -o run >out
	grep -q '^step=1 .* loss_scale=1e+09' out
	run grep '^step=1 .*grad_norm=' out
	[ "$status" -eq 1 ]
	grep -q '^step=30 .*grad_norm=' out
	grep -q 'step=1 gradients overflow with a loss scale of 1e+09' run/journal.txt
	[ "$(grep -c 'gradients overflow' run/journal.txt)" -eq "$(grep '^step=' out | grep -vc 'grad_norm=')" ]
	h5dump -a /loss_scale run/checkpoints/latest.h5 >/dev/null
}

@test "fp16 goes on from a checkpoint as if it had not stopped, from and on other ranks too" {
	local o=("${THREE[@]}" --dtype fp16 --loss-scale 1e8 --loss-scale-window 3 --decay-steps 20)
	o+=(--virtual tp=2)
	tiny "${o[@]}" -n 20 -o whole >/dev/null
	tiny "${o[@]}" -n 9 -o parts >/dev/null
	tiny_on 2 "${o[@]}" -n 20 --resume auto -o parts >/dev/null
	cmp whole/checkpoints/latest.h5 parts/checkpoints/latest.h5
	for layout in "--tp 2" "--pp 2 --pp-schedule zb-h1" "--fsdp 2"; do
		rm -r parts
		tiny_on 2 "${o[@]}" $layout -n 9 -o parts >/dev/null
		tiny "${o[@]}" -n 20 --resume auto -o parts >/dev/null
		cmp whole/checkpoints/latest.h5 parts/checkpoints/latest.h5
	done
}

@test "float8 that would be nowhere is refused" {
	run tiny --layers 2 --dtype float8 -o run
	[ "$status" -eq 64 ]
	[[ $output == *--no-float8-skip-ends* ]]
	[ ! -e run/journal.txt ]
	tiny --layers 2 --dtype float8 --no-float8-skip-ends -n 2 -o run >/dev/null
}
