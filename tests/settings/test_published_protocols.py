"""Every method's published numbers under every published protocol, field by field from the spec."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from grace.data.scenario import task_sizes
from grace.settings.experiment import BackboneSettings
from grace.settings.load import load_experiment
from grace.settings.registry import METHODS


@dataclass(frozen=True)
class Protocol:
    """What docs/protocols.md and the pages of GRACE, FOSTER and MEMO give for one of them."""

    base: int
    increment: int
    num_tasks: int
    grace: tuple[float, float, float, float]
    """τ₁, ρ, α, β (docs/methods/grace.md)."""
    boosting_beta: tuple[float, ...]
    """FOSTER's β₁ where one is published for the protocol, PyCIL's 0.96 elsewhere."""
    beef: tuple[int, float, float] = (170, 0.01, 1.7)
    """Epochs of BEEF's expansion, energy weight, alignment (docs/methods/beef.md)."""
    create: tuple[float, int, float] = (0.1, 5, 4)
    """CREATE's later rate, the task that divides it by ten, a (docs/methods/create.md).

    Published are those of CIFAR-100 Inc 10, and a of ImageNet-100 B0I10. What a task's number means
    is its number of known classes, 40 and 60; where there is no value, Base 0 and Base 50 have
    CIFAR-100's.
    """


PER_TASK = (0.98, 0.975, 0.97, 0.965, 0.96, 0.955, 0.95, 0.945, 0.94)
PROTOCOLS: Mapping[str, Protocol] = {
    "cifar100-b0i5": Protocol(0, 5, 20, (0.50, 0.90, 0.2, 0.8), (0.96,), create=(0.1, 9, 4)),
    "cifar100-b0i10": Protocol(0, 10, 10, (0.60, 0.96, 0.4, 1.6), PER_TASK),
    "cifar100-b50i2": Protocol(50, 2, 26, (0.50, 0.90, 0.2, 0.8), (0.95,), create=(0.01, 7, 2)),
    "cifar100-b50i10": Protocol(50, 10, 6, (0.60, 0.96, 0.2, 0.8), (0.94,), create=(0.01, 3, 2)),
    "imagenet100-b0i5": Protocol(0, 5, 20, (0.35, 0.90, 1.2, 0.6), (0.96,), create=(0.1, 9, 5)),
    "imagenet100-b0i10": Protocol(0, 10, 10, (0.40, 0.96, 0.8, 0.2), (0.96,), create=(0.1, 5, 5)),
    "imagenet100-b50i10": Protocol(
        50, 10, 6, (0.34, 0.92, 0.5, 0.5), (0.97,), (120, 0.1, 3), (0.01, 3, 2)
    ),
}


BESIDE: Mapping[str, Any] = {
    "class_prior": "none",
    "label_smoothing": 0,
    "weight_alignment": None,
    "relative_threshold": None,
}
"""Settings of grace that no publication has, off."""
PLAIN_SGD = {
    "optimiser": "sgd", "betas": (0.9, 0.999), "min_lr": 0, "warmup_epochs": 0, "warmup_lr": 0,
    "clip_norm": None, "decays_vectors": True, "drop_last": False, "average_epochs": 0,
    "groups": {},
}  # fmt: skip


OF_THE_TABLES = [name for name in METHODS if name not in ("lwf", "simplecil")]
"""The settings of those two stand in the tests of their own."""


def steps(epochs: int, *milestones: int, weight_decay: float = 2e-4) -> dict[str, Any]:
    """Lr 0.1, ×0.1 at the milestones, batch 128, momentum 0.9."""
    return PLAIN_SGD | {
        "epochs": epochs,
        "batch_size": 128,
        "lr": 0.1,
        "momentum": 0.9,
        "weight_decay": weight_decay,
        "schedule": "multistep",
        "milestones": milestones,
        "decay": 0.1,
    }


def cosine(epochs: int, weight_decay: float = 2e-4) -> dict[str, Any]:
    """The same, falling as a cosine to 0."""
    return steps(epochs, weight_decay=weight_decay) | {"schedule": "cosine"}


INIT = steps(200, 60, 120, 170, weight_decay=5e-4)
GROW = steps(170, 80, 120, 150)


