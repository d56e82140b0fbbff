"""Documents are short enough to be read: pages, paragraphs, and the sentences of the README.

Words are counted without fenced code; a link counts with its text, and a span of code as one word.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.documents import PAGES, ROOT

WHY = sorted((ROOT / "docs" / "why").glob("*.md"))
ITEM = re.compile(r" *(?:[-*]|\d+\.) ")


def plain(text: str) -> str:
    """The text without fenced code and comments; of a link its text is left, and of a span of code one word."""
    text = re.sub(r"^( *)```.*?^\1```$", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r"`[^`\n]+`", "code", text)
    return re.sub(r"!?\[([^\[\]]*)\]\([^()]*\)", r"\1", text)


def words(text: str) -> int:
    return len(re.findall(r"\w[^\s|]*", plain(text)))


def paragraphs(text: str) -> list[str]:
    """Paragraphs and list items, in the order of the page; headings, tables and indented code are none."""
    found = [""]
    for line in plain(text).splitlines():
        if not line.strip() or ITEM.match(line):
            found.append("")
        if not re.match(r"#|\||    \S", line):
            found[-1] += line + "\n"
    return [paragraph.strip() for paragraph in found if paragraph.strip()]


def sentences(paragraph: str) -> list[str]:
    return re.split(r"(?<=[.!?])\**\s+", paragraph)


def test_paragraphs_and_sentences_are_told_apart() -> None:
    text = "# T\n\nOne `a b`, [two](x.md). Three\nfour.\n\n| a |\n|---|\n| b c |\n\n- five\n  six\n- seven\n\n```\nno\n```\n"
    assert paragraphs(text) == ["One code, two. Three\nfour.", "- five\n  six", "- seven"]
    assert sentences("One code, two. Three\nfour.") == ["One code, two.", "Three\nfour."]
    assert words(text) == 12


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_paragraph_is_longer_than_120_words(page: Path) -> None:
    long = {paragraph[:60]: words(paragraph) for paragraph in paragraphs(page.read_text("utf-8"))}
    assert {start: count for start, count in long.items() if count > 120} == {}


def test_the_readme_is_read_in_five_minutes() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    assert words(text) <= 900
    assert [each for part in paragraphs(text) for each in sentences(part) if words(each) > 30] == []


@pytest.mark.parametrize(
    "page",
    [ROOT / "README.md", *sorted(ROOT.glob("docs/start/*.md")), *sorted(ROOT.glob("docs/how-to/*.md"))],
    ids=lambda page: page.name,
)
def test_a_page_to_work_from_is_short(page: Path) -> None:
    """It is one task: what is looked up is in the reference, and what explains is on the shelf of why it works. Code
    and what links lead to count here, too."""
    text = page.read_text("utf-8")
    assert len(text.split()) <= (900 if page.name in ("README.md", "tutorial.md") else 800)
    prose = re.sub(r"^ *```.*?^ *```$|<!--.*?-->", "", text, flags=re.MULTILINE | re.DOTALL)
    prose = re.sub(r"^ *\|.*", "", prose, flags=re.MULTILINE)
    for paragraph in re.split(r"\n\s*\n|\n *(?:-|\d+\.) ", prose):
        assert len(paragraph.split()) <= 120, paragraph


def test_limits_have_at_most_700_words() -> None:
    assert words((ROOT / "docs/reference/limits.md").read_text("utf-8")) <= 700


@pytest.mark.parametrize("page", WHY, ids=lambda page: page.name)
def test_a_page_of_why_has_at_most_3000_words_and_says_the_result_first(page: Path) -> None:
    """What comes first below the title is a list of at most five items of at most 25 words."""
    text = page.read_text("utf-8")
    assert sum(map(words, paragraphs(text))) <= 3000
    title, summary = text.split("\n\n")[:2]
    assert title.startswith("# ") and len(summary.splitlines()) <= 5
    assert [line for line in summary.splitlines() if not line.startswith("- ") or words(line) > 25] == []


def test_the_changelog_fits_a_screen() -> None:
    assert len((ROOT / "CHANGELOG.md").read_text("utf-8").splitlines()) <= 60
