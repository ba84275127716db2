"""What hands and accidents write: near-YAML, words of command lines, variables. For hypothesis."""

from __future__ import annotations

from hypothesis import strategies as st

from stoker.config.schema.options import options, section_flags, sections
from stoker.config.source.flags import all_flags

HUGE = [
    "9" * 30,
    "9" * 500,
    "-" + "8" * 4400,
    "1e999",
    "-1e-999",
    "0x" + "f" * 300,
    "0o" + "7" * 300,
    ".inf",
    "-.INF",
    ".nan",
]
ODD_TEXTS = [
    "",
    "~",
    "null",
    "None",
    "é",
    "💡",
    "\u202e",
    "\u2028",
    "\x85",
    "\ufeff",
    "\u0301",
    "ｗ",
    "\U0010ffff",
    "\ud7ff",
]
FORMS = [
    "${SET}",
    "${UNSET}",
    "${UNSET:-1}",
    "${UNSET:?why}",
    "${",
    "${}",
    "$$",
    "$",
    "${1}",
    "${SET:-${UNSET}}",
    "${SET-x}",
]
SCALARS = [
    "1",
    "0755",
    "1_000",
    "32k",
    "1.5K",
    "20GiB",
    "30s",
    "true",
    "yes",
    "on",
    "12:30",
    "=",
    "<<",
    "-",
    "?",
    *HUGE,
]
NAMES = [*(option.name for option in options().values()), *sections(), "x-a", "x-", "<<", "extends", "preset", "", "ké"]
ENV = {"SET": "64", "EMPTY": "", "MANY": "a\nb: c", "ODD": "\u202e\x1b[31m"}

words = st.sampled_from([*SCALARS, *ODD_TEXTS, *FORMS, "deploy.yaml", "a,b", "auto"]) | st.text(max_size=6)


def _quoted(text: str) -> st.SearchStrategy[str]:
    return st.sampled_from(
        [text, f"'{text}'", f'"{text}"', f"'{text}", f'"{text}', f'"\\x{text}"', f"|\n   {text}", f">-\n {text}"]
    )


names = st.sampled_from(NAMES) | st.text("ab_-.: ", max_size=4)
scalars = words.flatmap(_quoted)
dressed = st.builds(
    lambda dress, text: dress.replace("@", text),
    st.sampled_from(
        [
            *["@"] * 6,
            "&a @",
            "*a",
            "*b",
            "&a",
            "!!str @",
            "!!int @",
            "!!float @",
            "!!python/name:os.system @",
            "!x @",
            "!",
            "@ # c",
        ]
    ),
    scalars,
)
flow = st.recursive(
    dressed,
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda parts: f"[{', '.join(parts)}]")
        | st.lists(st.tuples(names, inner), max_size=3).map(
            lambda pairs: "{" + ", ".join(f"{name}: {part}" for name, part in pairs) + "}"
        )
        | inner.map(lambda part: f"[{part}")
        | inner.map(lambda part: f"{{{part}")
    ),
    max_leaves=5,
)
_indents = st.sampled_from(["", "", "  ", "  ", "    ", "\t", " \t", " "])
lines = st.one_of(
    st.builds("{}{}: {}".format, _indents, names, flow),
    st.builds("{}{}:".format, _indents, names),
    st.builds("{}- {}".format, _indents, flow),
    st.builds("{}? {}".format, _indents, flow),
    st.builds("{}<<: {}".format, _indents, flow),
    st.sampled_from(
        ["---", "...", "%YAML 1.3", "%TAG ! tag:x,1:", "# c", "", "\0", "\ufeff", "model: &a", "server: {<<: *a}"]
    ),
    flow,
)
manifests = st.builds(
    lambda mark, head, parts, end: mark + head + end.join(parts) + end,
    st.sampled_from(["", "", "", "\ufeff", "\0", "%YAML 1.1\n---\n"]),
    st.sampled_from(["", "model: {model: x}\n", "model:\n  model: x\n", "x-a: &a {port: 1}\n"]),
    st.lists(lines, max_size=8),
    st.sampled_from(["\n", "\n", "\r\n", "\r", "\x85", "\u2028"]),
)


def _broken(data: bytes, where: int, byte: int) -> bytes:
    return data[: where % (len(data) + 1)] + bytes([byte]) + data[where % (len(data) + 1) :]


contents = (
    manifests.map(lambda text: text.encode("utf-8", "replace"))
    | st.builds(
        _broken, manifests.map(lambda text: text.encode("utf-8", "replace")), st.integers(0, 300), st.integers(0, 255)
    )
    | st.binary(max_size=80)
    | manifests.map(lambda text: text.encode("utf-16", "replace"))
)

_fragments = st.sampled_from(
    [
        '{"a": 1}',
        "{",
        '["a"]',
        "[1",
        '{"a": {"b": null}}',
        "null",
        "NaN",
        "-Infinity",
        '"',
        "[[[[",
        '{"a": 1, "a": 2}',
        "1e400",
    ]
)
_flag_names = (
    st.sampled_from([*all_flags(), *section_flags(), *(f"--{name}" for name in sections())])
    | st.sampled_from([option.path for option in options().values()]).map(lambda path: f"--{path}")
    | st.sampled_from(
        ["-O", "-O3", "-O99999999999999999999999", "-tp", "-", "--", "---", "--=", "-.", "--.", "--no-", "--no-no-x"]
    )
    | st.text("-ab.=+!OX é\0\n", max_size=6)
)
_endings = st.sampled_from(
    ["", "", "", "+", "!", "+!", "=", "+=", "!=", ".", ".a", ".a.b+", "..", ".a!", "[0]", ".é", "==", "-"]
)
flags = st.builds("{}{}{}".format, _flag_names, _endings, words | _fragments | st.just(""))
command_words = st.lists(flags | words | _fragments, max_size=6)

_variables = (
    st.sampled_from([option.variable for option in options().values() if option.variable])
    | st.sampled_from(
        ["ENGINE__", "ENGINE____", "ENGINE__A", "ENGINE_PORT", "engine__server__port", "ENGINE_SERVER_PORT"]
    )
    | st.sampled_from(["ENGINE__MODEL__HF_OVERRIDES__A__B", "ENGINE__SERVER__PORT__X", "ENGINE_1_PORT_80_TCP"])
    | st.text("ENGI_é x", min_size=1, max_size=8).map(lambda text: f"ENGINE__{text}")
)
environments = st.dictionaries(_variables, words | _fragments | st.text(max_size=5), max_size=4)
