"""Write docs/reference/ and one guide from the declarations, or, with --check, fail if they are stale.

One page per section that has an effective option, one page each for all models, rules, error codes, presets, metrics,
request fields and routes, a list of options by status, which is the only page of refused ones, and the flags of other
servers. The content is that of `engine explain`, without what depends
on the machine.
"""

from __future__ import annotations

import argparse
import json
import operator
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from stoker.cli.metric_pages import metric_pages
from stoker.config.catalogue import STATUSES, by_status
from stoker.config.codes import CODES
from stoker.config.explain import find, first_sentence, option_page, preset_page, template_text
from stoker.config.importer import infinity, llama_cpp, ollama, sglang, tei, tgi
from stoker.config.page import Page, markdown_lines
from stoker.config.presets import preset_names
from stoker.config.resolve.rule import Rule, StatedRule
from stoker.config.resolve.rule_tables.exclusions import EXCLUSIONS, FEATURES
from stoker.config.resolve.rule_tables.stated import NOT_HERE
from stoker.config.resolve.rules import BY_ID, RULES, STATED
from stoker.config.schema.options import Option, option_and_keys, options, options_of, sections
from stoker.config.schema.server import ServerConfig
from stoker.config.source.flags import read_flag
from stoker.model.families import FAMILIES
from stoker.model.feed_forwards import MLP, Experts
from stoker.model.mixers import Attention, CompressedAttention, Recurrent
from stoker.model.quantisation_config import read_quantisation
from stoker.model.read import read_config
from stoker.model.spec import ModelSpec
from stoker.model.support import support_problem
from stoker.model.transformers_table import DECODERS, PROBED, REFUSED, TESTED, VERSION
from stoker.model.wrappers import TEXT_CLASSES
from stoker.server.protocol.chat import ChatRequest
from stoker.server.protocol.completions import CompletionRequest
from stoker.server.protocol.derender import DerenderChatRequest, DerenderCompletionRequest
from stoker.server.protocol.generate import AbortRequest, GenerateRequest
from stoker.server.protocol.messages import MessagesRequest
from stoker.server.protocol.pooling import (
    ClassifyRequest,
    EmbeddingRequest,
    PoolingRequest,
    RerankRequest,
    ScoreRequest,
)
from stoker.server.protocol.pooling_dialects import (
    CohereEmbedRequest,
    TeiDecodeRequest,
    TeiEmbedRequest,
    TeiPredictRequest,
    TeiSimilarityRequest,
    TeiTokensRequest,
)
from stoker.server.protocol.responses import ResponsesRequest
from stoker.server.protocol.tokenize import DetokenizeRequest, TokenizeRequest
from stoker.server.protocol.unserved import EMPTY, UNSERVED, Route, UnservedField
from stoker.server.protocol.wire import Wire
from stoker.server.routes import absent as absent_routes
from stoker.server.routes.table import routes_of

FOLDER = Path(__file__).parent.parent / "docs" / "reference"
EXCLUSIONS_PAGE = "../guide/what-goes-with-what.md"
_NAME = re.compile(r"\b(R[0-9]{3}|[a-z_]+\.[a-z0-9_]+)\b")
NOTICE = "<!-- Written by `make docs` from the declarations in src/config; do not edit. -->"


