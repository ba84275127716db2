"""Manifests from the declarations, for hypothesis: every option, every form in which a value can be written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from tempfile import NamedTemporaryFile
from typing import Any

from annotated_types import Ge, Gt, Le
from hypothesis import strategies as st
from pydantic import ValidationError

from stoker.config.importer.counterparts import Counterpart
from stoker.config.presets import preset_names
from stoker.config.schema.options import Option, live_options, options
from stoker.config.source.interpolate import escape
from stoker.config.yaml_writer import Verbatim, document, inline

ENV = {"KEY": "sk-1 # not a comment", "OTHER_KEY": "no", "TEXT": "a: b", "EIGHT": "8", "ODD": "- $ {x}"}
AMBIGUOUS = [
    *("no", "on", "1e3", "0755", "0o17", "0x1f", "1_000", "null", "~", "true", "2026-01-01", "12:30", ".inf", "="),
    *("- x", "a: b", "a #b", "#", "'", '"', "\\", "%a", "@a", "`a`", "!x", "&a", "*a", "[", "{}", "|", ">", "?"),
    *("${KEY}", "$$", "$", "${", "a$b", "**********", "<<", "é", "💡", "\u2028", "\x85", "\ufeff", "\u0301", "a\nb\n"),
    *("\t", " a ", "auto", "none", "None", "{{ x }}", "a,b", "-", "--flag", "x" * 200),
]
texts = st.sampled_from(AMBIGUOUS) | st.text(min_size=1, max_size=6)
names = st.sampled_from(["a", "b c", "0", "no", "<<", "é", "a.b", "x: y", "${A}"]) | st.text(min_size=1, max_size=4)
numbers = st.integers(-(2**40), 2**40) | st.floats(allow_nan=False)
json_values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(names, inner, max_size=2),
    max_leaves=4,
)
MAPPINGS: dict[str, st.SearchStrategy[Any]] = {
    "model.hf_overrides": st.dictionaries(names.map("x_{}".format), json_values, max_size=3),
    "model.override_generation_config": st.dictionaries(
        st.sampled_from(["temperature", "top_p", "repetition_penalty"]), st.floats(0.125, 1), max_size=2
    ),
    "load.pt_load_map_location": st.dictionaries(st.sampled_from(["cuda:0", "cuda:1"]), st.just("cpu"), max_size=2),
    "kv_transfer.kv_connector_extra_config": st.fixed_dictionaries({"shared_storage_path": names}),
    "load.model_loader_extra_config": st.fixed_dictionaries({"deviation": st.floats(0, 1)}),
}


_KNOWN_KEYS: dict[str, list[dict[str, Any]]] = {
    "model.pooler_config": [{"step_tag_id": number} for number in (1, 2, 3)],
    "model.rope_scaling": [{"rope_type": "linear", "factor": factor} for factor in (2, 4, 8)],
    "observability.custom_histogram_buckets": [{"request_tokens": [limit]} for limit in (10, 20, 30)],
    "observability.profiler_config": [
        {"profiler": "torch", "torch_profiler_dir": f"/{name}"} for name in ("a", "b", "c")
    ],
    "model.override_generation_config": [{"top_p": share} for share in (0.5, 0.25, 0.75)],
    "load.pt_load_map_location": [{"cuda:0": "cpu"}, {"cuda:1": "cpu"}, {"cuda:2": "cpu"}],
    "server.model_aliases": [{"claude-*": name} for name in ("a", "b", "c")],
    "lora.modules": [{"a": {"path": f"/{name}"}} for name in ("a", "b", "c")],
    "server.tool_server": [{"a": {"url": "http://a/mcp", "allowed_tools": [name]}} for name in ("b", "c", "d")],
    "kv_transfer.kv_connector_extra_config": [{"shared_storage_path": f"/{name}"} for name in ("a", "b", "c")],
    "parallel.eplb_config": [{"step_interval": steps} for steps in (1001, 1002, 1003)],
    "model.logits_processor_settings": [{"a:B": {"size": size}} for size in (1, 2, 3)],
}


def mappings(option: Option) -> list[dict[str, Any]]:
    """Three values of a mapping option that its JSON Schema allows."""
    return _KNOWN_KEYS.get(option.path, [{"a": 1}, {"a": 2}, {"a": {"b": "0123", "c": [True, None]}}])


def is_taken(option: Option, value: Any) -> bool:
    """Whether the option takes a value, as far as its own declaration says."""
    try:
        option.adapter.validate_python(value)
    except (ValidationError, ValueError):
        return False
    return True


def _bounded(option: Option) -> tuple[int, int]:
    least, most = 0, 2**31 - 1
    for bound in option.bounds:
        match bound:
            case Ge(ge=number):
                least = int(number)
            case Gt(gt=number):
                least = int(number) + 1
            case Le(le=number):
                most = int(number)
    return least, most


def values_of(option: Option) -> st.SearchStrategy[Any]:
    """Values as a manifest may have them: declared choices and examples, and others of the type within its bounds."""
    known = st.sampled_from([*option.choices, *option.examples, None])
    match option.kind:
        case _ if option.is_secret:
            one = st.sampled_from([{"env": "KEY"}, {"env": "OTHER_KEY"}, Verbatim("${KEY}"), "${OTHER_KEY:?why}"])
            return one | st.lists(one.filter(lambda form: not isinstance(form, Verbatim)), max_size=2)
        case "text" if option.path in ("model.tokenizer", "model.hf_config_path"):
            return st.sampled_from(["auto", "./model", "no/such"])
        case "text":
            return known | texts.map(escape)
        case "texts":
            return known | st.lists(texts.map(escape), max_size=3) | texts.map(escape)
        case "flag":
            return known | st.booleans()
        case "whole" | "human int":
            ints = st.integers(*_bounded(option))
            kilo = st.integers(1, 64).map(lambda number: Verbatim(f"{number}k"))
            return known | ints | (kilo if option.kind == "human int" else st.just(Verbatim("${EIGHT}")))
        case "wholes":
            return known | st.lists(st.integers(*_bounded(option)), max_size=3)
        case "size":
            sizes = st.builds(
                "{}{}".format, st.integers(1, 4096), st.sampled_from(["MiB", "GiB", "kB", "K", "GB", "B"])
            )
            return known | sizes | st.integers(1 << 20, 1 << 40)
        case "duration":
            units = st.builds("{}{}".format, st.integers(1, 999), st.sampled_from(["ms", "s", "m", "h"]))
            return known | units | st.floats(1e-7, 1e6) | st.just("1m30s")
        case "number":
            return known | st.floats(0, 1, exclude_min=True) | st.integers(0, 3)
        case "mapping":
            return known | MAPPINGS[option.path].map(escape) if option.path in MAPPINGS else known
        case _:
            return known


OPTIONS = {path: option for path, option in live_options().items() if option.section and path != "model.model"}
_EFFECTIVE = [path for path, option in OPTIONS.items() if option.status == "effective"]
_some_options = st.lists(st.sampled_from(_EFFECTIVE), unique=True, max_size=7)


@st.composite
def sections(pick: st.DrawFn) -> dict[str, dict[str, Any]]:
    """Some options with values, by section. Values that an option's own declaration refuses are left out."""
    found: dict[str, dict[str, Any]] = {}
    for path in pick(_some_options):
        option = OPTIONS[path]
        value = pick(values_of(option))
        plain = json.loads(json.dumps(value, default=lambda form: form.text))
        if value is None or option.is_secret or isinstance(value, Verbatim) or is_taken(option, plain):
            found.setdefault(option.section, {})[option.name] = value
    return found


