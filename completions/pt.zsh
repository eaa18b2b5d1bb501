#compdef @PROGRAMS@
# zsh completion for all programs of pt, which know the candidates: PROGRAM --complete WORD...
local line
local -a keys others text
for line in "${(@f)$(${~words[1]} --complete "${(@Q)words[2,CURRENT-1]}" "${(Q)PREFIX}" 2>/dev/null)}"; do
	text=("${(@ps:\t:)line//:/\\:}")
	case $text[1] in
	\\:*) break ;;
	*=) keys+=("${(j.:.)text}") ;;
	?*) others+=("${(j.:.)text}") ;;
	esac
done
_describe -t keys key keys -S ''
_describe -t words word others
[[ $line == :* ]] && compset -P 1 '*='
case $line in
:folders) _files -/ ;;
':files ') _files ;;
:files*) _files -g "*${line#:files }(-.)" ;;
esac
