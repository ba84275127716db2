"""Which layout keeps the codes of a quantised checkpoint."""

from __future__ import annotations

import pytest

from stoker.config.held_codes import codes_layout


@pytest.mark.parametrize(
    ("device", "cpu_keeps", "is_eager", "is_batch_invariant", "layout"),
    [
        ("cpu", True, False, False, "panels"),
        ("cpu", True, False, True, "panels"),
        ("cpu", False, False, False, None),
        ("cpu", True, True, False, None),
        ("cuda", False, False, False, "rows"),
        ("cuda", False, True, False, "rows"),  # the same kernels, without graphs
        ("cuda", True, False, True, None),  # torch's operations alone
        ("rocm", True, False, False, None),
    ],
)
def test_the_layout_follows_from_the_kernels(device, cpu_keeps, is_eager, is_batch_invariant, layout):
    found = codes_layout(device, cpu_keeps_codes=cpu_keeps, is_eager=is_eager, is_batch_invariant=is_batch_invariant)
    assert found == layout
