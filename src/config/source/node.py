"""The tree that every layer is read into: values with their places."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Union

from ..source_text import Span

if TYPE_CHECKING:
    from ..diagnostics import Diagnostic

Tree = dict[str, "Node"]
Content = Union[None, bool, int, float, str, list["Node"], Tree]  # noqa: UP007 - the names are quoted


@dataclass(eq=False, slots=True)
class Node:
    """One value.

    Attributes:
        value: a scalar, a list of nodes, or a tree.
        span: where the value is.
        text: a scalar as written, after interpolation; None for collections.
        key: where its key is.
        anchor: where the value of an alias is written.
        problem: why the value is not known, such as a variable that is not set; reported if the value is effective.
        reason: why a preset sets it.
        variable: name of the environment variable that is the whole of the text, as in `${NAME}`.
        variables: names of all environment variables in the text.
        is_plain: a scalar without quotes, which is read again after interpolation.
        is_filled_in: the text comes from variables, at least in part.
        unsets: a key of a mapping option is removed from weaker layers.
        appends: the value is to be added to a weaker layer's list.
    """

    value: Content = field(repr=False)  # may be a secret
    span: Span
    text: str | None = field(default=None, repr=False)
    key: Span | None = None
    anchor: Span | None = None
    problem: Diagnostic | None = None
    reason: str = ""
    variable: str = ""
    variables: tuple[str, ...] = ()
    is_plain: bool = False
    is_filled_in: bool = False
    unsets: bool = False
    appends: bool = False

    @property
    def is_null(self) -> bool:
        return self.value is None

    @property
    def is_empty(self) -> bool:
        """A key without a value, as opposed to a written null."""
        return self.value is None and not self.text

    def plain(self) -> Any:
        """The value without places."""
        if isinstance(self.value, dict):
            return {key: child.plain() for key, child in self.value.items()}
        if isinstance(self.value, list):
            return [child.plain() for child in self.value]
        return self.value

    def scalars(self) -> Iterator[Node]:
        """Every scalar in it, itself included."""
        if isinstance(self.value, dict):
            for child in self.value.values():
                yield from child.scalars()
        elif isinstance(self.value, list):
            for child in self.value:
                yield from child.scalars()
        else:
            yield self