@st.composite
def manifests(pick: st.DrawFn) -> dict[str, str]:
    """Texts by file name: `deploy.yaml`, and `base.yaml` where that extends it. The model is the folder `model`."""
    head: dict[str, Any] = {}
    files: dict[str, str] = {}
    if pick(st.booleans()):
        head["preset"] = pick(st.sampled_from(preset_names()))
    if pick(st.booleans()):
        head["extends"] = "base.yaml"
        files["base.yaml"] = document({"x-note": pick(texts), **pick(sections())})
    body = pick(sections())
    body["model"] = {
        "model": pick(st.sampled_from(["./model", "model", Verbatim("${MODEL}")])),
        **body.get("model", {}),
    }
    files["deploy.yaml"] = document({**head, **body})
    return files


def _text_of(value: Any) -> str:
    return value.text if isinstance(value, Verbatim) else value if isinstance(value, str) else json.dumps(value)


_FLAT = [path for path in _EFFECTIVE if OPTIONS[path].is_flat and not OPTIONS[path].is_secret]


@st.composite
def flags(pick: st.DrawFn) -> list[str]:
    """Words of a command line with options of this program, which vLLM calls the same."""
    words: list[str] = []
    for path in pick(st.lists(st.sampled_from(_FLAT), unique=True, max_size=6)):
        if path not in ("server.host", "model.model"):  # an open address makes an import add `auth: none`
            words.append(f"{OPTIONS[path].flag}={_text_of(pick(values_of(OPTIONS[path])))}")
    return words


_KEY_FILE = NamedTemporaryFile("w", prefix="key-")  # noqa: SIM115 (removed with the process)
_KEY_FILE.write("key")
_KEY_FILE.flush()


@st.composite
def foreign_flags(pick: st.DrawFn, table: Mapping[str, Counterpart]) -> list[str]:
    """Words of another engine's command line, a few of them unknown to everybody."""
    words: list[str] = []
    for name in pick(st.lists(st.sampled_from(sorted(table)), unique=True, max_size=5)):
        counterpart = table[name]
        words.append(name)
        if counterpart.takes != 0:
            path = ".".join(counterpart.path.split(".")[:2])
            if counterpart.path.endswith(".file"):  # it has to exist
                words.append(_KEY_FILE.name)
                continue
            words.append(_text_of(pick(values_of(OPTIONS[path]) if path in OPTIONS else texts)))
    return [*words, *pick(st.lists(texts, max_size=2))]


_DEPRECATED = [option for option in options().values() if option.status == "deprecated"]


@st.composite
def old_manifests(pick: st.DrawFn) -> str:
    """A manifest in block or flow style with deprecated options among others, and comments."""
    found = pick(sections())
    for option in pick(st.lists(st.sampled_from(_DEPRECATED), unique=True, min_size=1, max_size=3)):
        values = [*option.choices, *option.examples, *([True, False] if option.kind == "flag" else [])]
        found.setdefault(option.section, {})[option.name] = pick(st.sampled_from(values))
    found["model"] = {"model": Verbatim("${MODEL}"), **found.get("model", {})}
    if pick(st.booleans()):
        lines = [f"{section}: {inline(_without_forms(values))}" for section, values in found.items()]
        return "\n".join(lines) + "\n"
    return document(found).replace("\n", f"{pick(st.sampled_from(['', '  # why']))}\n", 1)


def _without_forms(values: Any) -> Any:
    """In brackets `${NAME}` needs quotes."""
    return {
        name: value.text if isinstance(value, Verbatim) and "$" in value.text else value
        for name, value in values.items()
    }
