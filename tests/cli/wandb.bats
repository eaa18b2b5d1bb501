#!/usr/bin/env bats
# pt-train --log-to wandb: offline runs, read here as wandb's own reader does.
load helpers

setup() {
	cd "$BATS_TEST_TMPDIR" || exit 1
	command -v python3 >/dev/null || skip 'no python3'
	make_shard
	cat >reader.py <<-'END'
		"""Prints the rows of .wandb files as `step NAME=VALUE ...`, and other records by number; checks every block."""
		import json, struct, sys, zlib

		def records(data):
		    assert struct.unpack("<4sHB", data[:7]) == (b":W&B", 0xBEE1, 0)
		    at, whole = 7, b""
		    while at < len(data):
		        left = 32768 - at % 32768
		        if left < 7:
		            assert data[at : at + left] == bytes(left)
		            at += left
		            continue
		        crc, n, kind = struct.unpack("<IHB", data[at : at + 7])
		        part = data[at + 7 : at + 7 + n]
		        assert n + 7 <= left and len(part) == n and zlib.crc32(part, zlib.crc32(bytes([kind]))) == crc
		        assert (kind in (1, 2)) == (not whole)
		        whole += part
		        at += 7 + n
		        if kind in (1, 4):
		            yield whole
		            whole = b""
		    assert not whole

		def fields(data):
		    at = 0
		    def varint():
		        nonlocal at
		        value = shift = 0
		        while True:
		            value |= (data[at] & 127) << shift
		            at, shift = at + 1, shift + 7
		            if data[at - 1] < 128:
		                return value
		    while at < len(data):
		        key = varint()
		        assert key & 7 in (0, 2)
		        value = varint()
		        if key & 7 == 2:
		            value, at = data[at : at + value], at + value
		        yield key >> 3, value
		    assert at == len(data)

		for path in sys.argv[1:]:
		    for i, record in enumerate(records(open(path, "rb").read())):
		        (one, number), (kind, body) = fields(record)
		        assert (one, number) == (1, i + 1)
		        body = list(fields(body))
		        if kind == 2:
		            items = [dict(fields(item)) for field, item in body if field == 1]
		            items = {item[2].decode(): json.loads(item[16]) for item in items}
		            assert items["_step"] == dict(fields(dict(body)[2]))[1]
		            print(items["_step"], *["%s=%r" % x for x in items.items()])
		        elif kind == 17:
		            print("run", *[v.decode() for k, v in body if k in (1, 8)], *["%d=%s" % x for x in body if x[0] in (14, 18)])
		        elif kind == 18:
		            print("exit", dict(body).get(1, 0))
	END
}

# The steps and losses of a journal.
losses() { # RUN
	awk '!/^#/ { for (i = 1; i <= NF; i++) if ($i ~ /^(step|loss)=/) printf "%s%s", substr($i, index($i, "=") + 1), $i ~ /^loss/ ? "\n" : " " }' "$1/journal.txt"
}

rows() { # FILE...
	python3 reader.py "$@" >all
	sed -nE 's,^([0-9]+) .*train/loss=([^ ]*).*,\1 \2,p' all
}

