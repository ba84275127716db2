"""Write docs/reference/ from the declarations, or, with --check, fail if it is stale.

One page per section, per rule, per error code and per preset, and lists of them. Everything in them is what
`engine explain` says, less what depends on the machine.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable
from pathlib import Path

from stoker.config.catalogue import STATUSES, by_status
from stoker.config.codes import CODES
from stoker.config.explain import code_page, find, first_sentence, option_page, preset_page, rule_page
from stoker.config.page import Page, markdown_lines
from stoker.config.presets import preset_names
from stoker.config.resolve.rules import BY_ID
from stoker.config.schema.options import Option, options, options_of, sections

FOLDER = Path(__file__).parent.parent / "docs" / "reference"
_NAME = re.compile(r"\b(R[0-9]{3}|[a-z_]+\.[a-z0-9_]+)\b")
NOTICE = "<!-- Written by `make docs` from the declarations in src/config; do not edit. -->"


def pages() -> dict[str, str]:
    """Path below the folder -> content."""
    written: dict[str, str] = {}
    index = [NOTICE, "", "# Reference", "", "| page | what it holds |", "|---|---|"]

    def enter(path: str, title: str, text: str) -> None:
        index.append(f"| [{title}]({path}) | {text.partition(chr(10))[0]} |")

    def add_section(name: str, title: str, text: str, parts: list[Page]) -> None:
        written[f"{name}.md"] = _content(title, text, parts, "")
        enter(f"{name}.md", title, text)

    def add_list(name: str, title: str, parts: Iterable[Page]) -> None:
        """A folder with a page for each and a list of them."""
        text = find(name)[0].text
        lines = [NOTICE, "", f"# {title}", "", text, "", "| | |", "|---|---|"]
        for part in parts:
            written[f"{name}/{part.name}.md"] = _content(part.title, "", [part], "../")
            said = part.title.partition(": ")[2] or part.text
            lines.append(f"| [{part.name}]({part.name}.md) | {_cell(said)} |")
        written[f"{name}/README.md"] = "\n".join(lines) + "\n"
        enter(f"{name}/README.md", title, text)

    header = [option_page(option, False) for option in options_of("")]
    add_section("manifest", "Header keys", "Keys at the top of a deployment file.", header)
    for name, section in sections().items():
        parts = [option_page(option, False) for option in options_of(name)]
        add_section(name, f"Section `{name}`", (section.__doc__ or "").strip(), parts)
    written["status.md"] = _status()
    enter("status.md", "Status", "Which options change something, which stand for others, which are refused and why.")
    add_list("rules", "Rules", map(rule_page, BY_ID.values()))
    add_list("codes", "Error codes", map(code_page, CODES.values()))
    add_list("presets", "Presets", map(preset_page, preset_names()))
    written["README.md"] = "\n".join(index) + "\n"
    return written


def _content(title: str, text: str, parts: list[Page], home: str) -> str:
    """A page of several parts, with a list of them; of one that is called like the page, its inside.

    home: the way from the page to the folder of all pages, for links.
    """
    lines = [NOTICE, ""]
    if len(parts) == 1 and parts[0].title == title:
        lines += _linked(parts[0], markdown_lines(parts[0], level=1), home)
    else:
        lines += [f"# {title}", "", text, "", "| | |", "|---|---|"]
        for part in parts:
            status = next((fact.lines[0].partition(":")[0] for fact in part.facts if fact.name == "status"), "")
            said = f"*{status}* " * (status in ("refused", "deprecated")) + _cell(first_sentence(part.text))
            lines.append(f"| [{part.name.rpartition('.')[2]}](#{_anchor(part.title)}) | {said} |")
        lines.append("")
        for part in parts:
            lines += [*_linked(part, markdown_lines(part), home), ""]
    return "\n".join(lines).rstrip() + "\n"


def _linked(page: Page, lines: list[str], home: str) -> list[str]:
    """The same lines, options and rules in their tables as links."""
    tables = {"options", "rules"} | ({fact.name for fact in page.facts} if page.kind == "preset" else set())
    for index, line in enumerate(lines):
        name = line.removeprefix("| ").partition(" |")[0]
        if line.startswith("| ") and name in tables:
            lines[index] = _NAME.sub(lambda found: _link(found[0], home), line)
    return lines


def _link(name: str, home: str) -> str:
    if name in BY_ID:
        return f"[{name}]({home}rules/{name}.md)"
    if name in options():
        return f"[{name}]({home}{_place(options()[name])})"
    return name


def _place(option: Option) -> str:
    return f"{option.section or 'manifest'}.md#{_anchor(option.path)}"


def _anchor(title: str) -> str:
    """What GitHub makes of a heading."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def _status() -> str:
    lists = by_status()
    lines = [NOTICE, "", "# Status", "", "`engine explain --status` prints this list.", ""]
    for status in STATUSES:
        lines += [f"## {status} ({len(lists[status])})", ""]
        for option in lists[status]:
            said = option.reason or first_sentence(option.description)
            lines.append(f"- [`{option.path}`]({_place(option)}): {said}")
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a page is stale")
    check = parser.parse_args().check
    wanted = pages()
    found = {path.relative_to(FOLDER).as_posix(): path.read_text("utf-8") for path in FOLDER.rglob("*.md")}
    stale = [name for name in {**wanted, **found} if wanted.get(name) != found.get(name)]
    for name in stale:
        if check:
            print(f"error: docs/reference/{name} is stale\n  = fix: make docs", file=sys.stderr)
        elif name in wanted:
            (FOLDER / name).parent.mkdir(parents=True, exist_ok=True)
            (FOLDER / name).write_text(wanted[name], "utf-8")
        else:
            (FOLDER / name).unlink()
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
