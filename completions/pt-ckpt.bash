# bash completion for pt-ckpt; made by pt-ckpt --generate bash
_pt_ckpt()
{
	local at=$COMP_CWORD flag=
	local cur=${COMP_WORDS[at]}
	[[ $cur == = ]] && cur= && at=$((at + 1))
	local option=${COMP_WORDS[at-1]}
	COMPREPLY=()
	if [[ $option == = && ${COMP_WORDS[at-2]} == --* ]]; then
		flag=${COMP_WORDS[at-2]}
		option=--${flag#--}
	fi
	case $option in
	-o | --out) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -- "$cur"); return ;;
	-t | --to) mapfile -t COMPREPLY < <(compgen -W 'auto pt huggingface llmc' -- "$cur"); return ;;
	--dtype) mapfile -t COMPREPLY < <(compgen -W 'fp32 bf16 fp16' -- "$cur"); return ;;
	--shard-size) return ;;
	--vocabulary) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -X '!*.h5' -- "$cur"; compgen -d -- "$cur"); mapfile -t -O "${#COMPREPLY[@]}" COMPREPLY < <(compgen -W 'convert' -- "$cur"); return ;;
	--weights) mapfile -t COMPREPLY < <(compgen -W 'merge' -- "$cur"); return ;;
	--decay) return ;;
	--tensor) return ;;
	--rename) return ;;
	--keep-last) return ;;
	--keep-every) return ;;
	--keep-best) return ;;
	--spool-limit) return ;;
	--config) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -- "$cur"); return ;;
	--generate) mapfile -t COMPREPLY < <(compgen -W 'man bash zsh fish checkpoint' -- "$cur"); return ;;
	esac
	if [[ $flag ]]; then
		mapfile -t COMPREPLY < <(compgen -W 'yes no' -- "$cur")
		return
	fi
	if [[ $cur == -* ]]; then
		mapfile -t COMPREPLY < <(compgen -W '--out --force --optimizer --no-optimizer --strict --options --to --dtype --shard-size --padding --vocabulary --weights --decay --tensor --rename --keep-last --keep-every --keep-best --dry-run --spool-limit --config --print-config --quiet --help --version --generate ' -- "$cur")
		return
	fi
	local word first=yes
	for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
		[[ $word == -* ]] || first=no
	done
	if [[ $first == no ]]; then
		compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -X '!*.h5' -- "$cur"; compgen -d -- "$cur")
		return
	fi
	mapfile -t COMPREPLY < <(compgen -W 'ls show verify diff hash export-json cat convert average ema merge strip extract rename cast prune rm' -- "$cur")
}
complete -F _pt_ckpt pt-ckpt
