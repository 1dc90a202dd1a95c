"""README and docs say what the code does: tables, links, commands, verbs, example specs."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
from ended import python

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def check() -> ModuleType:
    """The script behind ``make docs``."""
    spec = importlib.util.spec_from_file_location("docs_check", ROOT / "docs/check.py")
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "docs"))  # as where the script is run
        spec.loader.exec_module(module)
    return module


def test_every_page_agrees_with_the_code(check: ModuleType):
    assert check.faults() == []


def test_every_command_has_its_section(check: ModuleType):
    page = (ROOT / "docs/reference/cli.md").read_text()
    for name in check.COMMANDS:
        for inner in getattr(check.COMMANDS[name], "commands", {"": None}):
            assert f"<!-- generated: cli {name} {inner}".rstrip() in page


def test_the_site_builds_without_a_warning(tmp_path: Path):
    """Links to pages and to places on them, tables of contents, code of known languages."""
    words = ("-m", "sphinx", "--quiet", "--fail-on-warning", "--builder", "dummy")
    python(*words, ROOT / "docs", tmp_path)


def test_a_page_that_is_wrong_is_told(
    check: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name in ("CONTRIBUTING.md", "CHANGELOG.md"):
        (tmp_path / name).touch()
    (tmp_path / "docs").mkdir()
    (tmp_path / "Makefile").write_text("setup: x\n")
    (tmp_path / "README.md").write_text(
        "[gone](docs/gone.md) `autoloader fly --now` `make hay`\n"
        "<!-- generated: cli top -->\n<!-- end -->\n"
        "```yaml\ndatasets: []\ncameras: {}\n```\n"
        "```sh\nautoloader plan --sepc mix.yaml | grep --fast x\n```\n"
        "```python\nfor batch of loader:\n```\n"
    )
    monkeypatch.setattr(check, "ROOT", tmp_path)
    told = "\n".join(check.faults())
    for word in ("out of date", "docs/gone.md leads nowhere", "'fly'", "'hay'", "spec is refused"):
        assert word in told
    assert "`autoloader plan` has no option --sepc" in told
    assert "--fast" not in told
    assert "no Python" in told
