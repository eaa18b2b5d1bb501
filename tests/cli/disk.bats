#!/usr/bin/env bats
# Disks that are full, become full, are free again, or can only be read: the code, one clear
# message, nothing half-written, nothing lost, for every program that writes.
load helpers

teardown() {
	cd / || return
	[ -z "$disk" ] || in_disk umount -l "$disk" || true
	[ -z "$holder" ] || kill "$holder" || true
}

# Mounting needs root, or a namespace of one's own, whose files /proc shows to all.
holder=
in_disk() { # COMMAND...
	if [ -n "$holder" ]; then
		nsenter -t "$holder" -U -m --preserve-credentials "$@"
	else
		"$@"
	fi
}

pid= # of paced
disk=
make_disk() { # SIZE: an empty disk at $disk, or no test
	local at=$PWD/disk mounted=
	mkdir disk
	if ! mount -t tmpfs -o size="$1" pt "$at" 2>/dev/null; then
		unshare -rm sleep 600 3>&- &
		holder=$!
		for _ in $(seq 400); do
			kill -0 "$holder" 2>/dev/null || break
			in_disk mount -t tmpfs -o size="$1" pt "$at" 2>/dev/null && mounted=yes && break
			sleep 0.05
		done
		[ -n "$mounted" ] || skip 'no disk can be mounted: neither root nor user namespaces'
	fi
	disk=$at
	[ -z "$holder" ] || disk=/proc/$holder/root$at
}

room() { # KIB: so much, and no more, is left on the disk
	rm -f "$disk/filler"
	local free
	free=$(($(stat -f -c '%a * %S' "$disk") / 1024))
	[ "$free" -lt "$1" ] || # who writes meanwhile may leave less
		dd if=/dev/zero of="$disk/filler" bs=1024 count=$((free - $1)) 2>/dev/null || true
}

# What a checkpoint that was being written gives back is filled too.
fill() { # STEP...: at these
	room 0
	local step
	for step; do
		until_step "$step"
		dd if=/dev/zero bs=1024 status=none >>"$disk/filler" 2>/dev/null || true
	done
}

read_only() {
	in_disk mount -o remount,bind,ro "${disk#/proc/"$holder"/root}"
}

listing() { # FOLDER: names and contents, but the filler's
	(cd "$1" && find . ! -name filler ! -type d -exec md5sum {} + | sort -k 2 && find . -type d | sort)
}

# One message, this code, and the disk as it was.
loses_nothing() { # CODE TEXT COMMAND...
	local code=$1 text=$2
	shift 2
	listing "$disk" >before
	code_of "$code" timeout 120 "$@"
	says "$text"
	[ "$(grep -c ^pt- <<<"$output")" -eq 1 ] || {
		echo "$output"
		return 1
	}
	listing "$disk" | diff before -
}

# Files may not grow beyond: a disk that fills after it was looked at.
limited() { # KIB COMMAND...
	run bash -c 'trap "" XFSZ; ulimit -f "$0"; "$@" 2>&1' "$@"
}

