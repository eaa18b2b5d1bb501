#!/usr/bin/env bats
# Others on the machine: what they put where a program writes, launchers that are killed, and
# limits that leave little.
load helpers

@test "a link where a file will be is replaced, and its target stays as it is" {
	make_shard
	echo precious >victim
	mkdir -p run/checkpoints
	options=(-n 6 --ckpt-every 3 --publish-secs 0)
	for n in 1 2; do
		for name in run.h5 run.h5.tmp checkpoints/{step-00000003.h5,latest.h5,best.h5}{,.tmp}; do
			ln -sfn "$PWD/victim" run/$name
		done
		tiny_on $n "${options[@]}" -o run --overwrite >/dev/null
		[ "$(cat victim)" = precious ]
		[ ! -L run/run.h5 ]
		[ ! -L run/checkpoints/step-00000003.h5 ]
		pt-ckpt verify -q run run/checkpoints/step-00000003.h5
	done
	for name in part.h5 part.h5.tmp; do ln -s "$PWD/victim" $name; done
	pt-prepare -q --overwrite text.txt -o part.h5
	cmp part.h5 data.h5
	ln -sf "$PWD/victim" small.h5
	pt-ckpt strip -f run -o small.h5
	pt-ckpt verify -q small.h5
	[ "$(cat victim)" = precious ]
}

