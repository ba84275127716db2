"""`engine completion`: what a shell needs to complete `engine`, and the hidden verb `engine __complete` that it asks.

A shell passes the words behind `engine`, the last one as far as it is typed, and gets a candidate per line:
`value<TAB>description`. The last line may be a wish: `:files` for file names too, `:nospace` for no blank behind it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from .console import say, tell

EXIT_WRONG_COMMAND_LINE = 2

# Bash takes words apart at = and :, so the line is put together again and the part before them is cut off the answers.
_BASH = """\
# Completion of `engine` for bash:  source <(engine completion bash)
_engine_completion() {
  local line word known answer wish candidate prefix
  local -a words
  line="${COMP_LINE:0:COMP_POINT}"
  read -ra words <<< "$line"
  [[ "$line" == *[[:space:]] ]] && words+=("")
  word="${words[${#words[@]}-1]}"
  prefix=""
  if [[ "$word" == *[=:]* && "$COMP_WORDBREAKS" == *[=:]* ]]; then
    prefix="${word%"${word##*[=:]}"}"
  fi
  COMPREPLY=()
  while IFS= read -r answer; do
    if [[ "$answer" == :* ]]; then
      wish="$answer"
      continue
    fi
    candidate="${answer%%$'\\t'*}"
    COMPREPLY+=("${candidate#"$prefix"}")
  done < <("${words[0]}" __complete "${words[@]:1}" 2>/dev/null)
  case "$wish" in
    :files)
      [[ -z "$prefix" || "$prefix" == *= ]] || return
      compopt -o filenames 2>/dev/null
      while IFS= read -r known; do COMPREPLY+=("$known"); done < <(compgen -f -- "${word#"$prefix"}")
      ;;
    :nospace) compopt -o nospace 2>/dev/null ;;
  esac
}
complete -F _engine_completion engine
"""

_ZSH = """\
#compdef engine
# Completion of `engine` for zsh:  source <(engine completion zsh), behind compinit
_engine() {
  local line wish
  local -a plain said
  while IFS= read -r line; do
    case "$line" in
      :*) wish="$line" ;;
      *) plain+=("${line%%$'\\t'*}"); said+=("${line/$'\\t'/  }") ;;
    esac
  done < <("${words[1]}" __complete "${(@)words[2,CURRENT]}" 2>/dev/null)
  if (( ${#plain} )); then
    if [[ "$wish" == :nospace ]]; then
      compadd -l -S '' -d said -a plain
    else
      compadd -l -d said -a plain
    fi
  fi
  [[ "$wish" == :files ]] && _files
}
compdef _engine engine
"""

_FISH = """\
# Completion of `engine` for fish:  engine completion fish | source
function __engine_completion
  set -l words (commandline -opc) (commandline -ct)
  for line in (command $words[1] __complete $words[2..-1] 2>/dev/null)
    switch $line
      case ':files'
        __fish_complete_path (commandline -ct)
      case ':*'
      case '*'
        echo $line
    end
  end
end
complete -c engine -f -a '(__engine_completion)'
"""
SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}


def run(shell: str) -> int:
    """Print the script. Returns the exit code."""
    if shell not in SCRIPTS:
        tell(f"error: no completion for `{shell}`; there are {', '.join(SCRIPTS)}")
        return EXIT_WRONG_COMMAND_LINE
    say(SCRIPTS[shell].rstrip("\n"))
    return 0


def answer(words: Sequence[str]) -> int:
    """Print the candidates for the last of `words`. Never fails: a shell in the middle of a line has no use for it."""
    from .completion_table import read_table
    from .completion_words import candidates

    found, wish = candidates(words or [""], read_table())
    sys.stdout.write("".join(f"{value}\t{said}\n" if said else f"{value}\n" for value, said in found))
    if wish:
        sys.stdout.write(f"{wish}\n")
    return 0