@test "pt-prepare: at any size of the disk, all of the shard or nothing" {
	make_shard
	make_disk 1m
	need=$(($(stat -c %s data.h5) / 1024))
	written=0
	for k in 0 4 8 16 $(seq 32 24 $((need - 12))) $(seq $((need / 4 * 4 - 8)) 4 $((need + 28))); do
		rm -f "$disk"/*.h5
		head -c 2000 text.txt | pt-prepare -q - -o "$disk/old.h5"
		room "$k"
		listing "$disk" >before
		run pt-prepare -q text.txt -o "$disk/x.h5"
		if [ "$status" -eq 0 ]; then
			cmp "$disk/x.h5" data.h5
			written=$((written + 1))
		else
			[ "$status" -eq 74 ]
			says "$disk/x.h5: not enough disk space: needs" || says 'x.h5: No space left on device'
			[ "${#lines[@]}" -eq 1 ]
			listing "$disk" | diff before -
			loses_nothing 74 old.h5 pt-prepare -q --overwrite text.txt -o "$disk/old.h5"
		fi
	done
	[ $written -gt 0 ]
	[ $written -lt 15 ]
}

@test "pt-prepare: a disk that fills meanwhile leaves no part of a set" {
	make_shard
	mkdir out
	# (the text ten times, so that a shard is larger than the work file)
	local many=(--source text=1:text.txt --mix-tokens 400000 --shard-size 300000)
	pt-prepare -q "${many[@]}" -o whole.h5
	for k in $(seq 1 20 400); do
		limited "$k" pt-prepare -q "${many[@]}" -o out/x.h5
		[ "$status" -eq 0 ] && break
		[ "$status" -eq 74 ]
		says 'File too large'
		[ -z "$(ls out)" ]
	done
	[ "$k" -gt 290 ]
	[ "$k" -lt 400 ]
	[ "$(ls out)" = "$(ls whole-*.h5 | sed s/whole/x/)" ]
	for k in 1 30 80; do # through a pipe, and a file in TMPDIR
		mkdir -p tmp
		limited "$k" bash -c 'TMPDIR=tmp pt-prepare -q text.txt >image'
		[ "$status" -eq 74 ]
		says 'File too large'
		[ -z "$(ls tmp)" ]
	done
}

@test "pt-train: at any size of the disk, what is there is whole" {
	make_shard
	options=(-n 12 --ckpt-every 4 --keep 0)
	tiny "${options[@]}" -o whole >/dev/null
	made=0
	for k in 0 4 8 40 104 120 208 300 500; do
		make_disk "$((k + 4))k"
		run tiny "${options[@]}" -o "$disk/run"
		echo "$k KiB: $status"
		[ "$status" -eq 0 ] || [ "$status" -eq 74 ]
		[ -z "$(find "$disk" -name '*.tmp*')" ]
		for f in "$disk"/run/checkpoints/step-*.h5; do
			[ -e "$f" ] || continue
			cmp "$f" "whole/checkpoints/${f##*/}"
			made=$((made + 1))
		done
		if [ -e "$disk/run/journal.txt" ]; then
			# every line that is there is whole
			grep -q '^# meta version' "$disk/run/journal.txt"
			[ -z "$(tail -c 1 "$disk/run/journal.txt" | tr -d '\n')" ]
		else
			[ -z "$(ls "$disk")" ] # a run that could not begin
			[ "$status" -eq 74 ]
		fi
		if [ -e "$disk/run/run.h5" ]; then pt-compare --common whole "$disk/run"; fi
		[ ! -e "$disk/run/checkpoints/step-00000012.h5" ] || [ "$status" -eq 0 ] ||
			says 'run.h5' || says 'latest.h5'
		umount_disk
	done
	[ "$status" -eq 0 ]
	[ $made -gt 6 ]
}

umount_disk() {
	in_disk umount "${disk#/proc/"$holder"/root}"
	[ -z "$holder" ] || kill "$holder"
	holder='' disk=''
	rmdir disk
}

@test "pt-train: no room for a checkpoint is known before it is begun, on all ranks" {
	make_shard
	make_disk 1m
	tiny -n 4 --decay-steps 8 -o "$disk/run" >/dev/null
	tiny -n 8 -o whole >/dev/null
	need=$(stat -Lc %s whole/checkpoints/latest.h5)
	cp "$disk/run/checkpoints/latest.h5" saved.h5
	for n in 1 2 3; do
		room 60
		code_of 74 timeout 120 mpiexec -n $n pt-train "${TINY[@]}" -n 8 --decay-steps 0 --resume auto -o "$disk/run"
		says "step-00000008.h5: not enough disk space: needs"
		says 'bytes) are free'
		bytes=$(grep -o '([0-9]* bytes), but' <<<"$output" | head -n 1 | tr -dc 0-9)
		echo "$bytes said, $need needed"
		[ "$bytes" -ge "$need" ]
		[ "$bytes" -lt $((need + 16384)) ]
		# told at the beginning, and at the end
		[ "$(grep -c 'not enough disk space' <<<"$output")" -eq 2 ]
		[ "$(cd "$disk/run/checkpoints" && echo step-*)" = step-00000004.h5 ]
		cmp "$disk/run/checkpoints/latest.h5" saved.h5
		tail -n 2 "$disk/run/journal.txt" | grep -q 'checkpoint failed: .*not enough disk space'
	done
	rm "$disk/filler"
	tiny -n 8 --decay-steps 0 --resume auto -o "$disk/run" >/dev/null
	cmp "$disk/run/checkpoints/latest.h5" whole/checkpoints/latest.h5
	pt-compare --common whole "$disk/run"
}

