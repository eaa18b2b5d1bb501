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
