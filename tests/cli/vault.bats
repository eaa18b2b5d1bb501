#!/usr/bin/env bats
# The vault: the state in memory, from which a run that was killed resumes on any ranks.
load helpers
export SETUP=setup_vault

OPTIONS=(--layers 2 --heads 4 --virtual tp=2,cp=2 -m 1 -n 14 --ckpt-every 10 --eval-every 0)

setup_vault() {
	make_shard
	VAULT=$(mktemp -d "${PT_VAULT_DIR:-/dev/shm}/pt-test-XXXXXX")
	KEEP=(--vault "$VAULT" --vault-every 1)
}

teardown() {
	[ -z "${VAULT:-}" ] || rm -rf "$VAULT"
}

clean() { # trains without a vault in the directory `clean`
	tiny "${OPTIONS[@]}" "$@" -o clean >/dev/null
}

killed() { # KILL RANKS OPTION...: the run ends in a copy
	rm -rf run
	local kill=$1 ranks=$2
	shift 2
	status=0
	tiny_on "$ranks" "${OPTIONS[@]}" "${KEEP[@]}" "$@" -o run --inject-kill "$kill" >out 2>err </dev/null || status=$?
	[ "$status" -ne 0 ]
}

resumes() { # STEP RANKS OPTION...: from this step, to the same end
	local step=$1 ranks=$2
	shift 2
	tiny_on "$ranks" "${OPTIONS[@]}" "${KEEP[@]}" "$@" -o run --resume auto >out 2>err </dev/null || {
		cat err
		return 1
	}
	grep -o '^step=[0-9]*' out | head -n 1 | grep -qx "step=$((step + 1))" || {
		echo "not from step $step"
		cat out err
		return 1
	}
	grep -q "step=$step resuming from the vault at step $step with $ranks rank" run/journal.txt
	same clean run
	[ -z "$(ls "$VAULT")" ] || [ -n "${leaves:-}" ]
}

file_of() { # RANK STEP [KIND]: the file of a rank that has this step, by its header
	local file
	for file in "$VAULT"/*-"${3:-own}-$1".?; do
		[ "$(od -An -td8 -j24 -N8 "$file")" -ne "$2" ] || echo "$file"
	done
}

last_rows() { # FILE: an offset in its last record
	echo $(($(stat -c %s "$1") - 70))
}

flip() { # FILE OFFSET
	damage "$1" flipped "$2"
	cat flipped >"$1"
}

@test "a vault changes no bit, and its files are removed at the end" {
	clean
	tiny_on 2 "${OPTIONS[@]}" "${KEEP[@]}" --fsdp 2 -o run >/dev/null
	same clean run
	[ -z "$(ls "$VAULT")" ]
	# two states of a rank: its half of the parameters and of both moments
	tiny "${OPTIONS[@]}" --fsdp 2 --vault "$VAULT" --dry-run >out
	parameters=$(sed -n 's/^parameters  *\([0-9]*\) .*/\1/p' out)
	awk -v n="$parameters" '$1 == "vault" { found = $2 >= 6 * n && $2 <= 6 * n + 2 ^ 21 } END { exit !found }' out
	# a directory that the run has made goes, too
	tiny "${OPTIONS[@]}" --vault "$VAULT/new" -o run --overwrite >/dev/null
	[ ! -e "$VAULT/new" ]
	grep -q ' vault: a copy takes .* and a step .* one copy every [0-9]* step' run/journal.txt
}

