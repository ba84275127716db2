"""`engine completion`: scripts for shells, and the hidden verb `engine __complete` that these scripts call.

A shell passes the words after `engine`, the last one as far as it is typed, and gets one candidate per line:
`value<TAB>description`. The last line may be a directive: `:files` to complete file names too, `:nospace` to add no
space.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from .console import print_result

Shell = Literal["bash", "zsh", "fish"]
Commands = Mapping[str, Any]

# Bash splits words at = and :, so the line is split again at spaces and the part up to = or : is cut off the answers.
_BASH = """\
# Completion of `engine` for bash:  source <(engine completion bash)
_engine_completion() {
  local line word known answer directive candidate prefix
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
      directive="$answer"
      continue
    fi
    candidate="${answer%%$'\\t'*}"
    COMPREPLY+=("${candidate#"$prefix"}")
  done < <("${words[0]}" __complete "${words[@]:1}" 2>/dev/null)
  case "$directive" in
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
# Completion of `engine` for zsh:  source <(engine completion zsh), after compinit
_engine() {
  local line directive
  local -a plain shown
  while IFS= read -r line; do
    case "$line" in
      :*) directive="$line" ;;
      *) plain+=("${line%%$'\\t'*}"); shown+=("${line/$'\\t'/  }") ;;
    esac
  done < <("${words[1]}" __complete "${(@)words[2,CURRENT]}" 2>/dev/null)
  if (( ${#plain} )); then
    if [[ "$directive" == :nospace ]]; then
      compadd -l -S '' -d shown -a plain
    else
      compadd -l -d shown -a plain
    fi
  fi
  [[ "$directive" == :files ]] && _files
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
SCRIPTS: dict[Shell, str] = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}


def run(shell: Shell) -> int:
    """Print the script. Returns the exit code."""
    print_result(SCRIPTS[shell].rstrip("\n"))
    return 0


def answer(words: Sequence[str], commands: Callable[[], Commands], with_options: Callable[[], Iterable[str]]) -> int:
    """Print the candidates for the last of `words`. Never fails: a shell cannot show an error in the middle of a line.

    commands, with_options: read the declarations of verbs, and the names of verbs that take options as flags; called
    only if the cached table is stale.
    """
    from .completion_table import read_table
    from .completion_words import candidates

    found, directive = candidates(words or [""], read_table(commands, with_options))
    sys.stdout.write("".join(f"{value}\t{text}\n" if text else f"{value}\n" for value, text in found))
    if directive:
        sys.stdout.write(f"{directive}\n")
    return 0
