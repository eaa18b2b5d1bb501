#!/usr/bin/env bats
# pt-train: evaluations have no dropout; and a resumed run is the run that was not stopped, in what
# only checkpoints remember.
load helpers

val_loss() { # of the last evaluation in a file
	grep -o 'val_loss=[^ ]*' "$1" | tail -n 1
}

@test "an evaluation drops nothing, whatever its number of windows" {
	make_shard
	tiny -n 2 --dropout 0.5 --eval-every 2 --eval-windows 24 -o run >/dev/null
	tiny --eval-only --eval-windows 24 --dropout 0 --resume run/checkpoints/latest.h5 >out
	[ -n "$(val_loss out)" ]
	[ "$(val_loss out)" = "$(val_loss run/journal.txt)" ]
}

@test "a resumed run drops what the whole run drops" {
	make_shard
	tiny -n 6 --dropout 0.3 -o whole >/dev/null
	tiny -n 3 --dropout 0.3 --decay-steps 6 -o run >/dev/null
	tiny -n 6 --dropout 0.3 --decay-steps 0 -o run --resume auto >/dev/null
	cmp whole/checkpoints/latest.h5 run/checkpoints/latest.h5
}

@test "the best loss is that of the whole run, and best.h5 stays" {
	make_shard
	tiny -n 2 --eval-every 1 --lr 1 --min-lr 1 --warmup 0 --keep 0 -o run >/dev/null
	tiny -n 4 --eval-every 2 --lr 1 --min-lr 1 --warmup 0 --keep 0 -o run --resume auto >/dev/null
	least=$(grep -o 'val_loss=[^ ]*' run/journal.txt | cut -d= -f2 | sort -g | head -n 1)
	[ "$(grep -o 'val_loss=[^ ]*' run/journal.txt | tail -n 1)" != "val_loss=$least" ]
	pt-ckpt show run/checkpoints/latest.h5 | grep -qx "best_val_loss = $least"
	pt-ckpt show run/checkpoints/best.h5 | grep -qx "val_loss = $least"
}
