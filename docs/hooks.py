"""Hooks of the documentation site: formulas become MathML, examples become code, and the API reference is complete.

MathML needs no script and no network in the reader's browser. An object without docstring is not in the reference.
"""

import html
import logging
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import griffe
from latex2mathml.converter import convert

LOG = logging.getLogger("mkdocs.hooks.cru")  # a warning fails a strict build
PACKAGES = (
    "functional",
    "layers",
    "models",
    "data",
    "training",
    "evaluation",
    "forecaster",
    "reporting.figures",
    "errors",
)
FORMULA = re.compile(r'<(span|div) class="arithmatex">(?:\\\(|\\\[)(.*?)(?:\\\)|\\\])</\1>', re.S)
PRIME = re.compile(r"<msup>(<m[io]>[^<]*</m[io]>)<mi>&#x02032;</mi></msup>")  # most fonts raise the sign itself
EXAMPLE = re.compile(r"^( *)>>> .*(?:\n *\S.*)*", re.M)  # up to an empty line


class Examples(griffe.Extension):
    """Put the examples of docstrings into fences, so that they are shown as code."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of an object."""
        if obj.docstring:
            text = re.sub(r" *# doctest: .*", "", obj.docstring.value)
            obj.docstring.value = EXAMPLE.sub(lambda found: f"{found[1]}```pycon\n{found[0]}\n{found[1]}```", text)


def on_page_content(content: str, **_: Any) -> str:
    """Replace the formulas of a page by MathML."""
    return FORMULA.sub(_render, content)


def _render(found: re.Match[str]) -> str:
    tag, formula = found[1], html.unescape(found[2])
    converted = convert(formula, display="block" if tag == "div" else "inline")
    converted = PRIME.sub(r"<mrow>\1<mo>&#x02032;</mo></mrow>", converted)
    return f'<{tag} class="math">{converted}</{tag}>'


def on_post_build(config: Any) -> None:
    """Warn of every public class, function or method that is not in the reference."""
    _, content = (Path(config["site_dir"]) / "objects.inv").read_bytes().split(b"using zlib.\n")
    shown = {line.split()[0] for line in zlib.decompress(content).decode().splitlines()}
    for path in _public_paths():
        if path not in shown:
            LOG.warning("%s is not in the API reference: it has no docstring, or no page shows it", path)


def _public_paths() -> Iterator[str]:
    package = griffe.load("cru", search_paths=["src"])
    for module in (package[name] for name in PACKAGES):
        for name in map(str, module.exports):
            if name.isupper():
                continue  # a constant: its page describes it
            member = module[name][name] if module[name].is_module else module[name]  # such as `update.update`
            yield member.canonical_path
            if member.is_class:
                methods = (each for each in member.members.values() if each.is_function)
                yield from (each.canonical_path for each in methods if not each.name.startswith("_"))
