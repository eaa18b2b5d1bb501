#!/usr/bin/env bats
# pt-tutorial(7): its commands, in order, in an empty folder.
load helpers

# The commands of the page: what follows "$ " and, where one goes on, "> ".
commands() {
	awk '/^\.Bd -literal/ { shown = 1 } /^\.Ed/ { shown = 0 }
		shown && (sub(/^\$ /, "") || sub(/^> /, ""))' "$BATS_TEST_DIRNAME/../../man/pt-tutorial.7" |
		sed 's/\\e/\\/g'
}

# It takes half a minute; here models and text are smaller, and what is stopped after
# some seconds is stopped after some steps. All else is as on the page.
export PT_LAYERS=1 PT_CONTEXT=32 PT_EVAL_WINDOWS=24
smaller() {
	sed 's/gen1:1-rev22:21/gen1:1-gen50:26/; s/timeout --preserve-status -s USR1 3/stop_soon/
		s/^pt-ckpt diff good bad$/code=0; & || code=$?; [ $code -eq 1 ]/'
}

# The folder of a run follows its -o. (A delay in each step, so that it is not done before it is stopped.)
stop_soon() { # COMMAND...
	"$@" --inject-delay 0:20 &
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
	(cd empty && timeout -k 5 600 bash -ev ../commands) >out 2>err || {
		tail -n 20 err
		return 1
	}
	# what it says of them is so
	grep -qx 'In the beginning God created the heaven and the earth.' out
	[ "$(grep -c '^verdict: identical bit for bit$' out)" -eq 3 ] # test, stopped, piped
	grep -qx 'they differ, code 1' out
	grep -qx 'verdict: the same within the tolerance' out
	grep -qx 'code 75' out
	grep -q '^verdict: the step is right' out
	grep -qx 'wrong, code 1' out
	grep -A 1 '^ *loss$' out | grep -q '^ *[0-9.]* *[+|]' # the graph
	grep -qx 'whole/checkpoints/latest.h5: ok' out
	grep -q '^And it came to pass.' out
	grep -qx 'it was frozen' out
	grep -q '⟦It is ' out
	[ "$(grep -c '^total .* GiB' out)" -eq 1 ] # no laptop holds it
	not grep -i 'not found' err
}

