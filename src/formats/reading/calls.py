"""Reads calls by the style of the format, each of which has its own reader.

What comes in is text from the first marker of calls on; what goes out, to the sink, is the calls. Text that turns out
not to be a call remains kept by the source, for the reader of the answer.
"""

from __future__ import annotations

from dataclasses import replace

from ..format import BareKeys, CallMarkers, Harmony, JsonCall, NamedJson, Pythonic, XmlCall
from .bare_keys import read_bare_keys
from .json_call import read_json_calls
from .markers import own_begin
from .named_json import read_named_json
from .pythonic import read_pythonic
from .sink import Sink
from .source import Reading, Source, skip_space, take
from .xml_call import read_xml_call

_MAX_NOISE = 64  # characters before the first call of a section


def read_calls(source: Source, calls: CallMarkers, marker: str, sink: Sink, *, is_first: bool) -> Reading[None]:
    """Read the calls that a marker begins. What remains kept by the source is text.

    is_first: no call comes before it, or all of them are in a section that has ended.
    """
    if marker == own_begin(calls):  # the reader of the style takes it
        yield from read_style(source, calls, sink, is_bare=is_first)  # later ones may be of a section
        return
    source.at += len(marker)
    for begin, end in calls.other_markers:
        if marker == begin:
            yield from _read_other(source, calls, end, sink)
            return
    if calls.section and marker == calls.section[0] and not (yield from _skip_to_call(source, calls, calls.section[1])):
        return
    yield from read_style(source, calls, sink)


def _read_other(source: Source, calls: CallMarkers, end: str, sink: Sink) -> Reading[None]:
    """Read calls between markers that the format does not generate, and take the second marker."""
    num_calls = sink.num_calls
    yield from read_style(source, replace(calls, end=end), sink, is_bare=bool(calls.bare))
    if end and sink.num_calls > num_calls:
        yield from skip_space(source)
        if (yield from take(source, end)):
            source.forget()


def _skip_to_call(source: Source, calls: CallMarkers, section_end: str) -> Reading[bool]:
    """Take what precedes the first call of a section, and the marker of the call. False if no call follows."""
    begin = calls.begin or own_begin(calls)
    if not begin:
        return True
    if not (yield from _skip_noise(source, begin, section_end)):
        return False
    return not calls.begin or (yield from take(source, calls.begin))


def _skip_noise(source: Source, begin: str, end: str) -> Reading[bool]:
    """Take a limited number of characters before the first call of a section. False and nothing, if no call follows."""
    while True:
        place = source.text.find(begin, source.at, source.at + _MAX_NOISE + len(begin))
        if place >= 0:
            if end in source.text[source.at : place]:
                return False
            source.at = place
            return True
        is_near = len(source.text) - source.at < _MAX_NOISE + len(begin)
        if source.is_closed or not is_near:
            source.ends_within = source.ends_within or is_near
            return False
        yield


def read_style(
    source: Source, calls: CallMarkers, sink: Sink, *, is_bare: bool = False, is_first: bool = True
) -> Reading[None]:
    """Read calls from the first character of a call on.

    is_bare: no marker says that this is a call. is_first: the answer begins with it.
    """
    end = calls.end or (calls.section[1] if calls.section else "")
    match calls.style:
        case JsonCall() as style:
            yield from read_json_calls(source, style, end, sink, is_bare=is_bare)
        case NamedJson() as style:
            yield from read_named_json(source, style, end, calls.ids, sink)
        case XmlCall() as style:
            yield from read_xml_call(source, style, calls, end, sink, is_bare=is_bare)
        case Pythonic() as style:
            yield from read_pythonic(source, style, end, sink, is_bare=is_bare, is_first=is_first)
        case BareKeys() as style:
            yield from read_bare_keys(source, style, calls, sink, is_bare=is_bare)
        case Harmony():
            raise AssertionError("the whole answer is harmony: read_harmony")


def may_begin_call(text: str, calls: CallMarkers, sink: Sink) -> bool:
    """Whether an answer without markers can be the beginning of a call, as far as it goes."""
    if isinstance(calls.style, JsonCall):
        begins = [f'{{"{calls.style.name_key}"', '{"type"']
    else:
        begins = [f"{name}(" for name in sink.tools]
    text = text.lstrip(" \n[")
    return any(begin.startswith(text) or text.startswith(begin) for begin in begins)
