"""Value types of the manifest: whole numbers, human integers, byte sizes, durations, paths and secrets.

Each reads a number or a text such as `32k`, `20GiB` or `30s` and returns a plain Python value in base units
(tokens, bytes, seconds). An invalid text raises ValueError with the correct notation.
"""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, SecretStr, SerializationInfo, Strict

REDACTED = "**********"

Auto = Literal["auto"]  # "decide for me"

_INTEGER = re.compile(r"[-+]?[0-9]+")
_NUMBER = re.compile(r"[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?")
_HUMAN_INT = re.compile(r"([0-9]+)(\.[0-9]+)?([kmgtKMGT])?")
_SIZE = re.compile(r"([0-9]+)(\.[0-9]+)?\s*(B|[kKMGT]i?B)")
_DURATION = re.compile(r"(?:[0-9]+(?:\.[0-9]+)?(?:ms|s|m|h|d))+")
_DURATION_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)")

_DECIMAL = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "t": 1000**4}
_BINARY = {"K": 1024, "M": 1024**2, "G": 1024**3, "T": 1024**4}
_UNITS: dict[str, int] = _DECIMAL | _BINARY
_SIZE_UNITS = {
    "B": 1,
    **{f"{letter}B": 1000**power for letter, power in zip("kMGT", (1, 2, 3, 4), strict=True)},
    "KB": 1000,
    **{f"{letter}iB": 1024**power for letter, power in zip("kKMGT", (1, 1, 2, 3, 4), strict=True)},
}
_PER_SECOND = {"ms": 1000}
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def parse_whole(value: Any) -> int:
    """A whole number: 64, "64" or 64.0. True is not a number here. ValueError otherwise."""
    if isinstance(value, bool):
        raise ValueError("true and false are not numbers")
    if isinstance(value, int):
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str) and len(value) <= 40 and _INTEGER.fullmatch(value):
        return int(value)
    raise ValueError("not a whole number")