def pages() -> dict[str, str]:
    """File name -> content."""
    written: dict[str, str] = {}
    index = [NOTICE, "", "# Reference", "", "| page | content |", "|---|---|"]

    def add(name: str, title: str, text: str, lines: Sequence[str]) -> None:
        written[f"{name}.md"] = "\n".join([NOTICE, "", f"# {title}", "", text, "", *lines]).rstrip() + "\n"
        index.append(f"| [{title}]({name}.md) | {text.partition(chr(10))[0]} |")

    header = [option_page(option, False) for option in options_of("")]
    add("manifest", "Header keys", "Keys at the top of a deployment file.", _parts(header))
    for name, section in sections().items():
        if _has_page(name):
            refused = [option for option in options_of(name) if option.status == "refused"]
            parts = [option_page(option, False) for option in options_of(name) if option not in refused]
            about = (section.__doc__ or "").strip()
            add(name, f"Section `{name}`", about, [*_parts(parts), *_refused_note(refused)])
    add(
        "status",
        "Status",
        "Which options are effective, deprecated or refused.",
        _status(),
    )
    add("models", "Models", _MODELS_TEXT, _models())
    add("transformers-classes", "Classes of transformers", f"{_CLASSES_TEXT} {VERSION}.", _classes())
    add("written-checkpoints", "Quantised checkpoints", _WRITTEN_TEXT, _written())
    add("request-fields", "Request fields", _FIELDS_TEXT, _request_fields())
    add("routes", "Routes", _ROUTES_TEXT, _routes())
    add("flags", "Flags of other servers", _FLAGS_TEXT, _flags())
    add("metrics", "Metrics", "All metrics of `GET /metrics`. `engine explain metrics` prints them too.", _metrics())
    add("rules", "Rules", f"{find('rules')[0].text} Each is also a page of `engine explain`.", _rules())
    add("codes", "Error codes", f"{find('codes')[0].text} Each is also a page of `engine explain`.", _codes())
    presets = [preset_page(name) for name in preset_names()]
    add("presets", "Presets", find("presets")[0].text, _parts(presets))
    written["README.md"] = "\n".join(index) + "\n"
    return written


_MODELS_TEXT = """\
The families of models that this build describes exactly: what their layers are with the defaults of config.json, and
whether it runs them.

`engine plan` shows the sizes of other models too, and why they do not run.

What a class makes is said for its own files. In a folder of sentence-transformers, `modules.json` says what is made:
the pool, further layers, the score of a reranker.

Of decoders, the table has the class that generates text. Their other classes have the same layers:
`<Name>ForSequenceClassification` makes scores of labels, `<Name>ForTokenClassification` labels of tokens,
`<Name>Model` vectors, `<Name>ForRewardModel` and `<Name>ForProcessRewardModel` scores of texts and of steps. With
`is_causal: false` in config.json, or `use_bidirectional_attention: true` of Gemma, tokens see later ones, and vectors
are made."""
_MAKES = {
    "tokens": "text, vectors",
    "states": "vectors",
    "labels": "scores of labels",
    "token_labels": "labels of tokens",
    "vocabulary": "weights of the vocabulary",
}
_CLASSES_TEXT = """\
Every class of the transformers library that generates text, and how it runs here.

- *native*: this engine has the family ([the list of families](models.md)). It is what `model.model_impl: auto` chooses.
- *library, tested*: on the modules of the library, which tests compare with the library's own text. `transformers`
  forces this way for families of the engine too. Fused are linear layers that read the same tensor, and norms.
- *library, probed*: the same, and each start first generates text with a small random model of it. It ends if the
  log-probabilities are not the library's.
  Models whose modules compute attention or positions by themselves run each sequence of a step separately.
- *no*: refused before the weights load, with the reason.

`model.model_impl: transformers` tries classes of a newer release too, with the same probe. `make classes` reads the
installed release and writes this table; the last one was"""
_WRITTEN_TEXT = """\
Quantised checkpoints that this build is tested with, each written by the library that users write theirs with.

Of each, the tests compare every matrix with what the library itself reads from it (equal in float32), and logits and 16
greedy tokens in float32 with those of the dequantised matrices (within 1e-4 of the logits' standard deviation, and
equal); the tokens of the Triton kernels, in Triton's interpreter, are equal too. *Own computation* is the library's, on
a CPU: where it rounds activations, its logits differ by what is shown, in standard deviations. `make writers` writes
all of them again.

What these libraries also write, and this build refuses by name: `W4A16_AWQ`, `NVFP4_AWQ` and others of Model Optimizer
with scales of inputs; torchao's `Int4WeightOnlyConfig`, which is packed for one kind of GPU; Quark's signed `int4`.
HQQ and optimum-quanto are refused: hqq 0.2.8 writes a pickle, and transformers 5.23 writes neither it nor the
checkpoints of quanto 0.2.7."""
_WRITTEN_FOLDER = Path(__file__).parent.parent / "tests" / "models" / "written"
_FIELDS_TEXT = """\
Every field of a request: of OpenAI's API, and of the protocols of vLLM, SGLang and llama.cpp's server.

- *yes*: served.
- *400*: an error with code `unsupported_parameter` and the name of the field. Accepted are null, and values that change
  nothing: those listed, or else `false` and empty texts, lists and objects.
- *no effect*: accepted with any value.

An unknown field is ignored, counted in `stoker_unknown_request_fields_total` and logged once; with
`server.strict_requests: true` it gets status 400."""
_BODIES: tuple[type[Wire], ...] = (
    ChatRequest,
    CompletionRequest,
    GenerateRequest,
    ResponsesRequest,
    MessagesRequest,
    TokenizeRequest,
    DetokenizeRequest,
    DerenderChatRequest,
    DerenderCompletionRequest,
    AbortRequest,
)
_POOLING_BODIES: tuple[type[Wire], ...] = (
    EmbeddingRequest,
    PoolingRequest,
    ClassifyRequest,
    ScoreRequest,
    RerankRequest,
    CohereEmbedRequest,
    TeiEmbedRequest,
    TeiTokensRequest,
    TeiPredictRequest,
    TeiSimilarityRequest,
    TeiDecodeRequest,
)


