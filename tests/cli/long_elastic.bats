#!/usr/bin/env bats
# Runs with a vault that are killed again and again, in steps, in copies, in messages to the next
# host and in restores, on changing layouts. At most one step is lost each time, and no bit.
# KILLS sets how many, SEED repeats a sequence of choices (not of moments). With DEVICE=cuda, ranks share the
# emulated GPU.
load helpers

kills=${KILLS:-200}
COMMON=(--layers 4 --heads 4 --virtual "tp=2,cp=2" -m 1 -n 30 --ckpt-every 12 --keep 3 --eval-every 8 --publish-secs 0)
LAYOUTS=('1' '2 --dp 2' '2 --fsdp 2' '2 --fsdp 2 --zero 1' '2 --fsdp 2 --zero 2' '2 --tp 2' '2 --cp 2' '2 --pp 2'
	'3 --fsdp 3' '3 --dp 3' '4 --fsdp 4' '4 --fsdp 2 --tp 2' '4 --pp 2 --dp 2' '4 --dp 2 --fsdp 2'
	'2 --fsdp 2 --offload optimizer --offload-to .')

if [ "${DEVICE:-cpu}" = cuda ]; then
	export PT_CUDA=$BUILD/emu/pt-cuda.so PT_NCCL=none PT_EMU_GUARD=no
	COMMON=(--device cuda --peak-flops 1e12 --layers 2 -b 4 -m 1 -n 14 --ckpt-every 6 --keep 3 --eval-every 0
		--publish-secs 0)
	LAYOUTS=('1' '1 --cuda-graph' '2 --dp 2' '2 --fsdp 2' '2 --fsdp 2 --zero 1' '2 --pp 2' '3 --fsdp 3'
		'2 --fsdp 2 --offload optimizer')
fi

setup_file() {
	cd "$BATS_FILE_TMPDIR" || return 1
	make_shard
	tiny "${COMMON[@]}" -o whole >/dev/null
}

setup() {
	cd "$BATS_FILE_TMPDIR" || exit 1
	VAULT=$(mktemp -d "${PT_VAULT_DIR:-/dev/shm}/pt-test-XXXXXX")
	RANDOM=${SEED:=$((RANDOM * 32768 + RANDOM))}
	echo "# figure: seed $SEED, ${#LAYOUTS[@]} layouts" >&3
}

teardown() {
	rm -rf "$VAULT"
}

last_row() { # of the journal; $1 if it has none (mpiexec may drop the last rows of a killed rank)
	local n
	n=$(sed -n 's/^step=\([0-9]*\) .*/\1/p' run/journal.txt 2>/dev/null | tail -n 1)
	echo "${n:-$1}"
}

# Starts the run on a random layout, with a kill to come: in the program, or from outside.
start() {
	local layout=${LAYOUTS[RANDOM % ${#LAYOUTS[@]}]} places=(step copy seal send)
	read -r ranks layout <<<"$layout"
	inject=() outside=none
	step=$((at + 1 + RANDOM % 6))
	case $((RANDOM % 8)) in
	0) inject=(--inject-kill "$((RANDOM % ranks)):$at:restore") ;;
	[1-4]) inject=(--inject-kill "$((RANDOM % ranks)):$step:${places[RANDOM % 4]}") ;;
	5) outside=one ;;
	6) outside=launcher ;;
	7) outside=all ;;
	esac
	# shellcheck disable=SC2086
	PT_HOST_RANKS=$hosts mpiexec -n "$ranks" pt-train "${TINY[@]}" "${COMMON[@]}" $layout -o "$PWD/run" --resume auto \
		--vault "$VAULT" --vault-every 1 "${inject[@]}" >out 2>err </dev/null 3>&- &
	pid=$!
}

kill_outside() {
	[ $outside != none ] || return 0
	while [ "$(last_row 0)" -lt $step ] && kill -0 "$pid" 2>/dev/null; do sleep 0.01; done
	sleep "0.0$((RANDOM % 10))"
	local victims
	victims=$(ranks_of $pid || true)
	case $outside in
	one) victims=$(shuf -n 1 <<<"$victims") ;;
	launcher) victims=$pid ;;
	esac
	# shellcheck disable=SC2086
	kill -9 $victims 2>/dev/null || true
}

