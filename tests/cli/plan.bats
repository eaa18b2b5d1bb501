#!/usr/bin/env bats
# pt-plan: layouts that pt-train accepts, their order, the decision list, JSON, goodput.
load helpers

SHAPE=(model.conf dtype=bf16 layers=7 heads=4 dim=128 ffn-dim=256 context=64 vocab=256)
SMALL=(layers=4 heads=4 dim=64 context=64 vocab=256 batch=16)

plan() { # OPTION...
	pt-plan -c cpu,gpus=4,cores=4 "$@" model.conf "${SMALL[@]}"
}

small() { # a config file that adds nothing
	echo 'arch = llama' >model.conf
}

number() { # KEY: of the first result
	sed -nE "s/^ *\"$1\": ([-0-9.e]+),?$/\1/p" json | head -n 1
}

@test "each of the first ten layouts passes pt-train --dry-run" {
	small
	local layout n=0
	plan --json >json
	while read -r layout; do
		n=$((n + 1))
		# shellcheck disable=SC2086 # arguments are words
		pt-train --dry-run $layout >/dev/null
	done < <(sed -nE 's/^ *"arguments": "(.*)",?$/\1/p' json)
	[ "$n" -eq 10 ]
	pt-plan --json -H 2 llama3-1b dtype=bf16 batch=64 >json
	n=0
	while read -r layout; do
		n=$((n + 1))
		# shellcheck disable=SC2086
		[ $n -gt 1 ] || pt-train --dry-run $layout >/dev/null
	done < <(sed -nE 's/^ *"arguments": "(.*)",?$/\1/p' json)
	[ "$n" -eq 10 ]
}

@test "a run with the best layout trains" {
	small
	make_shard
	for ranks in 2 4; do
		# shellcheck disable=SC2046
		mpiexec -n $ranks pt-train -q -d data.h5 -n 2 -t 1 --no-ckpt --eval-every 0 --log-every 1 \
			$(pt-plan --best -c cpu,gpus=$ranks,cores=2 model.conf "${SMALL[@]}") >"log$ranks"
		grep -q '^step=2 .*loss=' "log$ranks"
	done
}

@test "the memory and the time are those of pt-train --dry-run --cluster" {
	local step total
	pt-plan --json -n 1 -x 1 llama3-1b dtype=bf16 batch=64 >json
	step=$(number step) total=$(number total)
	# shellcheck disable=SC2046
	pt-train --dry-run --cluster h100 $(pt-plan --best -x 1 llama3-1b dtype=bf16 batch=64) >dry
	awk -v step="$step" -v total="$total" '
		/^on the GPU/ { memory = $4 }
		/^  step / { time = $2 }
		END { exit !(memory == total && (time / step - 1) ^ 2 < 1e-8) }' dry
}

@test "the layout wins over what was given" {
	small
	plan --best -x 5 --tokens 2048 >best
	pt-plan --best -x 5 --tokens 2048 -c cpu,gpus=4,cores=4 model.conf "${SMALL[@]}" micro-batch=8 zero=1 fsdp=2 \
		pp-stages=2 reshard-after-forward=yes >other
	diff <(sed 's/.*batch=32/batch=32/' best) <(sed 's/.*batch=32/batch=32/' other)
	# shellcheck disable=SC2046
	pt-train --dry-run --print-config $(cat other) >conf
	local word
	for word in $(sed 's/.*batch=32//' other); do
		grep -qx "${word%%=*} = ${word#*=}" conf || {
			echo "$word is not in force"
			return 1
		}
	done
	grep -q ' batch=32 ' other
	grep -qx 'batch = 32' conf
}

@test "the memory of pipelines is that of the stage that needs most; of CPUs that of pt-train" {
	local layout n=0 total
	small
	pt-plan --json -c h100,gpus=4 -x 0 -n 10000 "${SHAPE[@]}" batch=8 >json
	while read -r total layout; do
		case $layout in
		*' pp=1 '* | *' dp=2 '*) continue ;;
		esac
		[ $((n++ % 9)) -eq 0 ] || continue
		# shellcheck disable=SC2086
		pt-train --dry-run $layout >dry
		awk -v total="$total" '/^on the GPU/ { exit total != $4 }' dry || {
			echo "$layout: $total"
			grep '^on the GPU' dry
			return 1
		}
	done < <(sed -nE 's/^ *"total": ([0-9]*),?$/\1/p; s/^ *"arguments": "(.*)",?$/\1/p' json | paste - -)
	[ "$n" -gt 20 ]
	small
	plan --json -x 5 -n 5 >json
	while read -r total layout; do
		# shellcheck disable=SC2086
		pt-train --dry-run $layout >dry
		awk -v total="$total" '/^checkpoint/ { copy = $2 } /^total/ { all = $2 }
			END { exit all - copy != total }' dry
	done < <(sed -nE 's/^ *"total": ([0-9]*),?$/\1/p; s/^ *"arguments": "(.*)",?$/\1/p' json | paste - -)
}

