"""Names of formats, here and in other servers."""

from __future__ import annotations

from typing import get_args

import pytest

from stoker.config.schema.structured_outputs import ReasoningParser
from stoker.formats.registry import (
    FORMATS,
    NOT_DESCRIBED,
    UnknownFormat,
    find,
    find_reasoning,
    plain,
    reasoning_names,
    tool_names,
)

# What --tool-call-parser and --reasoning-parser accept elsewhere.
TOOL_PARSERS = """
deepseek_v3 deepseek_v31 deepseek_v32 deepseek_v4 cohere_command3 cohere_command4 ernie45 glm45 glm47 granite-20b-fc
granite granite4 hermes poolside_v1 hunyuan_a13b hy_v3 internlm jamba lfm2 kimi_k2 kimi_k3 llama3_json llama4_json
llama4_pythonic longcat mimo minimax_m2 minimax_m3 minicpm5 mistral olmo3 openai phi4_mini_json pythonic qwen3_coder
qwen3_xml seed_oss step3 step3p5 inkling xlam gigachat3 functiongemma gemma4 apertus solar_open2 deepseek_v41 hy_v4
ling3 k2_horizon muse_glimmer plamo3 gigachat35 intern_s1 spark3 iquest_coder response_template
beam berrylm hf step5
apertus2509 deepseekv3 deepseekv31 deepseekv32 deepseekv4 dots glm gpt-oss llama3 muse qwen qwen25 spark25 minimax-m2
minimax-m3 trinity interns1 hunyuan internlm2 interns2preview qwen2d5 qwen3 qwen3coder
"""
REASONING_PARSERS = """
deepseek_v41 granite_thinking ling3 plamo3 k2_horizon minicpm5 dots deepseek_r1 deepseek_v3 deepseek_v4
poolside_v1 cohere_command3 cohere_command4 ernie45 gemma4 glm45 glm47
openai_gptoss granite holo2 hunyuan_a13b hy_v3 kimi_k2 kimi_k3 mimo minimax_m2 minimax_m2_append_think minimax_m3
mistral nemotron_v3 olmo3 qwen3 seed_oss step3 step3p5 inkling solar_open2 apertus2509 deepseek-r1 deepseek-v3
deepseek-v4 hunyuan gpt-oss kimi qwen3-thinking minimax minimax-append-think minimax-m3 nemotron_3 interns1 telechat4
"""


def test_every_name_of_another_server_is_known_or_refused_with_a_reason():
    for names, finds in ((TOOL_PARSERS, find), (REASONING_PARSERS, find_reasoning)):
        for name in names.split():
            reason = NOT_DESCRIBED.get(plain(name))
            if reason and not (finds is find_reasoning and plain(name) in reasoning_names()):
                with pytest.raises(UnknownFormat) as refusal:
                    finds(name)
                assert reason in str(refusal.value)
            else:
                assert finds(name)


def test_every_name_of_a_reasoning_parser_is_a_value_of_the_option():
    assert set(get_args(ReasoningParser)) == {"auto", "none", *reasoning_names()}
    for name in reasoning_names():
        assert find_reasoning(name).end


def test_every_declaration_names_its_source():
    assert [name for name, format in FORMATS.items() if not format.source.startswith("https://")] == []


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
        find("minimax_m3")
