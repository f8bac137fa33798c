"""Experiments, presets and overrides become settings; what is wrong is named."""

import warnings
from operator import attrgetter
from pathlib import Path

import pytest

from grace.base.errors import GraceError
from grace.methods.finetune import Finetune
from grace.runs.run import run as run_experiment
from grace.settings.experiment import ExperimentSettings
from grace.settings.load import (
    ConfigError,
    ConfigWarning,
    describe_settings,
    dump_settings,
    list_experiments,
    load_experiment,
)
from grace.settings.problems import refuse_learner_settings
from grace.settings.registry import METHODS


def of(settings: ExperimentSettings, *paths: str) -> list[object]:
    return [attrgetter(path)(settings) for path in paths]


@pytest.mark.parametrize("name", list_experiments())
def test_every_packaged_experiment_resolves_for_every_method(name: str) -> None:
    for method in METHODS:
        settings = load_experiment(name, [f"method={method}"])
        assert (settings.name, settings.method.name) == (name, method)
        assert settings.description


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ([], {"method.name": "grace", "scenario.increment": 2, "seeds.class_order": 1993}),
        ([], {"method.compress.schedule": "cosine", "method.base.milestones": (6, 8)}),
        # What the preset leaves open keeps the method's published value, not the bare default's.
        (["method=der", "method.auxiliary_weight=0.5"], {"method.auxiliary_weight": 0.5}),
        (["method=der"], {"method.grow.epochs": 10, "method.base.weight_decay": 5e-4}),
        (["seeds.data=7", "seed=3"], {"seeds.class_order": 3, "seeds.data": 7}),
        (
            ["method=foster", "method.class_prior=none", "method.boosting_beta=0.9"],
            {"method.boosting_beta": (0.9,)},
        ),
        (["method.base.lr=1e-3"], {"method.base.lr": 1e-3}),
        (["method.expand_at=[3, 5]"], {"method.expand_at": (3, 5)}),
        (["data.source=folder", "data.root=none"], {"data.root": "none"}),
        (["memory.max_mb=none"], {"memory.max_mb": None}),
        (["data.classes=[001, on, 'a b']"], {"data.classes": ("001", "on", "a b")}),
        (["method.base.schedule=cosine"], {"method.base.milestones": ()}),
        (["method.base.epochs=20"], {"method.base.milestones": (12, 16)}),
        (["method={name: der, grow: {lr: 1}}", "method.grow.epochs=20"], {"method.grow.lr": 1}),
    ],
)
def test_values_are_read_as_people_mean_them(
    overrides: list[str], expected: dict[str, object]
) -> None:
    settings = load_experiment("digits", overrides)
    assert of(settings, *expected) == list(expected.values())


def test_settings_are_changed_like_an_experiment() -> None:
    settings = load_experiment("digits", ["method=der"])
    assert load_experiment(settings) is settings
    changed = load_experiment(settings, ["method.grow.epochs=20", "seed=3"])
    found = of(changed, "method.name", "method.grow.milestones", "seeds.data")
    assert found == ["der", (12, 16), 3]


def test_milestones_keep_their_share_of_the_epochs(tmp_path: Path) -> None:
    # Published: 200 epochs with 60, 120, 170, that is 30, 60 and 85 %.
    published = load_experiment("cifar100", ["method.base.epochs=20"])
    assert of(published, "method.base.epochs", "method.base.milestones") == [20, (6, 12, 17)]
    path = tmp_path / "mine.yaml"
    path.write_text("methods: {grace: {base: {epochs: 40, milestones: [20, 30]}}}\n")
    for override, milestones in (("epochs=4", (2, 3)), ("lr=1", (20, 30))):
        found = load_experiment(str(path), [f"method.base.{override}"])
        assert of(found, "method.base.milestones") == [milestones]


def test_a_preset_for_every_method(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "methods:\n"
        "  '*': {base: {epochs: 4}, '*': {epochs: 0.1, milestones: [5]}, class_prior: balanced}\n"
        "  der: {grow: {epochs: 20}}\n"
    )
    keys = ("epochs", "milestones")
    phases = [f"method.{phase}.{key}" for phase in ("base", "grow") for key in keys]
    # Published: 200, 170 and 130 epochs, the last ones falling as a cosine.
    assert of(load_experiment(str(path)), *phases) == [4, (1, 2, 3), 17, (5,)]
    rest = ("method.compress.epochs", "method.compress.milestones", "method.class_prior")
    assert of(load_experiment(str(path)), *rest) == [13, (), "balanced"]
    assert of(load_experiment(str(path), ["method=der"]), *phases)[2:] == [20, (6,)]
    # It has no class prior, and no recipe but those of its two phases.
    assert of(load_experiment(str(path), ["method=ewc"]), "method.base.epochs") == [4]


