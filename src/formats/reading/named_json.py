"""Calls that are a name and the JSON of the arguments."""

from __future__ import annotations

from ..format import Ids, JsonCall, NamedJson
from .json_call import read_json_calls
from .json_text import pass_value
from .sink import Sink
from .source import Reading, Source, skip_space, take, take_name

_JSON_CALL = JsonCall()


def read_named_json(source: Source, style: NamedJson, end: str, ids: Ids, sink: Sink) -> Reading[None]:
    """Read one call. What is not a call remains kept by the source."""
    first = yield from skip_space(source)
    if style.reads_json_calls and first in ("[", "{"):
        yield from read_json_calls(source, _JSON_CALL, end, sink)
        return
    if style.prefix:
        yield from take(source, style.prefix)
    written = yield from take_name(source, {style.name_end, style.id_begin} - {""})
    id = written if ids == "written" else None
    if written is not None and style.id_begin and (yield from take(source, style.id_begin)):
        id = yield from take_name(source, {style.name_end})
    if written is None or not (yield from take(source, style.name_end)):
        return
    if (yield from skip_space(source)) != "{":
        return
    sink.begin(written.removeprefix("functions.").rsplit(":", 1)[0] if ids == "written" else written, id)
    is_complete = yield from pass_value(source, sink.write, end)
    sink.end()
    if is_complete and style.suffix:
        yield from skip_space(source)
        yield from take(source, style.suffix.strip())
