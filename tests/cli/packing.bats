#!/usr/bin/env bats
# pt-train --packing documents: attention and positions within documents, on every layout.
load helpers

# A document is a line of twelve words; windows of 64 tokens have parts of one to three.
make_documents() {
	make_text >text.txt
	export PT_DATA=documents.h5
	pt-prepare -q --separator $'.\n' text.txt -o "$PT_DATA"
}

PACKED=(-T 64 --layers 2 -n 12 --packing documents --virtual 'tp=2,cp=2')

@test "ranks, threads, readers and pipes change no bit of a run with documents" {
	make_documents
	tiny "${PACKED[@]}" -o one >/dev/null
	tiny "${PACKED[@]}" -t 2 -o threads >/dev/null
	same one threads
	tiny_on 3 "${PACKED[@]}" --readers 1 -o readers >/dev/null
	same one readers
	tiny_on 4 "${PACKED[@]}" --cp 2 --tp 2 -o cp-tp >/dev/null
	same one cp-tp
	tiny_on 4 "${PACKED[@]}" --fsdp 2 --pp 2 --recompute full -o pp >/dev/null
	same one pp
	tiny "${PACKED[@]}" -d - -o piped <documents.h5 >/dev/null
	same one piped
}

@test "a corpus of several files has the documents of one" {
	make_documents
	tiny "${PACKED[@]}" -o one >/dev/null
	pt-prepare -q --separator $'.\n' --shard-size 9k text.txt -o several
	tiny "${PACKED[@]}" -d several-*.h5 -o several >/dev/null
	# their hashes differ, as those of the files do
	cmp <(grep '^step' one/journal.txt | sed 's/ dt=.*//') \
		<(grep '^step' several/journal.txt | sed 's/ dt=.*//')
}

@test "documents are other arithmetic than a stream, unless there is only one" {
	make_documents
	tiny "${PACKED[@]}" -o documents >/dev/null
	tiny "${PACKED[@]}" --packing stream -o stream >/dev/null
	reports 2 'packing: stream, documents' pt-compare stream documents
	says 'verdict: not comparable'
	make_shard whole.h5
	tiny "${PACKED[@]}" --packing stream -o stream1 >/dev/null
	tiny "${PACKED[@]}" -o document1 >/dev/null
	cmp <(grep '^step' stream1/journal.txt | sed 's/ dt=.*//') \
		<(grep '^step' document1/journal.txt | sed 's/ dt=.*//')
}

@test "a run with documents resumes on another layout; --resume-exact refuses another packing" {
	make_documents
	tiny "${PACKED[@]}" -o one >/dev/null
	tiny "${PACKED[@]}" -n 5 --decay-steps 12 -o two >/dev/null
	tiny_on 2 "${PACKED[@]}" --cp 2 --resume auto --resume-exact -o two >/dev/null
	pt-ckpt diff one/checkpoints/latest.h5 two/checkpoints/latest.h5
	code_of 64 tiny "${PACKED[@]}" --packing stream --resume-exact --resume auto -n 14 -o two
	says 'packing documents -> stream'
}
