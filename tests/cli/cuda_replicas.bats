#!/usr/bin/env bats
# --check-replicas and --check-memory on GPUs: ranks that share a GPU, and ranks with NCCL, both emulated.
load helpers
load flips

setup() {
	gpu_flips_setup
}

clean() { # COMM RANKS OPTION...
	command=(on_gpu "$@")
	"${command[@]}" -o clean >/dev/null
}

# Layouts of standard input: checkpoints are equal with and without checks, and no check raises an alarm.
stays_silent() {
	local x
	while read -r x; do
		# shellcheck disable=SC2086 # one word each
		clean $x
		PT_EMU_LAZY=yes "${command[@]}" --check-replicas yes --check-memory yes -o run >/dev/null
		same || { echo "$x" && return 1; }
		not grep -qE '\(host|before a checkpoint' run/journal.txt
	done
}

@test "--check-replicas and --check-memory on a GPU: runs without a flip are the same, without an alarm" {
	stays_silent <<-END
		mpi 1
		mpi 1 --cuda-graph
		mpi 2 --dp 2 --dtype bf16
		mpi 2 --fsdp 2 --zero 1
		mpi 2 --tp 2 --virtual tp=2
		mpi 2 --pp 2 --tie yes
		mpi 2 --dp 2 --dtype fp16 --loss-scale 1e7
		nccl 3 --dp 3 --optimizer muon
		nccl 4 --dp 2 --fsdp 2 --zero 2
		nccl 3 --fsdp 3 --zero 3 --dtype bf16
		nccl 2 --fsdp 2 -a llama --experts 4 --ep 2
	END
}

@test "--check-replicas and --check-memory on a GPU: CUDA graphs and offloaded state" {
	stays_silent <<-END
		nccl 2 --dp 2 --cuda-graph
		nccl 2 --fsdp 2 --zero 1 --cuda-graph --dtype bf16
		mpi 2 --fsdp 2 --zero 3 --offload all
		nccl 2 --dp 2 --offload optimizer --cuda-graph
		mpi 2 --dp 2 --offload all --offload-to .
	END
}

@test "--check-replicas on a GPU: wrong replicas are found, named and replaced" {
	clean mpi 3 --dp 3
	heals 1:3:weight 'parameters of the bucket of .* differ from replicas: copied from rank 0'
	heals 0:2:weight:layers.1.attention.wq.weight 'parameters of the bucket of .* copied from rank 1'
	heals 2:2:moment 'exp_avg of the bucket of .* copied from rank 0'
	heals 0:2:update 'parameters of the bucket of'
	heals 1:2:norm 'loss, norm or learning rate of the last update differ from rank 0'
	heals 1:2:norm:rate 'loss, norm or learning rate of the last update'
	heals 1:3:norm:loss 'loss, norm or learning rate of the last update'
	heals 2:4:update 'parameters of the bucket of' # before the last checkpoint
	grep -q 'before a checkpoint: rank 2' run/journal.txt
	clean nccl 3 --dp 3 --clip 0 --dtype bf16
	heals 1:3:rounded 'parameters of the bucket of'
	heals 0:3:weight 'parameters of the bucket of'
}

@test "--check-replicas on a GPU: of two replicas, and with CUDA graphs" {
	clean nccl 2 --dp 2 -n 6
	heals 1:3:weight 'parameters of the bucket of .* changed after the last update: copied from rank 0'
	heals 0:2:norm:rate 'loss, norm or learning rate of the last update'
	ends 1:2:rounded 'rank 0 \(host .* parameters of the bucket of .* differ, and no majority shows which are right: here, or on rank 1' --clip 0
	# a step with a flip has no graph, the step after it has
	heals 1:4:update 'parameters of the bucket of .* copied from rank 0' --cuda-graph
	heals 0:4:norm:rate 'loss, norm or learning rate of the last update' --cuda-graph
}

@test "--check-replicas on a GPU: shards, gathered parameters, tied weights, offloaded state" {
	clean nccl 4 --dp 2 --fsdp 2
	heals 3:3:weight 'parameters of the bucket of .* copied from rank 1'
	clean mpi 2 --fsdp 2 --zero 1 --dtype bf16
	heals 1:3:weight 'parameters of the bucket of'
	clean mpi 2 --pp 2 --tie yes
	heals 1:3:weight:tok_embeddings.weight 'parameters of the bucket of tok_embeddings.weight changed'
	clean mpi 2 --dp 2 --offload all
	heals 1:3:moment 'exp_avg of the bucket of'
	heals 0:3:weight 'parameters of the bucket of'
}

@test "--check-memory on a GPU: a change at rest is found without a replica, and ends the run" {
	clean nccl 2 --fsdp 2 -c 2
	flip 1:3:weight --check-memory yes
	[ "$status" -eq 71 ]
	grep -qE 'step 3: rank 1 \(host [^ ]+\): parameters of the bucket of .* have changed since the last update, and have no replica' err
	flip 0:3:moment --check-memory yes
	[ "$status" -eq 71 ]
	grep -qE 'step 3: rank 0 \(host [^ ]+\): exp_avg of' err
	[ "$(readlink run/checkpoints/latest.h5)" = step-00000002.h5 ]
	clean mpi 1 --cuda-graph
	flip 0:3:moment --check-memory yes
	[ "$status" -eq 71 ]
	clean mpi 2 --dp 2
	flip 1:3:moment --check-memory yes
	[ "$status" -eq 0 ]
	same
}
