"""Sentences of README and docs are short: at most 16 words on average, and none above 35."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
AVERAGE, LONGEST = 16, 35


def sentences(text: str) -> list[str]:
    """Split the running text of a Markdown page at . ! ? and at the end of every paragraph and list item.

    Code, display math, tables, headings and comments do not count. A formula or a piece of code in a line is one word.
    """
    text = re.sub(r"^(```|\$\$).*?^\1$|<!--.*?-->", "", text, flags=re.S | re.M)
    text = re.sub(r"^(#|\||:::| {4}).*$", "", text, flags=re.M)  # headings, tables, generated parts, indented code
    text = re.sub(r"!?\[([^]]*)\]\([^)]*\)", r"\1", text)  # links and pictures: their text
    text = re.sub(r"`[^`]+`|\$[^$]+\$", "code", text)
    blocks = re.split(r"\n\s*\n|^\s*(?:[-*]|\d+\.) ", text, flags=re.M)
    found = [sentence for block in blocks for sentence in re.split(r"[.!?:]*[.!?][)\"*_]*\s+", block.strip() + "\n")]
    return [" ".join(sentence.split()) for sentence in found if re.search(r"\w", sentence)]


def words(sentence: str) -> int:
    return len([word for word in sentence.split() if re.search(r"\w", word)])


def test_it_counts_as_a_reader_does() -> None:
    text = "# A heading of many words.\n\nOne two `a b c` 0.5 four. Is [a b](c.md) it? Yes!\n\n- an item\n- a $x y$\n"
    text += "\n```python\nnot. this.\n```\n\n| nor | this. |\n|---|---|\n\n$$\nx. y.\n$$\n\n    nor this.\n\nThe end\n"
    expected = ["One two code 0.5 four", "Is a b it", "Yes", "an item", "a code", "The end"]
    assert sentences(text) == expected and list(map(words, expected)) == [5, 4, 1, 2, 2, 2]


def test_no_sentence_is_long() -> None:
    found = [(page.relative_to(ROOT), sentence) for page in PAGES for sentence in sentences(page.read_text())]
    assert [(page, sentence) for page, sentence in found if words(sentence) > LONGEST] == []


def test_the_average_is_short() -> None:
    found = [words(sentence) for page in PAGES for sentence in sentences(page.read_text())]
    assert sum(found) / len(found) <= AVERAGE
