"""Triton's interpreter, made faster: it takes most of the time of these tests.

- It replaces the builtins of the language once per kernel; by itself also for each function that a kernel calls.
- Types of one shape share it; by itself it wraps every size of every value again.
- It does not compute sums a second time in 64 bits: they would only be read with `debug`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any


def make_faster() -> None:
    from triton.runtime import interpreter

    if hasattr(interpreter, "is_faster"):  # a folder in PYTHONPATH and tests/conftest.py both ask for it
        return
    interpreter.is_faster = True
    _replace_builtins_once()
    _share_shapes()
    _compute_once()


def _replace_builtins_once() -> None:
    from triton import language
    from triton.runtime import interpreter

    replace_builtins = interpreter._patch_lang

    def once(function: Any) -> Any:
        """Within a kernel the builtins are replaced already; the caller of a function ignores the result."""
        modules = [each for each in function.__globals__.values() if each is language or each is language.core]
        is_first = any(language.core.is_builtin(each.program_id) for each in modules)
        return replace_builtins(function) if is_first else None

    interpreter._patch_lang = once


def _share_shapes() -> None:
    from triton.language import core, semantic

    class Shape(core.tuple):
        def __init__(self, sizes: tuple[int, ...]) -> None:
            super().__init__(sizes)
            self.constants = core.tuple([core.constexpr(size) for size in sizes])
            self.numel = core.validate_block_shape(sizes)
            self.numel_constant = core.constexpr(self.numel)
            self.text = str(self)

    shape_of = cache(Shape)
    scalar = shape_of(())

    def init_type(self: Any, element_ty: Any, shape: Any) -> None:
        self.element_ty = element_ty
        self.shape = shape if isinstance(shape, Shape) else shape_of(tuple(core._unwrap_shape(shape)))
        if self.shape is scalar:
            raise TypeError("0d block_type is forbidden")
        self.numel = self.shape.numel
        self.name = f"<{self.shape.text}, {element_ty}>"

    def init_tensor(self: Any, handle: Any, type: Any) -> None:
        shape = type.shape if type.is_block() else scalar
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.shape, self.numel = shape.constants, shape.numel_constant

    broadcast = semantic.TritonSemantic.broadcast_impl_value

    def broadcast_unless_alike(self: Any, left: Any, right: Any) -> Any:
        return (left, right) if left.shape is right.shape else broadcast(self, left, right)

    core.block_type.__init__ = init_type
    core.tensor.__init__ = init_tensor
    semantic.TritonSemantic.broadcast_impl_value = broadcast_unless_alike


def _compute_once() -> None:
    from triton.language import core
    from triton.runtime import interpreter

    options = interpreter.interpreter_builder.options
    assert not options.debug
    interpreter.interpreter_builder.options = replace(options, sanitize_overflow=False)

    numpy_type, of_name = interpreter._get_np_dtype, {}

    def remembered(dtype: Any) -> Any:
        name = dtype.scalar.name
        if name not in of_name:
            of_name[name] = numpy_type(dtype)
        return of_name[name]

    interpreter._get_np_dtype = remembered
    equals = core.dtype.__eq__
    core.dtype.__eq__ = lambda self, other: self is other or equals(self, other)