@test "pt-train: a disk that is full for a while costs neither a row nor a bit" {
	make_shard
	options=(-n 900 --eval-every 100 --ckpt-every 50 --keep 2)
	tiny "${options[@]}" -o whole >/dev/null
	for n in 1 2; do
		make_disk 2m
		paced $n "${options[@]}" -o "$disk/run"
		until_step 100
		fill 150 200 250
		until_step 500 # the pipe holds less than 200 rows
		grep -q 'not enough disk space: needs' err
		grep -q 'journal.txt: No space left on device; training continues' err
		rm "$disk/filler"
		until_step 900
		ended $pid
		exec 4<&-
		[ "$status" -eq 0 ]
		grep -q 'journal.txt can be written again, and has every line' err
		# Not once for each of 400 rows. What a checkpoint that was begun gives back is room for a moment,
		# after which each file may be told of again.
		[ "$(grep -c 'lines of the journal are kept' err)" -eq "$(grep -c 'can be written again' err)" ]
		[ -z "$(grep -o 'checkpoint of step [0-9]*' err | sort | uniq -d)" ]
		[ "$(grep -c 'No space left' err)" -le 20 ]
		[ "$(grep -c ^step= "$disk/run/journal.txt")" -eq 900 ]
		grep -q 'checkpoint failed' "$disk/run/journal.txt"
		pt-compare --common whole "$disk/run"
		cmp whole/checkpoints/latest.h5 "$disk/run/checkpoints/latest.h5"
		[ -z "$(find "$disk" -name '*.tmp*')" ]
		umount_disk
	done
}

@test "pt-train: a full disk at the end is 74, and says what is missing; a signal too" {
	make_shard
	make_disk 2m
	paced 1 -n 500 --ckpt-every 50 -o "$disk/run"
	until_step 100
	fill 150 200 250
	until_step 500
	ended $pid
	exec 4<&-
	[ "$status" -eq 74 ]
	grep -qE 'journal.txt: [0-9]+ lines could not be written' err
	grep -q 'the checkpoint of step 500 was not written' err
	pt-ckpt verify "$disk"/run/checkpoints/step-*.h5
	[ -z "$(find "$disk" -name '*.tmp*')" ]
	rm "$disk/filler"
	# what was not written is computed again
	tiny -n 500 -o whole --ckpt-every 50 >/dev/null
	tiny --resume auto -o "$disk/run" >/dev/null
	pt-compare --common whole "$disk/run"
	cmp whole/checkpoints/latest.h5 "$disk/run/checkpoints/latest.h5"
	paced 1 -n 1000 --ckpt-every 50 -o "$disk/run2"
	until_step 100
	room 0
	kill -TERM "$(cat pid)"
	cat <&4 >/dev/null
	ended $pid
	exec 4<&-
	[ "$status" -eq 74 ]
	grep -q 'was not written' err
}

@test "pt-compare, pt-collbench: results that do not fit, or are no file to be" {
	make_shard
	tiny -n 200 -o run >/dev/null
	make_disk 100k
	for k in 0 4 8; do
		room $k
		loses_nothing 74 "$disk/c.h5: No space left on device" \
			pt-collbench -q -b 8 -e 64 -n 1 --out "$disk/c.h5"
		command -v gnuplot >/dev/null || continue
		for kind in svg png pdf; do
			loses_nothing 2 "$disk/x.$kind: No space left on device" pt-compare -q run run --plot "$disk/x.$kind"
		done
	done
	loses_nothing 74 "$disk/c.h5: No space left on device" \
		mpiexec -n 2 pt-collbench -q -b 8 -e 64 -n 1 --out "$disk/c.h5"
}