def published(
    method: str, protocol: Protocol, backbone: Literal["resnet32", "resnet18"]
) -> dict[str, Any]:
    """Every setting of a method (docs/protocols.md#recipes)."""
    threshold, decay, logit_weight, feature_weight = protocol.grace
    has_resnet18 = backbone == "resnet18"
    # The same recipe in every task (docs/methods/dgr.md), on CIFAR and on ImageNet.
    dgr = steps(160, 80, 120, weight_decay=5e-4)
    if has_resnet18:
        dgr = steps(90, 30, 60, weight_decay=1e-4)
    # fmt: off
    found: Mapping[str, dict[str, Any]] = {
        "finetune": {"base": INIT, "update": steps(80, 40, 70)},
        # This package's own: the papers on frozen backbones have other protocols.
        "probe": {
            "head": "linear", "class_prior": "balanced",
            "update": cosine(60, 0.3) | {"batch_size": 64, "lr": 0.001, "optimiser": "adamw"},
        },
        "replay": {"base": INIT, "update": steps(70, 30, 50)},
        "ewc": {
            "base": INIT, "update": steps(180, 70, 120, 150), "penalty_weight": 1000,
            "importance_limit": 1e-4,
        },
        "icarl": {
            "base": INIT, "update": steps(170, 80, 120), "distillation_weight": 1, "temperature": 2,
        },
        "wa": {"base": INIT, "update": steps(170, 60, 100, 140), "temperature": 2},
        "der": {"base": INIT, "grow": GROW, "auxiliary_weight": 1},
        "foster": {
            "base": cosine(200, 5e-4), "boost": cosine(170, 5e-4), "compress": cosine(130, 0),
            "boosting_beta": protocol.boosting_beta, "compression_beta": 0.97,
            "distillation_weight": 1, "temperature": 2, "herd_with": "student",
        },
        # The survey's scripts train the base for Base 0, and not for any Base 50.
        "memo": {
            "base": INIT, "grow": GROW, "auxiliary_weight": 1, "train_base": protocol.base != 50,
        },
        "joint": {"base": INIT, "final_task_only": False},
        # The paper's sum and still batch norm; the released code's slips are the other values.
        "beef": {
            "base": cosine(200, 5e-4), "expand": cosine(protocol.beef[0], 5e-4),
            "fuse": cosine(60, 5e-4) | {"lr": 0.05}, "energy_weight": protocol.beef[1],
            "energy_steps": 3, "energy_lr": 1e-2, "energy_noise": 1e-3,
            "alignment": protocol.beef[2], "old_bias": "sum", "old_batch_norm": "eval",
        },
        # Heads of the attention are published for ResNet-18 alone.
        "tagfex": {
            "base": INIT, "grow": GROW, "auxiliary_weight": 2, "contrastive_weight": 1,
            "retention_weight": 2, "contrastive_temperature": 0.2,
            "projector_width": 2048 if has_resnet18 else 512,
            "embedding_width": 1024 if has_resnet18 else 128, "merged_weight": 1,
            "transfer_weight": 1, "transfer_temperature": 2, "attention_heads": 8,
            "agnostic_share": 0.05, "old_rows": "zero",
        },
        "dgr": {
            "base": dgr, "update": dgr, "distillation_weight": 0.7, "distillation_by": "images",
            "distribution_aware": True, "temperature": 2, "discount_by": "images",
        },
        # Batch norm in the balanced stage as the released code does.
        "create": {
            "base": cosine(200, 5e-4), "balance": cosine(20, 5e-4) | {"lr": 0.005},
            "update": cosine(120, 5e-4) | {"lr": protocol.create[0], "min_lr": 1e-8},
            "late_task": protocol.create[1], "late_factor": 0.1, "latent_dim": 32,
            "score_scale": 0.1, "distillation_weight": 1, "temperature": 2, "contrast_weight": 1,
            "contrast_temperature": 0.1, "contrast_base_temperature": 0.07,
            "confusion_sharpness": protocol.create[2], "balance_batch_norm": "train",
        },
        "grace": {
            "base": INIT, "grow": GROW, "compress": cosine(130), "auxiliary_weight": 1,
            "threshold": threshold, "threshold_decay": decay, "assess_on": "previous",
            "expand_at": None, "gamma": 5, "initialisation": "importance",
            "logit_distillation": True, "feature_distillation": True, "logit_weight": logit_weight,
            "feature_weight": feature_weight, "temperature": 2, "scale_cross_entropy": True,
        },
    }
    # fmt: on
    return found[method] | {"name": method}


