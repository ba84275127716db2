"""`data.pkl` of a torch checkpoint, walked as data: which tensors there are and which storage each one views.

A pickle is a program for a small stack machine. Unpickling runs it with the power to import and call anything; this
reader never does either. It steps over the opcodes, keeps a stack of plain values, and knows five names. Whatever is
not one of the opcodes and names below ends the reading. Decision: docs/design/decisions/0004.
"""

from __future__ import annotations

import pickletools
from dataclasses import dataclass
from typing import Any

_STORAGES = {
    "DoubleStorage": "F64",
    "FloatStorage": "F32",
    "BFloat16Storage": "BF16",
    "HalfStorage": "F16",
    "LongStorage": "I64",
    "IntStorage": "I32",
    "ShortStorage": "I16",
    "CharStorage": "I8",
    "ByteStorage": "U8",
    "BoolStorage": "BOOL",
}
_ORDERED_DICT = ("collections", "OrderedDict")
_TENSOR = ("torch._utils", "_rebuild_tensor_v2")
_PARAMETER = ("torch._utils", "_rebuild_parameter")  # (tensor, requires_grad, hooks): the tensor is all we take
_MAX_COUNT = 2**62
_MAX_OPCODES = 3_000_000  # a tensor has about 30, and an opcode of one byte can make an object of a hundred


class UnreadablePickle(Exception):
    """The message ends a sentence that begins with the file's name."""


class ForbiddenPickle(UnreadablePickle):
    """The file asks for something that a table of tensors has no need of, most likely to run code."""


@dataclass(frozen=True, slots=True)
class Storage:
    """A run of numbers in a separate file inside the archive."""

    dtype: str  # as safetensors writes it
    key: str
    location: str  # the device it was saved from, such as cpu or cuda:0
    num_elements: int


@dataclass(frozen=True, slots=True)
class StorageView:
    """A tensor: elements of a storage."""

    storage: Storage
    offset: int  # in elements
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # in elements


class _Mark:
    """Marks where the items of a tuple or of a dict begin on the stack."""


@dataclass(frozen=True, slots=True)
class _Name:
    """A name that the pickle speaks of. It is compared, never looked up."""

    module: str
    name: str


def read_tensor_table(data: bytes) -> dict[str, StorageView]:
    """Name -> tensor. Raises UnreadablePickle for anything but one flat dict of tensors."""
    try:
        table = _Machine().run(data)
    except (ValueError, TypeError, IndexError, KeyError, AttributeError) as error:
        raise UnreadablePickle(f"its data.pkl cannot be understood: {error}") from None
    if not isinstance(table, dict):
        raise UnreadablePickle("holds no dict of tensors")
    for name, tensor in table.items():
        if not isinstance(name, str) or not isinstance(tensor, StorageView):
            raise UnreadablePickle(f"holds {str(name)[:60]!r}, which is no tensor; expected a flat dict of tensors")
    return table


