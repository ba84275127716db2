"""Model facts: a template for a model without one, weaker than its own and than a written one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jinja2
import pytest

from stoker.config import Layer, MachineSpec, Resolved, load_deployment, read_model_files, resolve_deployment
from stoker.config.model_facts import FOLDER, model_facts

from .model_files import write_model

MACHINE = MachineSpec(
    system="Linux",
    architecture="x86_64",
    num_cores=2,
    total_memory_bytes=2**34,
    available_memory_bytes=2**34,
    cpu_flags=(),
)
LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
MESSAGES = [
    {"role": "user", "content": "hello"},
    {"role": "assistant", "content": "Hello!"},
    {"role": "user", "content": "1+1=?"},
]
SYSTEM = {"role": "system", "content": "Be short."}
INTRODUCTION = (
    "A chat between a curious user and an artificial intelligence assistant. "
    "The assistant gives helpful, detailed, and polite answers to the user's questions."
)


def resolved(folder: Path, *words: str) -> Resolved:
    deployment = load_deployment([], ["--model", str(folder), "--load-format", "dummy", *words], {})
    return resolve_deployment(deployment, read_model_files(deployment), MACHINE)


def test_a_known_model_without_a_template_gets_one(tmp_path: Path) -> None:
    found = resolved(write_model(tmp_path / "Vicuna-7B-v1.5-16k", **LLAMA))
    assert found.chat_template is not None
    assert found.chat_template.text == (FOLDER / "vicuna.jinja").read_text()
    origin = found.origin("server.chat_template")
    assert origin.layer is Layer.MODEL
    assert str(origin).startswith(f"auto, model facts {model_facts().version}: of the conversation vicuna_v1.1")


@pytest.mark.parametrize(
    ("name", "config"), [("vicuna-7b-v1.5", {}), ("my-vicuna-7b-v1.5", LLAMA), ("vicuna-7b", LLAMA)], ids=lambda _: ""
)
def test_other_names_and_types_get_none(name: str, config: dict[str, Any], tmp_path: Path) -> None:
    assert resolved(write_model(tmp_path / name, **config)).chat_template is None


def test_the_models_own_template_and_a_written_one_are_stronger(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "vicuna-7b-v1.5", **LLAMA)
    written = resolved(folder, "--chat-template", "{{ messages }}")
    assert written.chat_template is not None
    assert written.chat_template.text == "{{ messages }}"
    (folder / "chat_template.jinja").write_text("own")
    assert resolved(folder).chat_template is None


def rendered(name: str, messages: list[dict[str, str]], **values: Any) -> str:
    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    environment = jinja2.Environment(loader=jinja2.FileSystemLoader(FOLDER), trim_blocks=True, lstrip_blocks=True)
    values = {"bos_token": "<s>", "eos_token": "</s>", "add_generation_prompt": True, **values}
    return environment.get_template(name).render(messages=messages, raise_exception=refuse, **values)


def test_prompts_are_those_of_the_sources() -> None:
    deepseek = "<｜User｜>hello<｜Assistant｜></think>Hello!</s><｜User｜>1+1=?"
    assert rendered("deepseek_v3_2.jinja", MESSAGES, thinking=True) == f"<s>{deepseek}<｜Assistant｜><think>"
    assert rendered("deepseek_v3_2.jinja", [SYSTEM, *MESSAGES]) == f"<s>Be short.{deepseek}<｜Assistant｜></think>"
    assert rendered("deepseek_v3_2.jinja", MESSAGES, add_generation_prompt=False) == f"<s>{deepseek}"
    vicuna = " USER: hello ASSISTANT: Hello!</s> USER: 1+1=? ASSISTANT:"
    assert rendered("vicuna.jinja", MESSAGES) == f"<s>{INTRODUCTION}{vicuna}"
    assert rendered("vicuna.jinja", [SYSTEM, *MESSAGES]) == f"<s>Be short.{vicuna}"
    oasst = "<|prompter|>hello</s><|assistant|>Hello!</s><|prompter|>1+1=?</s><|assistant|>"
    assert rendered("oasst_pythia.jinja", MESSAGES) == oasst


@pytest.mark.parametrize("name", sorted({fact.chat_template for fact in model_facts().facts}))
def test_what_a_template_does_not_know_is_refused(name: str) -> None:
    with pytest.raises(jinja2.TemplateError):
        rendered(name, [*MESSAGES, {"role": "tool", "content": "4"}])
