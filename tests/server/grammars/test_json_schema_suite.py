"""The official JSON-Schema-Test-Suite (json_schema_test_suite/LICENSE), drafts 7 and 2020-12: none is disobeyed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stoker.server.protocol.errors import ApiError

from .test_json_schema import accepts, grammar_of

pytestmark = pytest.mark.slow

FILE = Path(__file__).parent / "json_schema_test_suite" / "groups.jsonl"
GROUPS = [json.loads(line) for line in FILE.read_text("utf-8").splitlines()]
# Valid texts that an answer is not given, by the end of the file's name and a part of the text's description.
NARROWER = {
    "an order of properties is chosen": [
        *[("allOf.json", "allOf"), ("allOf.json", "valid")],
        ("const.json", "same object with different property order is valid"),
    ],
    "a number has one spelling": [
        ("const.json", "is valid"),
        ("enum.json", "is valid"),
        ("type.json", "a float with zero fractional part is an integer"),
        ("float-overflow.json", "valid if optional overflow handling is implemented"),
    ],
    "no control characters, which JSON has to escape": [("ecmascript-regex.json", "matches")],
    "formats are always obeyed": [("/format.json", "is only an annotation by default")],
    "no leap seconds": [("time.json", "leap second")],
    "rare forms of a format": [("format/email.json", "is valid"), ("format/ipv6.json", "")],
    "keywords beside $ref are obeyed in every draft": [("draft7/ref.json", "ref valid, maxItems ignored")],
}
# Draft 7 leaves it to a validator whether these are annotations; later drafts say that they are.
ANNOTATIONS = ("draft7/optional/content.json",)


@pytest.mark.parametrize("file", sorted({group["file"] for group in GROUPS}))
def test_a_schema_is_refused_or_allows_what_is_valid_and_nothing_else(file: str):
    for group in GROUPS:
        if group["file"] == file:
            check(group)


def check(group: dict[str, Any]) -> None:
    try:
        grammar = grammar_of(group["schema"])
    except ApiError as error:
        grammar, place = None, (error.status, (error.param or "").partition("#")[0])
    if grammar is None:
        assert place == (400, "schema"), group["description"]
        return
    for description, data, is_valid in group["tests"]:
        text = json.dumps(data, ensure_ascii=False)
        if not accepts(grammar, text):
            assert not is_valid or _is_narrower(group["file"], description), (group["description"], description, text)
        else:
            assert is_valid or group["file"] in ANNOTATIONS, (group["description"], description, text)


def _is_narrower(file: str, description: str) -> bool:
    return any(file.endswith(name) and part in description for known in NARROWER.values() for name, part in known)
