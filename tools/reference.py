"""Write docs/reference/ from the declarations, or, with --check, fail if it is stale.

One page per section, per rule, per error code and per preset, and lists of them. Everything in them is what
`engine explain` says, less what depends on the machine.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

from stoker.config.catalogue import STATUSES, by_status
from stoker.config.codes import CODES
from stoker.config.explain import code_page, find, option_page, preset_page, rule_page
from stoker.config.page import Page, markdown_lines
from stoker.config.resolve.rules import BY_ID
from stoker.config.schema.options import options_of, sections
from stoker.config.source.presets import preset_names

FOLDER = Path(__file__).parent.parent / "docs" / "reference"
NOTICE = "<!-- Written by `make docs` from the declarations in src/config; do not edit. -->"


def pages() -> dict[str, str]:
    """Path below the folder -> content."""
    written: dict[str, str] = {}
    index = [NOTICE, "", "# Reference", "", "| page | what it holds |", "|---|---|"]

    def enter(path: str, title: str, text: str) -> None:
        index.append(f"| [{title}]({path}) | {text.partition(chr(10))[0]} |")

    def add_section(name: str, title: str, text: str, parts: list[Page]) -> None:
        written[f"{name}.md"] = _content(title, text, parts)
        enter(f"{name}.md", title, text)

    def add_list(name: str, title: str, parts: Iterable[Page]) -> None:
        """A folder with a page for each and a list of them."""
        text = find(name)[0].text
        lines = [NOTICE, "", f"# {title}", "", text, "", "| | |", "|---|---|"]
        for part in parts:
            written[f"{name}/{part.name}.md"] = _content(part.title, "", [part])
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


def _content(title: str, text: str, parts: list[Page]) -> str:
    """A page of several parts; of one that is called like the page, its inside."""
    lines = [NOTICE, ""]
    if len(parts) == 1 and parts[0].title == title:
        lines += markdown_lines(parts[0], level=1)
    else:
        lines += [f"# {title}", "", text, ""]
        for part in parts:
            lines += [*markdown_lines(part), ""]
    return "\n".join(lines).rstrip() + "\n"


def _status() -> str:
    lists = by_status()
    lines = [NOTICE, "", "# Status", "", "`engine explain --status` prints this list.", ""]
    for status in STATUSES:
        lines += [f"## {status} ({len(lists[status])})", ""]
        for option in lists[status]:
            page = f"{option.section or 'manifest'}.md"
            lines.append(f"- [`{option.path}`]({page}){': ' * bool(option.reason)}{option.reason}")
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
