#!/usr/bin/env bats
# pt-prepare: token files of nanoGPT, llm.c and Megatron-LM.
load helpers

# Little-endian numbers of BYTES each.
put() { # BYTES NUMBER...
	local n=$1 x i bytes='' byte
	shift
	for x; do
		for ((i = 0; i < n; i++)); do
			printf -v byte '\\x%02x' $((x >> 8 * i & 255))
			bytes+=$byte
		done
	done
	printf "$bytes"
}

# An index of Megatron-LM: two sequences of 3 and 2 tokens, which are two documents.
make_index() { # TYPE POINTER1 DOCUMENT...
	local type=$1 pointer=$2
	shift 2
	printf 'MMIDIDX\0\0'
	put 8 1
	put 1 "$type"
	put 8 2 $#
	put 4 3 2
	put 8 0 "$pointer" "$@"
}

text_of() { # SHARD: all of its text
	pt-prepare --decode train "$1"
	pt-prepare --decode val "$1"
}

@test "a shard becomes token files, and they become the shard's tokens" {
	make_text >text.txt
	pt-prepare -q text.txt -o a.h5
	for f in nanogpt llmc megatron; do
		mkdir $f
		pt-prepare -q --to $f a.h5 -o $f/
		pt-prepare -q $f/train.bin --val-file $f/val.bin --vocab-from a.h5 -o $f.h5
		pt-prepare --verify $f.h5
		for s in train val; do
			cmp <(pt-prepare --decode $s $f.h5) <(pt-prepare --decode $s a.h5)
		done
		# of text, too, with other names
		pt-prepare -q --to $f text.txt -o $f/b.bin
		cmp $f/train.bin $f/b_train.bin
		cmp $f/val.bin $f/b_val.bin
	done
	[ "$(ls megatron)" = $'b_train.bin\nb_train.idx\nb_val.bin\nb_val.idx\ntrain.bin\ntrain.idx\nval.bin\nval.idx' ]
	cmp <(tail -c +1025 llmc/train.bin) nanogpt/train.bin
	[ "$(od -An -td4 -N12 llmc/train.bin | tr -s ' ')" = ' 20240520 1 36000' ]
}

@test "formats are recognized, and read through a pipe" {
	make_text >text.txt
	pt-prepare -q -t byte text.txt -o a.h5
	pt-prepare -q --to llmc a.h5 -o l
	pt-prepare -q --to megatron a.h5 -o m
	for name in m_train m_train.bin m_train.idx l_train.bin; do
		pt-prepare -q --vocab 256 $name -o "b-$name.h5" -f 0
		cmp <(pt-prepare --decode train "b-$name.h5") /dev/null # no bytes are known
		h5dump -d /train "b-$name.h5" | tail -n +4 | cmp - <(h5dump -d /train b-m_train.h5 | tail -n +4)
	done
	pt-prepare --info b-m_train.h5 | grep -qx 'tokenizer = ids'
	tail -c +1025 l_train.bin | pt-prepare -q --format nanogpt --vocab-from a.h5 - -o n.h5 -f 0
	cmp <(pt-prepare --decode train n.h5) <(pt-prepare --decode train a.h5)
	pt-prepare -q --format llmc --vocab-from a.h5 -o n2.h5 -f 0 <l_train.bin
	cmp n.h5 n2.h5
	tiny -d n.h5 -n 2 -o run >/dev/null
	# text of that name
	cp text.txt text.bin
	pt-prepare -q --format text text.bin -o text.h5
	text_of text.h5 | cmp - text.txt
}

@test "many tokens: four bytes each, and several files" {
	pt-prepare -q --format nanogpt -o a.h5 --vocab 100000 < <(put 2 0 1 2 65535 4 5 6 7 8 9)
	pt-prepare -q --to llmc a.h5 -o l
	[ "$(od -An -td4 -N12 l_train.bin | tr -s ' ')" = ' 20240801 7 9' ]
	[ "$(tail -c +1025 l_train.bin | od -An -w36 -tu4 | tr -s ' ')" = ' 0 1 2 65535 4 5 6 7 8' ]
	pt-prepare -q --to megatron a.h5 -o m
	[ "$(od -An -w36 -td4 m_train.bin | tr -s ' ')" = ' 0 1 2 65535 4 5 6 7 8' ]
	reports 65 '--to nanogpt: a vocabulary of 100000 tokens is too large for this format' pt-prepare --to nanogpt a.h5 -o n
	pt-prepare -q --to llmc a.h5 -o p --shard-size 16
	[ "$(echo p_*)" = 'p_train_00000.bin p_train_00001.bin p_train_00002.bin p_val_00000.bin' ]
	pt-prepare -q p_train_*.bin --val-file p_val_00000.bin --vocab 100000 -o b.h5
	for s in train val; do
		h5dump -d /$s b.h5 | tail -n +2 | cmp - <(h5dump -d /$s a.h5 | tail -n +2)
	done
	# a shard becomes several
	pt-prepare -q a.h5 -o c.h5 --shard-size 16
	pt-prepare --verify c-*.h5
	[ "$(ls c-*.h5 | wc -l)" -eq 3 ]
}

