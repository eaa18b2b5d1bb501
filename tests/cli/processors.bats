#!/usr/bin/env bats
# One program gives the same bits on every x86-64 processor: with each of its instruction sets, and
# the same as on the machine on which these hashes were written down. Where they change on purpose, a
# run no longer has the bits that it had with the program before: say so in the commit.
load helpers

# (awk's random numbers, of which make_shard makes its text, are not the same everywhere)
plain_shard() {
	seq 100000 | sed 's/3/ and /g; s/7/ of the /g' | head -c 40000 >text.txt
	export PT_DATA=data.h5
	pt-prepare -q text.txt -o data.h5
}

hash_of() { # OPTION...: of the parameters after some steps
	tiny -n 3 --dim 128 --heads 4 -T 40 -b 4 -m 2 -t 2 --overwrite -o run "$@" >/dev/null || return
	pt-ckpt show run | sed -n 's/^param_hash = //p'
}

has() { # ISA
	PT_ISA=$1 pt-train --version >/dev/null 2>&1
}

each_isa() { # HASH OPTION...
	local want=$1 isa
	shift
	for isa in sse2 avx2 avx512 avx512_bf16 amx_bf16; do
		[ "$isa" = sse2 ] || has "$isa" || continue # every processor has SSE2
		[ "$(PT_ISA=$isa hash_of "$@")" = "$want" ] || {
			echo "$isa: $(PT_ISA=$isa hash_of "$@")"
			return 1
		}
	done
}

@test "GPT-2 in fp32, bf16 and float8 has these bits on every processor" {
	plain_shard
	each_isa 0x2bd664e48cf1d156 -a gpt2
	each_isa 0x583895283273d4a6 -a gpt2 --dtype bf16 --dropout 0.1
	each_isa 0xd04faee219bde49e -a gpt2 --dtype float8 --layers 3
}

@test "Llama in fp32, fp16 and bf16 has these bits on every processor" {
	plain_shard
	each_isa 0x577a5bad4f5afb10 -a llama --kv-heads 2
	each_isa 0x25699df6382fbec1 -a llama --dtype fp16
	each_isa 0xf6acdaa636df413e -a llama --dtype bf16 --optimizer muon
}

@test "a mixture of experts in fp32, bf16 and fp16 has these bits on every processor" {
	plain_shard
	each_isa 0xfefb81411d18d720 -a llama --experts 8 --expert-dim 96 --router-z-loss 0.01
	each_isa 0xdca2c8c8df02be63 -a llama --experts 16 --experts-per-token 4 --expert-dim 48 \
		--shared-expert-dim 64 --router sigmoid --router-groups 4 --router-top-groups 2 --router-bias 0.01 --dtype bf16
	each_isa 0xaea9c5a5cf2e6b3a -a llama --experts 6 --expert-dim 40 --shared-expert-dim 64 \
		--shared-expert-gate --no-router-norm --dtype fp16 --balance-over sequence
}

@test "nor does it matter which variants of its functions the C library chooses" {
	plain_shard
	local all
	all=$(hash_of -a llama)
	[ -n "$all" ]
	export GLIBC_TUNABLES=glibc.cpu.hwcaps=-AVX2_Usable,-FMA_Usable,-AVX2,-FMA,-FMA4
	[ "$(hash_of -a llama)" = "$all" ]
}
