#!/usr/bin/env bats
# Parquet and Arrow with pyarrow, which pip installs from PyPI: kinds of columns, compressions, row groups, memory.
load helpers

setup_file() {
	command -v python3 >/dev/null || skip 'no python3'
	if ! "${PT_PYTHON:-python3}" -c 'import pyarrow' 2>/dev/null; then
		python3 -m venv "$BATS_FILE_TMPDIR/env"
		"$BATS_FILE_TMPDIR/env/bin/pip" install -q pyarrow || skip 'no pyarrow from PyPI'
		export PT_PYTHON=$BATS_FILE_TMPDIR/env/bin/python3
	fi
	export PYTHON=${PT_PYTHON:-python3}
}

@test "kinds of columns, compressions and row groups have the shards of JSONL" {
	"$PYTHON" - <<-'END'
		import json, random
		import pyarrow as pa, pyarrow.parquet as pq
		random.seed(1)
		words = "the of lord café 東京 \t\"quoted\" back\\slash \x00 nul 👍 \n".split(" ")
		texts = [" ".join(random.choices(words, k=random.randrange(300))) for _ in range(3000)]
		texts[7] = "x" * 3000000
		turns = [[{"role": "user", "content": t[:20], "name": None}, {"role": "assistant", "content": t[20:40], "name": "n"}]
		         for t in texts]
		ids = [[random.randrange(99) for _ in range(len(t) % 50)] for t in texts]
		labels = [[x if random.random() < 0.5 else -100 for x in row] for row in ids]
		with open("d.jsonl", "w") as f:
		    for row in zip(texts, turns, ids, labels):
		        f.write(json.dumps(dict(zip(["text", "messages", "input_ids", "labels"], row))) + "\n")
		table = pa.table({"text": texts, "messages": turns, "input_ids": pa.array(ids, pa.list_(pa.int32())), "labels": labels})
		for c in ["none", "snappy", "gzip", "zstd", "brotli", "lz4"]:
		    pq.write_table(table, c + ".parquet", compression=c, row_group_size=700, use_dictionary=c == "zstd")
		pq.write_table(table, "pages.parquet", data_page_version="2.0", data_page_size=1000)
		columns = {"text": pa.array(texts).dictionary_encode(), "input_ids": pa.array(ids, pa.large_list(pa.uint16())),
		           "labels": pa.array(labels, pa.list_(pa.int16())), "messages": table["messages"]}
		other = pa.table(columns)
		large = other.set_column(0, "text", pa.array(texts, pa.large_string()))
		for name, x in [("file.arrow", table), ("dict.arrow", other), ("large.arrow", large)]:
		    with pa.OSFile(name, "wb") as f, pa.ipc.new_file(f, x.schema) as w:
		        w.write_table(x, 500)
		    with pa.OSFile("stream-" + name, "wb") as f, pa.ipc.new_stream(f, x.schema) as w:
		        w.write_table(x, 500)
	END
	for o in '-t char' '-t byte --dedup --shuffle' '--chat-template chatml -t byte' '--record ids --vocab 99 --window 64' \
		'--record ids --vocab 99 --field input_ids'; do
		read -ra o <<<"$o"
		pt-prepare -q "${o[@]}" d.jsonl -o d.h5 --overwrite 2>/dev/null
		for f in *.parquet *.arrow; do
			pt-prepare -q "${o[@]}" $f -o e.h5 --overwrite 2>/dev/null
			cmp d.h5 e.h5
		done
	done
	cat stream-dict.arrow | pt-prepare -q - --record ids --vocab 99 --field input_ids | cmp - e.h5
	cat stream-large.arrow | pt-prepare -q - -t byte | cmp - <(pt-prepare -q -t byte d.jsonl)
	reports 65 "pages.parquet: column 'body' is missing, but the table has conversations; give --chat-template" \
		pt-prepare --field body -t byte pages.parquet -o no.h5
	reports 65 "pages.parquet: column 'a' is missing; give --field with one of: text, messages, input_ids, labels" \
		pt-prepare --record prompt --field a,b -t byte pages.parquet -o no.h5
	reports 65 "column 'input_ids' is list<element: int32>, not text" pt-prepare --field input_ids -t byte pages.parquet -o no.h5
	head -c 100000 pages.parquet >cut.parquet
	reports 65 'cut.parquet: pyarrow: ' pt-prepare -t byte cut.parquet -o no.h5
	head -c 100000 stream-file.arrow >cut.arrow
	reports 65 'cut.arrow: pyarrow: ' pt-prepare -t byte cut.arrow -o no.h5
}

@test "one large row group is streamed: the memory of both processes does not grow with it" {
	"$PYTHON" - <<-'END'
		import pyarrow as pa, pyarrow.parquet as pq
		schema = pa.schema([("text", pa.string())])
		w = pq.ParquetWriter("large.parquet", schema, compression="zstd", use_dictionary=False)
		w.write_table(pa.table({"text": [("%09d " % i) * 1000 for i in range(60000)]}), row_group_size=60000)
		w.close()
	END
	cat >measured <<-END
		#!/bin/sh
		exec $PYTHON -c 'import resource, subprocess, sys
		rc = subprocess.call([sys.executable] + sys.argv[1:])
		open("memory", "w").write(str(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss))
		sys.exit(rc)' "\$@"
	END
	chmod +x measured
	PT_PYTHON=$PWD/measured pt-prepare -q -t byte large.parquet -o large.h5
	[ "$(pt-prepare --info large.h5 | grep -x 'source_bytes = 600000000')" ]
	[ "$(cat memory)" -lt 300000 ] # kB, of 600 MB
}
