"""Reads an upload (multipart/form-data) part by part; the content of its file goes to disk as it arrives."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from ..http.limits import FORM_BYTES, ClientGone, Receive, Scope, check_not_encoded
from ..protocol.errors import ApiError, bad_request, closing
from .store import Writing

_MAX_FIELDS = 16
_MAX_FIELD_BYTES = 1024
_MAX_PART_HEADERS = 8
_CHECK_BYTES = 16 << 20


class Upload:
    """fields: of the form, besides the file. file_name: None if there was no file."""

    def __init__(self, writing: Writing, max_bytes: int, check: Callable[[], Awaitable[None]]) -> None:
        """
        max_bytes: of the file, unless other uploads take them.
        check: called now and then, and when the file is complete, with all of it on disk. Raises ApiError.
        """
        self.fields: dict[str, str] = {}
        self.file_name: str | None = None
        self._writing = writing
        self._max_bytes = max_bytes
        self._check = check
        self._check_at = _CHECK_BYTES  # size of the file
        self._header = [b"", b""]
        self._disposition = b""
        self._name = ""
        self._value = b""
        self._is_file = False
        self._num_parts = 0
        self._has_ended = False

    async def read(self, scope: Scope, receive: Receive, *, idle_timeout_s: float) -> None:
        """Raises ApiError (400, 408, 413, 415), ClientGone, or OSError of the disk."""
        parser = self._parser(scope)
        num_bytes = 0
        while True:
            try:
                async with asyncio.timeout(idle_timeout_s):
                    message = await receive()
            except TimeoutError:
                raise closing(ApiError(408, "the upload stopped arriving", code="request_timeout")) from None
            if message["type"] == "http.disconnect":
                raise ClientGone
            num_bytes += len(message.get("body", b""))
            if num_bytes > self._max_bytes + FORM_BYTES:  # also of what follows the form
                raise self._too_large()
            try:
                parser.write(message.get("body", b""))
                if not message.get("more_body"):
                    parser.finalize()
                    break
            except FormParserError as error:
                raise closing(bad_request(f"the form is not valid: {error}", code="invalid_form")) from None
            if self._writing.size >= self._check_at:
                self._check_at += _CHECK_BYTES
                await self._check()
        if not self._has_ended:
            raise bad_request("the form ends before its last boundary", code="invalid_form")
        self._writing.file.flush()
        await self._check()

    def _parser(self, scope: Scope) -> MultipartParser:
        check_not_encoded(scope)
        sent = next((value for name, value in scope["headers"] if name == b"content-type"), b"")
        kind, options = parse_options_header(sent)
        if kind != b"multipart/form-data":
            message = "the body must be sent as Content-Type: multipart/form-data"
            raise closing(ApiError(415, message, code="unsupported_media_type"))
        if not options.get(b"boundary"):
            raise closing(bad_request("the content type has no boundary", code="invalid_form"))
        callbacks: dict[str, Callable[..., None]] = {
            "on_part_begin": self._begin,
            "on_part_data": self._data,
            "on_part_end": self._end,
            "on_header_field": lambda data, start, end: self._add_header(0, data[start:end]),
            "on_header_value": lambda data, start, end: self._add_header(1, data[start:end]),
            "on_header_end": self._end_header,
            "on_headers_finished": self._start,
            "on_end": self._finish,
        }
        try:
            return MultipartParser(options[b"boundary"], callbacks, max_header_count=_MAX_PART_HEADERS)  # type: ignore[arg-type]  # a TypedDict
        except FormParserError as error:
            raise closing(bad_request(f"the form is not valid: {error}", code="invalid_form")) from None

    def _begin(self) -> None:
        self._num_parts += 1
        if self._num_parts > _MAX_FIELDS:
            raise closing(bad_request(f"the form has more than {_MAX_FIELDS} fields", code="invalid_form"))
        self._header, self._disposition, self._value = [b"", b""], b"", b""

    def _add_header(self, place: int, data: bytes) -> None:
        self._header[place] += data

    def _end_header(self) -> None:
        if self._header[0].lower() == b"content-disposition":
            self._disposition = self._header[1]
        self._header = [b"", b""]

    def _start(self) -> None:
        _, options = parse_options_header(self._disposition)
        self._name = options.get(b"name", b"").decode(errors="replace")
        self._is_file = self._name == "file"
        if self._is_file:
            if self.file_name is not None:
                raise closing(bad_request("the form has two files", code="invalid_form", param="file"))
            self.file_name = options.get(b"filename", b"upload").decode(errors="replace")

    def _data(self, data: bytes, start: int, end: int) -> None:
        piece = data[start:end]
        if not self._is_file:
            if len(self._value) + len(piece) > _MAX_FIELD_BYTES:
                shown = self._name[:100]
                raise closing(bad_request(f"`{shown}` has more than {_MAX_FIELD_BYTES} bytes", param=shown))
            self._value += piece
            return
        if self._writing.size + len(piece) > self._max_bytes:
            raise self._too_large()
        self._writing.write(piece)

    def _too_large(self) -> ApiError:
        message = f"the upload exceeds the {self._max_bytes} bytes that this key has left (`server.files_quota`)"
        return closing(ApiError(413, message, code="quota_exceeded", param="file"))

    def _end(self) -> None:
        if not self._is_file:
            self.fields[self._name] = self._value.decode(errors="replace")

    def _finish(self) -> None:
        self._has_ended = True
