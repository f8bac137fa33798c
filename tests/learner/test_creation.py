"""What a learner may be made as: what could be saved and brought back, and nothing else."""

from pathlib import Path
from typing import Any

import pytest

from grace.base.errors import GraceError
from grace.learner.document import Creation
from grace.learner.model import Model
from grace.learner.store import ModelStore
from grace.learner.versions import carried_out_here
from grace.settings.experiment import EngineSettings, ExperimentSettings

SETTINGS = ExperimentSettings()
SOUND: dict[str, Any] = {"shape": (3, 1024, 8), "mean": (0.5,) * 3, "std": [0.25] * 3}


def test_a_sound_one() -> None:
    made = Creation.of(SETTINGS, **SOUND)
    assert (made.shape, made.mean, made.std) == ((3, 1024, 8), (0.5, 0.5, 0.5), (0.25,) * 3)
    assert made.settings == SETTINGS


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"shape": (3, 1025, 8)}, "shape.1: it should be less than or equal to 1024"),
        ({"shape": (3, 0, 8)}, "shape.1: it should be greater than or equal to 1"),
        ({"shape": (2, 8, 8)}, "mean and std need one number for each of 1 or 3 channels"),
        ({"mean": (0.5,)}, "mean and std need one number for each of 1 or 3 channels"),
        ({"std": (0.25, 0.0, 0.25)}, "std.1: it should be greater than 0.000001"),
        ({"std": (0.25, 1e300, 0.25)}, "std.1: it should be less than or equal to 1000000"),
        ({"mean": (float("nan"), 0, 0)}, "mean.0: it should be a finite number"),
    ],
)
def test_what_could_not_be_brought_back(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=r"^no learner can be made: ") as refusal:
        Creation.of(SETTINGS, **(SOUND | changes))
    assert str(refusal.value) == f"no learner can be made: {message}"
    # Before anything is learnt, not when it is to be saved.
    with pytest.raises(ValueError, match=r"^no learner can be made: "):
        Model(SETTINGS, **(SOUND | changes))


def test_settings_of_another_machine_are_brought_into_reach(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    engine = EngineSettings(
        device="cuda", precision="float16", threads=10**9, eval_batch_size=10**9
    )
    saved = SETTINGS.model_copy(update={"engine": engine})
    here = carried_out_here(saved, None).engine
    assert (here.device, here.precision, here.threads) == ("auto", "float32", 2)
    assert here.eval_batch_size == 512
    assert carried_out_here(saved, engine).engine == engine
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert carried_out_here(saved, None).engine.precision == "float16"


def test_a_model_of_another_program_is_not_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "model.json").write_text("{}")
    made = ModelStore.create(tmp_path / "shelf", Creation.of(SETTINGS, **SOUND))
    assert made.creation.settings == SETTINGS


def test_a_learner_inside_another_one_is_refused(tmp_path: Path) -> None:
    outer = tmp_path / "shelf"
    ModelStore.create(outer, Creation.of(SETTINGS, **SOUND))
    for inner in (outer / "inner", outer / "versions" / "a" / "b"):
        with pytest.raises(GraceError, match=rf"lies in the learner '{outer}'.*a place outside$"):
            ModelStore.create(inner, Creation.of(SETTINGS, **SOUND))
        assert not inner.exists()
