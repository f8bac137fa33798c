import warnings
from pathlib import Path

import pytest

from grace.base.errors import GraceError
from grace.methods.der import DER
from grace.methods.finetune import Finetune
from grace.methods.grace import Grace
from grace.runs.run import run as run_experiment
from grace.settings.experiment import ExperimentSettings
from grace.settings.load import (
    ConfigError,
    ConfigWarning,
    describe_settings,
    dump_settings,
    flatten,
    list_experiments,
    load_experiment,
)
from grace.settings.problems import refuse_learner_settings
from grace.settings.registry import METHODS
from support.typed import typed


def grace_of(name: str, *overrides: str) -> Grace.Settings:
    return typed(Grace.Settings, load_experiment(name, overrides).method)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", list_experiments())
def test_every_packaged_experiment_resolves_for_every_method(name: str, method: str) -> None:
    settings = load_experiment(name, [f"method={method}"])
    assert settings.name == name
    assert settings.description
    assert settings.method.name == method


def test_default_is_grace_on_digits() -> None:
    settings = load_experiment()
    assert (settings.name, settings.data.source, settings.method.name) == (
        "digits",
        "digits",
        "grace",
    )
    assert (settings.memory.size, settings.scenario.increment) == (100, 2)
    assert settings.seeds.class_order == 1993


def test_switching_the_method_takes_its_preset() -> None:
    method = typed(
        DER.Settings,
        load_experiment("digits", ["method=der", "method.auxiliary_weight=0.5"]).method,
    )
    assert method.grow.epochs < 170
    assert method.auxiliary_weight == 0.5
    # What the preset leaves open keeps the method's published value, not the recipe's bare default.
    assert method.base.weight_decay == 5e-4
    assert grace_of("digits").compress.schedule == "cosine"


def test_one_seed_sets_four_and_gives_way() -> None:
    seeds = load_experiment("digits", ["seeds.data=7", "seed=3"]).seeds
    assert (seeds.class_order, seeds.initialisation, seeds.data, seeds.exemplars) == (3, 3, 7, 3)


def test_values_are_read_as_people_mean_them() -> None:
    settings = load_experiment(
        "digits",
        ["method.base.lr=1e-3", "data.classes=[001, on, 'a b']", "method.expand_at=[3, 5]"],
    )
    assert settings.method.base.lr == 1e-3
    assert settings.data.classes == ("001", "on", "a b")
    assert isinstance(settings.method, Grace.Settings)
    assert settings.method.expand_at == (3, 5)


def test_leaving_multistep_drops_the_milestones_it_came_with() -> None:
    recipe = grace_of("digits", "method.base.schedule=cosine").base
    assert (recipe.schedule, recipe.milestones) == ("cosine", ())


def test_milestones_keep_their_share_of_the_epochs(tmp_path: Path) -> None:
    # Published: 200 epochs with 60, 120, 170, that is 30, 60 and 85 %.
    recipe = grace_of("cifar100", "method.base.epochs=20").base
    assert (recipe.epochs, recipe.milestones) == (20, (6, 12, 17))
    path = tmp_path / "mine.yaml"
    path.write_text("methods: {grace: {base: {epochs: 40, milestones: [20, 30]}}}\n")
    assert grace_of(str(path), "method.base.epochs=4").base.milestones == (2, 3)
    assert grace_of(str(path), "method.base.lr=1").base.milestones == (20, 30)


def test_a_preset_for_every_method(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "methods:\n"
        "  '*': {base: {epochs: 4}, '*': {epochs: 0.1, milestones: [5]}, class_prior: balanced}\n"
        "  der: {grow: {epochs: 20}}\n"
    )
    chosen = grace_of(str(path))
    # Published: 200, 170 and 130 epochs, the last ones falling as a cosine.
    assert (chosen.base.epochs, chosen.base.milestones) == (4, (1, 2, 3))
    assert (chosen.grow.epochs, chosen.grow.milestones) == (17, (5,))
    assert (chosen.compress.epochs, chosen.compress.milestones) == (13, ())
    assert chosen.class_prior == "balanced"
    der = typed(DER.Settings, load_experiment(str(path), ["method=der"]).method)
    assert (der.grow.epochs, der.grow.milestones) == (20, (6,))
    # It has no class prior, and no recipe but those of its two phases.
    assert load_experiment(str(path), ["method=ewc"]).method.base.epochs == 4


