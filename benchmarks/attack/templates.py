"""Attacks with chat templates: each filter, operator and method that can work for long or take much memory.

In a request where the server allows that, and from a model's folder at its start.
"""

from __future__ import annotations

import json
from functools import partial

from .bodies import chat
from .catalogue import Catalogue, Scene
from .starts import Limits, copy_model, model_start
from .wire import ask, check_answer, posting

CATALOGUE = Catalogue("templates")
OPTIONS = ("--trust-request-chat-template",)
LIMIT_S = 20.0
MEMORY_MIB = 1100.0  # a template may take 1 GiB
TEXT = "{% set s = 'ab ' * 3000000 %}"
LIST = "{% set l = range(99999) | list * 40 %}"
NESTED = "{% set ns = namespace(x=[]) %}{% for i in range(99999) %}{% set ns.x = [ns.x] %}{% endfor %}"
DOUBLED = "{% set ns = namespace(x=[0]) %}{% for i in range(40) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}"

# Every filter of Jinja, with the largest work that it can be given.
FILTERS: dict[str, str] = {
    "abs": "{{ (10 ** 4000000) | abs > 1 }}",
    "attr": TEXT + "{{ s | attr(s) }}",
    "batch": LIST + "{{ l | batch(1, s) | list | length }}",
    "capitalize": TEXT + "{{ s | capitalize }}",
    "center": "{{ 'x' | center(4000000000) | length }}",
    "center-many": "{% for i in range(99999) %}{% set x = 'x' | center(100000000) %}{% endfor %}",
    "dictsort": TEXT + "{{ dict(a=s) | dictsort | length }}",
    "escape": "{{ ('<' * 30000000) | escape | length }}",
    "filesizeformat": "{{ (10 ** 400) | filesizeformat }}",
    "float": "{{ ('9' * 100000000) | float }}",
    "format": "{{ '%4000000000d' | format(1) | length }}",
    "format-precision": "{{ '%.4000000000f' | format(1.5) | length }}",
    "groupby": LIST + "{{ l | groupby('real') | length }}",
    "indent": "{{ ('\n' * 3000000) | indent(100000) | length }}",
    "int": "{{ ('9' * 100000000) | int }}",
    "int-base": "{{ ('z' * 3000000) | int(0, 36) > 1 }}",
    "join": TEXT + LIST + "{{ l | join(s) | length }}",
    "list": "{{ ('x' * 300000000) | list | length }}",
    "map": LIST + "{{ l | map('string') | map('center', 1000000) | list | length }}",
    "max": LIST + "{{ (l * 10) | max }}",
    "pprint": NESTED + "{{ ns.x | pprint }}",
    "pprint-long": LIST + "{{ l | pprint | length }}",
    "replace": "{{ ('a' * 1000000) | replace('a', 'b' * 100000) | length }}",
    "reverse": "{{ ('x' * 300000000) | reverse | length }}",
    "round": "{{ 1.5 | round(400000000) }}",
    "select": LIST + "{{ l | select('divisibleby', 7) | list | length }}",
    "slice": "{{ range(10) | slice(99999999) | list | length }}",
    "sort": LIST + "{{ (l * 5) | sort | length }}",
    "sort-text": TEXT + "{{ (s * 10) | sort | length }}",
    "string": NESTED + "{{ ns.x | string | length }}",
    "striptags": "{{ ('<a' * 3000000) | striptags | length }}",
    "sum": LIST + "{{ ([[1]] * 4000000) | sum(start=[]) | length }}",
    "title": TEXT + "{{ s | title | length }}",
    "tojson": DOUBLED + "{{ ns.x | tojson | length }}",
    "tojson-deep": NESTED + "{{ ns.x | tojson | length }}",
    "tojson-indent": LIST + "{{ l | tojson(indent=100000) | length }}",
    "truncate": TEXT + "{{ s | truncate(8999999) | length }}",
    "unique": LIST + "{{ l | unique | list | length }}",
    "upper": "{{ ('x' * 300000000) | upper | length }}",
    "urlencode": "{{ ('\\xff' * 30000000) | urlencode | length }}",
    "urlize": "{{ ('www.a.b ' * 1000000) | urlize | length }}",
    "urlize-brackets": "{{ ('http://' ~ '(' * 1000000) | urlize | length }}",
    "wordcount": TEXT + "{{ (s * 10) | wordcount }}",
    "wordwrap": TEXT + "{{ s | wordwrap(1) | length }}",
    "wordwrap-long-word": "{{ ('x' * 30000000) | wordwrap(1) | length }}",
    "xmlattr": TEXT + "{{ {'a': s * 10} | xmlattr | length }}",
    "random-name": "{{ 'x' | nowhere }}",
}

