# bash completion for pt-prepare; made by pt-prepare --generate bash
_pt_prepare()
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
	-o | --out) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -X '!*.h5' -- "$cur"; compgen -d -- "$cur"); return ;;
	-t | --tokenizer) mapfile -t COMPREPLY < <(compgen -W 'byte char bpe gpt2 cl100k o200k llama3 qwen2' -- "$cur"); return ;;
	--vocab-files) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -- "$cur"); return ;;
	--pattern) return ;;
	-s | --split) mapfile -t COMPREPLY < <(compgen -W 'tail document hash' -- "$cur"); return ;;
	-f | --val-fraction) return ;;
	--seed) return ;;
	--shard-size) return ;;
	--format) mapfile -t COMPREPLY < <(compgen -W 'auto text jsonl shard llmc megatron nanogpt' -- "$cur"); return ;;
	--field) return ;;
	--separator) return ;;
	--spool-limit) return ;;
	--min-bytes) return ;;
	--max-bytes) return ;;
	--keep) return ;;
	--drop) return ;;
	--source) return ;;
	--mix-tokens) return ;;
	--threads) return ;;
	--work) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -d -- "$cur"); return ;;
	--to) mapfile -t COMPREPLY < <(compgen -W 'shard llmc megatron nanogpt' -- "$cur"); return ;;
	--val-file) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -X '!*.bin' -- "$cur"; compgen -d -- "$cur"); return ;;
	--vocab-from) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -X '!*.h5' -- "$cur"; compgen -d -- "$cur"); return ;;
	--vocab) return ;;
	--end-token) return ;;
	--train-bpe) return ;;
	--vocab-out) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -d -- "$cur"); return ;;
	--min-count) return ;;
	-d | --decode) mapfile -t COMPREPLY < <(compgen -W 'no train val' -- "$cur"); return ;;
	--config) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -- "$cur"); return ;;
	--generate) mapfile -t COMPREPLY < <(compgen -W 'man bash zsh fish shard tokenizer bpe' -- "$cur"); return ;;
	esac
	if [[ $flag ]]; then
		mapfile -t COMPREPLY < <(compgen -W 'yes no' -- "$cur")
		return
	fi
	if [[ $cur == -* ]]; then
		mapfile -t COMPREPLY < <(compgen -W '--out --tokenizer --vocab-files --pattern --allow-special --end-of-text --no-end-of-text --split --val-fraction --seed --shard-size --overwrite --format --field --separator --strict --decompress --no-decompress --spool-limit --min-bytes --max-bytes --keep --drop --dedup --shuffle --source --mix-tokens --threads --work --to --val-file --vocab-from --vocab --end-token --train-bpe --vocab-out --min-count --info --verify --decode --config --print-config --quiet --help --version --generate ' -- "$cur")
		return
	fi
	compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -- "$cur")
}
complete -F _pt_prepare pt-prepare
