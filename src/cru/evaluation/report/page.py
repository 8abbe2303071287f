"""One HTML file that needs nothing else: style, script and data are inside, and it asks nobody for anything."""

import base64
import hashlib
import json
from collections.abc import Mapping
from html import escape
from importlib.resources import files
from typing import Any

SCRIPTS = ("dom.js", "scale.js", "chart.js", "charts.js", "scores.js", "frames.js", "browser.js", "main.js")


def render(data: Mapping[str, Any]) -> str:
    """The page that shows ``data``, which `cru.training.report.collect` makes."""
    parts = {
        "title": escape(str(data["title"])),
        "style": _read("style.css"),
        "data": embed(data),
        "script": "\n".join(_read(name) for name in SCRIPTS),
    }
    parts |= {f"{name}_hash": _hash(parts[name]) for name in ("style", "script")}
    page = _read("page.html")
    before, *rest = page.split("{{")  # one pass: what was put in is never looked at again
    return before + "".join(parts[name] + after for name, after in (part.split("}}", 1) for part in rest))


def embed(data: Any) -> str:
    """JSON that cannot end the script element it stands in, whatever the texts in it are.

    >>> embed("</script><!--")
    '"\\\\u003c/script\\\\u003e\\\\u003c!--"'
    """
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _hash(text: str) -> str:
    """The source expression with which a content security policy allows one inline element."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _read(name: str) -> str:
    return (files("cru") / "evaluation" / "report" / name).read_text(encoding="utf-8")
