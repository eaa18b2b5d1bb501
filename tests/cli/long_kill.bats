#!/usr/bin/env bats
# kill -9 and signals at random moments, on many layouts: nothing hangs, no checkpoint is
# damaged, nothing is lost, and on another layout the run goes on to the same bits.
# KILLS and SIGNALS set how many, SEED repeats a sequence of choices (not of moments).
load helpers

kills=${KILLS:-200}
signals=${SIGNALS:-60}

COMMON=(--layers 4 --heads 4 --virtual "tp=2,cp=2" -n 40 --ckpt-every 3 --keep 3 --eval-every 4
	--publish-secs 0)
declare -gA FAMILY=(
	[adamw]=''
	[muon]='--optimizer muon --dtype bf16'
	[edit]='-m 1 --edit-workers 2 --edit-sync-interval 3 --edit-outer sgd --edit-outer-lr 0.7 --edit-outer-momentum 0.8'
)
# All with the same bits within a family.
LAYOUTS=(
	'adamw 1' 'adamw 1 -t 2' 'adamw 1 --ckpt-wait' 'adamw 1 --recompute full'
	'adamw 1 --offload optimizer --offload-to .' 'adamw 2 --dp 2' 'adamw 2 --fsdp 2 --zero 1' 'adamw 2 --fsdp 2 --zero 2'
	'adamw 2 --fsdp 2' 'adamw 2 --fsdp 2 --ckpt-wait' 'adamw 2 --fsdp 2 --recompute full'
	'adamw 2 --fsdp 2 --ckpt-load broadcast' 'adamw 2 --tp 2' 'adamw 2 --tp 2 --no-sp' 'adamw 2 --cp 2'
	'adamw 2 --pp 2' 'adamw 2 --pp 2 --pp-schedule zb-h1' 'adamw 2 --pp 2 --pp-schedule gpipe' 'adamw 3 --fsdp 3'
	'adamw 3 --fsdp 3 --recompute full' 'adamw 3 --dp 3' 'adamw 4 --fsdp 4' 'adamw 4 --fsdp 2 --tp 2'
	'adamw 4 --tp 2 --cp 2' 'adamw 4 --pp 2 --dp 2 --pp-schedule zb-h1' 'adamw 4 --pp 2 --cp 2 --zero 1'
	'adamw 4 --pp 4' 'adamw 4 --pp 2 --tp 2'
	'muon 1' 'muon 2 --dp 2' 'muon 2 --fsdp 2' 'muon 2 --tp 2' 'muon 2 --pp 2' 'muon 3 --fsdp 3'
	'muon 4 --fsdp 2 --tp 2' 'muon 4 --pp 2 --cp 2'
	'edit 2' 'edit 2 --ckpt-wait' 'edit 2 --recompute full' 'edit 4 --tp 2' 'edit 4 --fsdp 2' 'edit 4 --pp 2'
)

setup_file() { # the undisturbed runs, and that all layouts are possible and have their bits
	local family l ranks layout
	cd "$BATS_FILE_TMPDIR" || return 1
	make_shard
	for family in "${!FAMILY[@]}"; do
		ranks=1
		[ "$family" != edit ] || ranks=2
		# shellcheck disable=SC2086
		tiny_on $ranks "${COMMON[@]}" ${FAMILY[$family]} -o "whole-$family" >/dev/null
	done
	for l in "${LAYOUTS[@]}"; do
		read -r family ranks layout <<<"$l"
		# shellcheck disable=SC2086
		tiny_on "$ranks" "${COMMON[@]}" ${FAMILY[$family]} $layout -o run --overwrite >/dev/null 2>&1
		same "whole-$family" run || { echo "$l" && return 1; }
	done
}

setup() {
	cd "$BATS_FILE_TMPDIR" || exit 1
	RANDOM=${SEED:=$((RANDOM * 32768 + RANDOM))}
	echo "# figure: seed $SEED, ${#LAYOUTS[@]} layouts" >&3
}

# A run on this layout, until a random moment: one in four counts from the start, the others from
# a row of the log, so that a slow machine does not make all of them fall into the start.
until_a_moment() { # LAYOUT
	read -r family ranks layout <<<"$1"
	rm -rf run out
	# shellcheck disable=SC2086
	mpiexec -n "$ranks" pt-train "${TINY[@]}" "${COMMON[@]}" ${FAMILY[$family]} $layout -o "$PWD/run" \
		>out 2>err </dev/null 3>&- &
	pid=$!
	random_moment 400
	mapfile -t pids < <(ranks_of $pid || true)
	mapfile -t helpers < <(pgrep -P $pid || true)
}

