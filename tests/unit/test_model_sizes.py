"""docs/guide/model-sizes.md is what `engine plan` says of its models, and their parameters are those published."""

import re
from pathlib import Path

import pytest
from tools.model_sizes import MODELS, PAGE, page


@pytest.mark.slow
def test_the_page_has_the_current_plans(tmp_path: Path):
    assert PAGE.read_text("utf-8") == page(tmp_path), "run `python -m tools.model_sizes`"


def test_weights_are_within_a_percent_of_what_is_published():
    differences = [float(each) for each in re.findall(r"; ([+-]\d+\.\d)% \|", PAGE.read_text("utf-8"))]
    assert len(differences) == len(MODELS)
    assert max(map(abs, differences)) <= 1
