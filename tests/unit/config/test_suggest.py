"""Suggestions for names that do not exist."""

from __future__ import annotations

from stoker.config.schema.options import options
from stoker.config.source.flags import all_flags
from stoker.config.suggest import close, paths_like


def test_a_refused_option_is_suggested_only_if_it_is_the_best_match() -> None:
    """Else every typo in a common option is answered with options that cannot be used."""
    assert close("--max-num-seq", all_flags()) == ["--max-num-seqs"]
    assert close("--tensor-paralel-size", all_flags())[0] == "--tensor-parallel-size"
    assert close("server.grcp", options())[0] == "server.grpc"


def test_a_key_of_a_section_that_is_refused_is_not_suggested_beside_one_that_works() -> None:
    """`quantization` at the top suggested `speculative.quantization` too."""
    assert paths_like("", "quantization") == ["model.quantization"]
    assert paths_like("", "max_lora_rank") == ["lora.max_lora_rank"]


def test_the_name_of_the_section_makes_no_likeness() -> None:
    """`server.cors` was answered with `server.port`, `server.host` and `server.uds`."""
    assert paths_like("server", "cors") == []
    assert paths_like("cache", "tensor_paralel_size")[0] == "parallel.tensor_parallel_size"
