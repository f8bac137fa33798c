"""Studies as data: the packaged ones resolve, and wrong files are refused by the place."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import pytest

from grace.base.errors import GraceError
from grace.settings import yaml_text
from grace.settings.load import ConfigError
from grace.studies.frame import METRICS
from grace.studies.plan import Selection, all_runs, settings_of, study_cells
from grace.studies.schema import MetricName, RowSettings, list_studies, load_study


def written(folder: Path, **changes: Any) -> str:
    """A study of one row as a file; keys are dotted paths with two underscores."""
    study: dict[str, Any] = {
        "scales": {"small": {"protocols": {"p": "digits"}, "seeds": [1]}},
        "rows": {"a": {"method": "der"}},
    }
    for path, value in changes.items():
        *way, last = path.split("__")
        place = study
        for part in way:
            place = place[part]
        place[last] = value
    file = folder / "own.yaml"
    file.write_text(yaml_text.dump(study))
    return str(file)


# docs/studies.md: cells of one seed at the published and at the small scale.
CELLS: Mapping[str, tuple[int, int]] = {
    "ablation": (17, 17),
    "autoaugment": (12, 12),
    "benchmark": (84, 24),
    "class-prior": (20, 20),
    "factors": (6, 6),
    "grid": (80, 18),
    "initialisation": (20, 10),
    "memory-aligned": (68, 18),
    "order": (8, 20),
    "overview": (24, 12),
    "saturation": (1, 1),
    "sensitivity": (10, 11),
    "versatility": (5, 7),
}


@pytest.mark.parametrize("name", CELLS)
def test_every_cell_of_every_study_resolves(name: str) -> None:
    study = load_study(name)
    assert (study.name, bool(study.title)) == (name, True)
    for scale, number in zip(("published", "small"), CELLS[name], strict=True):
        cells = study_cells(study, Selection(scale))
        assert len(cells) == 3 * number
        assert len({(cell.row, cell.protocol) for cell in cells}) == number
        runs = {(cell.protocol, cell.row): cell.run for cell in cells}
        for run in all_runs([cell for cell in cells if cell.run in runs.values()]):
            settings = settings_of(run, {})
            assert (settings is None) == bool(run.needs)
            if settings is not None and scale == "published":
                assert settings.seeds.class_order == 1993
                assert settings.seeds.initialisation == settings.seeds.data


def test_all_studies_and_metrics_are_known(tmp_path: Path) -> None:
    assert list(list_studies()) == sorted(CELLS)
    assert set(get_args(MetricName)) == set(METRICS)
    page = (Path(__file__).parents[2] / "docs" / "studies.md").read_text()
    file = tmp_path / "mine.yaml"
    file.write_text(page.partition("```yaml\n")[2].partition("```")[0])
    assert len(study_cells(load_study(str(file)), Selection())) == 12


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rows": {}}, "scale small has 0 runs"),
        ({"rows__b": {"method": "der", "sett": 1}}, "rows.b.sett: no such setting; did you mean"),
        ({"rows__b": {"method": 3}}, "rows.b.method = 3 should be a text"),
        ({"rows__b": {"method": "der", "set": "x=1"}}, "rows.b.set = 'x=1' should be a list"),
        ({"scales__small__seeds": [*range(2001)]}, "scale small has 2001 runs .* 1 to 2000 can"),
        ({"scales__small__seeds": [True]}, r"scales.small.seeds\[0\] = True should be"),
        ({"scales__small__protocols": {}}, "scale small has 0 runs"),
        ({"scales__small__protocols": {"../x": "digits"}}, "should be a text of the form"),
        ({"claims": [{"id": "x", "left": "nope", "right": "a"}]}, "claim x: no row 'nope'"),
        ({"claims": [{"id": "x", "left": {"a@q": 1}, "right": "a"}]}, "no protocol 'q'"),
        ({"claims": [{"id": "x", "left": {"a": 1e30}, "right": "a"}]}, r"claims\[0\].left"),
        ({"rows__g": {"method": "grace", "memory": "aligned"}}, "name its row as 'reference'"),
        ({"claims": [{"id": "x", "kind": "never-rises", "setting": "a"}]}, "x: no grid with 'a'"),
        ({"claims": [{"id": "x", "kind": "fewer-points"}]}, "claim x: no row has a grid"),
        ({"claims": [{"id": "x", "kind": "on-front", "left": "a"}]}, "no point of a grid 'a'"),
        (
            {"rows__g": {"method": "grace", "expands_like": "IFL"}},
            "rows.g: no row that decides itself 'I",
        ),
        ({"rows__g": {"method": "grace", "expands_like": "g"}}, "decides itself 'g'"),
        ({"rows__g": {"method": "grace", "grid": {}}}, "{} should be at least 1 long"),
        ({"columns": ["lust"]}, r"columns\[0\] = 'lust' should be .*; did you mean 'last'\?"),
        ({"rows__b": {"set": ["x=1"]}}, "rows.b.method should be given"),
        ({"name": "../../x"}, "name = '../../x' should be a text of the form"),
        ({"name": "runs"}, "'runs' is a folder that all studies share"),
    ],
)
def test_what_is_wrong_is_named(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        load_study(written(tmp_path, **changes))


def test_too_many_runs_are_refused_at_once(tmp_path: Path) -> None:
    """A file of 31 kB planned for minutes: rows × protocols × seeds."""
    grid = {f"method.k{number}": list(range(100)) for number in range(12)}
    protocols = {f"p{n}": {"experiment": "digits"} for n in range(300)}
    scales = {"s": {"protocols": protocols, "seeds": list(range(900))}}
    began = time.monotonic()
    with pytest.raises(ConfigError, match="1 to 2000 can be planned"):
        load_study(written(tmp_path, rows__g={"method": "grace", "grid": grid}))
    rows = {f"r{n}": {"method": "der"} for n in range(900)}
    with pytest.raises(ConfigError, match=r"has 243000000 runs .900 rows × 300 protocols × 900"):
        load_study(written(tmp_path, scales=scales, rows=rows))
    with pytest.raises(ConfigError, match=r"scales = .* at least 1"):  # Nothing bounded its grid.
        load_study(written(tmp_path, scales={}, rows__g={"method": "grace", "grid": grid}))
    assert time.monotonic() - began < 5
    with pytest.raises(GraceError, match=r"this choice has 6000 runs .* 1 to 2000"):
        study_cells(load_study(written(tmp_path)), Selection(seeds=tuple(range(6000))))


def test_the_rows_of_a_grid() -> None:
    rows = load_study("grid").grid_rows("pairs")
    assert len(rows) == 20
    assert rows["0.6/0.96"] == ("method.threshold=0.6", "method.threshold_decay=0.96")
    # Values that are nearly equal are rows of their own.
    grid = {"method.threshold": [0.1234567, 0.1234568, 1.0]}
    row = RowSettings.model_validate({"method": "grace", "set": ["seeds.data=5"], "grid": grid})
    assert [name for name, _ in row.points] == ["0.1234567", "0.1234568", "1"]
    assert list(row.points)[2][1] == ("seeds.data=5", "method.threshold=1.0")
