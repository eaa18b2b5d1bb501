LAUNCHEND

if ! "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
	NO_GPU=$recipes
	export OMP_NUM_THREADS=1 TORCHDYNAMO_DISABLE=1
fi
PYTHONPATH=$nanotron/src CUDA_DEVICE_MAX_CONNECTIONS=1 "$python" -m torch.distributed.run --standalone \\
	--nproc-per-node $((dp * tp * pp)) train.py config.yaml >log 2>&1 || {
	tail -n 30 log >&2
	exit 1
}

# (what it logs has three digits)
command=(pt-check -c checkpoints/0/model_config.json checkpoints/0 checkpoints/1 --batch batch-1-*.pt --clip 1
	--weight-decay 0.1 --tp "$tp" --dp "$dp" --accumulation 2)
echo "${command[*]}" >commands
cat commands
exec "${command[@]}"
'''
launch=launch.replace('''        ones = torch.ones_like(inputs, dtype=torch.bool)
''','''        ones = torch.ones_like(inputs, dtype=torch.bool)
        if BUG == "lost" and count % 2 == 0:
            ones = torch.zeros_like(ones)
''').replace('''def batches(trainer)''','''BUG = os.environ["BUG"]


def batches(trainer)''')
recipe=recipe.replace("LAUNCH",launch)
open("share/recipes/check-nanotron","w").write(recipe)