@test "a disk that can only be read: every output is refused, every input is read" {
	make_shard
	make_disk 4m
	cp data.h5 text.txt "$disk"
	tiny -n 10 --ckpt-every 5 -o "$disk/run" >/dev/null
	read_only
	ro='Read-only file system'
	loses_nothing 74 "x.h5: $ro" pt-prepare -q text.txt -o "$disk/x.h5"
	loses_nothing 74 "data.h5: $ro" pt-prepare -q text.txt --overwrite -o "$disk/data.h5"
	loses_nothing 74 "c.h5: $ro" pt-collbench -b 8 -e 8 -n 1 --out "$disk/c.h5"
	loses_nothing 74 "$ro" pt-ckpt rm "$disk/run/checkpoints/step-00000005.h5"
	if command -v gnuplot >/dev/null; then
		loses_nothing 2 "x.svg: $ro" pt-compare "$disk/run" "$disk/run" --plot "$disk/x.svg"
	fi
	for n in 1 2 3; do
		loses_nothing 74 "$ro" mpiexec -n $n pt-train "${TINY[@]}" -n 2 -o "$disk/new"
		loses_nothing 74 "run/journal.txt: $ro" mpiexec -n $n pt-train "${TINY[@]}" -n 20 -o "$disk/run" --resume auto
		loses_nothing 74 "run: $ro" mpiexec -n $n pt-train "${TINY[@]}" -n 2 -o "$disk/run" --overwrite
	done
	(cd "$disk" && loses_nothing_here 74 "run-001: $ro" pt-train "${TINY[@]}" -n 2)
	(cd "$disk" && loses_nothing_here 74 "$ro" bash -c 'TMPDIR=. pt-train -q -d - -o x <data.h5')
	# reading
	pt-prepare -q "$disk/text.txt" -o again.h5
	cmp again.h5 data.h5
	pt-prepare --verify "$disk/data.h5"
	pt-ckpt verify "$disk"/run/checkpoints/step-*.h5
	pt-compare "$disk/run" "$disk/run/journal.txt"
	pt-sample -n 3 "$disk/run/checkpoints/step-00000010.h5" >/dev/null
	tiny --eval-only --resume "$disk/run/checkpoints/step-00000010.h5" -d "$disk/data.h5" >/dev/null
	tiny -n 20 --resume "$disk/run/checkpoints/step-00000010.h5" -d "$disk/data.h5" -o on >/dev/null
	[ -e on/checkpoints/step-00000020.h5 ]
}

loses_nothing_here() {
	reports "$1" "$2" timeout 120 "${@:3}"
}

@test "a folder that is gone for a while: the run trains on, and saves when it is back" {
	make_shard
	tiny -n 650 --ckpt-every 20 -o whole >/dev/null
	paced 1 -n 650 --ckpt-every 20 -o run
	until_step 50
	mv run gone
	until_step 300 # the pipe holds about 200 rows
	grep -q 'was not written: .*No such file' err
	mv gone run
	until_step 650
	ended $pid
	[ "$status" -eq 0 ]
	pt-compare whole run
	cmp whole/checkpoints/latest.h5 run/checkpoints/latest.h5
	# and when it does not come back
	paced 1 -n 650 -o run2
	until_step 50
	mv run2 gone
	until_step 650
	ended $pid
	[ "$status" -eq 74 ]
	[ ! -e run2 ]
	pt-compare --common whole gone/journal.txt
}

# An option that makes root an ordinary user: permissions do not bind root.
unprivileged() {
	if [ "$(id -u)" -ne 0 ]; then
		"$@"
	else
		setpriv --reuid 65534 --regid 65534 --clear-groups "$@"
	fi
}