@test "what killed runs have left is removed when they are taken up" {
	make_shard
	local left mine o
	for o in '--resume auto' --overwrite; do
		tiny -n 3 --ckpt-every 3 -o run --overwrite >/dev/null
		for left in run.h5 checkpoints/{step-00000003.h5,latest.h5,best.h5}; do
			echo x >run/$left.0123456789abcdef.tmp
		done
		for mine in mine.tmp mine.h5.0123456789abcdef.tmp; do echo x >run/checkpoints/$mine; done
		# shellcheck disable=SC2086
		tiny -n 5 --decay-steps 3 -o run $o >/dev/null
		[ "$(cd run && find . -name '*.tmp' | sort)" = $'./checkpoints/mine.h5.0123456789abcdef.tmp\n./checkpoints/mine.tmp' ]
		# killed before its first checkpoint
		rm run/checkpoints/*.h5
		echo x >run/checkpoints/step-00000003.h5.0123456789abcdef.tmp
		# shellcheck disable=SC2086
		tiny -n 5 --decay-steps 3 -o run $o >/dev/null
		[ "$(cd run && find . -name '*.tmp' | sort)" = $'./checkpoints/mine.h5.0123456789abcdef.tmp\n./checkpoints/mine.tmp' ]
	done
}

@test "a first checkpoint that one worker had not written is none, and a later one is" {
	make_shard
	edit=(-n 6 -m 1 --edit-workers 2 --edit-sync-interval 2 --ckpt-every 3)
	tiny_on 2 "${edit[@]}" -o whole >/dev/null
	begun() { # DIRECTORY: killed while its workers wrote their first
		cp -r whole "$1"
		rm "$1"/checkpoints/step-00000006.h5 "$1"/worker-1/checkpoints/*.h5
		ln -sf step-00000003.h5 "$1"/checkpoints/latest.h5
		sed -i '/^# event .* checkpoint /d' "$1"/worker-1/journal.txt
	}
	begun run
	mv run/worker-1/checkpoints disk # (a folder on another disk is usual)
	ln -s ../../disk run/worker-1/checkpoints
	tiny_on 2 "${edit[@]}" -o run --resume auto >/dev/null 2>err
	grep -q 'worker 1 has no checkpoint of this step' err
	pt-compare whole run
	cmp {whole,run}/checkpoints/latest.h5
	cmp {whole,run}/worker-1/checkpoints/latest.h5
	# of two, something has been lost
	cp -r whole lost
	sed -i '/^# event .* checkpoint /d' lost/worker-1/journal.txt
	rm lost/worker-1/checkpoints/*.h5
	reports 65 'no checkpoint is intact' tiny_on 2 "${edit[@]}" -o lost --resume auto
	# the other worker has an older one
	cp -r whole older
	sed -i '/^# event .* checkpoint /d' older/worker-1/journal.txt
	rm older/checkpoints/step-00000003.h5 older/worker-1/checkpoints/{step-00000006,latest,best}.h5
	reports 65 'no checkpoint is intact' tiny_on 2 "${edit[@]}" -o older --resume auto
	# one may also be the last one, of all workers, or the first one that is damaged
	tiny_on 2 "${edit[@]}" --ckpt-every 0 -o end >/dev/null
	cp -r end moved
	mv end/worker-1/checkpoints elsewhere
	begun damaged
	damage whole/checkpoints/step-00000003.h5 damaged/checkpoints/step-00000003.h5 9000
	begun alone
	rm alone/worker-1/journal.txt
	for run in end damaged alone; do
		cp $run/journal.txt before
		reports 65 'no checkpoint is intact' tiny_on 2 "${edit[@]}" -o $run --resume auto
		cmp $run/journal.txt before
	done
	mv elsewhere end/worker-1/checkpoints
	tiny_on 2 "${edit[@]}" -o end --resume auto >/dev/null
	same end moved
}

@test "what is no plain file in the place of a journal is refused, and not waited for" {
	make_shard
	echo precious >victim
	local kind o
	for kind in FIFO 'symbolic link' directory; do
		rm -rf run
		mkdir run
		case $kind in
		FIFO) mkfifo run/journal.txt ;;
		symbolic*) ln -s ../victim run/journal.txt ;;
		directory) mkdir run/journal.txt ;;
		esac
		for o in '' --overwrite '--resume auto'; do
			# shellcheck disable=SC2086
			code_of 74 timeout 120 pt-train "${TINY[@]}" -n 2 -o run $o
			says "run/journal.txt is a $kind, not a plain file"
			code_of 74 timeout 120 mpiexec -n 2 pt-train "${TINY[@]}" -n 2 -o run $o
			says "run/journal.txt is a $kind, not a plain file"
		done
		[ -n "$(find run -name journal.txt)" ]
	done
	[ "$(cat victim)" = precious ]
	# those who read it
	mkdir fifos
	mkfifo fifos/journal.txt fifos/run.h5
	reports 2 'fifos/run.h5 is not a plain file' timeout 120 pt-compare fifos fifos
	reports 2 'fifos/journal.txt: not a regular file' timeout 120 pt-compare --follow fifos fifos
	for device in /dev/zero /dev/full; do
		reports 2 "$device: not a regular file" timeout 120 pt-compare --follow $device fifos
	done
}

@test "a hard link, and the folder that another user has linked, are not written to" {
	make_shard
	pt-train "${TINY[@]}" -n 2 -o run >/dev/null
	ln run/journal.txt other
	cp other before
	local o
	for o in --overwrite '--resume auto'; do
		# shellcheck disable=SC2086
		reports 74 'run/journal.txt has a second hard link' pt-train "${TINY[@]}" -n 4 -o run $o
	done
	cmp other before
	rm other
	# a folder on another disk is usual
	mv run/checkpoints disk
	ln -s ../disk run/checkpoints
	pt-train "${TINY[@]}" -n 4 -o run --resume auto >/dev/null
	[ -e disk/step-00000004.h5 ]
	chown -h 65534 run/checkpoints 2>/dev/null || skip 'only root can give a link away'
	code_of 74 pt-train "${TINY[@]}" -n 6 -o run --resume auto
	says 'run/checkpoints is a symbolic link made by another user (65534)'
	reports 74 'run/checkpoints is a symbolic link made by another user' pt-ckpt prune --keep-last 1 run
	[ -e disk/step-00000002.h5 ]
}

@test "a FIFO as an output is waited for, and a message says so" {
	make_shard
	mkfifo out
	local o
	for o in --trace --hash-tensors; do
		rm -f said
		pt-train "${TINY[@]:1}" -n 2 --eval-every 0 --no-ckpt -o run$o $o out >/dev/null 2>said &
		wait_for 'waiting for a reader of the FIFO out' said
		cat out >got
		[ -s got ] || { kill $! && return 1; }
		wait $!
	done
	rm said
	pt-prepare --overwrite -o out text.txt 2>said &
	wait_for 'waiting for a reader of the FIFO out' said
	cat out >got.h5
	wait $!
	pt-prepare --verify got.h5
}

@test "ranks end with their launcher, even if it and its helpers are killed" {
	make_shard
	mpiexec -n 2 pt-train "${TINY[@]}" -n 1000000 --eval-every 0 -o run >/dev/null 3>&- &
	pid=$!
	wait_for '^step=5 ' run/journal.txt
	mapfile -t ranks < <(ranks_of $pid)
	[ ${#ranks[@]} -eq 2 ]
	# the helpers first: they kill their ranks when the launcher ends
	# shellcheck disable=SC2046
	kill -9 $(pgrep -P $pid) $pid
	gone "${ranks[@]}"
	# they knew, and could save their work
	grep -q ' ends with code 75 after step' run/journal.txt
	pt-ckpt verify -q run
	# while they start: the other rank never comes
	mpiexec -n 1 sh -c 'echo $$ >starts; exec "$@"' sh pt-train "${TINY[@]}" -n 2 -o run2 : \
		-n 1 sh -c 'echo $$ >never; exec sleep 1000' >/dev/null 3>&- &
	pid=$!
	wait_for . starts
	wait_for . never
	# shellcheck disable=SC2046
	kill -9 $(pgrep -P $pid) $pid
	gone "$(cat starts)"
	kill "$(cat never)"
	# without a launcher it does not care who its parent was
	sh -c '"$@" >/dev/null 2>&1 & echo $! >alone' sh pt-train "${TINY[@]}" -n 1000000 --eval-every 0 \
		--no-ckpt -o run3 3>&-
	wait_for '^step=5 ' run3/journal.txt
	kill "$(cat alone)"
	gone "$(cat alone)"
}

four_files() { # COMMAND...: with the standard ones and one more
	bash -c 'for fd in /proc/$$/fd/*; do [ "${fd##*/}" -lt 3 ] || eval "exec ${fd##*/}>&-"; done
		ulimit -n 4; exec "$@"' bash "$@"
}

