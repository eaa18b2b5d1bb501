#!/usr/bin/env bats
# Opening a GPU, and what is said where that fails. The GPU is emulated.

setup() {
	[ -e "$BUILD/emu/pt-cuda.so" ] || skip 'built without CUDA'
	export PT_CUDA=$BUILD/emu/pt-cuda.so
	try=$BUILD/tests/test_device
}

says() { # text...: what was said has it
	for text in "$@"; do
		[[ $output == *"$text"* ]] || { echo "not said: $text; but: $output"; return 1; }
	done
}

@test 'a GPU is found, and has a name' {
	run "$try" name
	[ "$status" -eq 0 ]
	says 'emulated GPU (sm_90, driver ' 'CUDA ' 'cuBLASLt '
	run "$try" auto
	says 'emulated GPU'
	cp "$try" "$PT_CUDA" "$BATS_TEST_TMPDIR"
	unset PT_CUDA
	run "$BATS_TEST_TMPDIR/test_device" name # beside the program
	says 'emulated GPU'
}

@test 'the kernels of attention that were requested' {
	PT_ATTENTION=auto run "$try" name
	[[ $output != *PT_ATTENTION* ]]
	PT_ATTENTION=mma run "$try" name
	says 'sm_90, ' ', PT_ATTENTION=mma)'
	PT_EMU_ARCH=80 PT_ATTENTION=mma run "$try" name
	says 'sm_80, '
	[[ $output != *PT_ATTENTION* ]]
	PT_ATTENTION=some run "$try" name
	says "PT_ATTENTION: 'some' is not auto or mma"
}

@test 'without the library: said when a GPU was asked for, and when PT_CUDA is wrong' {
	cp "$try" "$BATS_TEST_TMPDIR/alone"
	unset PT_CUDA
	run "$BATS_TEST_TMPDIR/alone" name
	[ "$status" -eq 1 ]
	says '--device cuda: built without CUDA'
	run "$BATS_TEST_TMPDIR/alone" auto
	[ "$status" -eq 0 ]
	[[ $output == cpu* ]]
	mkdir -p "$BATS_TEST_TMPDIR/bin" "$BATS_TEST_TMPDIR/lib/pt"
	cp "$try" "$BATS_TEST_TMPDIR/bin"
	cp "$BUILD/emu/pt-cuda.so" "$BATS_TEST_TMPDIR/lib/pt"
	run "$BATS_TEST_TMPDIR/bin/test_device" name
	says 'emulated GPU'
	PT_CUDA=/nowhere.so run "$try" name
	[ "$status" -eq 1 ]
	says "'/nowhere.so' does not exist"
	PT_CUDA=/nowhere.so run "$try" auto
	[ "$status" -eq 0 ]
	says 'using the CPU, not a GPU: ' "'/nowhere.so' does not exist" 'cpu'
}

@test 'a library that is no library, another one, and that of another version' {
	echo text >"$BATS_TEST_TMPDIR/text.so"
	PT_CUDA=$BATS_TEST_TMPDIR/text.so run "$try" name
	[ "$status" -eq 1 ]
	says 'cannot open the CUDA plugin'
	echo 'int other;' | gcc -shared -fPIC -o "$BATS_TEST_TMPDIR/other.so" -xc -
	PT_CUDA=$BATS_TEST_TMPDIR/other.so run "$try" name
	[ "$status" -eq 1 ]
	says 'is not the CUDA plugin of pt'
	echo 'unsigned long pt_cuda_abi = 1; int pt_cuda_open(void) { return 0; }' |
		gcc -shared -fPIC -o "$BATS_TEST_TMPDIR/old.so" -xc -
	PT_CUDA=$BATS_TEST_TMPDIR/old.so run "$try" name
	[ "$status" -eq 1 ]
	says 'another version of pt'
	PT_CUDA=$BATS_TEST_TMPDIR/old.so run "$try" auto
	[ "$status" -eq 0 ]
	says 'another version of pt' 'cpu'
}

@test 'a GPU that breaks: the last launches, or the failing one' {
	PT_EMU_FAIL=2 run "$try" work
	[ "$status" -eq 1 ]
	says 'cudaErrorIllegalAddress' 'PT_CUDA_SYNC=yes shows which' 'zero <' 'add <' '2145'
	PT_CUDA_SYNC=yes PT_EMU_FAIL=2 run "$try" work
	[ "$status" -eq 1 ]
	says "the failing launch:" 'add <'
	[[ $output != *'zero <'* ]]
	run "$try" work
	[ "$status" -eq 0 ]
	PT_EMU_LAZY=yes run "$try" work
	[ "$status" -eq 0 ]
	PT_CUDA_SYNC=maybe run "$try" work
	[ "$status" -eq 64 ]
}

@test 'too little memory: before anything else, and for a product' {
	PT_EMU_MEMORY=1000000 run "$try" name
	[ "$status" -eq 1 ]
	says '--device cuda: emulated GPU has ' 'nvidia-smi lists'
	PT_EMU_MEMORY=300000000 run "$try" fill
	[ "$status" -eq 1 ]
	says ' bytes' "out of memory: cannot allocate 1.00 MiB for a matmul's operands" 'in use'
	PT_EMU_LOAD=2 run "$try" work
	[ "$status" -eq 1 ]
	says 'out of memory at add: CUDA needs more than the planned memory'
}