@test "documents: of an index, or that end with a token" {
	make_index 8 6 0 1 2 | tee m2.idx >m.idx
	put 2 7 8 9 5 6 >m.bin
	pt-prepare -q m.bin -o a.h5 -f 0
	[ "$(pt-prepare --info a.h5 | sed -n 's/^documents = //p')" -eq 2 ]
	h5dump -d /documents_train a.h5 | grep -q '(0): 0, 3'
	pt-prepare -q m.bin --to megatron -o n -f 0
	cmp m.bin n_train.bin
	cmp m.idx n_train.idx
	# one document of two sequences
	make_index 8 6 0 2 >m.idx
	pt-prepare -q m.bin --to megatron -o one -f 0
	[ "$(od -An -td8 -j18 -N16 one_train.idx | tr -s ' ')" = ' 1 2' ]
	# from the shard, and to shards that divide it elsewhere
	pt-prepare -q a.h5 --to megatron -o s
	cmp m2.idx s_train.idx
	pt-prepare -q a.h5 -o b.h5 --shard-size 4
	pt-prepare -q b-*.h5 --to megatron -o t
	cmp m2.idx t_train.idx
	put 2 7 8 9 0 5 6 >e.bin
	pt-prepare -q e.bin --end-token 0 --to megatron -o e -f 0
	[ "$(od -An -td4 -j34 -N8 e_train.idx | tr -s ' ')" = ' 4 2' ]
	# whole documents in a file, when there are several
	pt-prepare -q e.bin --end-token 0 --to megatron -o w -f 0 --shard-size 2
	cmp <(put 2 7 8 9 0) w_train_00000.bin
	cmp <(put 2 5 6) w_train_00001.bin
}

@test "damaged token files are refused" {
	put 2 1 2 3 99 >n.bin
	reports 65 'n.bin: token 3 is 99, but the vocabulary has 99' pt-prepare n.bin --vocab 99 -o a.h5
	head -c 7 n.bin >odd.bin
	reports 65 'odd.bin: has an odd number of bytes, 7,' pt-prepare odd.bin -o a.h5
	: >none.bin
	reports 65 'no tokens' pt-prepare none.bin -o a.h5
	{ put 4 20240520 1 5 && head -c 1012 /dev/zero && put 2 1 2 3 4; } >l.bin
	reports 65 'has 1032 bytes, but its header requires 1034' pt-prepare l.bin -o a.h5
	{ put 4 20240520 2 4 && head -c 1012 /dev/zero && put 2 1 2 3 4; } >l.bin
	reports 65 'has version 2 of the format, not 1' pt-prepare l.bin -o a.h5
	{ put 4 20240522 1 4 && head -c 1012 /dev/zero; } >l.bin
	reports 65 'is an evaluation file of llm.c' pt-prepare l.bin -o a.h5
	put 2 7 8 9 5 6 >m.bin
	make_index 7 6 0 1 2 >m.idx
	reports 65 'token type 7 is not an integer type' pt-prepare m.bin -o a.h5
	make_index 8 4 0 1 2 >m.idx
	reports 65 'sequence 1 has 2 tokens at byte 4, but the previous ones end at 6' pt-prepare m.bin -o a.h5
	make_index 8 6 0 3 2 >m.idx
	reports 65 'document 1 begins with sequence 3' pt-prepare m.bin -o a.h5
	make_index 8 6 0 1 2 | head -c 81 >m.idx
	reports 65 'has 81 bytes, which do not match 2 sequences and 3 documents' pt-prepare m.bin -o a.h5
	make_index 8 6 0 1 2 >m.idx
	put 2 7 8 9 5 >m.bin
	reports 65 'm.idx: sequence 1 ends past the end of the tokens' pt-prepare m.bin -o a.h5
	put 2 7 8 9 5 6 1 >m.bin
	reports 65 'm.bin: has 12 bytes, but its index describes 10' pt-prepare m.bin -o a.h5
	make_index 3 6 0 1 2 >m.idx
	put 2 7 8 9 5 65535 >m.bin
	reports 65 'm.bin: token 4 is -1' pt-prepare m.bin -o a.h5
	rm m.idx
	code_of 74 pt-prepare --format megatron m.bin -o a.h5
	[ ! -e a.h5 ]
}

@test "mistakes with token files" {
	make_shard a.h5
	put 2 1 2 3 4 >n.bin
	reports 64 'some of the files contain tokens, and some text' pt-prepare text.txt n.bin -o b.h5
	reports 64 'give --out' pt-prepare --to llmc a.h5
	reports 64 'do not apply to shards, which have their own' pt-prepare a.h5 --val-file n.bin -o b.h5
	reports 64 'the vocabulary is given more than once' pt-prepare n.bin --vocab 5 --vocab-from a.h5 -o b.h5
	reports 64 'for token files, not for text' pt-prepare text.txt --vocab 5 -o b.h5
	reports 64 'for token files, not for text' pt-prepare 'te*.txt' - --vocab 5 -o b.h5 </dev/null
	reports 74 'my: No such file or directory' pt-prepare my --vocab-from a.h5 -o b.h5
	reports 74 'my: No such file or directory' pt-prepare n.bin my -o b.h5
	pt-prepare -q --to nanogpt a.h5 -o n
	reports 74 'n_train.bin exists; --overwrite replaces it' pt-prepare --to nanogpt a.h5 -o n
	pt-prepare -q --overwrite --to nanogpt a.h5 -o n
	[ "$(ls)" = $'a.h5\nn.bin\nn_train.bin\nn_val.bin\ntext.txt' ]
}
