"""What the guide and the importers call refused or absent is so: their sentences are compared with the options."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from stoker.config import ConfigError, load_deployment
from stoker.config.importer import environment, llama_cpp, ollama, sglang, tgi
from stoker.config.schema.options import options
from stoker.config.source.flags import read_flag
from stoker.formats.registry import FORMATS

ROOT = Path(__file__).parents[3]
GUIDE = ROOT / "docs" / "guide" / "coming-from-vllm.md"
GUIDES = [ROOT / "README.md", *sorted((ROOT / "docs" / "guide").rglob("*.md"))]
# options that are effective, and refused where their page says: page and option
ELSEWHERE = {
    ("models-and-hardware.md", "model.quantization"),  # on GPUs
    ("ray-serve.md", "parallel.data_parallel_backend"),  # of a replica of Ray Serve
    ("render.md", "load.download_dir"),  # in what is rendered
    ("render.md", "server.ssl_certfile"),  # behind a gateway that ends TLS
}
_CALLED_REFUSED = re.compile(
    r"`(?P<name>--[a-z][a-z0-9-]*|[a-z_]+\.[a-z_0-9]+)[^`\n]*`(?:,? (?:and|or) `[^`\n]+`)*"
    r" (?:is|are) (?:refused|not supported|not implemented|not available|not in this build)\b"
)
# flags of a row that are refused with some values only, or for some models: an example of each
EXAMPLES = {
    "--quantization aqlm": ["--quantization", "aqlm"],
    "--kv-transfer-config": [
        "--kv-transfer-config",
        '{"kv_connector": "MooncakeStoreConnector", "kv_role": "kv_both"}',
    ],
    "--kv-offloading-backend lmcache": ["--kv-offloading-size", "1", "--kv-offloading-backend", "lmcache"],
    "--limit-mm-per-prompt": ["--limit-mm-per-prompt", '{"image": 1}'],
    "--speculative-config": ["--speculative-config", '{"method": "ngram", "num_speculative_tokens": 2}'],
    "--lora-modules": ["--lora-modules", "a=b"],
    "--kernel-config": ["--kernel-config", '{"moe_backend": "triton"}'],
    "--attention-backend": ["--attention-backend", "FLASH_ATTN"],
    "--linear-backend": ["--linear-backend", "triton"],
}
FOR_SOME = {"--trust-remote-code", "--enable-sleep-mode"}  # refused for some models or devices, as their row says


def rows() -> list[str]:
    text = GUIDE.read_text()
    part = text[text.index("## What is refused") :]
    return [line for line in part[: part.index("\n## ")].splitlines() if line.startswith("| ")][2:]


def test_what_the_guide_calls_refused_is_refused() -> None:
    """Three rows named options that are effective."""
    flags = [flag for row in rows() for flag in re.findall(r"`(--[a-z][\w -]*)`", row.split("|")[2])]
    assert len(flags) > 10
    for flag in flags:
        name = flag.split(" ")[0]
        option = read_flag(name)
        assert option is not None, flag
        if name in FOR_SOME or option.option.status == "refused" or "." not in option.option.path:
            continue
        words = EXAMPLES.get(flag) or EXAMPLES.get(name) or flag.split(" ")
        with pytest.raises(ConfigError) as caught:
            load_deployment([], ["--model", "m", *words], {})
        assert "C118" in {finding.code for finding in caught.value.diagnostics}, flag


def test_an_importer_calls_nothing_absent_that_this_build_has() -> None:
    """SGLang's --nnodes was not carried since `this build serves from one machine`."""
    named = re.compile(r"this build (serves|has|runs|loads|reads) (from one|no|one)\b")
    tables = {**sglang.TABLE, **llama_cpp.TABLE, **tgi.TABLE, **ollama.TABLE, **environment.VARIABLES}
    for name, found in tables.items():
        if found.path or not found.says:
            continue
        option = read_flag(name) if name.startswith("--") else None
        is_ours = option is not None and option.option.status == "effective"
        assert not (is_ours and named.search(found.says)), f"{name}: {found.says}"


def test_no_sentence_of_a_guide_calls_an_effective_option_refused() -> None:
    found = set()
    for page in GUIDES:
        text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
        for sentence in _CALLED_REFUSED.finditer(re.sub(r"\s+", " ", text)):
            name = sentence["name"]
            flag = read_flag(name) if name.startswith("--") else None
            option = options().get(name) if flag is None else flag.option
            assert option is not None, f"{page.name}: {sentence[0]}"
            if option.status != "refused":
                found.add((page.name, option.path))
    assert found == ELSEWHERE, "a page calls an option refused that is effective, or no longer does"


def test_the_numbers_of_the_first_page_are_those_of_the_build() -> None:
    """It said 32 formats after ten more had been described."""
    first_page = (ROOT / "README.md").read_text("utf-8")
    models = (ROOT / "docs" / "reference" / "models.md").read_text("utf-8")
    num_running = len(re.findall(r"^\| `\w+` \|.*\| yes \|$", models.split("\n## ")[0], re.MULTILINE))
    assert f"in {len(FORMATS)} formats" in first_page
    assert f"{num_running} architectures" in first_page
