"""Arguments and results of calls, as bytes: what JSON has, bytes, tuples, numpy arrays and tensors."""

from __future__ import annotations

from typing import Any

import msgpack
import numpy as np
import torch

from .rank_messages import Returned

_TENSOR, _ARRAY, _TUPLE = 1, 2, 3


def packed_value(value: Any) -> bytes:
    """Raises TypeError for a value that cannot be sent."""
    try:
        data: bytes = msgpack.packb(value, default=_extension, strict_types=True)
    except Exception as error:  # also integers of more than 64 bits, and torch's own for tensors without memory
        raise TypeError(str(error)) from error
    return data


def unpacked_values(data: bytes) -> Any:
    return msgpack.unpackb(data, ext_hook=_value, strict_map_key=False)


def packed_values(value: Any, error: str) -> Returned:
    """The result of a call; one that cannot be sent is an error."""
    if not error:
        try:
            return Returned(packed_value(value))
        except TypeError as failure:
            error = f"the result cannot be sent to the other ranks: {failure}"
    return Returned(b"", error)


def _extension(value: Any) -> Any:
    if isinstance(value, tuple):
        return msgpack.ExtType(_TUPLE, packed_value(list(value)))
    if isinstance(value, torch.Tensor):
        dtype, whole = str(value.dtype).removeprefix("torch."), value.detach().cpu().contiguous()
        content = whole.reshape(-1).view(torch.uint8).numpy().tobytes()
        return msgpack.ExtType(_TENSOR, packed_value([dtype, list(value.shape), content]))
    if isinstance(value, np.ndarray) and not value.dtype.hasobject and not value.dtype.fields:
        content = np.ascontiguousarray(value).tobytes()
        return msgpack.ExtType(_ARRAY, packed_value([value.dtype.str, list(value.shape), content]))
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(
        f"a {type(value).__name__} is not sent between ranks, but tensors, numpy arrays, numbers and texts are"
    )


def _value(code: int, data: bytes) -> Any:
    inner = unpacked_values(data)
    if code == _TUPLE:
        return tuple(inner)
    dtype, shape, content = inner
    if code == _ARRAY:
        return np.frombuffer(bytearray(content), dtype).reshape(shape)
    whole = torch.frombuffer(bytearray(content), dtype=torch.uint8) if content else torch.empty(0, dtype=torch.uint8)
    return whole.view(getattr(torch, dtype)).reshape(shape)
