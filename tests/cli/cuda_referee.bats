#!/usr/bin/env bats
# --check-sums on GPUs: ranks that share a GPU, and ranks with NCCL, both emulated.
load helpers
load flips

setup() {
	gpu_flips_setup
}

clean() { # COMM RANKS OPTION...
	layout=("$@")
	on_gpu "$@" -o clean >/dev/null
}

flip() { # FLIP: trains in the directory `run`; $status is the exit code, `err` has the messages
	status=0
	on_gpu "${layout[@]}" --check-sums yes -o run --inject-flip "$1" >/dev/null 2>err || status=$?
}

detects() { # FLIP...
	local x
	for x; do
		flip "$x"
		[ "$status" -eq 0 ] && same && grep -q 'computed again it was right: sporadic' run/journal.txt || {
			echo "${layout[*]}: $x: exit code $status" && cat err
			return 1
		}
	done
}

names() { # FLIP TEXT
	flip "$1"
	[ "$status" -eq 71 ] && grep -qE "pt-train: step 3: sums of gradients are wrong, twice: $2" err || {
		echo "${layout[*]}: $1: exit code $status" && cat err
		return 1
	}
}

@test "--check-sums on a GPU: runs without a flip are the same, without an alarm" {
	local x late
	while read -r x; do
		# shellcheck disable=SC2086 # one word each
		clean $x
		for late in no yes; do
			PT_EMU_LAZY=$late on_gpu "${layout[@]}" --check-sums yes -o run >/dev/null
			same
			not grep -q 'a sum of gradients' run/journal.txt
		done
	done <<-END
		mpi 1
		mpi 1 --cuda-graph
		mpi 2 --fsdp 2 --zero 3
		mpi 2 --fsdp 2 --zero 3 --offload all
		mpi 2 --pp 2 --tie yes
		nccl 2 --dp 2
		nccl 2 --dp 2 --cuda-graph
		nccl 3 --fsdp 3 --zero 3 --dtype bf16
		nccl 2 --fsdp 2 --zero 2 -a llama --experts 4 --ep 2
	END
}

@test "--check-sums on a GPU detects a flipped bit, and the step is computed again before its update" {
	clean mpi 1
	detects 0:3:sum
	clean mpi 2 --dp 2
	detects 1:3:sum 0:3:message::30
	clean nccl 2 --dp 2
	detects 1:3:sum 0:3:message::17
	PT_EMU_LAZY=yes detects 1:2:message
	clean nccl 2 --fsdp 2 --zero 3
	detects 1:3:sum::40 0:3:message
	PT_HOST_RANKS=2 clean nccl 4 --dp 2 --fsdp 2 --zero 3
	PT_HOST_RANKS=2 detects 2:2:sum 3:3:message
}

@test "--check-sums on a GPU: a sum that is wrong twice is named, with the route" {
	clean mpi 2 --dp 2
	names 1:3+:message 'rank 1 \(host [^ ]+\) sent other numbers than it computed, .*, received by rank 0 through MPI'
	clean nccl 2 --dp 2
	names 1:3+:message 'rank 1 \(host [^ ]+\) sent other numbers than it computed, .*, received by rank 0 through NCCL'
	# all messages are right, but not their sum
	PT_EMU_NCCL_FLIP=14+ flip 0:99:message
	[ "$status" -eq 71 ] && grep -qE 'sums of gradients are wrong, twice: .*NCCL added wrongly for rank [01], in the bucket of' err
	not grep -q 'sent other numbers' err
	clean nccl 2 --fsdp 2 --zero 3
	names 0:3+:message 'rank 0 \(host [^ ]+\) sent other numbers than it computed, .*, received by rank 1 through NCCL'
	names 1:3+:sum:layers.1.attention.wq.weight \
		'rank 1 \(host [^ ]+\) added wrongly, or changed a sum that it kept, in the bucket of layers.1.attention.wq.weight'
}