def test_all_errors_at_once_with_path_value_and_nearest_key() -> None:
    phases = "method.base and method.grow and method.compress"
    wrong = {
        "method.threshold=2": "method.threshold = 2 should be less than or equal to 1;",
        "method.treshold=0.4": "method.treshold: no such setting; did you mean 'method.threshold'?",
        # Other methods have this phase; a key of it would be refused the same.
        "method.update.lr=0.1": f"method.update: no such setting; there is {phases};",
        "threshold=0.5": "; threshold: no such setting; did you mean 'method.threshold'?",
        "memory.size=-1": "memory.size = -1 should be greater than or equal to 0",
        "seed=x": "seeds.data = 'x' should be a valid integer",
        "data.streaming=maybe": "data.streaming = 'maybe' should be a valid boolean or 'auto'",
    }
    with pytest.raises(ConfigError) as caught:
        load_experiment("digits", list(wrong))
    assert len(caught.value.problems) == len(wrong) + 3  # Four seeds.
    assert "\n" not in str(caught.value)
    assert [says for says in wrong.values() if says not in str(caught.value)] == []


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("method=derr", "did you mean 'der'?"),
        ("method=5", "should be a mapping of settings"),
        ("method=finetune method.threshold=0.4", "it belongs to method grace"),
        ("scenario.increment=1", "at least two classes"),
        ("scenario.increment=true", "scenario.increment = True should be a valid integer"),
        ("memory.max_mb=true", "memory.max_mb = True should be a valid number"),
        ("data.channels=true", "data.channels: True should be 1 or 3"),
        ("memory.size='5'", "memory.size = '5' should be a valid integer"),
        ("backbone.name=resnt20", "did you mean 'resnet20'?"),
        ("data.fit=letter", "did you mean 'letterbox'?"),
        ("scenario.class_order=[0,x]", "scenario.class_order[1] = 'x'"),
        ("name=..", "name = '..' should be a text of the form"),
        ("backbone.input_size=4", "should be greater than or equal to 8 or 'model'"),
        ("method.base.milestones=[500]", "method.base: milestones [500] must lie between 1 and"),
        ("method.base.milestones=[3,2]", "method.base: milestones [3, 2] must increase"),
        ("method.base.warmup_epochs=10", "warmup_epochs must be fewer than epochs 10"),
        ("method.base.min_lr=0.01", "min_lr needs schedule 'cosine'"),
        ("method.base.average_epochs=500", "method.base: average_epochs exceeds epochs 10"),
        ("method.base.betas=[0.5]", "method.base.betas[1] should be given"),
        ("method.base.groups={x:{}}", "this method has no parameter group 'x'"),
        ("method.gamma=.inf", "method.gamma"),
        ("methods.der.grow.epoch=5", "did you mean 'methods.der.grow.epochs'?"),
        ("methods.derr={}", "did you mean 'der'?"),
        ("methods.*.grwo=1", "methods.*.grwo: no method has such a setting"),
        ("methods.*=1", "should be a mapping of settings"),
        ("methods=3", "one mapping per method"),
        ("methods.memo.backbone.stm=conv3", "did you mean 'methods.memo.backbone.stem'?"),
        ("methods.memo.memory.size=5", "methods.memo.memory: no such setting"),
        ("method=foster method.boosting_beta=1", "boosting_beta[0] = 1 should be less than 1"),
        ("method=foster method.boosting_beta=[0.9,-1]", "boosting_beta[1] = -1 should be greater"),
        ("method=foster method.boosting_beta=[]", "boosting_beta: needs the value of task 2"),
        ("foo", "'foo' is no setting"),
        ("data.root={a", "data.root={a: line 1"),
        (".a=1", "is no setting"),
    ],
)
def test_one_wrong_setting(override: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_experiment("digits", override.split())
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        ("method.gamma=2 method.initialisation=average", "method.gamma has no effect"),
        ("method=finetune memory.size=10", "finetune keeps no exemplars"),
        ("method=joint memory.per_class=10", "joint keeps all images"),
        ("method=ewc method.penalty_weight=0 method.importance_limit=1", "penalty_weight is 0"),
        ("method=icarl method.distillation_weight=0 method.temperature=1", "n_weight is 0"),
        ("memory.size=10 memory.per_class=5", "memory.per_class is 5"),
        ("memory.quality=5", "memory.format is raw"),
        ("method.threshold=0.3 method.expand_at=[2]", "method.expand_at is [2]"),
        ("method.logit_weight=1 method.logit_distillation=false", "distillation is false"),
        ("method=create method.late_factor=1 method.late_task=3", "method.late_factor is 1"),
        ("backbone.stem=conv3", "backbone.name is resnet20"),
        ("data.root=here", "data.source is digits"),
        ("method.compress.decay=0.5", "method.compress.milestones is []"),
        ("method.base.optimiser=adam method.base.momentum=0.5", "base.optimiser is adam"),
        ("scenario.class_order=[1,0] seeds.class_order=3", "scenario.class_order is [1, 0]"),
    ],
)
def test_a_setting_without_effect_warns(overrides: str, reason: str) -> None:
    with pytest.warns(ConfigWarning) as caught:
        load_experiment("digits", overrides.split())
    assert reason in str(caught[0].message)


