#!/usr/bin/env bats
# pt-ckpt: checkpoints of PyTorch (tests/golden/torch, of make_torch.py).
load helpers

golden=$BATS_TEST_DIRNAME/../golden/torch

@test "files of torch.save and directories of DCP are the model of Hugging Face" {
	local config=$golden/hf/config.json f
	for f in ddp.pt titan megatron shards universal pytorch_model.bin; do
		pt-ckpt verify --model-config "$config" "$golden/$f"
		code_of 0 pt-ckpt diff --no-optimizer --model-config "$config" "$golden/$f" "$golden/hf"
	done
	code_of 0 pt-ckpt diff --no-optimizer "$golden/nanogpt.pt" "$golden/gpt2"
	pt-ckpt show "$golden/nanogpt.pt" >shown
	grep -q '^step = 7$' shown
	grep -q "^param_hash = $(pt-ckpt hash "$golden/gpt2" | cut -d' ' -f1)$" shown
	grep -q '^layers.0.attention.wo.weight *\[16, 16\] ' shown
	# a configuration beside it, and in the directory
	mkdir old
	cp "$golden/pytorch_model.bin" "$config" old
	code_of 0 pt-ckpt diff old "$golden/hf"
	cp "$golden/ddp.pt" "$config" .
	pt-ckpt verify ddp.pt
}

@test "what the tensors do not tell is asked for" {
	code_of 64 pt-ckpt show "$golden/ddp.pt"
	says 'the number of heads'
	says 'give --model-config FILE'
	printf 'heads = 4\ncontext = 16\n' >conf
	pt-ckpt show --options --model-config conf "$golden/ddp.pt" >options
	grep -qx 'beta2 = 0.95' options
	grep -qx 'kv-heads = 2' options
	code_of 64 pt-ckpt ls --model-config conf
	says 'takes no --model-config'
	code_of 64 pt-ckpt convert --to torch -o out.pt "$golden/nanogpt.pt"
	says 'can be read, and not written'
}

@test "a run goes on from moments of PyTorch, whatever file they were in" {
	printf 'abcdefghij\n' | awk '{ for (i = 0; i < 300; i++) print }' >text
	pt-prepare -q -o eleven.h5 text
	printf 'heads = 4\ncontext = 16\n' >conf
	pt-ckpt convert --model-config conf "$golden/ddp.pt" -o ddp.h5
	pt-ckpt convert --model-config conf "$golden/titan" -o titan.h5
	pt-ckpt diff ddp.h5 titan.h5
	local f
	for f in ddp titan; do
		pt-train -q -d eleven.h5 --resume $f.h5 -n 9 -b 2 -m 1 -t 1 --warmup 0 --self-test no \
			-o run-$f >log-$f 2>&1
	done
	grep -q 'step=9 ' log-ddp
	pt-ckpt diff run-ddp run-titan
	pt-ckpt show run-ddp | grep -q '^step = 9$'
	# its own moments: without them the steps are others
	pt-ckpt strip titan.h5 -o bare.h5
	pt-train -q -d eleven.h5 --init-from bare.h5 -n 2 -b 2 -m 1 -t 1 --warmup 0 --self-test no -o other >/dev/null 2>&1
	code_of 1 pt-ckpt diff --no-optimizer run-ddp other
}

@test "damage: a bit of a part, a part that is missing, a file that is not whole" {
	local config=$golden/hf/config.json
	cp -r "$golden/titan" .
	chmod -R u+w titan
	pt-ckpt verify --model-config "$config" titan
	damage "$golden/titan/__2_0.distcp" titan/__2_0.distcp 500
	code_of 65 pt-ckpt verify --model-config "$config" titan
	says 'titan/__2_0.distcp'
	cp "$golden/titan/__2_0.distcp" titan
	# in a second moment, the last of the file
	damage "$golden/ddp.pt" flipped.pt $(($(stat -c %s "$golden/ddp.pt") - 9000))
	code_of 65 pt-ckpt verify --model-config "$config" flipped.pt
	says 'does not match its checksum'
	pt-ckpt hash --model-config "$config" flipped.pt # of the parameters
	rm titan/__1_0.distcp
	code_of 74 pt-ckpt verify --model-config "$config" titan
	says '__1_0.distcp: No such file'
	head -c 1000 "$golden/titan/.metadata" >titan/.metadata
	code_of 65 pt-ckpt verify --model-config "$config" titan
	says 'ends too early'
	head -c 50000 "$golden/ddp.pt" >half.pt
	code_of 65 pt-ckpt verify --model-config "$config" half.pt
	says 'not whole'
}

@test "files that PyTorch has written, with FSDP and tensor parallelism, DDP, and Megatron-LM" {
	local real=${PT_ORACLE:-$BATS_TEST_DIRNAME/../../shared/data/oracle} f
	[ -e "$real" ] || skip 'no shared/data/oracle'
	for f in dcp-nested/step-0 ddp-step-0.pt; do
		code_of 0 pt-ckpt diff --no-optimizer --model-config "$real/hf/config.json" "$real/$f" "$real/hf"
	done
	for f in dcp-nested/step-1 ddp-step-1.pt hf-sharded-step-1; do
		pt-ckpt verify --model-config "$real/hf/config.json" "$real/$f"
	done
	printf 'heads = 4\ncontext = 16\n' >conf
	pt-ckpt verify --model-config conf "$real/dcp-flat/step-1"
	pt-ckpt show --model-config "$real/hf/config.json" "$real/dcp-nested/step-1" | grep -qx 'step = 2'
	pt-ckpt show --model-config "$real/hf/config.json" "$real/ddp-step-1.pt" | grep -qx 'step = 1'
	code_of 65 pt-ckpt show "$real/torchdist" # a part of a model
}
