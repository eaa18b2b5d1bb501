# Runs with and without flipped bits, for tests of what detects them.
# (status is for the tests.)
# shellcheck disable=SC2034

# Two layers, eight micro-batches, and clipping, so that the norm matters.
MODEL=(--layers 2 -m 1 -n 4 --clip 0.1 --eval-every 0)

# Trains without a flip in the directory `clean`; `flip` adds flips to the same command.
clean() { # RANKS OPTION...
	command=(tiny_on "$1" "${MODEL[@]}" "${@:2}")
	"${command[@]}" --overwrite -o clean >/dev/null
}

flip() { # FLIP OPTION...: trains in the directory `run`; $status is the exit code, `err` has the messages
	status=0
	"${command[@]}" --overwrite -o run --inject-flip "$@" >/dev/null 2>err || status=$?
}

same() {
	cmp clean/checkpoints/latest.h5 run/checkpoints/latest.h5 >/dev/null
}

# A flip that is found and healed: the run ends as without it, and an event names the rank.
heals() { # FLIP TEXT [OPTION...]
	flip "$1" --check-replicas yes "${@:3}"
	[ "$status" -eq 0 ] && grep -q "flipped bit" err && same && grep -qE "step [0-9]+: .*rank ${1%%:*} \(host [^ ]+\): $2" run/journal.txt || {
		echo "$1: exit code $status" && cat err
		grep event run/journal.txt
		return 1
	}
}

# A flip that is found, but cannot be healed: 71, and the bad state is not saved.
ends() { # FLIP TEXT [OPTION...]
	flip "$1" --check-replicas yes "${@:3}"
	[ "$status" -eq 71 ] && grep -q "flipped bit" err && grep -qE "$2.*the state is wrong, and is not saved" err &&
		[ ! -e run/checkpoints/latest.h5 ] || {
		echo "$1: exit code $status" && cat err
		return 1
	}
}

gpu_flips_setup() {
	gpu_setup
	[[ $PT_CUDA == */emu/* ]] || skip 'flips need the emulated NCCL'
	make_shard
}

# The same on an emulated GPU. Tests may change SMALL.
SMALL=(--layers 2 --dim 32 -b 8 -m 1 -n 4 --eval-every 0 --log-every 1 --peak-flops 1e12 --clip 0.1 --overwrite)

on_gpu() { # COMM RANKS OPTION...: COMM is nccl, or mpi on a GPU that ranks share
	local launch=() comm=$1 n=$2
	shift 2
	[ "$n$comm" = 1mpi ] || launch=(mpiexec -n "$n")
	export PT_NCCL=none
	if [ "$comm" = nccl ]; then
		launch+=("$BATS_TEST_DIRNAME/../tools/nccl_rank")
		export PT_NCCL=$PT_CUDA
	fi
	timeout -k 1 900 "${launch[@]}" pt-train "${TINY[@]}" "${SMALL[@]}" --device cuda "$@" </dev/null
}