# Sizes without a default, of an index of blocks.
_INDEX = {
    "indexer_n_heads": 16,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 256,
    "indexer_budget": 2048,
    "indexer_compress_ratio": 16,
}


def _models() -> list[str]:
    lines = ["| `architectures` | models | makes | attention | feed-forward | runs |", "|---|---|---|---|---|---|"]
    for name, family in sorted(FAMILIES.items()):
        needed = dict(_INDEX) if family.has_block_index else {}
        spec, _ = read_config({"architectures": [name], **({family.text_in: needed} if family.text_in else needed)})
        runs = support_problem(spec) or "yes"
        if runs != "yes" and name in TESTED:
            runs = "through transformers"
        layers = f"{_attention(spec)} | {_feed_forward(spec)}"
        lines.append(f"| `{name}` | {family.models} | {_MAKES[family.makes]} | {layers} | {_cell(runs)} |")
    return lines


def _classes() -> list[str]:
    rows = {name: ("native", "") for name, family in FAMILIES.items() if family.makes == "tokens"}
    rows |= {name: ("no", problem) for name, problem in REFUSED.items() if name not in FAMILIES}
    conditions = dict.fromkeys(DECODERS, "if config.json says `is_decoder: true`")
    rows |= {name: ("library, probed", conditions.get(name, "")) for name in PROBED if name not in FAMILIES}
    rows |= {name: ("native" if name in FAMILIES else "library, tested", fused) for name, fused in TESTED.items()}
    rows |= {name: rows[text] for name, text in TEXT_CLASSES.items()}
    counts = Counter(how for how, _ in rows.values())
    return [
        f"Together: {'; '.join(f'{count} {how}' for how, count in sorted(counts.items()))}.",
        "",
        "| `architectures` | runs | fused on the modules of the library, or the condition or reason |",
        "|---|---|---|",
        *(f"| `{name}` | {how} | {_cell(said)} |" for name, (how, said) in sorted(rows.items())),
    ]


