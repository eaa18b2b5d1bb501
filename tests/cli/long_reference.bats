#!/usr/bin/env bats
# nanoGPT's documented run on a CPU, against the figure of its README: 1.88 of validation loss.
load helpers

@test "nanoGPT's run on characters of Shakespeare reaches 1.80 to 1.92, for three seeds" {
	text=${PT_SHAKESPEARE:-$BATS_TEST_DIRNAME/../../shared/data/tinyshakespeare.txt}
	[ -e "$text" ] || skip "no tinyshakespeare (PT_SHAKESPEARE=FILE)"
	pt-prepare -q "$text" -o s.h5
	for seed in 1 2 3; do
		pt-train -q -d s.h5 --layers 4 --heads 4 --dim 128 -T 64 -b 12 -n 2000 --dropout 0 \
			--lr 1e-3 --min-lr 1e-4 --warmup 100 --beta2 0.99 --act gelu --bias no --sampling random \
			--eval-every 2000 --eval-windows 0 --seed $seed -o seed$seed >log$seed
		loss=$(grep -o ' val_loss=[^ ]*' log$seed | tail -n 1 | cut -d= -f2)
		echo "# figure: val_loss $loss, seed $seed" >&3
		awk -v l="$loss" 'BEGIN { exit !(l >= 1.80 && l <= 1.92) }'
	done
}

@test "the same run on two ranks is the same run" {
	text=${PT_SHAKESPEARE:-$BATS_TEST_DIRNAME/../../shared/data/tinyshakespeare.txt}
	[ -e "$text" ] || skip "no tinyshakespeare (PT_SHAKESPEARE=FILE)"
	pt-prepare -q "$text" -o s.h5
	pt-train -q -d s.h5 --act gelu --bias no --sampling random -o control >/dev/null
	mpiexec -n 2 pt-train -q -d s.h5 --act gelu --bias no --sampling random -o test >/dev/null
	pt-compare control test
	cmp control/checkpoints/latest.h5 test/checkpoints/latest.h5
}
