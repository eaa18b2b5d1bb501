#!/usr/bin/env bats
# pt-train --pp: schedules, recomputation, what is logged, checkpoints.
load helpers
export SETUP=make_shard

@test "a pipeline changes no bit of curves and checkpoints" {
	tiny -n 6 --layers 4 --eval-every 3 -o one >/dev/null
	for s in gpipe 1f1b zb-h1; do
		tiny_on 2 -n 6 --layers 4 --eval-every 3 --pp 2 --pp-schedule $s -o $s >/dev/null
		same one $s
	done
	for s in interleaved interleaved-zb zbv; do
		tiny_on 2 -n 6 --layers 4 --eval-every 3 --pp 2 --pp-schedule $s -o $s >/dev/null
		same one $s
	done
	tiny_on 4 -n 6 --layers 4 --eval-every 3 --pp 2 --dp 2 --recompute full -o four >/dev/null
	same one four
}

@test "zbv and interleaved-zb on four ranks, with tied embeddings, in bf16" {
	local how=(-n 4 --arch gpt2 --layers 8 --eval-every 2 --dtype bf16 -m 1)
	tiny "${how[@]}" -o one >/dev/null
	tiny_on 4 "${how[@]}" --pp 4 --pp-schedule zbv -o v >/dev/null
	same one v
	tiny_on 4 "${how[@]}" --pp 4 --pp-schedule interleaved-zb -o loop >/dev/null
	same one loop
	tiny_on 4 "${how[@]}" --pp 2 --fsdp 2 --pp-schedule zbv --recompute full -o sharded >/dev/null
	same one sharded
}

@test "a run resumes with another schedule, of other stages" {
	tiny -n 6 --layers 4 --ckpt-every 3 -o whole >/dev/null
	tiny_on 2 -n 6 --layers 4 --ckpt-every 3 --pp 2 --pp-schedule zbv -o parts >/dev/null
	same whole parts
	rm parts/checkpoints/step-00000006.h5
	tiny_on 2 -n 6 --layers 4 --pp 2 --pp-schedule interleaved-zb -o parts \
		--resume parts/checkpoints/step-00000003.h5 >/dev/null
	cmp whole/checkpoints/latest.h5 parts/checkpoints/latest.h5
	rm parts/checkpoints/step-00000006.h5
	tiny_on 2 -n 6 --layers 4 --pp 2 --pp-schedule zbv -o parts \
		--resume parts/checkpoints/step-00000003.h5 >/dev/null
	cmp whole/checkpoints/latest.h5 parts/checkpoints/latest.h5
}

@test "a run goes on with other stages than it began with" {
	tiny -n 8 --layers 3 --ckpt-every 4 -o whole >/dev/null
	tiny_on 3 -n 8 --layers 3 --pp 3 --ckpt-every 4 -o parts >/dev/null
	same whole parts
	rm parts/checkpoints/step-00000008.h5
	tiny_on 2 -n 8 --layers 3 --pp 2 --pp-schedule zb-h1 -o parts \
		--resume parts/checkpoints/step-00000004.h5 >/dev/null
	cmp whole/checkpoints/latest.h5 parts/checkpoints/latest.h5
}

@test "the bubble is logged where there is one" {
	tiny -n 2 --layers 2 -o one >out1
	tiny_on 2 -n 2 --layers 2 --pp 2 -o two >out2
	not grep -q 'bubble=' out1
	grep '^step=2 ' out2 | tr ' ' '\n' | awk -F= '$1 == "bubble" && $2 > 0 && $2 < 1 { n++ }
		END { exit n != 1 }'
}

@test "a number that is none is traced to the stage that met it first" {
	reports 1 'first non-finite value: ' tiny_on 3 -n 20 --layers 3 --pp 3 --lr 1e30 --clip 0 -o bad
	says 'samples '
	[ "$(grep -c 'stopped: step' bad/journal.txt)" -eq 1 ]
}

@test "recomputation takes less memory, and the plan says how much" {
	total() {
		tiny --dry-run --layers 8 --context 64 "$@" | awk '$1 == "activations" { print $2 }'
	}
	none=$(total) selective=$(total --recompute selective) matmuls=$(total --recompute matmuls)
	full=$(total --recompute full)
	[ "$full" -lt "$matmuls" ]
	[ "$matmuls" -lt "$selective" ]
	[ "$selective" -lt "$none" ]
}