what_is_there() { # rows that were printed are in the journal, and files are whole
	local f
	{ grep '^step=.* mem=[0-9]*$' out || true; } >rows
	if [ -s rows ]; then
		[ "$(grep -cxFf rows run/journal.txt)" -ge "$(wc -l <rows)" ] || return 1
	fi
	if [ -e run/run.h5 ]; then pt-compare --common "whole-$family" run >/dev/null || return 1; fi
	for f in run/checkpoints/step-*.h5 run/worker-1/checkpoints/step-*.h5; do
		[ ! -e "$f" ] || pt-ckpt verify "$f" >verified || { cat verified && return 1; }
	done
}

goes_on() { # on another layout of the family
	local others=() l ranks layout latest
	for l in "${LAYOUTS[@]}"; do [[ $l != "$family "* ]] || others+=("$l"); done
	read -r _ ranks layout <<<"${others[RANDOM % ${#others[@]}]}"
	latest=$(readlink run/checkpoints/latest.h5 || true)
	# the first of a worker is none without that of the other
	[ "$family" != edit ] || [ -e "run/worker-1/checkpoints/$latest" ] || latest=
	# shellcheck disable=SC2086
	timeout 600 mpiexec -n "$ranks" pt-train "${TINY[@]}" "${COMMON[@]}" ${FAMILY[$family]} $layout -o "$PWD/run" \
		--resume auto >again 2>err </dev/null 3>&- || { cat err && return 1; }
	if [ -n "$latest" ] && grep -q '^step=1 ' again; then
		echo "it began anew, though there was $latest"
		return 1
	fi
	local w
	for w in '' /worker-1; do
		[ -e "whole-$family$w" ] || continue
		pt-compare "whole-$family$w" "run$w" >compared || { cat compared && return 1; }
		cmp "whole-$family$w/checkpoints/latest.h5" "run$w/checkpoints/latest.h5" || return 1
	done
	find run -name '*.tmp*' >left
	[ ! -s left ] || { cat left && return 1; }
}

@test "kill -9 of ranks, launchers or all, at random moments" {
	declare -A counts
	for i in $(seq "$kills"); do
		until_a_moment "${LAYOUTS[i % ${#LAYOUTS[@]}]}"
		victims=(all one launcher launchers)
		victim=${victims[RANDOM % 4]}
		case $victim in
		all) v=("${pids[@]}") ;;
		one) v=("${pids[RANDOM % (${#pids[@]} + (${#pids[@]} == 0))]:-}") ;;
		launcher) v=("$pid") ;;
		launchers) v=("$pid" "${helpers[@]}") ;;
		esac
		echo "$i: $family, $ranks ranks $layout, killed: $victim"
		kill -9 "${v[@]}" 2>/dev/null || true
		ended $pid
		gone "${pids[@]}"
		phase=steps
		[ -s out ] || phase=start
		[ "$status" -ne 0 ] || phase=ended
		[ -z "$(find run -name '*.tmp' 2>/dev/null)" ] || phase=writing
		counts[$phase]=$((${counts[$phase]:-0} + 1))
		what_is_there
		goes_on
	done
	for p in "${!counts[@]}"; do echo "# figure: $kills kills, ${counts[$p]} of them in: $p" >&3; done
}

@test "signals at random moments: 75 and nothing lost, or the end" {
	declare -A counts
	names=(TERM INT USR1)
	for i in $(seq "$signals"); do
		until_a_moment "${LAYOUTS[(i * 5) % ${#LAYOUTS[@]}]}"
		sig=${names[i % 3]}
		victims=(all one launcher)
		victim=${victims[RANDOM % 3]}
		case $victim in
		all) v=("${pids[@]}") ;;
		one) v=("${pids[RANDOM % (${#pids[@]} + (${#pids[@]} == 0))]:-}") ;;
		launcher) v=("$pid") ;;
		esac
		echo "$i: $family, $ranks ranks $layout, $sig to: $victim"
		kill -s "$sig" "${v[@]}" 2>/dev/null || true
		ended $pid
		gone "${pids[@]}"
		counts[$status]=$((${counts[$status]:-0} + 1))
		what_is_there
		if [ "$status" -eq 75 ]; then # all that was done is in a checkpoint
			last=$(sed -n 's/^step=\([0-9]*\) .*/\1/p' run/journal.txt | tail -n 1)
			[ "$(readlink run/checkpoints/latest.h5)" = "$(printf 'step-%08d.h5' "$last")" ]
		fi
		goes_on
	done
	for c in "${!counts[@]}"; do echo "# figure: $signals signals, ${counts[$c]} runs ended with code $c" >&3; done
	[ "${counts[75]:-0}" -gt 0 ]
}
