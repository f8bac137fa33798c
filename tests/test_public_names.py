import re
from pathlib import Path

import pytest

import grace
from support.tiny_streams import tiny_backbones as tiny_backbones

PAGE = Path(__file__).parents[1] / "docs" / "api.md"


@pytest.mark.parametrize("name", grace.__all__)
def test_every_name_is_there_and_says_what_it_is(name: str) -> None:
    value = getattr(grace, name)
    assert value is getattr(grace, name)
    assert name in dir(grace)
    assert isinstance(value, str) or value.__doc__  # The page has all classes and functions.


def test_the_page_has_them_all() -> None:
    assert "<!-- names: grace -->" in PAGE.read_text()


def test_other_names_are_missing() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Lerner'"):
        grace.Lerner  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.usefixtures("tiny_backbones")
def test_the_example_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    exec(block, {})  # noqa: S102 - of our own page
    record = grace.read_record(tmp_path / "runs" / "short")
    assert (tmp_path / "report.html").exists()
    assert capsys.readouterr().out.splitlines() == [
        f"{record.last} {record.average} {record.forgetting}",
        "replay []",
        "method.treshold: no such setting; did you mean 'method.threshold'?",
    ]


def test_overrides_change_settings_as_they_change_an_experiment_by_its_name() -> None:
    words = ["seed=2", "memory.size=30"]
    changed = grace.load_experiment(grace.load_experiment("digits"), words)
    assert changed == grace.load_experiment("digits", words)