def _attention(spec: ModelSpec) -> str:
    if spec.is_latent:
        windows = [window for window in spec.windows if window is not None]
        of_windows = (
            f", window of {max(windows)} tokens in {len(windows)} of {spec.num_layers} layers" if windows else ""
        )
        return f"latent{of_windows}" + ", over the tokens that an index chooses" * spec.is_sparse
    if spec.is_compressed:
        return f"window of {_window(spec)} tokens, and vectors of several tokens, of which an index chooses some"
    attention = spec.attention
    states = Counter(mixer.kind for layer in spec.layers for mixer in layer.mixers if isinstance(mixer, Recurrent))
    of_states = [f"{kind.replace('_', ' ')} in {count} of {spec.num_layers} layers" for kind, count in states.items()]
    if attention is None:
        return ", ".join(["none", *of_states])
    windows = [window for window in spec.windows if window is not None]
    if not spec.is_causal:
        said = [_both_ways(spec)]
    elif len(windows) == spec.num_layers:
        said = [f"window of {windows[0]} tokens"]
    elif windows:
        said = [f"window of {windows[0]} tokens in {len(windows)} of {spec.num_layers} layers"]
    else:
        said = ["full"]
    said += ["norms of queries and keys"] * (attention.head_norm != "none")
    said += ["sinks"] * attention.has_sinks + ["capped scores"] * (attention.softcap is not None)
    turned = [layer.mixer.rope for layer in spec.layers if isinstance(layer.mixer, Attention)]
    said += [f"no positions in {turned.count(None)} layers"] * (None in turned)
    said += ["gated outputs"] * (attention.gate != "none")
    said += ["over the blocks of tokens that an index chooses"] * (attention.index is not None)
    said += ["several residual streams"] * (spec.gated_residual is not None)
    said += ["differences of heads"] * (attention.lambda_start is not None)
    owners = sum(block.weights_of is None for block in spec.blocks.values())
    said += [f"in {owners} shared block{'s' * (owners != 1)} before {len(spec.blocks)} layers"] * bool(owners)
    return ", ".join(said + of_states)


def _both_ways(spec: ModelSpec) -> str:
    """The attention of a model whose tokens see later ones."""
    windows = [layer.mixer.window for layer in spec.layers if isinstance(layer.mixer, Attention)]
    narrow = [window for window in windows if window is not None]
    if not narrow:
        return "full, of later tokens too"
    return f"{narrow[0]} tokens on each side in {len(narrow)} of {spec.num_layers} layers"


def _window(spec: ModelSpec) -> int:
    return next(layer.mixer.window for layer in spec.layers if isinstance(layer.mixer, CompressedAttention))


def _feed_forward(spec: ModelSpec) -> str:
    last = next((layer.feed_forward for layer in reversed(spec.layers) if layer.feed_forward), None)
    if last is None:
        return "none"
    if isinstance(last, Experts):
        return f"{last.per_token} of {last.count} experts" + ", and a shared one" * bool(last.shared_width)
    assert isinstance(last, MLP)
    return f"{'gated ' * last.is_gated}{last.activation}"


def _written() -> list[str]:
    lines = ["| checkpoint | written with | first layer's MLP | own computation: difference | greedy tokens |"]
    lines.append("|---|---|---|---|---|")
    for folder in sorted(_WRITTEN_FOLDER.iterdir()):
        expected = json.loads((folder / "expected.json").read_text())
        method = read_quantisation(json.loads((folder / "config.json").read_text()), {})
        layer = method.of_layer("model.layers.0.mlp.down_proj") if method else None
        versions = ", ".join(f"{name} {number}" for name, number in list(expected["versions"].items())[:-2])
        own = expected.get("own largest difference", "none on CPUs")
        tokens = expected.get("own tokens")
        same = "" if tokens is None else sum(map(operator.eq, tokens, expected["tokens"]))
        shown = f"{same} of {len(tokens)}" if tokens else ""
        lines.append(f"| {folder.name} | {versions} | {layer.shown if layer else ''} | {own} | {shown} |")
    return lines


def _request_fields() -> list[str]:
    """Two tables of all fields, of the routes that pool texts and of the others."""
    return [*_fields_of(_BODIES), "", "## Texts that are pooled", "", *_fields_of(_POOLING_BODIES)]


