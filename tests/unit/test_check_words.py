from __future__ import annotations

import pytest
from tools.check_words import check, fragments


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


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('"""Of the device."""\n', [(1, "Of")]),
        ('class A:\n    x = 1\n\n    async def f(self):\n        """As `g`."""\n', [(5, "As")]),
        ('class A:\n    """\n    By rank.\n    """\n', [(2, "By")]),
        ('def f():\n    """None if there is no file."""\n', [(2, "None")]),
        ('def f():\n    """In-flight steps, oldest first."""\n', []),
        ('def f():\n    """Offers a block."""\n', []),
        ('def f():\n    """A block. Of the device."""\n', []),
        ('def f():\n    """`As` is a keyword."""\n', []),
        ('def f():\n    """If, by Kipling."""  # words: ok\n', []),
        ('def f():\n    x = """Of the device."""\n', []),
    ],
)
def test_a_docstring_that_begins_in_the_middle_of_a_sentence_is_found(text, expected):
    assert [(finding.line, finding.word) for finding in fragments("src/a.py", text)] == expected