@test "degrees that are no powers of two" {
	small
	pt-plan --json -x 0 -n 1000 -c cpu,gpus=3,cores=3 model.conf layers=3 heads=3 dim=48 ffn-dim=96 context=384 vocab=256 batch=4 >json
	grep -q '"tp": 3' json
	grep -q '"cp": 3' json
	grep -q '"pp": 3' json
}

@test "what pt-train refuses, with its message" {
	small
	code_of 1 pt-plan "${SHAPE[@]}" layers=2 dtype=float8
	says 'pt-train refuses each layout'
	says 'float8 leaves the first and the last block in bf16'
	code_of 64 pt-plan llama3-1b edit-workers=2
	says 'plans one worker'
	code_of 64 pt-plan llama3-1b batch-per-rank=2
	says 'give batch=N'
	code_of 64 pt-plan -c h100,cores=4 llama3-1b
	says 'cores'
}

@test "options that exclude each other, and no layout" {
	local option
	for option in --explain --json --details '--timeline 80'; do
		# shellcheck disable=SC2086
		code_of 64 pt-plan --best $option llama3-1b
	done
	code_of 64 pt-plan --json --explain llama3-1b
	code_of 1 pt-plan --json -m 1G llama3-8b dtype=bf16 batch=8
	code_of 1 pt-plan --explain -m 1G llama3-8b dtype=bf16 batch=8
	code_of 64 pt-plan 'a file.conf'
	says 'blanks'
}

@test "offloaded state is not counted; a restart that is always interrupted ends" {
	pt-plan --json -n 1 -x 3 -m 9G -c h100,gpus=1 llama3-1b dtype=bf16 batch=8 offload=all >json
	grep -q '"exact": true' json
	pt-plan -x 1 -n 1 llama3-1b dtype=bf16 batch=8 --failures 200 --restart-cost 600 >text
	grep -q '^# goodput: ' text
}

@test "more memory never makes the best layout slower, and too little refuses" {
	local first
	small
	plan --json -x 0 -m 100M >json
	first=$(number step)
	plan --json -x 0 -m 3M >json
	awk -v a="$first" -v b="$(number step)" 'BEGIN { exit !(a <= b) }'
	code_of 1 pt-plan -m 1G llama3-8b dtype=bf16 batch=8
	says 'no layout fits into the memory'
}

@test "the decision list: what fits, what does not, and a slow network" {
	code_of 1 pt-plan --explain -x 1 llama3-405b dtype=bf16 -H 8 -m 60G
	says 'no   Does the model fit on one rank?'
	says 'no   Does any layout fit?'
	pt-plan --explain -x 1 llama3-1b dtype=bf16 batch=64 >text
	grep -q '^yes  Does the model fit on one rank?' text
	grep -q '^no   Is the network slow' text
	small
	plan --explain -x 1 >text
	grep -q '(without a limit)' text
	pt-plan --explain -c cpu,gpus=1 -x 1 model.conf "${SMALL[@]}" >text
	not grep -q 'network' text
	pt-plan --explain -x 1 -c h100,net=0.1 -H 8 llama3-8b dtype=bf16 batch=64 >text
	grep -q '^yes  Is the network slow' text
	code_of 1 pt-plan --explain -x 1 llama3-405b dtype=bf16 -H 8 -m 4G
	says 'no   Does the largest layer fit?'
}

@test "goodput: the formula and the simulation agree; the interval of Daly" {
	small
	plan -x 1 --failures 60 --ckpt-cost 0.5 --restart-cost 2 --slow 2 --slow-prob 0.001 --hours 50 >text
	awk '/^# goodput/ { d = $3 - $7; found = 1; exit !(d * d < 0.01 ^ 2 && $3 > 0.5 && $3 < 1) }
		END { if (!found) exit 1 }' text
	plan -x 1 --timeline 80 --slow 3 --slow-prob 0.2 >text
	grep -q '^# a step of 4 ranks' text
	plan -x 1 --slow 3 --slow-prob 0.2 >text
	grep -q 'no checkpoints' text
}

@test "wrong models, clusters and batches" {
	small
	code_of 64 pt-plan
	code_of 64 pt-plan nothing
	says 'there is no preset'
	code_of 64 pt-plan -c nowhere llama3-1b
	code_of 64 plan --tokens 100
	says 'no multiple of the context'
	code_of 64 pt-plan model.conf layers
	says 'give key=value'
	echo text >file
	code_of 65 plan --network file
}

@test "Llama 405B on 4,096 ranks takes less than 5 seconds of a processor" {
	local seconds TIMEFORMAT=%U
	seconds=$({ time pt-plan -n 1 -H 512 llama3-405b dtype=bf16 batch=2048 >text; } 2>&1)
	awk -v s="$seconds" 'BEGIN { exit !(s < 5) }'
	grep -q '^ .* fsdp=' text
	grep -q '^# planned exactly: [3-9]' text
}