def _fields_of(bodies: Sequence[type[Wire]]) -> list[str]:
    """A table of the fields of these bodies: what each route does with it, and what it means."""
    states: dict[str, dict[Route, str]] = {}
    meanings: dict[str, dict[str, list[Route]]] = {}
    served = {name for body in bodies for name in body.model_fields}
    routes = [body.route for body in bodies]
    for body in bodies:
        assert body.route is not None
        for name, field in body.model_fields.items():
            states.setdefault(name, {})[body.route] = "yes"
            meanings.setdefault(name, {}).setdefault(str(field.description), []).append(body.route)
        for unserved in UNSERVED[body.route].values():
            states.setdefault(unserved.name, {})[body.route] = "no effect" if unserved.off is None else "400"
            if unserved.name not in served:
                meanings.setdefault(unserved.name, {}).setdefault(_unserved(unserved), []).append(body.route)
    lines = [
        f"| field | {' | '.join(f'`{route}`' for route in routes)} | meaning |",
        "|---|" + "---|" * (len(routes) + 1),
    ]
    for name in sorted(states):
        cells = [states[name].get(route, "") for route in routes]
        lines.append(f"| `{name}` | {' | '.join(cells)} | {_meaning(meanings[name])} |")
    return lines


_ROUTES_TEXT = """\
Every route of this server, and those of other servers that it does not have.

A path that is in neither table is a 404 as well."""


_EVERY = {
    "enable_server_load_tracking": True,
    "enable_admin_routes": True,
    "enable_lora_routes": True,
    "enable_tokenizer_info_endpoint": True,
    "files_dir": "files",
}
_ALL_ROUTES, _NO_ROUTES = ServerConfig(**_EVERY), ServerConfig()


def _routes() -> list[str]:
    optional = {path: absent.needs for absent in absent_routes.disabled(_NO_ROUTES) for path in absent.paths}
    lines = ["| route | here |", "|---|---|"]
    for entry in routes_of(_ALL_ROUTES, has_profiler=True, has_sleep=True):
        said = f" {optional[entry.path]}." if entry.path in optional else ""
        lines.append(f"| `{entry.method} {entry.path}` | {_cell(entry.summary + said)} |")
    lines += ["", "Each of these answers 404 and says why.", "", "| route | of | why |", "|---|---|---|"]
    for absent in absent_routes.TABLE:
        paths = "<br>".join(f"`{path}`" for path in absent.paths)
        lines.append(f"| {paths} | {absent.who} | {_cell(absent.needs)} |")
    return lines


_FLAGS_TEXT = """\
Every flag of other servers' launch commands that is known, and what it is here.

`engine import` converts a launch. The flags of vLLM are accepted by `engine up` as they are; a refused one accepts only
the value that describes what this build does anyway. Tests check that each flag in vLLM's list is known."""
_OTHERS = {"SGLang": sglang.TABLE, "llama.cpp": llama_cpp.TABLE, "TGI": tgi.TABLE,
           "TEI": tei.TABLE, "Infinity": infinity.TABLE, "Ollama's Modelfile": ollama.TABLE}  # fmt: skip
_VLLM_FLAGS = Path(__file__).parent.parent / "tests" / "unit" / "config" / "vllm_flags.txt"


def _flags() -> list[str]:
    lines = ["## vLLM", "", "| flag | option | |", "|---|---|---|"]
    for name in _VLLM_FLAGS.read_text("utf-8").splitlines():
        if name.startswith("-") and (known := read_flag(name)) is not None:
            lines.append(f"| `{name}` | {_link(known.option.path)} | {_state(known.option)} |")
    for server, table in _OTHERS.items():
        lines += ["", f"## {server}", "", "| flag | option | |", "|---|---|---|"]
        for counterpart in dict.fromkeys(map(id, table.values())):
            found = next(each for each in table.values() if id(each) == counterpart)
            names = "<br>".join(f"`{name}`" for name in found.names)
            if not found.path:
                lines.append(f"| {names} | {'not needed' if found.is_needless else 'none'} | {_cell(found.says)} |")
                continue
            option = option_and_keys(found.path)[0]
            said = f"{_state(option)}. {_cell(found.says)}" if found.says else _state(option)
            lines.append(f"| {names} | {_link(option.path)} | {said} |")
    return lines


def _state(option: Option) -> str:
    return f"refused: {_cell(option.reason)}" if option.status == "refused" else option.status


def _meaning(meanings: Mapping[str, Sequence[Route]]) -> str:
    """One text, or for each text the routes where it applies."""
    if len(meanings) == 1:
        return _cell(next(iter(meanings)))
    return "<br>".join(
        f"{', '.join(f'`{route}`' for route in routes)}: {_cell(text)}" for text, routes in meanings.items()
    )