def test_all_errors_at_once_with_path_value_and_nearest_key() -> None:
    wrong = [
        "method.threshold=2",
        "method.treshold=0.4",
        "method.update.lr=0.1",
        "threshold=0.5",
        "data.augmentation=cifr",
        "memory.size=-1",
        "seed=x",
        "data.streaming=maybe",
    ]
    with pytest.raises(ConfigError) as caught:
        load_experiment("digits", wrong)
    text = str(caught.value)
    assert len(caught.value.problems) == len(wrong) + 3  # Four seeds.
    assert "\n" not in text
    assert "method.threshold = 2 should be less than or equal to 1;" in text
    assert "method.treshold: no such setting; did you mean 'method.threshold'?" in text
    # Other methods have this phase; a key of it would be refused the same.
    phases = "'method.base' and 'method.grow' and 'method.compress'"
    assert f"method.update: no such setting; there is {phases}".replace("'", "") in text
    assert "; threshold: no such setting; did you mean 'method.threshold'?" in text
    assert "did you mean 'cifar'?" in text
    assert "memory.size = -1" in text
    assert "seeds.data = 'x'" in text
    assert "data.streaming = 'maybe' should be a valid boolean or 'auto'" in text


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("method=derr", "did you mean 'der'?"),
        ("method=5", "should be a mapping of settings"),
        ("memory=5", "should be a mapping"),
        ("scenario.increment=1", "at least two classes"),
        ("scenario.increment=true", "scenario.increment = True should be a valid integer"),
        ("memory.max_mb=true", "memory.max_mb = True should be a valid number"),
        ("data.channels=true", "data.channels: True should be 1 or 3"),
        ("memory.size='5'", "memory.size = '5' should be a valid integer"),
        ("data.fit=[1, 2]", "data.fit = [1, 2] should be 'crop' or 'letterbox'"),
        ("scenario.class_order=[0, x]", "scenario.class_order[1] = 'x'"),
        ("method.base.milestones=[500]", "method.base: milestones"),
        ("method.base.average_epochs=500", "method.base: average_epochs 500 exceeds epochs 10"),
        ("method.base.epochs=0", "method.base.epochs = 0"),
        ("method.gamma=.inf", "method.gamma"),
        ("methods.der.grow.epoch=5", "did you mean 'methods.der.grow.epochs'?"),
        ("methods.derr={}", "did you mean 'der'?"),
        ("methods.*.grwo=1", "methods.*.grwo: no method has such a setting"),
        ("methods.*=1", "should be a mapping of settings"),
        ("methods.*.base.epochs=x", "method.base.epochs = 'x' should be a valid integer"),
        ("methods=3", "one mapping per method"),
        ("foo", "'foo' is no setting"),
        ("data.root={a", "data.root={a: line 1"),
        (".a=1", "is no setting"),
    ],
)
def test_one_wrong_setting(override: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_experiment("digits", [override])
    assert says in str(caught.value)


def test_setting_of_another_method() -> None:
    with pytest.raises(ConfigError, match="it belongs to method grace"):
        load_experiment("digits", ["method=finetune", "method.threshold=0.4"])


def test_unknown_experiment_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'digits'"):
        load_experiment("digit")
    with pytest.raises(ConfigError, match="no such file"):
        load_experiment("absent.yaml")


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["method.gamma=2", "method.initialisation=average"], "method.gamma has no effect"),
        (["method=finetune", "memory.size=10"], "finetune keeps no exemplars"),
        (["method=ewc", "memory.size=10"], "ewc keeps no exemplars"),
        (
            ["method=ewc", "method.penalty_weight=0", "method.importance_limit=1"],
            "method.penalty_weight is 0",
        ),
        (
            ["method=icarl", "method.distillation_weight=0", "method.temperature=1"],
            "method.distillation_weight is 0",
        ),
        (["memory.size=10", "memory.per_class=5"], "memory.per_class is 5"),
        (["method.threshold=0.3", "method.expand_at=[2]"], "method.expand_at decides"),
        (["method.logit_weight=1", "method.logit_distillation=false"], "is off"),
        (["method.scale_cross_entropy=false"], "both distillations are off"),
        (["backbone.stem=conv3"], "backbone.name is resnet20"),
        (["data.root=here"], "data.source is digits"),
        (["method.compress.decay=0.5"], r"milestones is \[\]"),
        (["scenario.class_order=[1, 0]", "seeds.class_order=3"], r"class_order is \[1, 0\]"),
    ],
)
def test_a_setting_without_effect_warns(overrides: list[str], reason: str) -> None:
    with pytest.warns(ConfigWarning, match=reason):
        load_experiment("digits", overrides)


def test_files_parents_and_circles(tmp_path: Path) -> None:
    base = tmp_path / "base.yaml"
    base.write_text("parent: digits\nmemory: {size: 50}\nmethod: {name: grace, gamma: 3}\n")
    child = tmp_path / "my child.yaml"
    child.write_text("parent: base.yaml\nmethod: {threshold: 0.25}\n")
    settings = load_experiment(str(child))
    assert settings.name == "my-child"
    assert settings.memory.size == 50
    assert isinstance(settings.method, Grace.Settings)
    assert (settings.method.gamma, settings.method.threshold) == (3, 0.25)
    # Another method does not inherit the settings of this one.
    assert load_experiment(str(child), ["method=der"]).method.name == "der"

    base.write_text("parent: my child.yaml\n")
    with pytest.raises(ConfigError, match="circle"):
        load_experiment(str(child))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("memory: {size: 5}\nmemory: {size: 6}\n", "line 2, column 1: the key 'memory'"),
        ("- a\n- b\n", "should hold settings"),
        ("a: [1\n", "line 2"),
        ("parent: 3\n", "should be a name or a path"),
        ("method: {name: grace, treshold: 1}\n", "did you mean 'method.threshold'?"),
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
    settings = load_experiment(name, ["data.classes=['1e3', 'on', '010', '~', 'yes', '1:30']"])
    path = tmp_path / f"{name}.yaml"
    path.write_text(dump_settings(settings), encoding="utf-8")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load_experiment(str(path)) == settings


def test_every_setting_is_described() -> None:
    rows = {row.path: row for row in describe_settings(load_experiment("digits"))}
    assert all(row.meaning for row in rows.values())
    assert rows["memory.size"].value == 100
    assert not rows["memory.size"].is_default
    assert rows["method.gamma"].is_default
    assert not rows["method.grow.epochs"].is_default
    assert rows["method.grow.momentum"].is_default
    # A method's defaults are its own, not GRACE's.
    published = describe_settings(load_experiment("cifar100", ["method=finetune"]))
    assert all(row.is_default for row in published if row.path.startswith("method.update"))
    assert isinstance(load_experiment("cifar100", ["method=finetune"]).method, Finetune.Settings)


@pytest.mark.parametrize("override", ["budget.minutes=3", "gate.min_new=50"])
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


def test_flatten() -> None:
    nested = {"a": {"b": 1, "c": {"d": [2]}}, "e": None, "f": {}}
    assert flatten(nested) == {"a.b": 1, "a.c.d": [2], "e": None, "f": {}}
