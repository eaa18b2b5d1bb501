#!/usr/bin/env bats
# --vault on GPUs: ranks that share a GPU, and ranks with NCCL, both emulated.
load helpers
load flips

setup() {
	gpu_setup
	[[ $PT_CUDA == */emu/* ]] || skip 'needs the emulated NCCL'
	make_shard
	VAULT=$(mktemp -d "${PT_VAULT_DIR:-/dev/shm}/pt-test-XXXXXX")
	KEEP=(--vault "$VAULT" --vault-every 1)
}

teardown() {
	[ -z "${VAULT:-}" ] || rm -rf "$VAULT"
}

SMALL=(--layers 2 --dim 32 -b 6 -m 1 -n 6 --eval-every 0 --log-every 1 --peak-flops 1e12)

clean() { # COMM RANKS OPTION...: without a vault, in the directory `clean`
	on_gpu "$@" --overwrite -o clean >/dev/null
}

killed() { # KILL COMM RANKS OPTION...
	rm -rf run
	status=0
	on_gpu "${@:2}" "${KEEP[@]}" -o run --inject-kill "$1" >out 2>err || status=$?
	[ "$status" -ne 0 ]
}

resumes() { # STEP COMM RANKS OPTION...: from this step, to the same end
	on_gpu "${@:2}" "${KEEP[@]}" -o run --resume auto >out 2>err || {
		cat err
		return 1
	}
	grep -q "step=$1 resuming from the vault at step $1 with $3 rank" run/journal.txt || {
		cat err run/journal.txt
		return 1
	}
	cmp clean/checkpoints/latest.h5 run/checkpoints/latest.h5
	[ -z "$(ls "$VAULT")" ]
}

@test "a vault changes no bit on a GPU; killed runs resume on other ranks and layouts" {
	local comm
	for comm in mpi nccl; do
		clean $comm 2 --fsdp 2
		on_gpu $comm 2 "${KEEP[@]}" --fsdp 2 --overwrite -o run >/dev/null
		cmp clean/checkpoints/latest.h5 run/checkpoints/latest.h5
		[ -z "$(ls "$VAULT")" ]
		killed 1:3:copy $comm 2 --fsdp 2
		resumes 2 $comm 3 --fsdp 3
		killed 0:3:seal $comm 2 --dp 2
		resumes 2 $comm 1
		killed 0:3:send $comm 3 --fsdp 3
		resumes 3 $comm 2 --fsdp 2
		# before the next step begins its copy is not complete
		killed 0:4:step $comm 2 --pp 2
		resumes 2 $comm 2 --dp 2
	done
}

@test "a copy is complete before the next update, on a rank that waits for nothing else" {
	export PT_EMU_WAITS=yes # an operation is complete when it is asked for three times
	clean mpi 1 --layers 8
	killed 0:4:copy mpi 1 --layers 8
	resumes 3 mpi 1 --layers 8
}

@test "GPUs that are late with everything: a copy is the state after its update" {
	export PT_EMU_LAZY=yes
	clean nccl 2 --fsdp 2
	killed 1:5:copy nccl 2 --fsdp 2
	resumes 4 nccl 2 --fsdp 2
	killed 1:5:copy nccl 2 --fsdp 2 --cuda-graph
	resumes 4 nccl 2 --fsdp 2 --cuda-graph
	clean mpi 1
	killed 0:5:copy mpi 1 --cuda-graph
	resumes 4 mpi 1 --cuda-graph
	export PT_EMU_LAZY=first
	killed 0:5:copy mpi 1
	resumes 4 mpi 1
}

@test "16-bit copies, the loss scale and offloaded state come back to the GPU" {
	local options
	for options in '--dtype bf16' '--dtype fp16 --loss-scale-window 2' '--dtype bf16 --optimizer muon' \
		'--dtype bf16 --offload optimizer' '--offload all --offload-to .'; do
		# shellcheck disable=SC2086
		clean mpi 2 --fsdp 2 $options
		# shellcheck disable=SC2086
		killed 1:4:copy mpi 2 --fsdp 2 $options
		# shellcheck disable=SC2086
		resumes 3 mpi 3 --fsdp 3 $options
	done
}

@test "GPUs: the vault of a host is lost, and a byte is flipped" {
	clean nccl 3 --fsdp 3
	# in the copy of step 5, the copy of step 4 is on the next host
	PT_HOST_RANKS=1 killed 1:5:copy nccl 3 --fsdp 3 --cuda-graph
	rm "$VAULT"/*-own-1.? "$VAULT"/*-copy-0.?
	PT_HOST_RANKS=1 resumes 4 nccl 2 --fsdp 2
	PT_HOST_RANKS=1 killed 1:4:copy nccl 2 --fsdp 2
	for file in "$VAULT"/*-own-0.?; do
		[ "$(od -An -td8 -j24 -N8 "$file")" -eq 3 ] || continue
		damage "$file" flipped $(($(stat -c %s "$file") - 70))
		cat flipped >"$file"
	done
	PT_HOST_RANKS=1 resumes 3 nccl 2 --fsdp 2
	grep -q '(1 damaged record replaced by copies)' run/journal.txt
}

@test "pinned memory that is missing is reported before the run" {
	# enough for the device's own 20 MiB
	export PT_EMU_PINNED=$(((20 << 20) + 4096))
	on_gpu mpi 1 -o clean >/dev/null
	reports 1 'out of pinned memory: --vault needs ' on_gpu mpi 1 "${KEEP[@]}" -o run
	[ -z "$(ls "$VAULT")" ]
	[ ! -e run ]
}