@test "an offline run of W&B has the rows of the log; a resumed run has the same ID and goes on" {
	tiny -n 30 -o run --ckpt-every 10 --keep 0 --log-to wandb:wb --log-to tensorboard:tb >rows.txt
	one=$(echo wb/offline-run-*/run-*.wandb)
	[[ $one =~ ^wb/offline-run-[0-9]{8}_[0-9]{6}-([a-z0-9]{8})/run-([a-z0-9]{8}).wandb$ ]]
	id=${BASH_REMATCH[1]}
	[ "$id" = "${BASH_REMATCH[2]}" ]
	[ "$(stat -c %s "$one")" -gt 32768 ] # a record crosses blocks
	rows "$one" >got
	sed -nE 's/^step=([0-9]+) .* loss=([^ ]*) .*/\1 \2/p' rows.txt >want
	[ "$(wc -l <want)" -eq 30 ]
	python3 - <<-'END'
		import struct
		rows = lambda name: [line.split() for line in open(name)]
		single = lambda x: struct.pack("f", float(x))
		assert [(s, single(x)) for s, x in rows("got")] == [(s, single(x)) for s, x in rows("want")]
	END
	grep -qx "run $id run" all
	tail -n 1 all | grep -qx 'exit 0'
	grep -q 'val/loss=' all
	pt-compare run tb | grep -q 'identical bit for bit'
	tiny -n 30 --resume run/checkpoints/step-00000010.h5 -o run --log-to wandb:wb >/dev/null
	two=$(find wb -name '*.wandb' ! -path "$one")
	[[ $two == *"-$id/run-$id.wandb" ]]
	rows "$two" | cmp - <(tail -n 20 got)
	[ "$(find wb -type f | wc -l)" -eq 2 ]
	grep -qx "run $id run 14=11 18=1" all
	# a new run has a new ID
	tiny -n 2 -o other --log-to wandb:wb >/dev/null
	[ "$(find wb -name '*.wandb' ! -name "run-$id.wandb" | wc -l)" -eq 1 ]
}

@test "a killed run has all rows that were printed" {
	: >rows.txt # the shell that runs in the background may open it later than the loop does
	tiny -n 100000 -o run --log-to wandb:wb --eval-every 0 >rows.txt &
	while [ "$(wc -l <rows.txt)" -lt 50 ]; do sleep 0.1; done
	kill -9 $!
	wait $! || true
	n=$(grep -c '^step=' rows.txt)
	rows wb/*/*.wandb >got
	[ "$(wc -l <got)" -ge "$n" ]
	[ "$(awk '$1 != NR' got)" = '' ]
	not grep exit all
}

@test "only the first rank of a worker writes; the options are checked" {
	tiny_on 4 -n 3 -o run --edit-workers 2 --dp 2 --log-to wandb:wb --no-ckpt >/dev/null
	[ "$(find wb -type f | wc -l)" -eq 2 ]
	rows wb/offline-run-*/*.wandb >zero
	rows wb/worker-1/offline-run-*/*.wandb >one
	[ "$(wc -l <zero) $(wc -l <one)" = '3 3' ]
	for o in wandb wandb: tensor:x :x x; do
		reports 64 "log-to '$o': expected tensorboard:DIRECTORY or wandb:DIRECTORY" tiny -n 2 -o bad --log-to $o
	done
	reports 64 "unknown option '--tensorboard'; did you mean '--log-to'?" tiny -n 2 -o bad --tensorboard x
	[ ! -e bad ]
}

@test "a full disk does not end the training; rows are kept, and written later" {
	with_fault() { # FAULT OPTION...
		local fault=$1
		shift
		mkdir -p "$dir"
		LD_PRELOAD=$BUILD/tests/io_faults.so IO_FAULT=$fault IO_FAULT_IN=$(realpath "$dir") \
			pt-train "${TINY[@]}" -n 20 -o run --overwrite --no-ckpt "$@" >rows.txt 2>err
	}
	for kind in wandb tensorboard; do
		dir=$kind.once
		for how in ENOSPC short; do
			rm -rf "$dir"
			with_fault write:5:$how --log-to $kind:$dir
			if [ $how = ENOSPC ]; then
				grep -q "$dir.*: No space left on device; training continues, and rows are kept" err
				grep -q "$dir.*can be written again, and has every row" err
			fi
			[ $kind = tensorboard ] || [ "$(rows $dir/*/*.wandb | wc -l)" -eq 20 ]
			[ $kind = wandb ] || pt-compare run $dir | grep -q 'identical bit for bit'
		done
		dir=$kind.on
		code=0
		with_fault write:5:ENOSPC:on --log-to $kind:$dir || code=$?
		[ $code -eq 74 ]
		[ "$(grep -c '^step=' rows.txt)" -eq 20 ]
	done
	rows wandb.on/*/*.wandb >got
	[ "$(wc -l <got)" -eq 3 ]
}