@test "a killed run resumes from the last copy, on the same, fewer and more ranks, on another layout" {
	clean
	killed 1:8:copy 2 --fsdp 2
	resumes 7 2 --fsdp 2
	killed 2:8:seal 3 --fsdp 3
	resumes 7 2 --tp 2
	killed 0:8:send 2 --tp 2
	resumes 8 1
	killed 0:8:step 2 --pp 2
	resumes 7 4 --fsdp 2 --cp 2 --zero 1
	killed 1:13:copy 4 --dp 2 --pp 2
	resumes 12 3 --fsdp 3 --offload optimizer --offload-to .
	# in the first copy there is nothing yet; in the second, the first one
	killed 1:2:copy 2 --fsdp 2 --offload all --offload-to .
	resumes 1 2 --dp 2
	killed 1:1:copy 2 --dp 2
	tiny_on 2 "${OPTIONS[@]}" "${KEEP[@]}" -o run --resume auto >/dev/null 2>&1
	same clean run
	# in the restore nothing is lost, nor between it and the next copies
	killed 1:8:copy 2 --fsdp 2
	code_of 9 tiny_on 3 "${OPTIONS[@]}" "${KEEP[@]}" --fsdp 3 -o run --resume auto --inject-kill 1:7:restore
	code_of 9 tiny_on 3 "${OPTIONS[@]}" "${KEEP[@]}" --fsdp 3 -o run --resume auto --inject-kill 1:7:copy
	code_of 9 tiny_on 3 "${OPTIONS[@]}" "${KEEP[@]}" --fsdp 3 -o run --resume auto --inject-kill 1:8:step
	code_of 9 tiny_on 3 "${OPTIONS[@]}" "${KEEP[@]}" --fsdp 3 -o run --resume auto --inject-kill 1:8:seal
	code_of 9 tiny_on 3 "${OPTIONS[@]}" "${KEEP[@]}" --fsdp 3 -o run --resume auto --inject-kill 1:8:send
	[ "$(grep -c 'resuming from the vault at step 7 with 3 ranks' run/journal.txt)" -eq 4 ]
	code_of 9 tiny_on 2 "${OPTIONS[@]}" "${KEEP[@]}" --fsdp 2 -o run --resume auto --inject-kill 0:10:copy
	resumes 9 2 --fsdp 2
}

@test "one event has the step, the ranks, the reason and the time of a resumption" {
	clean
	killed 1:8:copy 3 --fsdp 3
	resumes 7 2 --fsdp 2 --resume-reason 'host n05 did not answer'
	grep -qx '# event .* step=7 resuming from the vault at step 7 with 2 ranks instead of 3 (host n05 did not answer); [0-9.]* s since the last row' \
		run/journal.txt
	[ "$(grep -c ' resuming ' run/journal.txt)" -eq 1 ]
}

@test "the state of all optimizers, of fp16 and of experts comes back" {
	local options
	for options in '--optimizer muon --dtype bf16' '--optimizer sgd' '--dtype fp16 --loss-scale-window 3' \
		'--arch llama --experts 4 --experts-per-token 2' '--freeze norm'; do
		# shellcheck disable=SC2086
		clean $options --overwrite
		# shellcheck disable=SC2086
		killed 1:8:copy 2 --fsdp 2 $options
		# shellcheck disable=SC2086
		resumes 7 3 --fsdp 3 $options
	done
}