# What stands in EXAMPLES of a page, up to the comment NOT RUN, and from RUN on.
examples() { # PAGE
	awk '/^\.Sh / { on = /EXAMPLES/ } /^\.\\" (NOT )?RUN/ { on = /" RUN/; next } !on { next }
		sub(/^\.Dl /, "") { print; next } /^\.Bd -literal/ { shown = 1; next } /^\.Ed/ { shown = 0 } shown' \
		"$BATS_TEST_DIRNAME/../../man/$1" | sed 's/\\e/\\/g; s/\\(dq/"/g'
}

@test "README and every page: the first examples work" {
	command -v bible >/dev/null || skip 'no bible (Debian: bible-kjv)'
	unset PT_DATA
	# (float8 leaves the first and the last block in bf16)
	export PT_THREADS=1 PT_STEPS=40 PT_LAYERS=3 PT_DIM=64
	bible -l2000 gen1:1-gen50:26 </dev/null 2>/dev/null | sed -nE 's/^ +[0-9]+ //p' >kjv.txt
	awk 'BEGIN { RS = "" } /^    pt-prepare kjv.txt/' "$BATS_TEST_DIRNAME/../../README.md" >commands
	[ "$(grep -c '^ *\(mpiexec .*\)\?pt-' commands)" -ge 5 ]
	for page in pt-prepare.1 pt-train.1 pt-compare.1 pt-ckpt.1 pt-sample.1 pt-collbench.1 \
		pt-config.5 pt-local-sgd.7 pt-experts.7 pt-referee.7 pt-torchtitan.7 pt.7 pt-check.1 pt-plan.1; do
		[ $page != pt-plan.1 ] || echo 'unset PT_LAYERS PT_DIM PT_CONTEXT' >>commands # its models are whole
		examples "$page" | smaller | sed -E 's/-n 200/-n 40/; s/(-n |PT_STEPS=)(50|100)\b/\110/' |
			grep -vx 'pt-prepare kjv.txt -o kjv.h5' >"$page.commands" # it exists
		grep -q 'pt-' "$page.commands"
		cat "$page.commands" >>commands
	done
	timeout -k 5 600 bash -ev commands >out 2>err || {
		tail -n 20 err
		return 1
	}
	# control and test, three times; ddp and fsdp; tp; stopped; again; one and two; checked and flipped; good and bad
	[ "$(grep -c '^verdict: identical bit for bit$' out)" -eq 11 ]
	grep -qx 'verdict: no tensor differs' out
	[ "$(grep -c '^verdict: the same within the tolerance$' out)" -eq 3 ] # bf16, float8, mixed
	grep -qx 'code 75' out
	grep -q '<svg' report.html
	grep -qx 'verdict: the step is right' out # its scale, too
	grep -qx 'batch = 8' out
	not grep -i 'not found' err
}

@test "every page begins with EXAMPLES, after a short DESCRIPTION" {
	cd "$BATS_TEST_DIRNAME/../../man"
	for page in *.[1-9]; do
		[ "$page" != pt-tutorial.7 ] || continue
		awk '/^\.Sh DESCRIPTION/ { from = NR } /^\.Sh EXAMPLES/ { at = NR } /^\.Sh/ && !at && from && NR > from { exit }
			END { exit !(at && at - from <= 60) }' "$page" || echo "$page"
	done | not grep .
}

@test "pt-compare(1): the command that lists names of columns" {
	pt-compare --generate names | grep -qx '.Qq lm loss'
}

@test "pt-torchtitan(7): every option that it names is one" {
	rows() { sed -n 's/^\.It \([a-z_0-9.*]*\) Ta /\1 /p' "$BATS_TEST_DIRNAME/../../man/pt-torchtitan.7"; }
	[ "$(rows | grep -c .)" -gt 140 ]
	for p in pt-train pt-compare pt-prepare pt-ckpt pt-plan; do $p --help >$p.help; done
	rows | while read -r key how option rest; do
		case $how in
		'\-') ;;
		Fl)
			for o in $(grep -oE 'Fl -[a-z0-9-]+' <<<"Fl $option $rest"); do
				[ "$o" = Fl ] || grep -qE -- "(^| )--(\[no-\])?${o#-}([ ,]|$)" pt-train.help || echo "$key: $o"
			done
			;;
		Ic) grep -qE -- "(^| )${rest%% *}([ ,]|$)" "$option.help" || echo "$key: $option $rest" ;;
		*) echo "$key: $how" ;;
		esac
	done | not grep .
	# the sum in its first lines
	table=$(sed -n '/^\.Sh KEYS/,/^\.Ss Keys of later/p' "$BATS_TEST_DIRNAME/../../man/pt-torchtitan.7" | grep '^\.It')
	keys=$(grep -c . <<<"$table") have=$(grep -vc ' Ta \\-' <<<"$table")
	grep -qx "Of the $keys keys of torchtitan, $have have an option." "$BATS_TEST_DIRNAME/../../man/pt-torchtitan.7"
}

@test "the demo, in a hurry" {
	for tool in bible gnuplot; do
		command -v $tool >/dev/null || skip "no $tool"
	done
	unset PT_DATA
	DEMO_STEPS=2 timeout -k 5 600 "$BATS_TEST_DIRNAME/../../share/demo" short >out 2>err || {
		tail -n 20 err
		return 1
	}
	grep -q '^\$ .*--log-every 1 --eval-every 1' out
	grep -qx 'verdict: identical bit for bit' out
	[ "$(tail -n 1 out)" = 'The target of 70 % applies to 800 steps; this run had 2.' ]
}

