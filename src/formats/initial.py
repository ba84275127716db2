"""Whether an answer starts within reasoning: only the rendered prompt says so."""

from __future__ import annotations

from .format import Format


def starts_in_reasoning(format: Format, prompt_text: str, *, continued: str = "") -> bool:
    """Whether the first token of the answer belongs to the reasoning.

    prompt_text: the whole prompt, or its last characters.
    continued: the end of the prompt that is the beginning of the answer, where the answer continues a message.
    """
    markers = format.reasoning
    if markers is None:
        return False
    if continued and (markers.begin in continued or markers.end in continued):
        return continued.rfind(markers.begin) > continued.rfind(markers.end)
    # Only the very end counts: messages before it may quote markers.
    end = prompt_text.rstrip()
    if end.endswith(markers.begin):
        return True
    return markers.is_default and not end.endswith(markers.end)