# Loses the vault of one host, or damages a byte of one file.
harm() {
	harm=none
	# only after a row of this start: before it, what an earlier one has left may be harmed already
	[ "$hosts" -eq 1 ] && [ "$ranks" -gt 1 ] && [ -n "$first" ] && [ "$reached" -ge "$first" ] || return 0
	local victim=$((RANDOM % ranks)) files file
	case $((RANDOM % 4)) in
	0)
		harm=host
		rm -f "$VAULT"/*-own-$victim.? "$VAULT"/*-copy-$(((victim + ranks - 1) % ranks)).?
		;;
	1)
		harm=byte
		files=("$VAULT"/*-own-"$victim".?)
		file=${files[0]}
		if [ -s "$file" ]; then
			damage "$file" damaged $((4096 + RANDOM * 7 % ($(stat -c %s "$file") - 4096)))
			cat damaged >"$file"
		fi
		;;
	esac
}

@test "kill -9 of a rank, of all or of the launcher, at places and at random moments" {
	declare -A counts
	local done=0 runs=0 lost most=0 reached at first
	while [ $done -lt "$kills" ]; do
		rm -rf run
		hosts=$((RANDOM % 2 + 1)) at=0 runs=$((runs + 1)) reached=0 harm=none
		while :; do
			start
			kill_outside
			ended $pid
			[ "$outside" = none ] || while pgrep -f "^pt-train .*$PWD/run" >/dev/null; do sleep 0.02; done
			first=$(sed -n 's/^step=\([0-9]*\) .*/\1/p' out | head -n 1)
			echo "$runs: $ranks ranks, hosts of $hosts, ${inject[*]} $outside at $step, harm $harm: code $status, rows $first to $(last_row 0), before $reached"
			at=$(sed -n 's/^# event .* resuming from the vault at step \([0-9]*\) .*/\1/p' run/journal.txt | tail -n 1)
			if [ -n "$first" ] && [ "$reached" -gt 0 ]; then
				lost=$((reached + 1 - first))
				[ $lost -le 1 ] || {
					cat err
					false
				}
				[ $lost -le $most ] || most=$lost
			fi
			reached=$(last_row "$reached")
			at=$(last_row "${at:-0}")
			[ "$status" -ne 0 ] || break
			done=$((done + 1))
			counts[${inject[1]##*:}$outside]=$((${counts[${inject[1]##*:}$outside]:-0} + 1))
			harm
			counts[harm:$harm]=$((${counts[harm:$harm]:-0} + 1))
		done
		pt-compare whole run >compared || {
			cat compared
			false
		}
		cmp whole/checkpoints/latest.h5 run/checkpoints/latest.h5
		[ -z "$(ls "$VAULT")" ]
	done
	for p in "${!counts[@]}"; do echo "# figure: $done kills in $runs runs, ${counts[$p]} of them: $p" >&3; done
	echo "# figure: at most $most step lost" >&3
}

@test "seconds from the kill of a rank under the supervisor to the next row" {
	rm -rf run
	RESTARTS=100 WAIT=0 timeout 300 "$BATS_TEST_DIRNAME/../../share/recipes/supervise" mpiexec -n 2 \
		pt-train "${TINY[@]}" "${COMMON[@]}" -n 400 --fsdp 2 -o "$PWD/run" --vault "$VAULT" --vault-every 1 \
		--inject-delay 0:20 >out 2>err </dev/null 3>&- &
	pid=$!
	local times='' row begin
	for row in 20 60 100 140 180; do
		wait_for "^step=$row " out
		rows=$(wc -l <out)
		begin=$(date +%s%N)
		pkill -9 -n -f "^pt-train .*$PWD/run"
		while [ "$(tail -n +$((rows + 4)) out | grep -c '^step=')" -eq 0 ]; do sleep 0.02; done
		times+=" $((($(date +%s%N) - begin) / 1000000))"
	done
	kill -TERM $pid
	ended $pid
	echo "# figure: milliseconds from a kill to a new row:$times, at load $(cut -d' ' -f1 /proc/loadavg)" >&3
	[ "$status" -eq 75 ] || [ "$status" -eq 0 ]
}

@test "a rank that hangs: with a vault the watchdog waits a minute" {
	rm -rf run
	mpiexec -n 2 pt-train "${TINY[@]}" "${COMMON[@]}" -n 1000000 --ckpt-every 0 --fsdp 2 -o "$PWD/run" \
		--vault "$VAULT" --vault-every 1 >/dev/null 2>err 3>&- &
	pid=$!
	wait_for '^step=20 ' run/journal.txt
	kill -STOP "$(ranks_of $pid | tail -n 1)"
	ended $pid
	cat err
	[ "$status" -eq 1 ]
	grep -q 'waited 60 s for .* did not start it' err
}