@test "the vault of a host is lost: the next host has a copy; two hosts: the checkpoint" {
	clean
	PT_HOST_RANKS=2 killed 1:8:copy 4 --fsdp 4
	[ "$(ls "$VAULT" | grep -c copy)" -eq 8 ]
	rm "$VAULT"/*-own-[01].? "$VAULT"/*-copy-[23].? # of the first host
	PT_HOST_RANKS=2 resumes 7 3 --fsdp 3
	PT_HOST_RANKS=1 killed 1:8:copy 3 --fsdp 3
	rm "$VAULT"/*-own-1.? "$VAULT"/*-copy-0.?
	PT_HOST_RANKS=1 resumes 7 2 --fsdp 2
	# uneven hosts
	PT_HOST_RANKS=2 killed 1:13:copy 3 --fsdp 3
	rm "$VAULT"/*-own-[01].? "$VAULT"/*-copy-2.?
	PT_HOST_RANKS=2 resumes 12 2 --fsdp 2
	PT_HOST_RANKS=1 killed 1:13:step 3 --fsdp 3
	rm "$VAULT"/*-own-1.? "$VAULT"/*-copy-1.? # of two hosts
	tiny_on 2 "${OPTIONS[@]}" "${KEEP[@]}" -o run --resume auto >out 2>err
	grep -o '^step=[0-9]*' out | head -n 1 | grep -qx step=11
	same clean run
}

@test "two hosts are lost, one after the other: one step of each is computed again" {
	clean
	PT_HOST_RANKS=1 killed 1:8:copy 3 --fsdp 3
	rm "$VAULT"/*-own-1.? "$VAULT"/*-copy-0.?
	# in the copy after the first step, the state that was restored is on the next host again
	code_of 9 env PT_HOST_RANKS=1 mpiexec -n 3 pt-train "${TINY[@]}" "${OPTIONS[@]}" "${KEEP[@]}" --fsdp 3 \
		-o run --resume auto --inject-kill 0:8:copy
	rm "$VAULT"/*-own-0.? "$VAULT"/*-copy-2.?
	PT_HOST_RANKS=1 resumes 7 2 --fsdp 2
}

@test "a flipped byte: the other copy and a message; without one an older step, then the checkpoint" {
	clean
	PT_HOST_RANKS=1 killed 1:8:copy 2 --fsdp 2
	file=$(file_of 0 7)
	flip "$file" "$(last_rows "$file")"
	PT_HOST_RANKS=1 resumes 7 2 --fsdp 2
	grep -q "$file: rows [0-9]* to [0-9]* of .* in exp_avg_sq do not have their hash" err
	grep -q '(1 damaged record replaced by copies)' run/journal.txt
	# different records of both copies
	PT_HOST_RANKS=1 killed 1:8:copy 2 --fsdp 2
	file=$(file_of 0 7)
	flip "$file" "$(last_rows "$file")"
	flip "$(file_of 0 7 copy)" $(($(stat -c %s "$file") * 3 / 4))
	PT_HOST_RANKS=1 resumes 7 3 --fsdp 3
	grep -q ' instead of 2 (2 damaged records replaced by copies); ' run/journal.txt
	# the same record of both: one host without a copy has no more
	killed 1:13:copy 2 --fsdp 2
	file=$(file_of 0 12)
	flip "$file" "$(last_rows "$file")"
	tiny_on 2 "${OPTIONS[@]}" "${KEEP[@]}" -o run --resume auto >out 2>err
	grep -o '^step=[0-9]*' out | head -n 1 | grep -qx step=11
	same clean run
	grep -q "$VAULT, step 12: some rows have no good copy; looking for an older state" err
	PT_HOST_RANKS=1 killed 1:8:send 2 --fsdp 2
	for kind in own copy; do
		file=$(file_of 0 8 $kind)
		[ -z "$file" ] || flip "$file" $(($(last_rows "$file") - 1))
	done
	PT_HOST_RANKS=1 resumes 7 2 --fsdp 2
}

@test "damaged, hostile and foreign files: messages, and the rest is used" {
	clean
	local at leaves
	for at in 0 9 16 24 32 40 48 56 64 72 80 88 96 4096 4105 4150 4200; do
		leaves=
		[ $at -ge 24 ] || leaves=yes # it no longer seems to be the run's
		PT_HOST_RANKS=1 killed 1:6:copy 2 --fsdp 2
		file=$(file_of 1 5)
		flip "$file" $at
		PT_HOST_RANKS=1 resumes 5 2 --fsdp 2
		[ $at -lt 16 ] || grep -q "$file: the [a-z]* are* damaged; it is ignored\|$file: the [a-z]* is damaged; it is ignored" err
		rm -f "$VAULT"/*
	done
	PT_HOST_RANKS=1 killed 1:6:copy 2 --fsdp 2
	truncate -s -1 "$(file_of 1 5)"
	truncate -s +1 "$(file_of 0 5)"
	PT_HOST_RANKS=1 resumes 5 2 --fsdp 2
	[ "$(grep 'the header is damaged; it is ignored' err | sort -u | wc -l)" -eq 2 ]
	PT_HOST_RANKS=1 killed 1:6:copy 2 --fsdp 2
	file=$(file_of 1 5)
	name=$(file_of 0 5)
	echo >"$file"
	cp "$name" elsewhere
	rm "$name"
	ln -s "$PWD/elsewhere" "$name"
	leaves=yes
	PT_HOST_RANKS=1 resumes 5 2 --fsdp 2
	grep -q "$file: not a file of a vault" err
	# what the run has not made stays
	[ -e elsewhere ]
	[ "$(ls "$VAULT" | wc -l)" -eq 2 ]
	rm "$VAULT"/*
	# another run
	killed 1:6:step 2 --fsdp 2
	mv run other
	echo 0123456789abcdef >other/vault.txt
	files=$(ls "$VAULT")
	tiny_on 2 "${OPTIONS[@]}" "${KEEP[@]}" -o other --resume auto >out 2>err
	grep -q '^step=1 ' out
	grep -q "$VAULT: ignored 4 files of other runs; remove them if those runs have ended" err
	[ "$(ls "$VAULT")" = "$files" ]
}

@test "SIGTERM leaves a vault and a checkpoint; a newer checkpoint is preferred; an overwritten run is forgotten" {
	clean
	paced 2 "${OPTIONS[@]}" "${KEEP[@]}" --fsdp 2 -o run
	until_step 5
	kill -TERM "$(cat pid)"
	cat <&4 >rest
	ended $pid
	[ "$status" -eq 75 ]
	at=$(readlink run/checkpoints/latest.h5 | tr -dc '0-9' | sed 's/5$//; s/^0*//')
	[ -n "$(ls "$VAULT")" ]
	resumes "$at" 3 --fsdp 3
	killed 1:8:step 2 --fsdp 2
	cp clean/checkpoints/step-00000010.h5 run/checkpoints/
	ln -sf step-00000010.h5 run/checkpoints/latest.h5
	tiny_on 2 "${OPTIONS[@]}" "${KEEP[@]}" -o run --resume auto >out 2>err
	grep -o '^step=[0-9]*' out | head -n 1 | grep -qx step=11
	[ -z "$(ls "$VAULT")" ]
	killed 1:8:step 2 --fsdp 2
	tiny_on 2 "${OPTIONS[@]}" "${KEEP[@]}" -o run --overwrite >out 2>err
	grep -q '^step=1 ' out
	[ -z "$(ls "$VAULT")" ]
	# a checkpoint that is named is what it is
	killed 1:13:step 2 --fsdp 2
	tiny_on 2 "${OPTIONS[@]}" "${KEEP[@]}" -o run --resume run/checkpoints/step-00000010.h5 >out 2>err
	grep -o '^step=[0-9]*' out | head -n 1 | grep -qx step=11
	same clean run
}

