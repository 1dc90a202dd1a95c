"""Python on the pages runs as it stands; `make docs` runs that of all pages, this a few of them."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import run_blocks

ROOT = run_blocks.ROOT


@pytest.fixture(scope="module", autouse=True)
def furnished(one_child: None) -> Iterator[Path]:
    with run_blocks.furnished() as place:
        yield place


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "docs/howto/from-other-loaders.md",
        "docs/howto/resume.md",
        "docs/reference/recipes.md",
    ],
)
def test_a_page_runs(page: str):
    assert list(run_blocks.faults(ROOT / page)) == []


def test_every_block_is_run_or_says_what_it_needs():
    every = {page: run_blocks.blocks(page.read_text()) for page in run_blocks.pages()}
    assert sum(map(len, every.values())) > 20
    given = {*run_blocks.GIVEN, *run_blocks.THEN}
    assert given <= {page.relative_to(ROOT).as_posix() for page in every}


def test_a_block_that_fails_is_told_with_its_line():
    text = "# Page\n\n```python\nframes = 1\n```\nand\n\n```python\nx = 2\nframes.shape\n```\n"
    (told,) = run_blocks.faults(ROOT / "docs/howto/page.md", text)
    assert told == "docs/howto/page.md:10: AttributeError: 'int' object has no attribute 'shape'"


@pytest.mark.parametrize(
    ("needs", "told"),
    [
        ("<!-- needs: a GPU -->\n\ntext\n", "stands above no Python block"),
        ("<!-- needs:  -->\n", "stands above no Python block, or is empty"),
        ("<!-- needs: good luck -->\n", "needs 'good luck': no importable name"),
    ],
)
def test_a_mark_that_says_nothing_is_told(needs: str, told: str):
    (fault,) = run_blocks.faults(ROOT / "docs/howto/page.md", f"{needs}```python\npass\n```\n")
    assert told in fault


def test_what_is_not_here_is_left_out_and_said(capsys: pytest.CaptureFixture[str]):
    text = "<!-- needs: no_such_package -->\n```python\nraise SystemExit\n```\n"
    assert list(run_blocks.faults(ROOT / "docs/howto/page.md", text)) == []
    assert "not run, it needs no_such_package" in capsys.readouterr().err