def test_files_parents_and_circles(tmp_path: Path) -> None:
    base, child = tmp_path / "base.yaml", tmp_path / "my child.yaml"
    base.write_text("parent: digits\nmemory: {size: 50}\nmethod: {name: grace, gamma: 3}\n")
    child.write_text("parent: base.yaml\nmethod: {threshold: 0.25}\n")
    paths = ("name", "memory.size", "method.gamma", "method.threshold")
    assert of(load_experiment(str(child)), *paths) == ["my-child", 50, 3, 0.25]
    # Another method does not inherit the settings of this one.
    assert load_experiment(str(child), ["method=der"]).method.name == "der"
    base.write_text("parent: my child.yaml\n")
    with pytest.raises(ConfigError, match="circle"):
        load_experiment(str(child))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("- a\n- b\n", "should hold settings"),
        ("parent: 3\n", "should be a name or a path"),
        ("parent: digit\n", "no packaged experiment 'digit'; did you mean 'digits'?"),
        ("parent: absent.yaml\n", "no such file"),
    ],
)
def test_damaged_files(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_experiment(str(path))
    assert says in str(caught.value)


@pytest.mark.parametrize("name", ["digits", "imagenet100-b50i10"])
def test_dumped_settings_load_back_equal(tmp_path: Path, name: str) -> None:
    words = "data.classes=['1e3', 'on', '010', '~', 'yes', '1:30']"
    augmentation = "data.augmentation=[crop, {cutout: 6}, invert: 0.2]"
    settings = load_experiment(name, [words, augmentation])
    path = tmp_path / f"{name}.yaml"
    path.write_text(dump_settings(settings), encoding="utf-8")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load_experiment(str(path)) == settings


def test_every_setting_is_described() -> None:
    rows = {row.path: row for row in describe_settings(load_experiment("digits"))}
    assert all(row.meaning for row in rows.values())
    changed = [path for path, row in rows.items() if not row.is_default]
    assert {"memory.size", "method.grow.epochs"} <= set(changed)
    assert not {"method.gamma", "method.grow.momentum"} & set(changed)
    # A method's defaults are its own, not GRACE's.
    published = load_experiment("cifar100", ["method=finetune"])
    rows = {row.path: row for row in describe_settings(published)}
    assert all(row.is_default for path, row in rows.items() if path.startswith("method.update"))
    assert isinstance(published.method, Finetune.Settings)


@pytest.mark.parametrize("override", ["budget.minutes=3", "gate.min_new=50", "memory.max_mb=5"])
def test_settings_of_learners_are_refused_in_experiments(override: str) -> None:
    settings = load_experiment("digits", [override])
    with pytest.raises(GraceError, match=f"{override.partition('=')[0]} has no effect"):
        refuse_learner_settings(settings)
    with pytest.raises(GraceError, match="only on a learner"):
        run_experiment(settings)


@pytest.mark.parametrize("name", [["grace"], {}, 1, None, "grce"])
def test_a_method_of_a_document_that_is_none_is_refused(name: object) -> None:
    with pytest.raises(ValueError, match="method"):
        ExperimentSettings.model_validate({"method": {"name": name}})
