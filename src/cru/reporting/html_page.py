"""Self-contained HTML pages of data, style and scripts, which need no network and run no other code."""

import base64
import hashlib
import json
import math
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from typing import Any

import numpy as np

from cru.shapes import Float

Number = float | int | None


def make_page(title: str, data: Any, scripts: Sequence[str]) -> str:
    """Make a page of JSON data and of scripts that draw it. Its security policy allows these scripts and no others.

    Args:
        title: the title of the page.
        data: any value that JSON can represent. The scripts read it from the element ``data``.
        scripts: the names of files in the folder ``assets``.
    """
    parts = {
        "title": escape(title.encode("utf-8", "replace").decode()),
        "style": _read("style.css"),
        "data": embed(data),
        "script": "\n".join(_read(name) for name in scripts),
    }
    parts |= {f"{name}_hash": _hash(parts[name]) for name in ("style", "script")}
    before, *rest = _read("page.html").split("{{")  # one pass: braces in inserted text are not interpreted
    return before + "".join(parts[name] + after for name, after in (part.split("}}", 1) for part in rest))


def embed(data: Any) -> str:
    """Encode JSON so that no text in it can end the script element.

    >>> from cru.reporting.html_page import embed
    >>> embed("</script><!--")
    '"\\\\u003c/script\\\\u003e\\\\u003c!--"'
    """
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text.encode("utf-8", "backslashreplace").decode()  # a lone surrogate becomes its escape, which JSON has


def number(value: Number, digits: int = 5) -> Number:
    """Round to ``digits`` significant digits. Return None for NaN and infinity, which JSON does not have.

    >>> from cru.reporting.html_page import number
    >>> number(0.123456), number(3.0), number(float("nan"))
    (0.12346, 3, None)
    """
    if value is None or not math.isfinite(value):
        return None
    short = float(f"{value:.{digits}g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short


def numbers(values: Float[np.ndarray, " n"], digits: int = 4) -> list[Number]:
    """Round numbers for JSON."""
    return [number(value, digits) for value in values.tolist()]


def _hash(text: str) -> str:
    """Return the source expression of a content security policy that allows one inline element."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _read(name: str) -> str:
    return (files("cru") / "reporting" / "assets" / name).read_text(encoding="utf-8")
