from __future__ import annotations

import pytest
from tools.check_words import check


def found(path: str, text: str) -> list[tuple[int, str]]:
    return [(finding.line, finding.word) for finding in check(path, text)]


@pytest.mark.parametrize(
    ("path", "text", "expected"),
    [
        ("a.py", '"""One.\n\nThe token is drawn.\n"""\n', [(3, "drawn")]),
        ("a.py", "x = 1  # as told below\n", [(1, "told")]),
        ("a.py", "def draw_token(): ...\n", [(1, "draw")]),
        ("a.py", "drawer = withdraw = 1\n", []),
        ("a.py", 'raise ValueError(f"{key} stands here twice")\n', [(1, "stands")]),
        ("a.cpp", "int draw;  // the sum that nobody reads\n", [(1, "nobody")]),
        ("a.md", "Told.\n\n```\ntold\n```\nand `told`, then told again\n", [(1, "told"), (6, "told")]),
        ("a.yaml", "told: 1  # so many\n", [(1, "so many")]),
        ("a.md", "behind a load balancer, behind an API\n", []),
        ("a.md", "the rows behind it\n", [(1, "behind")]),
        ("a.py", "# llama.cpp calls it `draw`  (words: ok)\n", []),
    ],
)
def test_words_with_a_standard_term_are_found_where_people_read_them(path, text, expected):
    assert found(path, text) == expected