@test "pt-run(5), pt-checkpoint(5): the examples in Python work" {
	python=${PT_PYTHON:-python3}
	"$python" -c 'import h5py, numpy, xxhash' 2>/dev/null || skip 'no h5py and xxhash (PT_PYTHON=PYTHON)'
	make_shard
	tiny -n 20 -o run >/dev/null
	for page in pt-run pt-checkpoint; do
		awk '/^\.Bd -literal/ { shown = 1; next } /^\.Ed/ { shown = 0 }
			/^In a shell:/ { exit } shown' "$BATS_TEST_DIRNAME/../../man/$page.5" |
			sed 's/\\e/\\/g' | grep -v '^x \|^x = (\|^mix(\|^step=' >$page.py
		[ "$(grep -c 'import h5py' $page.py)" -ge 1 ]
		grep -q assert $page.py
		"$python" $page.py >out
		[ -s out ]
	done
}

# The job script of pt-train(1), small.
job() {
	awk '/^\.Ed/ { on = 0 } /^#!\/bin\/bash/ { on = 1 } on' "$BATS_TEST_DIRNAME/../../man/pt-train.1" |
		sed -E 's/-p gpt2-124m --vocab 0 -d text\*.h5/-d data.h5/'
}

# A program on PATH, before others of that name.
fake() { # NAME, its text on standard input
	mkdir -p fakes
	{ echo '#!/bin/bash' && cat; } >"fakes/$1"
	chmod +x "fakes/$1"
}

# Runs it until it is stopped, and then to the end, with 74 between.
runs_twice() { # COMMAND THAT SUBMITS AGAIN
	bash -n job.sh
	run bash job.sh
	[ "$status" -eq 0 ]
	[ "$(cat submitted)" = "$1" ]
	tail -n 1 run/journal.txt | grep -q 'ends with code 75'
	# a job that fails is not submitted again, whatever the journal says of the last one
	mv data.h5 away.h5
	code_of 74 bash job.sh
	mv away.h5 data.h5
	grep '^step=' run/journal.txt | tail -n 1 >last
	PT_STEPS=$(sed 's/^step=//; s/ .*//' last) code_of 0 bash job.sh
	tail -n 1 run/journal.txt | grep -q 'ends with code 0'
	[ "$(cat submitted)" = "$1" ]
}

# Small, and long enough to be stopped.
small_job() {
	make_shard
	unset PT_DATA
	export PATH="$PWD/fakes:$PATH" PT_STEPS=1000000 PT_LAYERS=1 PT_HEADS=2 PT_DIM=16 PT_CONTEXT=16 \
		PT_BATCH=4 PT_MICRO_BATCH=2 PT_THREADS=1 PT_LOG_EVERY=1 PT_EVAL_EVERY=0 PT_LR_SCHEDULE=constant
}

@test "pt-train(1): the Slurm job goes on, and ends as its program does" {
	small_job
	job >job.sh
	grep -q scontrol job.sh
	export SLURM_JOB_ID=42
	fake scontrol <<<'echo "$@" >>submitted'
	fake srun <<-'END'
		[ "$1 $2 $3" = '--mpi=pmi2 -c 8' ] || exit 99
		"${@:4}" &
		while kill -0 $! 2>/dev/null && ! grep -qs '^step=20 ' run/journal.txt; do sleep 0.02; done
		[ -e submitted ] || kill -USR1 $!
		wait $!
	END
	runs_twice 'requeue 42'
	PT_COLLBENCH_FAULT=allreduce:0:0 code_of 1 bash job.sh
}

@test "all programs are in it, and all pages it names are there" {
	for p in "$BATS_TEST_DIRNAME"/../../cmd/pt-*.c; do
		p=$(basename "$p" .c)
		[ "$p" = pt-collbench ] || grep -q "$p" <(commands)
	done
	sed -n 's/^\.Xr \([^ ]*\) \([0-9]\).*/\1.\2/p' "$BATS_TEST_DIRNAME"/../../man/*.[1-9] | sort -u |
		grep '^pt' | while read -r page; do
		[ -e "$BATS_TEST_DIRNAME/../../man/$page" ] || echo "$page"
	done | not grep .
}