def _unserved(field: UnservedField) -> str:
    if field.off is None or field.off == EMPTY:
        return field.reason
    values = ", ".join(f"`{json.dumps(value)}`" for value in field.off)
    return f"{field.reason} (accepted: {values or 'null'})"


def _parts(parts: Sequence[Page]) -> list[str]:
    """A list of the parts, then each of them."""
    lines = ["| | |", "|---|---|"]
    for part in parts:
        status = next((fact.lines[0].partition(":")[0] for fact in part.facts if fact.name == "status"), "")
        said = f"*{status}* " * (status in ("refused", "deprecated")) + _cell(first_sentence(part.text))
        lines.append(f"| [{part.name.rpartition('.')[2]}](#{_anchor(part.title)}) | {said} |")
    for part in parts:
        lines += ["", *_linked(part, markdown_lines(part))]
    return lines


def _linked(page: Page, lines: list[str]) -> list[str]:
    """The same lines, with links from the options and rules in their tables."""
    tables = {fact.name for fact in page.facts} if page.kind == "preset" else {"replaced by", "rules"}
    for index, line in enumerate(lines):
        name = line.removeprefix("| ").partition(" |")[0]
        if line.startswith("| ") and name in tables:
            lines[index] = _NAME.sub(lambda found: _link(found[0]), line)
    return lines


def _link(name: str) -> str:
    if name in BY_ID:
        return f"[{name}](rules.md#{name.lower()})"
    if name in options():
        return f"[{name}]({_place(options()[name])})"
    return name


def _place(option: Option) -> str:
    if option.status == "refused" or (option.section and not _has_page(option.section)):
        return f"status.md#{option.status}"
    return f"{option.section or 'manifest'}.md#{_anchor(option.path)}"


def _has_page(section: str) -> bool:
    return any(option.status == "effective" for option in options_of(section))


def _refused_note(refused: Sequence[Option]) -> list[str]:
    if not refused:
        return []
    return [
        "",
        f"Options of this section that are refused, with the reasons: {len(refused)} in [Status](status.md#refused).",
    ]


def _anchor(title: str) -> str:
    """The anchor that GitHub generates for a heading."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def _rules() -> list[str]:
    lines = ["| rule | severity | what must hold, and why | options | message | fix |", "|---|---|---|---|---|---|"]
    lines += [_rule(rule) for rule in RULES]
    lines += ["", "## Rules that always hold", "", _STATED_TEXT, "", "| rules | hold because of |", "|---|---|"]
    because: dict[str, list[str]] = {}
    for rule in STATED:
        because.setdefault(_because(rule), []).append(f'<a id="{rule.id.lower()}"></a>{rule.id}')
    return lines + [f"| {', '.join(ids)} | {said} |" for said, ids in because.items()]


_STATED_TEXT = """\
Numbers of the catalogue that serving engines share whose condition no configuration of this build can break: an option
is refused, or does what it is described to do with every value. `engine explain R161` shows the reason."""


def _rule(rule: Rule) -> str:
    cells = [
        f'<a id="{rule.id.lower()}"></a>{rule.id}',
        rule.severity,
        _cell(f"**{rule.title}.** {rule.why}"),
        "<br>".join(_link(path) for path in rule.fields),
        _template(rule.message),
        "<br>".join(map(_template, rule.fixes)),
    ]
    return f"| {' | '.join(cells)} |"


def _because(rule: StatedRule) -> str:
    """The sentence, the rule that is checked, or the options that are described or refused elsewhere."""
    if not rule.is_derived:
        return _cell(rule.why)
    if rule.checked_by:
        return _link(rule.checked_by)
    if rule.id in NOT_HERE:
        return _NAME.sub(lambda found: _link(found[0]), rule.title.replace("`", ""))
    return ", ".join(map(_link, rule.fields))


_EXCLUSIONS_TEXT = """\
Features that a deployment cannot have together. All others go together.

