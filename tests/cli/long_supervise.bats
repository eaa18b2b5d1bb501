#!/usr/bin/env bats
# Faults at random moments under the recipe supervise, on emulated hosts, each with two ranks in a network
# namespace of its own: after each fault the run goes on with what is left, and its end has the same bits.
# FAULTS sets how many, KINDS which, PROBE_SECS how often hosts are probed; SEED repeats a sequence of choices,
# not of moments.
load helpers
export SETUP=make_shard

recipes=$BATS_TEST_DIRNAME/../../share/recipes
interval=3
options=(-n 400 --ckpt-every "$interval")

last_step() { # of the rows so far
	grep -o '^step=[0-9]*' run/journal.txt | tail -n 1 | cut -d= -f2
}

resumptions() {
	grep -c '^# event [^ ]* step=[0-9]* resume$' run/journal.txt
}

# If there is a row after another resumption: the steps that this one has lost.
lost_steps() { # RESUMPTIONS: before
	awk -F '[= ]' -v before="$1" '
		/^# event [^ ]* step=[0-9]* resume$/ { n++; lost = last - $5; row = 0 }
		/^step=/ { last = $2; row = 1 }
		END { if (n > before && row) print lost }' run/journal.txt
}

# Waits for a row after the next resumption, and appends the kind of the fault, the seconds until then, and
# the lost steps to `faults`. Fails if the run ends.
next_row() { # KIND RESUMPTIONS BEGIN
	local lost=''
	until lost=$(lost_steps "$2") && [ -n "$lost" ]; do
		kill -0 "$pid" 2>/dev/null || return 1
		sleep 0.05
	done
	awk -v kind="$1" -v a="$3" -v b="$(date +%s.%N)" -v lost="$lost" \
		'BEGIN { printf "%s %.2f %d\n", kind, b - a, lost }' >>faults
}

some_rank() { # prints the process of one
	local p
	for p in $(pgrep -x pt-train); do
		[ "$(readlink "/proc/$p/cwd")" != "$PWD" ] || echo "$p"
	done | shuf -n 1
}

kill_ranks() { # HOST: these, and their launcher
	local pids
	pids=$(ip netns pids "$1")
	# shellcheck disable=SC2086
	[ -z "$pids" ] || kill -KILL $pids 2>/dev/null || true
}

# A fault, a few rows from now. A host that is lost or taken away comes back. Fails if the run ends.
one_fault() { # KIND
	local host=${hosts[RANDOM % 3]} step before begin
	step=$(($(last_step) + RANDOM % 8 + 2))
	until [ "$(last_step)" -ge $step ]; do
		kill -0 "$pid" 2>/dev/null || return 1
		sleep 0.01
	done
	before=$(resumptions) begin=$(date +%s.%N)
	case $1 in
	rank) kill -KILL "$(some_rank)" ;;
	mpiexec) kill -KILL "$(pgrep -P "$pid" -x mpiexec)" ;;
	ranks) kill_ranks "$host" ;;
	host) ip link set "${host/h/v}" down && kill_ranks "$host" ;;
	fewer) sed -i "/^$host$/d" list ;;
	esac || return 1
	next_row "$1" "$before" "$begin" || return 1
	[[ $1 == host || $1 == fewer ]] || return 0
	before=$(resumptions) begin=$(date +%s.%N)
	ip link set "${host/h/v}" up
	printf '%s\n' "${hosts[@]}" >list
	next_row more "$before" "$begin"
}

# In a subshell, whose exit removes the hosts.
on_hosts() { # FAULTS
	local kinds n=0 status
	read -ra kinds <<<"${KINDS:-rank mpiexec ranks host fewer}"
	# shellcheck source=share/recipes/hosts disable=SC1091
	. "$recipes/hosts"
	hosts_open 3
	# a host that is alive refuses the connection
	cat >probe <<-'END'
		#!/bin/bash
		address=$(ip -n "$1" -4 -o addr show eth0 | sed 's/.* inet \([0-9.]*\).*/\1/')
		LC_ALL=C bash -c ": </dev/tcp/$address/9" 2>&1 | grep -q refused
	END
	chmod +x probe
	: >faults
	while [ $n -lt "$1" ]; do
		rm -rf run
		printf '%s\n' "${hosts[@]}" >list
		HOSTS=list RANKS_PER_HOST=2 PROBE='./probe {host}' PROBE_SECS=${PROBE_SECS:-1} WAIT=0.1 \
			"$recipes/supervise" mpiexec -launcher ssh -launcher-exec "${launcher:?}" -iface "${bridge:?}" \
			-f '{hostfile}' -n '{ranks}' -genv UCX_TLS tcp,self -genv UCX_NET_DEVICES eth0 \
			pt-train "${TINY[@]}" -m 1 "${options[@]}" --fsdp -1 --ckpt-wait -o run --inject-delay 0:50 \
			>/dev/null 2>err 3>&- &
		pid=$!
		wait_for '^step=4 ' run/journal.txt
		while [ $n -lt "$1" ] && one_fault "${kinds[RANDOM % ${#kinds[@]}]}"; do n=$((n + 1)); done
		ended $pid
		if [ "$status" -ne 0 ] || ! same whole run; then cat err && return 1; fi
		echo "equal 0 0" >>faults
	done
}

@test "ranks, launchers and hosts die, hosts are taken away and come back: a checkpoint's steps are lost at most" {
	local status=0
	command -v ip >/dev/null || skip 'no ip'
	RANDOM=${SEED:=$((RANDOM * 32768 + RANDOM))}
	tiny -m 1 "${options[@]}" -o whole >/dev/null
	(on_hosts "${FAULTS:-60}") >out 2>messages || status=$?
	[ $status -ne 77 ] || skip "$(cat messages)"
	cat out messages
	awk '{ n[$1]++; s[$1] += $2; if ($2 > most[$1]) most[$1] = $2; if ($3 > lost[$1]) lost[$1] = $3 }
		END { for (k in n) printf "# figure: %s: %d, %.2f s to the next row, %.2f at most, %d steps lost at most\n",
			k, n[k], s[k] / n[k], most[k], lost[k] }' faults >&3
	echo "# figure: seed $SEED, load $(cut -d' ' -f1 /proc/loadavg)" >&3
	[ $status -eq 0 ]
	awk -v interval=$interval '$3 > ($1 ~ /fewer|more/ ? 0 : interval) { print; bad = 1 } END { exit bad }' faults
}
