#!/usr/bin/env bats
# pt-tutorial(7): its commands, in order, in an empty folder.
load helpers

# The commands of the page: what follows "$ " and, where one goes on, "> ".
commands() {
	awk '/^\.Bd -literal/ { shown = 1 } /^\.Ed/ { shown = 0 }
		shown && (sub(/^\$ /, "") || sub(/^> /, ""))' "$BATS_TEST_DIRNAME/../man/pt-tutorial.7"
}

# It takes half a minute; here models and text are smaller, and what is stopped after
# some seconds is stopped after some steps. All else is as on the page.
export PT_LAYERS=1 PT_CONTEXT=32 PT_EVAL_WINDOWS=24
smaller() {
	sed 's/gen1:1-rev22:21/gen1:1-gen50:26/; s/timeout -s USR1 3/stop_soon/'
}

# The folder of a run follows its -o.
stop_soon() { # COMMAND...
	"$@" &
	while ! grep -qs '^step=20 ' stopped/journal.txt; do
		kill -0 $! || return 1
		sleep 0.02
	done
	kill -USR1 $!
	wait $!
}
export -f stop_soon

@test "the commands work, one by one" {
	command -v bible >/dev/null || skip 'no bible (Debian: bible-kjv)'
	unset PT_DATA
	mkdir empty
	commands | smaller >commands
	[ "$(grep -c ^ commands)" -gt 25 ]
	grep -q ^stop_soon commands
	(cd empty && timeout 60 bash -ev ../commands) >out 2>err || {
		tail -n 20 err
		return 1
	}
	# what it says of them is so
	grep -qx 'In the beginning God created the heaven and the earth.' out
	[ "$(grep -c '^verdict: identical bit for bit$' out)" -eq 3 ] # test, stopped, piped
	grep -qx 'they differ, code 1' out
	grep -qx 'verdict: the same within the tolerance' out
	grep -qx 'code 75' out
	grep -q '^ *loss +---' out # the graph
	grep -qx 'whole/checkpoints/latest.h5: ok' out
	grep -q '^And it came to pass.' out
	[ "$(grep -c '^total .* GiB' out)" -eq 1 ] # no laptop holds it
	not grep -i 'not found' err
}

@test "all programs are in it, and all pages it names are there" {
	for p in "$BATS_TEST_DIRNAME"/../cmd/pt-*.c; do
		p=$(basename "$p" .c)
		[ "$p" = pt-collbench ] || grep -q "$p" <(commands)
	done
	sed -n 's/^\.Xr \([^ ]*\) \([0-9]\).*/\1.\2/p' "$BATS_TEST_DIRNAME"/../man/*.[1-9] | sort -u |
		grep '^pt' | while read -r page; do
		[ -e "$BATS_TEST_DIRNAME/../man/$page" ] || echo "$page"
	done | not grep .
}
