#!/usr/bin/env bats
# pt-train --log-to tensorboard: event files beside the journal.
load helpers
export SETUP=make_shard

@test "event files have the rows of the log, also after a resumption" {
	tiny -n 20 -o run --ckpt-every 10 --keep 0 --log-to tensorboard:tb >/dev/null
	pt-compare run tb >out
	grep -q 'identical bit for bit' out
	grep -q 'val_loss  *identical' out
	# (of a host whose clock was ahead)
	mv tb/events.* tb/events.out.tfevents.9000000000.other.1
	# from before the end, without evaluations: those that came after it are gone
	tiny -n 18 --resume run/checkpoints/step-00000010.h5 -o run --eval-every 0 --log-to tensorboard:tb >/dev/null
	[ "$(find tb -type f | wc -l)" -eq 2 ]
	pt-compare run tb | grep -q 'identical bit for bit'
	for column in tokens mem; do
		pt-compare run tb -t -y $column | awk -F'\t' '/^[0-9]/ { n++; bad += $2 != $3 } END { exit bad || n != 18 }'
	done
	# a new run there is said, and shown alone
	tiny -n 3 -o other --no-ckpt --log-to tensorboard:tb >/dev/null 2>err
	grep -q 'event files of another run' err
	pt-compare other tb | grep -q 'identical bit for bit'
	tiny -n 3 --no-ckpt --overwrite -o other --log-to tensorboard:tb >/dev/null 2>err
	not grep -q 'event files of another run' err
}

@test "local SGD has event files of each worker, from one rank" {
	tiny_on 4 -n 6 -o run --edit-workers 2 --dp 2 --log-to tensorboard:tb --no-ckpt >/dev/null
	[ "$(find tb -type f | wc -l)" -eq 2 ]
	pt-compare run tb | grep -q 'identical bit for bit'
	pt-compare run/worker-1 tb/worker-1 | grep -q 'identical bit for bit'
}

@test "event files cannot be made, or not be written" {
	echo >file
	reports 74 'file' tiny -n 2 -o run --log-to tensorboard:file
	[ ! -e run ]
}