# Besides filters: operators, methods, loops, and the work of the compiler.
OTHERS: dict[str, str] = {
    "power": "{{ 9 ** 9 ** 9 }}",
    "power-variable": "{% set a = 99999999 %}{{ a ** a }}",
    "multiply-numbers": "{% set ns = namespace(x=3) %}{% for i in range(40) %}{% set ns.x = ns.x ** 2 %}{% endfor %}x",
    "number-to-text": "{% set a = 10 %}{{ (a ** 4000000) | string | length }}",
    "multiply-text": "{{ 'x' * 100000000000 }}",
    "multiply-list": "{% set l = [0] * 10000000000 %}x",
    "doubled-text": "{% set ns = namespace(x='x') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}x",
    "compare-nested": DOUBLED + DOUBLED.replace("ns", "nt") + "{{ ns.x == nt.x }}",
    "compare-deep": NESTED + NESTED.replace("ns", "nt") + "{{ ns.x == nt.x }}",
    "contains": "{{ ('a' * 3000000 ~ 'b') in ('a' * 30000000) }}",
    "percent": "{{ '%4000000000d' % 1 }}",
    "method-format": "{{ '{:>4000000000}'.format(1) | length }}",
    "method-ljust": "{{ 'x'.ljust(4000000000) | length }}",
    "method-replace": "{{ ('a' * 3000000).replace('', 'b' * 100000) | length }}",
    "method-split": "{{ ('a ' * 30000000).split(' ') | length }}",
    "method-expandtabs": "{{ ('\\t' * 100000).expandtabs(1000000) | length }}",
    "method-count": "{{ ('ab' * 30000000).count('ba') }}",
    "method-join": "{{ ('x' * 1000000).join(['y'] * 1000000) | length }}",
    "method-translate": "{{ ('x' * 10000000).translate({120: 'y' * 1000}) | length }}",
    "method-encode": "{{ ('x' * 300000000).encode('utf-32') | length }}",
    "to-bytes": "{% set a = 1 %}{{ a.to_bytes(4000000000, 'big') | length }}",
    "loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "loop-output": "{% for a in range(99999) %}{% for b in range(9999) %}xxxxxxxxxxxxxxxxxxxx{% endfor %}{% endfor %}",
    "macro-recursion": "{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}",
    "macro-doubling": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "recursive-loop": "{% set l = [1] %}{% for x in l recursive %}{{ loop(l) }}{% endfor %}",
    "lipsum": "{{ lipsum(n=1000000) | length }}",
    "range": "{{ range(10000000000) | list | length }}",
    "slice-index": "{{ ('x' * 300000000)[::-1] | length }}",
    "surrogate": "{{ '\\ud800' }}",
    "output-large": "{{ 'x' * 60000000 }}",
    "deep-brackets": "{{ " + "(" * 20_000 + "1" + ")" * 20_000 + " }}",
    "deep-lists": "{{ " + "[" * 3_000 + "]" * 3_000 + " }}",
    "deep-not": "{{ " + "not " * 20_000 + "1 }}",
    "deep-if": "{% if 1 %}" * 3_000 + "{% endif %}" * 3_000,
    "deep-for": "{% for a in [1] %}" * 30 + "{% endfor %}" * 30,
    "long-sum": "{{ " + "1 + " * 50_000 + "1 }}",
    "many-expressions": "{{ messages }}" * 100_000,
    "many-filters": "{{ 'x'" + " | upper" * 20_000 + " }}",
    "unclosed": "{{ " * 100_000,
    "include": "{% include '/etc/passwd' %}",
    "import": "{% import 'os' as os %}{{ os }}",
    "escape-by-class": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "escape-by-globals": "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "escape-by-format": "{{ '{0.__class__.__init__.__globals__}'.format(cycler) }}",
    "escape-by-format-map": "{{ '{x.__class__.__mro__}'.format_map({'x': 1}) }}",
}
ALL = {f"filter-{name}": text for name, text in FILTERS.items()} | OTHERS
# Also tried as a model's own template; a start is slow, so not all of them are.
AT_START = (
    "filter-center", "filter-format", "filter-sum", "filter-tojson", "filter-tojson-deep", "filter-pprint",
    "power-variable", "doubled-text", "compare-nested", "loops", "output-large", "deep-brackets", "deep-lists",
    "deep-not", "many-filters", "many-expressions", "unclosed", "escape-by-globals",
)  # fmt: skip


def _request(template: str, scene: Scene) -> str:
    data = posting("/v1/chat/completions", chat(chat_template=template))
    answer = ask(scene.address, data, limit_s=LIMIT_S * scene.slowness)
    check_answer(answer, (200, 400, 503), template[:80])
    code = answer.json["error"]["code"] if answer.status >= 400 else ""
    return f"answered {answer.status} {code}"


def _start(template: str, scene: Scene) -> str:
    model = copy_model(scene.folder)
    (model / "chat_template.jinja").write_text(template)
    return model_start(scene, model, Limits(seconds=60))


def _other_start(content: object, scene: Scene) -> str:
    """A `chat_template` of tokenizer_config.json that is not a text."""
    model = copy_model(scene.folder)
    (model / "chat_template.jinja").unlink()
    config = json.loads((model / "tokenizer_config.json").read_text())
    (model / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": content}))
    return model_start(scene, model)


for _name, _template in ALL.items():
    CATALOGUE.add(_name, partial(_request, _template), options=OPTIONS, memory_mib=MEMORY_MIB, limit_s=LIMIT_S + 5)
for _name in AT_START:
    CATALOGUE.add(f"at-start-{_name}", partial(_start, ALL[_name]), on_server=False, limit_s=120)
_CONTENTS: dict[str, object] = {
    "number": 7,
    "list-of-numbers": [1, 2],
    "nameless": [{"template": "x"}],
    "without-text": [{"name": "default"}],
    "lone-surrogate": "\ud800",
}
for _name, _content in _CONTENTS.items():
    CATALOGUE.add(f"at-start-config-{_name}", partial(_other_start, _content), on_server=False, limit_s=120)