@test "too few files or too little memory are no damage" {
	plain_memory
	make_shard
	tiny -n 2 --dim 256 --layers 8 -o run >/dev/null
	local c kib
	# shellcheck disable=SC2086
	for c in 'pt-ckpt verify run' 'pt-ckpt show run' 'pt-prepare --verify data.h5' 'pt-prepare --info data.h5' \
		'pt-train -q -n 1 -o new' 'pt-sample run the -n 1'; do
		reports 74 'Too many open files' four_files $c
		not says amaged
		not says DAMAGED
	done
	reports 2 'Too many open files' four_files pt-compare run run
	# all that may be used, between what is needed to start and what is needed to read
	local lacked=0 read=0
	for ((kib = 20000; kib < 200000 && read < 4; kib += 250)); do
		status=0 # (with `run`, bats has words for 127)
		output=$(bash -c "ulimit -v $kib; exec pt-ckpt verify run" 2>&1) || status=$?
		[ "$status" -ne 65 ] || {
			echo "$kib KiB: $output"
			false
		}
		not says DAMAGED
		[ "$status" -ne 0 ] || read=$((read + 1))
		[[ $status -ne 74 || $output != *'Cannot allocate memory'* ]] || lacked=$((lacked + 1))
	done
	[ "$read" -eq 4 ]
	[ "$lacked" -gt 0 ]
	# (the file is as it was)
	pt-ckpt verify -q run
}

@test "a run without a checkpoint is not a damaged one" {
	make_shard
	tiny -n 2 --no-ckpt -o run >/dev/null
	mkdir empty
	for d in run empty; do
		reports 65 "$d: no checkpoint" pt-ckpt verify $d
		says "directory without checkpoint"
		not says DAMAGED
	done
	tiny -n 4 --ckpt-every 1 --keep 0 -o other >/dev/null
	rm other/checkpoints/{latest,best}.h5
	for d in other other/checkpoints; do
		reports 65 'checkpoints/latest.h5 are missing; the newest is other/checkpoints/step-00000004.h5' pt-sample $d
	done
	ln -sf nowhere.h5 other/checkpoints/latest.h5
	reports 74 'other: cannot be read' pt-ckpt verify other
	echo >other/checkpoints/nowhere.h5
	reports 65 'other: DAMAGED' pt-ckpt verify other
}

@test "a stack that is too small even for libraries is refused" {
	plain_memory
	for p in pt-train pt-plan pt-compare pt-ckpt; do # (the environment is on the stack, too)
		code_of 1 bash -c "ulimit -s 20; exec env -i $BUILD/$p --version"
		says 'the stack is limited to less than 256 KiB'
	done
}

@test "pt-prepare --work: a link or a FIFO at the name of a work file is refused" {
	make_text >text.txt
	mkdir w
	echo precious >victim
	ln -s "$PWD/victim" w/pieces-0
	reports 74 'w/pieces-0 is a symbolic link' pt-prepare -q text.txt --work w -o x.h5
	[ "$(cat victim)" = precious ]
	rm w/pieces-0
	mkfifo w/pieces-1
	reports 74 'w/pieces-1 is a FIFO' timeout 60 pt-prepare -q text.txt --work w -o x.h5
	[ ! -e x.h5 ]
}
