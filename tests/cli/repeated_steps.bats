#!/usr/bin/env bats
# Steps that are computed again after an alarm of a check: what they read anew, and who takes part.
load helpers
load flips
export SETUP=make_shard

# Records of which only the completion counts: some windows have no target.
make_pairs() {
	awk 'BEGIN { srand(3)
		for (i = 0; i < 200; i++) {
			printf "{\"prompt\": \""
			for (k = int(rand() * 12); k >= 0; k--) printf "the lord "
			printf "\", \"completion\": \"and %d\"}\n", i
		} }' >pairs.jsonl
	pt-prepare -q pairs.jsonl --record prompt -o pairs.h5
}

# The steps of the run `clean` with so many targets that count.
counted() { # N
	grep -o '^step=[0-9]* .* counted=[0-9]* ' clean/journal.txt | sed -n "s/^step=\([0-9]*\) .* counted=$1 /\1/p"
}

@test "after a wrong token, the targets that count are counted again" {
	local step seen=0
	make_pairs
	clean 3 -d pairs.h5 -n 5 -b 3 --dp 3
	# the flag of a token: whether it counts
	flip 1:2:tokens::30 --referee 1
	[ "$status" -eq 0 ] && same && grep -q 'token [0-9]* instead of' err && grep -q 'sporadic' run/journal.txt || { cat err && return 1; }
	diff <(grep -o ' counted=[0-9]*' clean/journal.txt) <(grep -o ' counted=[0-9]*' run/journal.txt)
	# only the wrong token counts, unless it is the first of its window
	clean 1 -d pairs.h5 -n 20 -b 1 --empty-batch skip
	for step in $(counted 0 | head -n 3); do
		rm -rf run
		flip "0:$step:tokens::30" --referee 1
		[ "$status" -eq 0 ] && same || { cat err && return 1; }
		grep -q "step=$step no token of the batch counts: nothing is updated" run/journal.txt
		seen=$((seen + $(grep -c 'sporadic' run/journal.txt || true)))
	done
	[ "$seen" -gt 0 ]
}

# Trains with two workers, whose warm-up ends after step 4, with a flip, and in `run` with a check.
workers() { # RANKS CHECK FLIP OPTION...
	local check=$2 flip=$3
	clean "$1" -b 12 -n 6 --edit-workers 2 --edit-sync-interval 2 --edit-warmup-steps 4 --watchdog 120 "${@:4}"
	flip "$flip" "$check" yes
}

@test "if a worker of local SGD computes a step of the warm-up again, all do" {
	local worker
	for flip in 1:3:weight 4:2:moment 4:6:weight; do
		workers 6 --check-replicas "$flip" --dp 3
		[ "$status" -eq 0 ] && grep -q 'flipped bit' err && same || { echo "$flip: $status" && cat err && return 1; }
		cmp clean/worker-1/checkpoints/latest.h5 run/worker-1/checkpoints/latest.h5
		worker=run
		[[ $flip = 1:* ]] || worker=run/worker-1
		[ "$(cat run/journal.txt run/worker-1/journal.txt | grep -c 'copied from rank')" -eq 1 ]
		grep -q "step ${flip:2:1}: rank ${flip:0:1} .* copied from rank" $worker/journal.txt
	done
	# nobody knows which of two replicas is right: all workers end
	workers 4 --check-replicas 1:3:weight --dp 2
	[ "$status" -eq 71 ] && grep -q 'no majority shows which are right' err || { cat err && return 1; }
	grep -q 'stopped: step 3: a check failed in another worker' run/worker-1/journal.txt
	# sums of gradients after the warm-up
	workers 4 --check-sums 3:6:message::29 --dp 2
	[ "$status" -eq 0 ] && same || { cat err && return 1; }
	grep -q 'step 6: a sum of gradients was wrong; computed again it was right: sporadic' run/worker-1/journal.txt
}

# Trains with some seeds, until a message matches: flips in single micro-batches are drawn from the seed.
until_message() { # TEXT RANKS FLIPS SEED...
	local text=$1 ranks=$2 flips=$3 seed
	shift 3
	for seed; do
		rm -rf run
		status=0
		# shellcheck disable=SC2086 # several options
		tiny_on "$ranks" "${MODEL[@]}" --dp "$ranks" -b "$ranks" -n 1 --seed "$seed" --referee 1 --referee-strikes 9 -o run \
			$flips >/dev/null 2>err || status=$?
		! grep -q "$text" err || return 0
	done
	echo "no '$text'"
	return 1
}

@test "if the step is wrong again, only a rank that was wrong in both attempts is persistent" {
	export PT_HOST_RANKS=1
	# rank 0 in the first attempt, rank 1 in the second
	until_message 'rank 0 .* sporadic, .*; in the second attempt, rank 1 .* sporadic, .*; but the step is wrong again' 4 \
		'--inject-flip 0:1:leaf::25 --inject-flip 1:1p0.2:leaf::25' 11 2 12 {20..40}
	[ "$status" -eq 71 ] && [ "$(cut -f2,5,6 run/suspects | sort | tr '\t\n' ' ')" = '1 0 sporadic 1 1 sporadic ' ]
	# rank 1 in both
	until_message 'in the second attempt, rank 1 .*; rank 1 was wrong in both attempts: persistent' 3 \
		'--inject-flip 1:1p0.4:leaf::25' 9 {20..60}
	[ "$status" -eq 71 ] && [ "$(cut -f2,5,6 run/suspects | tr '\t\n' ' ')" = '1 1 persistent ' ]
}