@test "a folder that may not be written" {
	make_shard
	tiny -n 10 --ckpt-every 5 -o run >/dev/null
	chmod a+rx . run run/checkpoints
	if [ "$(id -u)" -eq 0 ]; then
		unprivileged test -r data.h5 2>/dev/null || skip 'setpriv does not reach this folder'
		! unprivileged test -w . || skip 'this folder is open to all'
	else
		chmod a-w . run run/checkpoints
	fi
	listing . >"$BATS_FILE_TMPDIR/before"
	denied() { # TEXT COMMAND...
		run unprivileged "${@:2}"
		chmod u+w . run run/checkpoints
		[ "$status" -eq 74 ]
		says "$1: Permission denied"
		[ "$(grep -c ^pt- <<<"$output")" -eq 1 ]
		[ "$(id -u)" -eq 0 ] || chmod a-w . run run/checkpoints
	}
	denied x.h5 pt-prepare -q text.txt -o x.h5
	denied new pt-train "${TINY[@]}" -n 2 -o new
	denied run-001 pt-train "${TINY[@]}" -n 2
	denied run/journal.txt pt-train "${TINY[@]}" -n 20 -o run --resume auto
	denied run pt-train "${TINY[@]}" -n 20 -o run --overwrite
	denied c.h5 pt-collbench -q -b 8 -e 8 -n 1 --out c.h5
	unprivileged pt-compare run run
	unprivileged pt-ckpt verify run/checkpoints/step-00000010.h5
	chmod u+w . run run/checkpoints
	listing . | diff "$BATS_FILE_TMPDIR/before" -
	# a run that could be logged, but not saved
	tiny -n 4 --no-ckpt -o unsaved >/dev/null
	chmod a-w unsaved/checkpoints
	if [ "$(id -u)" -ne 0 ]; then
		denied unsaved/checkpoints pt-train "${TINY[@]}" -n 20 -o unsaved --overwrite
		unprivileged pt-train "${TINY[@]}" -n 20 -o unsaved --overwrite --no-ckpt >/dev/null
		chmod u+w unsaved/checkpoints
	fi
}

@test "a disk that loses lines late: they are written again" {
	! sanitized || skip 'the sanitizer wants to come first'
	cat >loser.c <<-'END'
		#define _GNU_SOURCE
		#include <errno.h>
		#include <sys/syscall.h>
		#include <unistd.h>
		int fdatasync(int fd)
		{
			static int n;
			static off_t safe;
			if (n++ % 3 < 2) { /* what came since is gone */
				if (!ftruncate(fd, safe))
					errno = ENOSPC;
				return -1;
			}
			safe = lseek(fd, 0, SEEK_END);
			return (int)syscall(SYS_fdatasync, fd);
		}
	END
	cc -shared -fPIC -o loser.so loser.c
	make_shard
	tiny -n 40 -o whole >/dev/null
	LD_PRELOAD=$PWD/loser.so tiny -n 40 -o run --publish-secs 0 --ckpt-every 7 >/dev/null 2>err || [ $? -eq 74 ]
	says_err=$(grep -c 'No space left' err)
	[ "$says_err" -ge 1 ]
	# each row once, none lost
	[ "$(grep -c '^step=' run/journal.txt)" -eq "$(grep -c '^step=' whole/journal.txt)" ]
	pt-compare whole run/journal.txt
}

@test "memory that cannot be shared: ranks send messages, and say so" {
	make_shard
	tiny -n 3 --dim 768 --no-ckpt -o whole >/dev/null
	code_of 0 bash -c 'ulimit -f 20000; exec mpiexec -n 2 pt-train "$@"' x "${TINY[@]}" -n 3 --dim 768 \
		-o run --no-ckpt
	says 'ranks send messages instead'
	pt-compare whole run
}

@test "standard files that are closed are nobody else's" {
	make_shard
	pt-prepare --info data.h5 <&- 2>&- | grep -q tokens
	code_of 74 bash -c 'pt-prepare --info data.h5 <&- >&-'
	code_of 0 bash -c 'pt-train "$@" -n 2 -o run <&- 2>&-' x "${TINY[@]}"
}