@pytest.mark.parametrize("method", OF_THE_TABLES)
@pytest.mark.parametrize("name", PROTOCOLS)
def test_settings_are_the_published_ones(name: str, method: str) -> None:
    protocol = PROTOCOLS[name]
    settings = load_experiment(name, [f"method={method}"])
    backbone: Literal["resnet32", "resnet18"] = (
        "resnet32" if name.startswith("cifar") else "resnet18"
    )
    found = settings.method.model_dump()
    expected = published(method, protocol, backbone)
    assert found == {key: value for key, value in BESIDE.items() if key in found} | expected
    scenario = settings.scenario
    assert (scenario.base, scenario.increment) == (protocol.base, protocol.increment)
    assert len(task_sizes(100, scenario.base, scenario.increment)) == protocol.num_tasks
    assert (settings.memory.size, settings.memory.per_class) == (2000, None)
    assert settings.seeds.class_order == 1993
    if name.startswith("cifar"):
        assert settings.backbone.name == "resnet32"
        assert (settings.data.source, settings.data.augmentation) == ("cifar100", "cifar")
    else:
        # The 7×7 stem where base and increment are equal, else 3×3; for MEMO always 7×7.
        stem = "conv3" if protocol.base == 50 and method != "memo" else "conv7"
        assert settings.backbone == BackboneSettings(name="resnet18", stem=stem)
        assert (settings.data.source, settings.data.augmentation) == ("imagenet100", "imagenet")
        assert (settings.data.image_size, settings.data.class_list) == (224, "icarl")


@pytest.mark.parametrize("plain", ["cifar100-b0i10", "cifar100-b50i10", "tiny-imagenet-16px"])
def test_with_autoaugment_nothing_else_changes(plain: str) -> None:
    for method in METHODS:
        without = load_experiment(plain, [f"method={method}"]).model_dump()
        found = load_experiment(f"{plain}-autoaugment", [f"method={method}"]).model_dump()
        changed = {"data": without["data"] | {"augmentation": "autoaugment"}}
        names = dict.fromkeys({"name", "description"})
        assert {**found, **names} == {**without, **changed, **names}


@pytest.mark.parametrize(
    ("overrides", "stem"),
    [
        (["method=memo"], "conv7"),
        (["method=memo", "backbone.stem=conv3"], "conv3"),
        (["method=memo", "backbone.name=resnet34"], "conv7"),
        (["method=memo", "methods.memo.backbone.stem=cifar"], "cifar"),
        (["method=der", "methods.memo.backbone.stem=cifar"], "conv3"),
    ],
)
def test_a_presets_backbone_gives_way_to_what_is_asked_for(overrides: list[str], stem: str) -> None:
    assert load_experiment("imagenet100-b50i10", overrides).backbone.stem == stem


def test_a_presets_backbone_lies_over_that_of_its_own_file(tmp_path: Path) -> None:
    parent, child = tmp_path / "parent.yaml", tmp_path / "child.yaml"
    parent.write_text(
        "backbone: {name: resnet18, stem: conv3}\nmethods: {memo: {backbone: {stem: conv7}}}\n"
    )
    child.write_text("parent: parent.yaml\nbackbone: {stem: cifar}\nmethod: memo\n")
    assert load_experiment(str(parent), ["method=memo"]).backbone.stem == "conv7"
    assert load_experiment(str(parent), ["method=wa"]).backbone.stem == "conv3"
    assert load_experiment(str(child)).backbone == BackboneSettings(name="resnet18", stem="cifar")


def test_folders_have_the_class_prior_with_all_methods_but_beef() -> None:
    priors = {
        name: getattr(load_experiment("folder", [f"method={name}"]).method, "class_prior", None)
        for name in METHODS
    }
    assert [name for name, prior in priors.items() if prior == "none"] == ["beef"]
    assert [priors[name] for name in ("ewc", "finetune", "dgr")] == [None] * 3
