"""Write docs/reference/ from the declarations, or, with --check, fail if it is stale.

One page per section, one for rules, one for error codes, one for presets, and a list of them. Everything in them is
what `engine explain` says, less what depends on the machine.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from stoker.config.codes import CODES
from stoker.config.explain import Page, all_rules, code_page, find, markdown_lines, option_page, preset_page, rule_page
from stoker.config.schema.options import options_of, sections
from stoker.config.source.presets import preset_names

FOLDER = Path(__file__).parent.parent / "docs" / "reference"
NOTICE = "<!-- Written by `make docs` from the declarations in src/config; do not edit. -->"


def pages() -> dict[str, str]:
    """File name -> content."""
    written: dict[str, str] = {}
    index = [NOTICE, "", "# Reference", "", "| page | what it holds |", "|---|---|"]

    def add(name: str, title: str, text: str, parts: list[Page]) -> None:
        lines = [NOTICE, "", f"# {title}", "", text, ""]
        for part in parts:
            lines += [*markdown_lines(part), ""]
        written[f"{name}.md"] = "\n".join(lines).rstrip() + "\n"
        index.append(f"| [{title}]({name}.md) | {text.partition(chr(10))[0]} |")

    add(
        "manifest",
        "Header keys",
        "Keys at the top of a deployment file.",
        [option_page(o, False) for o in options_of("")],
    )
    for name, section in sections().items():
        if parts := [option_page(option, False) for option in options_of(name)]:
            add(name, f"Section `{name}`", (section.__doc__ or "").strip(), parts)
    add("rules", "Rules", find("rules")[0].text, [rule_page(rule) for rule in all_rules().values()])
    add("codes", "Error codes", find("codes")[0].text, [code_page(code) for code in CODES.values()])
    add("presets", "Presets", find("presets")[0].text, [preset_page(name) for name in preset_names()])
    written["README.md"] = "\n".join(index) + "\n"
    return written


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a page is stale")
    check = parser.parse_args().check
    wanted = pages()
    found = {path.name: path.read_text("utf-8") for path in FOLDER.glob("*.md")} if FOLDER.is_dir() else {}
    stale = [name for name in {**wanted, **found} if wanted.get(name) != found.get(name)]
    for name in stale:
        if check:
            print(f"error: docs/reference/{name} is stale\n  = fix: make docs", file=sys.stderr)
        elif name in wanted:
            FOLDER.mkdir(parents=True, exist_ok=True)
            (FOLDER / name).write_text(wanted[name], "utf-8")
        else:
            (FOLDER / name).unlink()
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
