"""Calls that are a name and the JSON of the arguments."""

from __future__ import annotations

from ..format import Ids, JsonCall, NamedJson
from .json_call import as_object, read_json_calls
from .json_text import pass_value, take_value
from .sink import Sink
from .source import Reading, Source, is_next, skip_space, take, take_name

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
    name = written.removeprefix("functions.").rsplit(":", 1)[0] if ids == "written" else written
    following = yield from skip_space(source)
    if following == "{":
        sink.begin(name, id)
        is_complete = yield from pass_value(source, sink.write, end)
        sink.end()
        if not is_complete:
            return
    else:
        arguments = "null"
        if following and not (end and (yield from is_next(source, end))):
            arguments = (yield from take_value(source, end)) or ""
        elif not end or not following:
            return
        arguments = as_object(arguments)
        if not arguments.startswith("{"):
            return
        sink.begin(name, id)
        sink.write(arguments)
        sink.end()
    if style.suffix:
        yield from skip_space(source)
        yield from take(source, style.suffix.strip())
