"""Cases of parametrised tests that only `make test-slow` runs."""

from __future__ import annotations

from collections.abc import Iterable

import pytest


def slow(*values: object) -> object:
    """A case, by the values of its parameters."""
    return pytest.param(*values, marks=pytest.mark.slow)


def slow_but(values: Iterable[object], *quick: object) -> list[object]:
    """Values of one parameter: `quick` ones are cases of every run."""
    return [each if each in quick else slow(each) for each in values]
