"""`make words`: finds words in comments, docstrings, messages, names and pages that have a standard term instead.

CONTRIBUTING.md says why. Checked: Python (comments, strings, names of functions, classes, parameters, variables), C++
comments, Markdown prose, YAML comments, file names. A line that must use such a word, because it quotes another program
or a file format, contains `words: ok`.

Also finds docstrings that begin in the middle of a sentence ("Of the first stage.", "That this server runs."): none may
begin with a word of `_OPENINGS`. Whole sentences that do are found, too, so that the check needs no grammar: begin them
with their subject.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
SKIPPED = (
    "docs/reference/",
    "schemas/",
    "src/builtin/",
    "tools/check_words.py",
    "tests/unit/test_check_words.py",
    "LICENSE",
)
ALLOWED = "words: ok"
SENTENCES = ("src/", "tools/", "benchmarks/")
_OPENINGS = re.compile(  # prepositions, conjunctions and pronouns: what they belong to is not in the docstring
    r"(About|Above|After|Against|Also|Although|Among|And|As|At|Because|Before|Below|Besides?|Between|But|By|During|Else|"
    r"Empty|For|From|If|In|Instead|Into|Its?|Like|None|Not|Of|On|Once|Or|Over|Per|Since|So|Than|That|Their|Them|Then|They|"
    r"Those|Though|Through|To|Together|Under|Unless|Until|When|Where|Which|While|Whose|With|Within|Without)(?![\w-])"
)


@dataclass(frozen=True, slots=True)
class Word:
    pattern: re.Pattern[str]
    instead: str


def _word(pattern: str, instead: str) -> Word:
    return Word(re.compile(pattern, re.IGNORECASE), instead)


PROSE = (
    _word(r"\b(draw|draws|drawn|drawing|drew)\b", "sample, sampled; plot, render"),
    _word(r"\bnames? of (its |the |their |all )?blocks?\b|\bblock names?\b", "block hashes"),
    _word(r"\bnoted once\b", "captured"),
    _word(r"\blean\b", "fast path"),
    _word(r"\bplanted\b", "mutation"),
    _word(r"\bluggage\b", "bundle"),
    _word(r"\blast words\b", "exit reason"),
    _word(r"\bbeats?\b(?! (vllm|sglang))", "heartbeat"),
    _word(r"\bspare pages?\b", "pre-faulted pages"),
    _word(r"\b(stands?|stood|standing) (?!for\b|alone\b)|\bstands? for ever\b", "is, is stored, is written"),
    _word(r"\b(told|tells?|telling)\b", "reported; reports, shows, says; distinguish"),
    _word(r"\bso many\b", "the number: N, that number of"),
    _word(
        r"(?<!there )\bis no(?= (mapping|yaml|file|folder|list|text|number|option|flag|choice|library)\b)", "is not a"
    ),
    _word(r"\baffairs?\b", "responsibility"),
    _word(
        r"\bbehind\b(?! (an?|the|one|its|their|some|shell)? ?"
        r"(load balancer|proxy|gateway|openai|api|ingress|address|scripts?|nat|reverse|flag))",
        "after, following, in the background",
    ),
    _word(r"\bmost (sequences|requests|tokens|rows|blocks|bytes|prompts|seconds) (that|which)\b", "maximum number of"),
    _word(r"\b(its|their|what) company\b", "batch composition"),
    _word(r"\bquestions? in advance\b|\brules for browsers\b", "CORS preflight; CORS"),
    _word(r"\b(for ever|for nothing|nobody|whoever|whatsoever)\b", "say precisely what happens, and who"),
    _word(r"\blet(s|ting)? go of\b", "release"),
    _word(r"\bknows? nothing of\b|\bknow(s|n)? of\b", "does not depend on; has, lists"),
    _word(r"\b(furnished|wherefrom|thereof|therein|whence|hitherto|anew)\b", "plain words: again, from where"),
)
NAMES = (
    _word(r"(?:^|_)(draws|drawn|drew)(?:_|$)|_draw(?:_|$)|^draw_", "sample"),  # `draw` alone is hypothesis' function
    _word(r"(?:^|_)(luggage|lean|planted|beat|affair|told|stands)(?:_|$)", "the standard term"),
    _word(r"(?:^|_)(last_words|spare_pages|block_names|name_blocks|so_many)(?:_|$)", "the standard term"),
)


@dataclass(frozen=True, slots=True)
class Finding:
    path: str
    line: int
    word: str
    instead: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: `{self.word}` -> {self.instead}"


def check(path: str, text: str) -> Iterator[Finding]:
    """All findings of one file; `path` decides how it is read."""
    lines = text.splitlines()
    seen: set[tuple[int, str]] = set()
    for number, prose, words in _pieces(path, text):
        for word in words:
            for match in word.pattern.finditer(prose):
                line = number + prose.count("\n", 0, match.start())
                said = match.group().strip().strip("_").lower()
                if ALLOWED in lines[line - 1] or (line, said) in seen:
                    continue
                seen.add((line, said))
                yield Finding(path, line, said, word.instead)


def fragments(path: str, text: str) -> Iterator[Finding]:
    """Docstrings of a Python file that begin in the middle of a sentence."""
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            opening = _OPENINGS.match(ast.get_docstring(node) or "")
            if opening and ALLOWED not in lines[(line := node.body[0].lineno) - 1]:
                yield Finding(path, line, opening.group(), "a docstring begins with a subject, a noun or a verb")


def _pieces(path: str, text: str) -> Iterator[tuple[int, str, tuple[Word, ...]]]:
    """Parts of a file that are checked: first line, text, list of words."""
    if path.endswith(".py"):
        yield from _python(text)
    elif path.endswith((".cpp", ".h")):
        for match in re.finditer(r"//[^\n]*|/\*.*?\*/", text, re.DOTALL):
            yield text.count("\n", 0, match.start()) + 1, match.group(), PROSE
    elif path.endswith(".md"):
        yield 1, re.sub(r"`[^`\n]*`", _blanks, re.sub(r"^```.*?^```", _blanks, text, flags=re.S | re.M)), PROSE
    elif path.endswith((".yaml", ".yml", ".toml", "Makefile")):
        for number, line in enumerate(text.splitlines(), 1):
            if "#" in line:
                yield number, line[line.index("#") :], PROSE


def _blanks(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", match.group())


def _python(text: str) -> Iterator[tuple[int, str, tuple[Word, ...]]]:
    middles = {getattr(tokenize, name, -1) for name in ("FSTRING_MIDDLE", "TSTRING_MIDDLE")}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.NAME:
            yield token.start[0], token.string, NAMES
        elif token.type in (tokenize.COMMENT, tokenize.STRING) or token.type in middles:
            yield token.start[0], token.string, PROSE


def tracked(root: Path) -> list[str]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, check=True, text=True).stdout
    return [path for path in listed.split("\0") if path and not path.startswith(SKIPPED)]


def main(arguments: list[str]) -> int:
    paths = [path for path in tracked(ROOT) if not arguments or path.startswith(tuple(arguments))]
    findings: list[Finding] = []
    for path in paths:
        for name in re.split(r"[/.]", path):
            findings += [
                Finding(path, 1, name, word.instead) for word in NAMES if word.pattern.search(name.replace("-", "_"))
            ]
        if path.endswith((".py", ".cpp", ".h", ".md", ".yaml", ".yml", ".toml", "Makefile")):
            text = (ROOT / path).read_text("utf-8")
            findings += check(path, text)
            if path.endswith(".py") and path.startswith(SENTENCES):
                findings += fragments(path, text)
    for finding in findings:
        print(finding)
    print(f"{len(findings)} words to replace in {len(paths)} files", file=sys.stderr)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