def _float(value: int | float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf  # outside of every range


def parse_number(value: Any) -> float:
    """A number: 0.9, 1 or "0.9". ValueError otherwise."""
    if isinstance(value, bool):
        raise ValueError("true and false are not numbers")
    if isinstance(value, int | float):
        return _float(value)
    if isinstance(value, str) and len(value) <= 40 and _NUMBER.fullmatch(value):
        return float(value)
    raise ValueError("not a number")


def parse_human_int(value: Any) -> int:
    """A whole number with at most one unit letter: k m g t are powers of 1000, K M G T powers of 1024.

    1k = 1000, 25.6k = 25600, 1K = 1024, 2M = 2097152. ValueError for anything else; 1.5K is refused because a
    fraction of a binary unit is usually a mistake.
    """
    if not isinstance(value, str):
        return parse_whole(value)
    match = _HUMAN_INT.fullmatch(value.strip())
    if match is None or len(value) > 40:
        raise ValueError("not a number such as 4096, 32k (= 32000) or 32K (= 32768)")
    digits, fraction, unit = match[1], match[2] or "", match[3] or ""
    if not fraction:
        whole: int = int(digits) * _UNITS[unit]
        return whole
    if unit in _BINARY:
        raise ValueError(
            f"{unit} is a power of 1024 and needs a whole number; write {digits}{fraction}{unit.lower()}"
            f" for powers of 1000"
        )
    return _scaled(digits, fraction, _DECIMAL[unit])


def _scaled(digits: str, fraction: str, scale: int, *, is_exact: bool = True) -> int:
    """`digits.fraction` times `scale`. ValueError if the result should be exact and is not a whole number.

    is_exact: of sizes it need not be: 15.77GiB is not a whole number of bytes, and a part of a byte is left out.
    """
    places: int = 10 ** max(0, len(fraction) - 1)
    scaled = int(digits + fraction[1:]) * scale
    if is_exact and scaled % places:
        raise ValueError("not a whole number")
    return scaled // places


def parse_size(value: Any) -> int:
    """Bytes: a number, a human integer (4G = 4 * 1024^3) or a size with B, kB, MB, GB, TB, KiB, MiB, GiB, TiB."""
    if isinstance(value, str) and len(value) <= 40 and (match := _SIZE.fullmatch(value.strip())):
        return _scaled(match[1], match[2] or "", _SIZE_UNITS[match[3]], is_exact=match[3] == "B")
    try:
        return parse_human_int(value)
    except ValueError as error:
        if "powers of" in str(error):
            raise
        raise ValueError("not a size such as 512MiB, 4GiB, 4GB or 4294967296") from None


def parse_duration(value: Any) -> float:
    """Seconds: a number, or 500ms, 30s, 2m, 1h, 1m30s. ValueError otherwise."""
    if isinstance(value, bool):
        raise ValueError("true and false are not durations")
    if isinstance(value, int | float):
        return _float(value)
    text = value.strip() if isinstance(value, str) and len(value) <= 40 else ""
    if _INTEGER.fullmatch(text):
        return float(text)
    if not _DURATION.fullmatch(text):
        raise ValueError("not a duration such as 500ms, 30s, 2m or 1h")
    parts = _DURATION_PART.findall(text)  # divided, not multiplied by 0.001: 9ms is 0.009, not 0.009000000000000001
    return float(sum(float(amount) * _SECONDS.get(unit, 1) / _PER_SECOND.get(unit, 1) for amount, unit in parts))


def format_size(num_bytes: int) -> str:
    """The shortest exact text: 4294967296 -> 4GiB, 1000 -> 1000."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        scale = _SIZE_UNITS[unit]
        if num_bytes >= scale and num_bytes % scale == 0:
            return f"{num_bytes // scale}{unit}"
    return str(num_bytes)


def format_about(num_bytes: float) -> str:
    """Size rounded for display: 4831838208 -> 4.50 GiB, 9444096 -> 9.0 MiB, 67108864 -> 64 MiB."""
    for unit in ("GiB", "MiB", "KiB"):
        if (amount := num_bytes / _SIZE_UNITS[unit]) >= 1:
            digits = 2 if unit == "GiB" else int(amount < 9.95)
            return f"{amount:.{digits}f} {unit}"
    return f"{num_bytes:.0f} B"


def format_duration(seconds: float) -> str:
    """30.0 -> 30s, 0.5 -> 500ms."""
    if seconds != int(seconds):
        thousandths = round(seconds * 1000)
        return f"{thousandths}ms" if thousandths / 1000 == seconds else f"{seconds}s"
    return f"{int(seconds)}s"


def _serialize_secret(secret: SecretStr, info: SerializationInfo) -> str:
    return secret.get_secret_value() if (info.context or {}).get("reveal_secrets") else REDACTED


def number_or_text(value: Any) -> Any:
    """Read the value of an option that accepts words and numbers: "16" is the number."""
    try:
        return parse_whole(value)
    except ValueError:
        return value


def parse_one_or_more(value: Any) -> Any:
    """A list field accepts a single value as a list of one."""
    return (value,) if isinstance(value, str | int | float | SecretStr) else value


def means(**names: str) -> AfterValidator:
    """Words that are another spelling of a choice: the choice takes their place when a value is read."""
    return AfterValidator(lambda value: names.get(value, value))


def means_auto(number: int) -> BeforeValidator:
    """A number that means `auto` in other engines. `Option` reads it from the validator, for schema and docs."""

    def read(value: Any) -> Any:
        is_meant = not isinstance(value, bool) and value in (number, str(number))
        return "auto" if is_meant else value

    read.spelling = number  # type: ignore[attr-defined]
    return BeforeValidator(read)


Flag = Annotated[bool, Strict()]  # true or false, never 1 or "yes"
Whole = Annotated[int, BeforeValidator(parse_whole)]
NumberFromZero = Annotated[float, BeforeValidator(parse_number), Field(ge=0, allow_inf_nan=False)]
Gibibytes = NumberFromZero  # for options that other engines count in GiB
Share = Annotated[float, BeforeValidator(parse_number), Field(gt=0, le=1, allow_inf_nan=False)]
Count = Annotated[int, BeforeValidator(parse_whole), Field(ge=1, le=2**31 - 1)]
DraftLength = Annotated[int, BeforeValidator(parse_whole), Field(ge=1, le=64)]
RingLength = Annotated[int, BeforeValidator(parse_human_int), Field(ge=0, le=1 << 26)]
HumanInt = Annotated[int, BeforeValidator(parse_human_int), Field(ge=1, le=2**48)]
ContextLen = Annotated[HumanInt | Auto, means_auto(-1)]
Size = Annotated[int, BeforeValidator(parse_size), Field(ge=1, le=2**60)]
Duration = Annotated[float, BeforeValidator(parse_duration), Field(gt=0, le=31_536_000, allow_inf_nan=False)]
DurationFromZero = Annotated[float, BeforeValidator(parse_duration), Field(ge=0, le=31_536_000, allow_inf_nan=False)]
Text = Annotated[str, Field(min_length=1)]
Texts = Annotated[tuple[str, ...], BeforeValidator(parse_one_or_more)]
NodeNumbers = Annotated[tuple[Annotated[Whole, Field(ge=0, le=1023)], ...], BeforeValidator(parse_one_or_more)]
Counts = Annotated[tuple[Count, ...], BeforeValidator(parse_one_or_more)]
Numbers = Annotated[tuple[NumberFromZero, ...], BeforeValidator(parse_one_or_more)]
Secret = Annotated[SecretStr, PlainSerializer(_serialize_secret, return_type=str)]
Secrets = Annotated[tuple[Secret, ...], BeforeValidator(parse_one_or_more)]