class _Machine:
    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def run(self, data: bytes) -> Any:
        for number, (opcode, argument, _) in enumerate(pickletools.genops(data)):
            if number == _MAX_OPCODES:
                raise UnreadablePickle(f"its data.pkl has more than {_MAX_OPCODES} opcodes")
            if opcode.name == "STOP":
                return self.stack.pop()
            self._step(opcode.name, argument)
        raise UnreadablePickle("its data.pkl does not end")

    def _step(self, opcode: str, argument: Any) -> None:
        stack = self.stack
        match opcode:
            case "PROTO" | "FRAME":
                pass
            case "BINUNICODE" | "SHORT_BINUNICODE" | "BININT" | "BININT1" | "BININT2" | "LONG1" | "BINFLOAT":
                stack.append(argument)
            case "NONE" | "NEWTRUE" | "NEWFALSE":
                stack.append({"NONE": None, "NEWTRUE": True, "NEWFALSE": False}[opcode])
            case "MARK":
                stack.append(_Mark)
            case "EMPTY_DICT":
                stack.append({})
            case "EMPTY_LIST":
                stack.append([])
            case "EMPTY_TUPLE":
                stack.append(())
            case "TUPLE":
                stack.append(tuple(self._since_mark()))
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                count = int(opcode[-1])
                if len(stack) < count:
                    raise IndexError("too few values for a tuple")
                stack[-count:] = [tuple(stack[-count:])]
            case "APPEND" | "APPENDS":
                items = self._since_mark() if opcode == "APPENDS" else [stack.pop()]
                _expect(stack[-1], list).extend(items)
            case "SETITEM" | "SETITEMS":
                self._set_items(self._since_mark() if opcode == "SETITEMS" else [stack.pop(-2), stack.pop()])
            case "BINPUT" | "LONG_BINPUT":
                self.memo[argument] = stack[-1]
            case "MEMOIZE":
                self.memo[len(self.memo)] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(self.memo[argument])
            case "GLOBAL":
                stack.append(_known(*argument.split(" ", 1)))
            case "STACK_GLOBAL":
                name, module = stack.pop(), stack.pop()
                stack.append(_known(_expect(module, str), _expect(name, str)))
            case "BINPERSID":
                stack.append(_storage(stack.pop()))
            case "REDUCE":
                arguments, name = _expect(stack.pop(), tuple), _expect(stack.pop(), _Name)
                stack.append(_built(name, arguments))
            case "BUILD":  # attributes of the dict, such as torch's `_metadata`: versions of modules, not needed
                stack.pop()
                _expect(stack[-1], dict)
            case _:
                raise ForbiddenPickle(f"its data.pkl uses the opcode {opcode}, which no table of tensors needs")

    def _since_mark(self) -> list[Any]:
        items: list[Any] = []
        while (item := self.stack.pop()) is not _Mark:
            items.append(item)
        items.reverse()
        return items

    def _set_items(self, items: list[Any]) -> None:
        table = _expect(self.stack[-1], dict)
        for key, value in zip(items[::2], items[1::2], strict=True):
            # tuples as keys are not only useless: hashing a deeply nested one overflows the interpreter's stack
            if type(key) not in (str, int):
                raise TypeError("a key that is neither a text nor a number")
            table[key] = value


def _known(module: str, name: str) -> _Name:
    found = (module, name)
    if found in (_ORDERED_DICT, _TENSOR, _PARAMETER) or (module == "torch" and name in _STORAGES):
        return _Name(module, name)
    raise ForbiddenPickle(f"its data.pkl asks for `{module[:60]}.{name[:60]}`, which no table of tensors needs")


def _built(name: _Name, arguments: tuple[Any, ...]) -> Any:
    match (name.module, name.name), arguments:
        case (found, ()) if found == _ORDERED_DICT:
            return {}
        case (found, (StorageView() as tensor, _, _)) if found == _PARAMETER:
            return tensor
        case (found, (Storage() as storage, int(offset), tuple(shape), tuple(strides), *_)) if found == _TENSOR:
            return _view(storage, offset, shape, strides)
    raise ForbiddenPickle(f"its data.pkl calls `{name.module}.{name.name}` in a way that no table of tensors does")


def _view(storage: Storage, offset: int, shape: tuple[Any, ...], strides: tuple[Any, ...]) -> StorageView:
    numbers = (offset, *shape, *strides)
    if len(shape) != len(strides) or not all(type(n) is int and 0 <= n < _MAX_COUNT for n in numbers):
        raise ValueError("a tensor with an impossible shape")
    view = StorageView(storage, offset, shape, strides)
    if 0 not in shape:
        last = offset + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
        if last >= storage.num_elements:
            raise ValueError(f"a tensor that ends at element {last} of a storage of {storage.num_elements}")
    return view


def _storage(persistent_id: Any) -> Storage:
    match persistent_id:
        case ("storage", _Name(module="torch", name=kind), str(key), str(location), int(count)) if kind in _STORAGES:
            if 0 <= count < _MAX_COUNT:
                return Storage(_STORAGES[kind], key, location, count)
    raise ValueError("a storage that is described in a way torch does not")


def _expect(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"{type(value).__name__} where {kind.__name__} must be")
    return value
