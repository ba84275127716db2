"""Suggestions for names that do not exist."""

from __future__ import annotations

from stoker.config.schema.options import options
from stoker.config.source.flags import all_flags
from stoker.config.suggest import close


def test_a_refused_option_is_suggested_only_if_it_is_the_best_match() -> None:
    """Else every typo in a common option is answered with options that cannot be used."""
    assert close("--max-num-seq", all_flags()) == ["--max-num-seqs"]
    assert close("--tensor-paralel-size", all_flags())[0] == "--tensor-parallel-size"
    assert close("server.grcp", options())[0] == "server.grpc"