@test "a checkpoint that was due when the run was killed is written at the restart" {
	clean --keep 0
	killed 0:10:send 2 --fsdp 2 --keep 0
	[ ! -e run/checkpoints/step-00000010.h5 ]
	resumes 10 2 --fsdp 2 --keep 0
	cmp clean/checkpoints/step-00000010.h5 run/checkpoints/step-00000010.h5
}

@test "what a vault cannot have is refused before the run" {
	reports 64 '--vault and --edit-workers are mutually exclusive' tiny --vault "$VAULT" --edit-workers 2 -o run
	reports 64 "--inject-kill '1:2:lunch': expected RANK:STEP:PLACE" tiny --inject-kill 1:2:lunch -o run
	reports 74 'Not a directory' tiny --vault data.h5/x -o run
	[ ! -e run ]
	unshare -rm true 2>/dev/null || skip 'no mount namespaces'
	mkdir small
	# shellcheck disable=SC2016
	reports 64 "--vault small: too small: two states of this host need " unshare -rm sh -c \
		'mount -t tmpfs -o size=64k none small && exec "$@"' sh pt-train "${TINY[@]}" --vault small -o run
	says 'but only 64.0 KiB (65536 bytes) are free'
	[ ! -e run ]
}

@test "a rank that reads or writes a file longer than the watchdog waits is not missing" {
	cat >slow.c <<-'END'
		#define _GNU_SOURCE
		#include <stdlib.h>
		#include <string.h>
		#include <sys/syscall.h>
		#include <unistd.h>
		/* Sleeps once, in a rank that has reached the step of FILE. */
		static void sleep_once(const char *rank, const char *file)
		{
			static int slept;
			const char *own = getenv("PMI_RANK");
			if (!slept && own && !strcmp(own, rank) && !access(file, F_OK)) {
				slept = 1;
				sleep(4);
			}
		}
		int fsync(int fd)
		{
			sleep_once("0", "slow-sync");
			return (int)syscall(SYS_fsync, fd);
		}
		ssize_t pread(int fd, void *p, size_t n, off_t at)
		{
			sleep_once("1", access("run/journal.txt", F_OK) ? "slow-start" : "slow-read");
			return syscall(SYS_pread64, fd, p, n, at);
		}
		ssize_t pread64(int fd, void *p, size_t n, off_t at)
		{
			return pread(fd, p, n, at);
		}
	END
	cc -shared -fPIC -o slow.so slow.c
	local at
	clean
	for at in sync start read; do
		: >slow-$at
		rm -rf run
		LD_PRELOAD=$PWD/slow.so tiny_on 2 "${OPTIONS[@]}" "${KEEP[@]}" --fsdp 2 --watchdog 1 -o run >out 2>err || {
			cat err
			false
		}
		rm slow-$at
		same clean run
	done
}