`engine validate` names such a pair with its rule, before anything is loaded."""


def exclusions_page() -> str:
    """A guide: of each feature, those that it does not go with, and the reason of each pair."""
    lines = [NOTICE, "", "# What goes with what", "", _EXCLUSIONS_TEXT, ""]
    lines += ["| feature | options | does not go with |", "|---|---|---|"]
    for feature in FEATURES:
        pairs = [pair for pair in EXCLUSIONS if feature in (pair.one, pair.other)]
        others = [(pair.other if feature is pair.one else pair.one, pair.rule) for pair in pairs]
        said = ", ".join(f"{other.title} ({_from_guide(rule)})" for other, rule in others)
        lines.append(f"| {feature.title} | {', '.join(map(_from_guide, feature.options))} | {said} |")
    lines += ["", "## Why", "", "| rule | features | reason |", "|---|---|---|"]
    for pair in EXCLUSIONS:
        lines.append(f"| {_from_guide(pair.rule)} | {pair.one.title}; {pair.other.title} | {_cell(pair.why)} |")
    return "\n".join(lines) + "\n"


def _from_guide(name: str) -> str:
    return _link(name).replace("](", "](../reference/")


def _template(text: str) -> str:
    return _cell(template_text(text))


def _codes() -> list[str]:
    lines = ["| code | meaning | fix | exit code |", "|---|---|---|---|"]
    for code in CODES.values():
        meaning = _cell(f"**{code.title}.** {code.meaning}")
        lines.append(
            f'| <a id="{code.code.lower()}"></a>{code.code} | {meaning} | {_cell(code.fix)} | {code.exit_code} |'
        )
    return lines


def _status() -> list[str]:
    lists = by_status()
    lines = []
    for status in STATUSES:
        lines += [f"## {status}", "", f"{len(lists[status])} options.", ""]
        if status == "refused":
            lines += _refused(lists[status])
            continue
        for option in lists[status]:
            said = option.reason or first_sentence(option.description)
            name = f"`{option.path}`" if "status.md" in _place(option) else f"[`{option.path}`]({_place(option)})"
            lines.append(f"- {name}: {said}")
        lines.append("")
    return lines


def _refused(listed: Sequence[Option]) -> list[str]:
    """A row for each section and reason: `engine explain OPTION` says what an option would do, and what it accepts."""
    rows: dict[tuple[str, str], list[str]] = {}
    for option in listed:
        rows.setdefault((option.section, option.reason), []).append(f"`{option.name}`")
    lines = ["Each accepts only what this build does anyway; `engine explain OPTION` shows it.", ""]
    lines += ["| section | options | why |", "|---|---|---|"]
    return lines + [f"| {section} | {', '.join(names)} | {_cell(why)} |" for (section, why), names in rows.items()]


def _metrics() -> list[str]:
    """A table of all metrics of a running server, from the registry that exports them."""
    (listed,) = metric_pages("metrics")
    lines = ["| metric | type | meaning | also exported as |", "|---|---|---|---|"]
    for fact in listed.facts:
        (page,) = metric_pages(fact.name)
        facts = {fact.name: fact.lines for fact in page.facts}
        others = "<br>".join(f"`{name}`" for name in facts.get("in vLLM", ()))
        lines.append(f"| `{fact.name}` | {facts['kind'][0]} | {_cell(page.text)} | {others} |")
    return lines


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a page is stale")
    check = parser.parse_args().check
    wanted = {**pages(), EXCLUSIONS_PAGE: exclusions_page()}
    found = {path.relative_to(FOLDER).as_posix(): path.read_text("utf-8") for path in FOLDER.rglob("*.md")}
    if (FOLDER / EXCLUSIONS_PAGE).exists():
        found[EXCLUSIONS_PAGE] = (FOLDER / EXCLUSIONS_PAGE).read_text("utf-8")
    stale = [name for name in {**wanted, **found} if wanted.get(name) != found.get(name)]
    for name in stale:
        if check:
            print(f"error: docs/reference/{name} is stale\n  = fix: make docs", file=sys.stderr)
        elif name in wanted:
            (FOLDER / name).write_text(wanted[name], "utf-8")
        else:
            (FOLDER / name).unlink()
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
