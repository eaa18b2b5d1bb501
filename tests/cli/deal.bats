#!/usr/bin/env bats
# --deal speed: a slow rank gets fewer micro-batches, and no bit changes.
load helpers
export SETUP=make_shard

refuse() { # TEXT COMMAND...: 64
	reports 64 "$1" "${@:2}"
}

column() { # NAME DIRECTORY: of all rows that have it
	grep '^step=' "$2/journal.txt" | grep -o " $1=[^ ]*" | cut -d= -f2
}

# Sixteen micro-batches of one sequence in a step; the counts change after step 10.
OPTIONS=(-n 14 -b 16 -m 1 --layers 2 --dropout 0.1)

# Trains evenly in the directory `even` on one rank, unless another run has.
even() { # OPTION...
	rm -rf even
	tiny "${OPTIONS[@]}" "$@" -o even >/dev/null
}

# Trains with --deal speed in the directory `speed`; the given ranks sleep in each micro-batch.
speed() { # RANKS SLOW_RANKS OPTION...
	local n=$1 r slow=()
	rm -rf speed
	for r in $2; do slow+=(--inject-delay "$r:40/micro"); done
	tiny_on "$n" "${OPTIONS[@]}" --deal speed "${slow[@]}" "${@:3}" -o speed >/dev/null 2>err
}

# The numbers of micro-batches: `instead of` the even share, at least one less.
dealt() { # RANK EVEN
	sed -n "s/.* dealing: rank $1 (host .*) takes .* times the median: \([0-9]*\) micro-batch[es]* instead of $2\$/\1/p" speed/journal.txt |
		awk -v even="$2" '$1 < 1 || $1 >= even { exit 1 } END { exit NR != 1 }' || {
		cat speed/journal.txt
		return 1
	}
}

same() {
	cmp even/checkpoints/latest.h5 speed/checkpoints/latest.h5
	diff <(column loss even) <(column loss speed)
	diff <(column grad_norm even) <(column grad_norm speed)
	diff <(column val_loss even) <(column val_loss speed)
}

@test "a slow data-parallel rank gets fewer micro-batches; event, warning, column and bits" {
	even
	speed 4 3
	dealt 3 4
	same
	grep -q 'warning: step 10: rank 3 (host .*) takes .* times the median per micro-batch; check its host' err
	[ "$(grep -c 'check its host' speed/journal.txt)" -eq 1 ]
	column slowest speed | awk '$1 < 1.5 { exit 1 } END { exit NR != 5 }'
	not grep -q slowest even/journal.txt
	# with checksums, and after a checkpoint of other counts
	speed 4 3 --check-sums yes
	same
	even --ckpt-every 12 --keep 0
	speed 2 1 --ckpt-every 12 --keep 0
	dealt 1 8
	same
	mpiexec -n 4 pt-train -q -t 1 --resume speed/checkpoints/step-00000012.h5 --deal speed -o resumed >/dev/null
	cmp even/checkpoints/latest.h5 resumed/checkpoints/latest.h5
}

@test "pipelines, context parallelism and ZeRO 1: the ranks of a unit share its number" {
	even --virtual tp=2,cp=2
	speed 4 3 --virtual tp=2,cp=2 --dp 2 --pp 2
	dealt 3 8
	same
	speed 4 2 --virtual tp=2,cp=2 --dp 2 --cp 2 --pp-schedule gpipe
	dealt 2 8
	same
	speed 4 2 --virtual tp=2,cp=2 --fsdp 4 --zero 1
	dealt 2 4
	same
}

@test "replicas of hybrid sharding get fewer rounds" {
	even --dtype bf16
	speed 4 3 --dtype bf16 --dp 2 --fsdp 2
	dealt 3 4
	same
}

@test "the ranks of a worker of local SGD" {
	for deal in even speed; do
		rm -rf $deal
		tiny_on 4 "${OPTIONS[@]}" --edit-workers 2 --edit-warmup-steps 3 --edit-sync-interval 4 --dp 2 --deal $deal \
			--inject-delay 1:40/micro -o $deal >/dev/null 2>err
	done
	dealt 1 4
	same
	cmp even/worker-1/checkpoints/latest.h5 speed/worker-1/checkpoints/latest.h5
}

@test "a step that is computed again has the samples of its own numbers, not of the next ones" {
	local options=(-n 12 -b 8 -m 1 --layers 2 --clip 0.1 --seed 2 --dp 2)
	rm -rf even speed
	tiny_on 2 "${options[@]}" -o even >/dev/null 2>&1
	# the numbers change from step 12 on; the samples of step 12 are fetched before step 11 is repeated
	tiny_on 2 "${options[@]}" --deal speed --inject-delay 1:40/micro --referee 1 --inject-flip 0:11:leaf::30 -o speed >/dev/null 2>err
	dealt 1 4
	grep -q 'step 11: rank 0 (host .*) computed .*; computed again it was right: sporadic' err
	same
}

@test "a dry run plans the memory of the largest number of micro-batches" {
	layout=(-b 32 -m 1 --layers 4 --dp 2 --pp 2 --pp-schedule gpipe --dry-run)
	activations() { tiny "${layout[@]}" "$@" | awk '/^activations/ { print $2 }'; }
	[ "$(activations)" -gt 0 ]
	[ "$(activations --deal speed)" -gt "$(($(activations) * 3 / 2))" ]
	[ "$(activations --pp-schedule 1f1b --deal speed)" -eq "$(activations --pp-schedule 1f1b)" ]
}

@test "layouts in which nothing can be dealt are rejected" {
	refuse '--deal speed needs several data-parallel ranks' tiny --deal speed
	refuse 'the ranks of --fsdp gather parameters together' tiny_on 2 -b 16 --fsdp 2 --deal speed
	refuse 'one micro-batch per data-parallel rank' tiny_on 2 -b 4 -m 2 --deal speed
	refuse 'must be a multiple of the ranks of --fsdp' tiny -b 15 -m 1 --dp 2 --fsdp 2 --deal speed --dry-run
	refuse 'give --tp 1, or --zero 1' tiny -b 16 -m 1 --dp 2 --fsdp 2 --tp 2 --deal speed --dry-run
	refuse '--offload grads reduces every micro-batch' tiny_on 2 -b 16 -m 1 --offload grads --offload-to . --deal speed
	cp data.h5 more.h5
	refuse '--deal speed and --data-per-rank' tiny_on 2 -b 16 -d data.h5 -d more.h5 --data-per-rank --deal speed
	refuse '--deal speed and --cuda-graph' tiny -b 16 --dp 2 --device cuda --cuda-graph --deal speed --dry-run
	refuse '--deal speed and --ep' tiny_on 2 -b 16 -a llama --experts 4 --experts-per-token 2 --ep 2 --deal speed
}
