"""Names of formats, here and in other servers."""

from __future__ import annotations

from typing import get_args

import pytest

from stoker.config.schema.structured_outputs import ReasoningParser
from stoker.formats.registry import UnknownFormat, find, find_reasoning, reasoning_names, tool_names


def test_every_name_of_a_reasoning_parser_is_a_value_of_the_option():
    assert set(get_args(ReasoningParser)) == {"auto", "none", *reasoning_names()}
    for name in reasoning_names():
        assert find_reasoning(name).end


@pytest.mark.parametrize(
    ("vllm", "sglang"),
    [
        ("hermes", "qwen25"),
        ("deepseek_v31", "deepseekv31"),
        ("openai", "gpt-oss"),
        ("minimax_m2", "minimax-m2"),
        ("llama3_json", "llama3"),
        ("qwen3_coder", "step3p5"),
    ],
)
def test_the_names_of_both_servers_are_the_same_format(vllm: str, sglang: str):
    assert find(vllm) is find(sglang)
    assert vllm in tool_names()


def test_a_format_that_other_servers_have_and_this_build_does_not_is_refused_with_the_way_out():
    with pytest.raises(UnknownFormat, match="describe it in a file"):
        find("kimi_k3")
