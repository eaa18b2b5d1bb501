# bash completion for pt-train; made by pt-train --generate bash
_pt_train()
{
	local at=$COMP_CWORD flag=
	local cur=${COMP_WORDS[at]}
	[[ $cur == = ]] && cur= && at=$((at + 1))
	local option=${COMP_WORDS[at-1]}
	COMPREPLY=()
	if [[ $option == = ]]; then
		flag=${COMP_WORDS[at-2]}
		option=--${flag#--}
	fi
	case $option in
	-d | --data) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -X '!*.h5' -- "$cur"; compgen -d -- "$cur"); return ;;
	--sampling) mapfile -t COMPREPLY < <(compgen -W 'epoch random' -- "$cur"); return ;;
	--packing) mapfile -t COMPREPLY < <(compgen -W 'stream documents' -- "$cur"); return ;;
	-s | --seed) return ;;
	--readers) return ;;
	--spool-limit) return ;;
	-b | --batch) return ;;
	--batch-per-rank) return ;;
	-m | --micro-batch) return ;;
	-n | --steps) return ;;
	-p | --preset) mapfile -t COMPREPLY < <(compgen -W "$("${COMP_WORDS[0]}" --generate presets 2>/dev/null)" -- "$cur"); return ;;
	-a | --arch) mapfile -t COMPREPLY < <(compgen -W 'gpt2 llama' -- "$cur"); return ;;
	--layers) return ;;
	--heads) return ;;
	--kv-heads) return ;;
	--dim) return ;;
	--ffn-dim) return ;;
	-T | --context) return ;;
	--vocab) return ;;
	--vocab-multiple) return ;;
	--act) mapfile -t COMPREPLY < <(compgen -W 'by-arch gelu-tanh gelu swiglu' -- "$cur"); return ;;
	--bias) mapfile -t COMPREPLY < <(compgen -W 'by-arch yes no' -- "$cur"); return ;;
	--tie) mapfile -t COMPREPLY < <(compgen -W 'by-arch yes no' -- "$cur"); return ;;
	--dropout) return ;;
	--norm-eps) return ;;
	--init) mapfile -t COMPREPLY < <(compgen -W 'by-arch gpt2 llama depth' -- "$cur"); return ;;
	--rope-theta) return ;;
	--rope-scaling) mapfile -t COMPREPLY < <(compgen -W 'none linear llama3' -- "$cur"); return ;;
	--rope-factor) return ;;
	--rope-low) return ;;
	--rope-high) return ;;
	--rope-original) return ;;
	--optimizer) mapfile -t COMPREPLY < <(compgen -W 'adamw sgd muon' -- "$cur"); return ;;
	-l | --lr) return ;;
	--min-lr) return ;;
	--lr-schedule) mapfile -t COMPREPLY < <(compgen -W 'constant cosine linear wsd' -- "$cur"); return ;;
	-w | --warmup) return ;;
	--decay-steps) return ;;
	--wsd-decay) return ;;
	--wsd-shape) mapfile -t COMPREPLY < <(compgen -W 'linear sqrt' -- "$cur"); return ;;
	--lr-scale) mapfile -t COMPREPLY < <(compgen -W 'none sqrt linear' -- "$cur"); return ;;
	--lr-scale-batch) return ;;
	--beta1) return ;;
	--beta2) return ;;
	--eps) return ;;
	--weight-decay) return ;;
	--momentum) return ;;
	--nesterov) mapfile -t COMPREPLY < <(compgen -W 'by-optimizer no yes' -- "$cur"); return ;;
	--muon-scale) mapfile -t COMPREPLY < <(compgen -W 'match-adamw original' -- "$cur"); return ;;
	--clip) return ;;
	--dtype) mapfile -t COMPREPLY < <(compgen -W 'fp32 bf16 fp16 float8' -- "$cur"); return ;;
	--loss-scale) return ;;
	--loss-scale-window) return ;;
	--kernels) mapfile -t COMPREPLY < <(compgen -W 'fused ref' -- "$cur"); return ;;
	--numerics) mapfile -t COMPREPLY < <(compgen -W 'exact fast' -- "$cur"); return ;;
	--gemm-algorithms) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -- "$cur"); mapfile -t -O "${#COMPREPLY[@]}" COMPREPLY < <(compgen -W 'first measure' -- "$cur"); return ;;
	--virtual) return ;;
	--residual-dtype) mapfile -t COMPREPLY < <(compgen -W 'fp32 bf16' -- "$cur"); return ;;
	--cp-accumulate) mapfile -t COMPREPLY < <(compgen -W 'fp32 bf16' -- "$cur"); return ;;
	--dp) return ;;
	--fsdp) return ;;
	--cp) return ;;
	--tp) return ;;
	--pp) return ;;
	--zero) return ;;
	--fsdp-kind) mapfile -t COMPREPLY < <(compgen -W 'parameter flat' -- "$cur"); return ;;
	--reshard-after-forward) mapfile -t COMPREPLY < <(compgen -W 'yes no keep-last' -- "$cur"); return ;;
	--gather-dtype) mapfile -t COMPREPLY < <(compgen -W 'auto fp32' -- "$cur"); return ;;
	--cp-comm) mapfile -t COMPREPLY < <(compgen -W 'ring gather' -- "$cur"); return ;;
	--pp-schedule) mapfile -t COMPREPLY < <(compgen -W 'gpipe 1f1b interleaved zb-h1' -- "$cur"); return ;;
	--pp-stages) return ;;
	--pp-split) mapfile -t COMPREPLY < <(compgen -W 'auto even' -- "$cur"); return ;;
	--recompute) mapfile -t COMPREPLY < <(compgen -W 'none selective matmuls full auto' -- "$cur"); return ;;
	--recompute-every) return ;;
	--tile) return ;;
	--offload) mapfile -t COMPREPLY < <(compgen -W 'none optimizer grads params all' -- "$cur"); return ;;
	--offload-to) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -d -- "$cur"); return ;;
	--memory) return ;;
	-t | --threads) return ;;
	--device) mapfile -t COMPREPLY < <(compgen -W 'auto cpu cuda' -- "$cur"); return ;;
	--comm) mapfile -t COMPREPLY < <(compgen -W 'auto nccl mpi' -- "$cur"); return ;;
	--self-test) mapfile -t COMPREPLY < <(compgen -W 'auto yes no' -- "$cur"); return ;;
	--profile) return ;;
	--trace) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -X '!*.json' -- "$cur"; compgen -d -- "$cur"); return ;;
	--trace-steps) return ;;
	--hash-tensors) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -- "$cur"); return ;;
	--hash-steps) return ;;
	--bucket) return ;;
	--inject-delay) return ;;
	--corrupt-batch) return ;;
	--watchdog) return ;;
	--edit-workers) return ;;
	--edit-sync-interval) return ;;
	--edit-fragments) return ;;
	--edit-sync-delay) return ;;
	--edit-update-alpha) return ;;
	--edit-sync-time) return ;;
	--edit-min-total-global-steps) return ;;
	--edit-step-weight-ratio) return ;;
	--edit-replay) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -d -- "$cur"); return ;;
	--edit-warmup-steps) return ;;
	--edit-outer) mapfile -t COMPREPLY < <(compgen -W 'none sgd adamw' -- "$cur"); return ;;
	--edit-outer-lr) return ;;
	--edit-outer-momentum) return ;;
	--edit-outer-dampening) return ;;
	--edit-outer-beta1) return ;;
	--edit-outer-beta2) return ;;
	--edit-outer-eps) return ;;
	--edit-outer-decay) return ;;
	--edit-reducer) mapfile -t COMPREPLY < <(compgen -W 'none linear gta' -- "$cur"); return ;;
	--edit-softmax-temperature) return ;;
	--edit-consensus) mapfile -t COMPREPLY < <(compgen -W 'none sum count' -- "$cur"); return ;;
	--edit-sparsification) mapfile -t COMPREPLY < <(compgen -W 'none magnitude random rescaled-random magnitude-tensor' -- "$cur"); return ;;
	--edit-density) return ;;
	--edit-wire) mapfile -t COMPREPLY < <(compgen -W 'fp32 bf16 int8 sparse' -- "$cur"); return ;;
	--edit-wire-density) return ;;
	--edit-clip-pseudo-grad) return ;;
	--edit-ewma-alpha) return ;;
	--edit-ewma-warmup) return ;;
	--edit-ewma-threshold) return ;;
	-e | --eval-every) return ;;
	--eval-windows) return ;;
	--sample-every) return ;;
	--sample-tokens) return ;;
	--sample-prompt) return ;;
	-o | --out) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -d -- "$cur"); return ;;
	-r | --resume) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -X '!*.h5' -- "$cur"; compgen -d -- "$cur"); mapfile -t -O "${#COMPREPLY[@]}" COMPREPLY < <(compgen -W 'auto' -- "$cur"); return ;;
	--init-from) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -X '!*.h5' -- "$cur"; compgen -d -- "$cur"); return ;;
	--ckpt-load) mapfile -t COMPREPLY < <(compgen -W 'each broadcast' -- "$cur"); return ;;
	-c | --ckpt-every) return ;;
	--ckpt-syncs) return ;;
	--edit-ckpt) mapfile -t COMPREPLY < <(compgen -W 'group rank0' -- "$cur"); return ;;
	--ckpt-secs) return ;;
	-k | --keep) return ;;
	--log-every) return ;;
	--publish-secs) return ;;
	--check-replicas-every) return ;;
	--peak-flops) mapfile -t COMPREPLY < <(compgen -W 'measure' -- "$cur"); return ;;
	--cluster) return ;;
	--config) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -- "$cur"); return ;;
	--generate) mapfile -t COMPREPLY < <(compgen -W 'man bash zsh fish presets saved' -- "$cur"); return ;;
	esac
	if [[ $flag ]]; then
		mapfile -t COMPREPLY < <(compgen -W 'yes no' -- "$cur")
		return
	fi
	if [[ $cur == -* ]]; then
		mapfile -t COMPREPLY < <(compgen -W '--data --sampling --packing --seed --readers --data-per-rank --spool-limit --batch --batch-per-rank --micro-batch --steps --preset --arch --layers --heads --kv-heads --dim --ffn-dim --context --vocab --vocab-multiple --act --bias --tie --dropout --norm-eps --init --rope-theta --rope-scaling --rope-factor --rope-low --rope-high --rope-original --optimizer --lr --min-lr --lr-schedule --warmup --decay-steps --wsd-decay --wsd-shape --lr-scale --lr-scale-batch --beta1 --beta2 --eps --weight-decay --momentum --nesterov --muon-scale --clip --dtype --float8-skip-ends --no-float8-skip-ends --loss-scale --loss-scale-window --kernels --numerics --gemm-algorithms --virtual --residual-dtype --cp-accumulate --dp --fsdp --cp --tp --pp --zero --fsdp-kind --reshard-after-forward --gather-dtype --sp --no-sp --async-tp --no-async-tp --cp-comm --pp-schedule --pp-stages --pp-split --recompute --recompute-every --tile --offload --offload-to --memory --threads --device --comm --self-test --cuda-graph --profile --trace --trace-steps --hash-tensors --hash-steps --bucket --inject-delay --corrupt-batch --watchdog --edit-workers --edit-sync-interval --edit-fragments --edit-sync-delay --edit-update-alpha --edit-use-async --edit-sync-time --edit-min-total-global-steps --edit-use-step-weight --edit-step-weight-ratio --edit-compat --edit-replay --edit-warmup-steps --edit-global-loss --edit-outer --edit-outer-lr --edit-outer-momentum --edit-outer-dampening --edit-outer-nesterov --edit-outer-beta1 --edit-outer-beta2 --edit-outer-eps --edit-outer-decay --edit-reducer --edit-normalize --no-edit-normalize --edit-pseudo-gradnorm-reduce --edit-softmax-temperature --edit-consensus --edit-sparsification --edit-density --edit-wire --edit-wire-density --edit-clip-pseudo-grad --edit-skip-anomaly --edit-ewma-alpha --edit-ewma-warmup --edit-ewma-threshold --edit-by-unit --no-edit-by-unit --edit-offload --eval-every --eval-first --eval-windows --eval-only --sample-every --sample-tokens --sample-prompt --out --overwrite --resume --resume-exact --init-from --ckpt-load --ckpt --no-ckpt --ckpt-every --ckpt-syncs --edit-ckpt --ckpt-secs --ckpt-best --no-ckpt-best --ckpt-wait --keep --log-every --publish-secs --check-replicas-every --peak-flops --log-all-ranks --verbose --dry-run --cluster --config --print-config --quiet --help --version --generate ' -- "$cur")
		return
	fi
	compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -X '!*.h5' -- "$cur"; compgen -d -- "$cur")
	[[ $cur ]] && mapfile -t -O "${#COMPREPLY[@]}" COMPREPLY < <(compgen -W 'data= sampling= packing= seed= readers= data-per-rank= spool-limit= batch= batch-per-rank= micro-batch= steps= preset= arch= layers= heads= kv-heads= dim= ffn-dim= context= vocab= vocab-multiple= act= bias= tie= dropout= norm-eps= init= rope-theta= rope-scaling= rope-factor= rope-low= rope-high= rope-original= optimizer= lr= min-lr= lr-schedule= warmup= decay-steps= wsd-decay= wsd-shape= lr-scale= lr-scale-batch= beta1= beta2= eps= weight-decay= momentum= nesterov= muon-scale= clip= dtype= float8-skip-ends= loss-scale= loss-scale-window= kernels= numerics= gemm-algorithms= virtual= residual-dtype= cp-accumulate= dp= fsdp= cp= tp= pp= zero= fsdp-kind= reshard-after-forward= gather-dtype= sp= async-tp= cp-comm= pp-schedule= pp-stages= pp-split= recompute= recompute-every= tile= offload= offload-to= memory= threads= device= comm= self-test= cuda-graph= profile= trace= trace-steps= hash-tensors= hash-steps= bucket= inject-delay= corrupt-batch= watchdog= edit-workers= edit-sync-interval= edit-fragments= edit-sync-delay= edit-update-alpha= edit-use-async= edit-sync-time= edit-min-total-global-steps= edit-use-step-weight= edit-step-weight-ratio= edit-compat= edit-replay= edit-warmup-steps= edit-global-loss= edit-outer= edit-outer-lr= edit-outer-momentum= edit-outer-dampening= edit-outer-nesterov= edit-outer-beta1= edit-outer-beta2= edit-outer-eps= edit-outer-decay= edit-reducer= edit-normalize= edit-pseudo-gradnorm-reduce= edit-softmax-temperature= edit-consensus= edit-sparsification= edit-density= edit-wire= edit-wire-density= edit-clip-pseudo-grad= edit-skip-anomaly= edit-ewma-alpha= edit-ewma-warmup= edit-ewma-threshold= edit-by-unit= edit-offload= eval-every= eval-first= eval-windows= eval-only= sample-every= sample-tokens= sample-prompt= out= overwrite= resume= resume-exact= init-from= ckpt-load= ckpt= ckpt-every= ckpt-syncs= edit-ckpt= ckpt-secs= ckpt-best= ckpt-wait= keep= log-every= publish-secs= check-replicas-every= peak-flops= log-all-ranks= verbose= dry-run= cluster= ' -- "$cur")
	[[ ${COMPREPLY[*]} == *= ]] && compopt -o nospace 2>/dev/null
}
complete -F _pt_train pt-train
