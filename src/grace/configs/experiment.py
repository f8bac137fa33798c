"""Settings of one experiment: data, scenario, memory, backbone, method, seeds, engine."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from grace.configs.augmentation import AugmentationSetting
from grace.configs.methods import GraceSettings
from grace.configs.registry import METHOD_SETTINGS, MethodSettings, why_unknown
from grace.configs.settings_model import Settings
from grace.text.escaping import printable
from grace.text.refusals import GraceError


class DataSettings(Settings):
    """The images, their split into training and test, and their augmentation."""

    source: str = Field(
        "digits",
        description="digits, cifar10, cifar100, imagenet100, or folder (a directory of images)",
    )
    root: str | None = Field(
        None, description="directory of the files; cifar10 and cifar100 are downloaded into it"
    )
    image_size: int | None = Field(
        None,
        ge=8,
        le=16384,
        description="side in pixels to which images are resized. Higher: more detail, slower "
        "training; none: the size does not change",
    )
    channels: Literal[1, 3] | None = Field(
        None, description="1: grey images; 3: colour images; none: as they are"
    )
    classes: tuple[str, ...] | None = Field(
        None,
        description="use only these classes (names); none: all, or the first N sorted ones with "
        "max_classes",
    )
    max_classes: int | None = Field(
        None,
        ge=2,
        description="use only the first N classes, sorted by name. Fewer: an easier problem and a "
        "shorter run",
    )
    max_train_per_class: int | None = Field(
        None,
        ge=1,
        description="use only the first N training images of each class. Fewer: a shorter run and "
        "lower accuracies",
    )
    max_test_per_class: int | None = Field(
        None,
        ge=1,
        description="use only the first N test images of each class. Fewer: less exact accuracies",
    )
    test_fraction: float = Field(
        0.2,
        gt=0,
        lt=1,
        description="share of each class held out for testing if there is no test split. "
        "Higher: fewer training images, more exact accuracies",
    )
    split_seed: int = Field(0, ge=0, description="seed of that held-out split")
    class_list: Literal["icarl", "sorted"] = Field(
        "icarl",
        description="imagenet100: the 100 classes drawn with seed 1993 (icarl), or the first 100",
    )
    augmentation: AugmentationSetting = Field(
        "none",
        description="none; shift: shifts by 1 pixel; cifar: crop with a border of an eighth of "
        "the side (4 at 32 pixels), flip, brightness 63/255; imagenet: random "
        "resized crop and flip; autoaugment: cifar, then the CIFAR-10 policy and "
        "cutout; randaugment: crop, flip, two random operations; or a list of "
        "operations, such as [crop, flip, cutout]",
    )
    streaming: bool | Literal["auto"] = Field(
        "auto",
        description="true: decode images from disk when they are needed; false: hold them in "
        "memory; auto: stream more than 4 GiB",
    )
    max_pixels: int = Field(
        89_478_485,
        ge=64,
        le=178_956_970,
        description="images with more pixels are refused. Higher: larger images can be read, with "
        "8 to 16 bytes of memory per pixel",
    )
    skip_unreadable: bool = Field(
        False, description="true: leave out unreadable images and count them; false: refuse them"
    )
    skip_duplicates: bool = Field(
        False,
        description="true: leave out training images that are also test images; false: refuse them",
    )

    _later: ClassVar[frozenset[str]] = frozenset({"max_pixels"})

    @field_validator("root")
    @classmethod
    def _root_can_be_recorded(cls, root: str | None) -> str | None:
        if root is not None:
            try:
                root.encode()
            except UnicodeEncodeError:
                raise GraceError(
                    f"'{printable(root)}' is not UTF-8, and no record can hold it", "rename it"
                ) from None
        return root


class ScenarioSettings(Settings):
    """Order of the classes, and their division into tasks."""

    base: int = Field(
        0,
        ge=0,
        description="classes in the first task; 0: as many as increment. Higher: a better first "
        "backbone, fewer later tasks",
    )
    increment: int = Field(
        10, ge=1, description="new classes in each later task. Higher: fewer tasks, less forgetting"
    )
    class_order: tuple[int, ...] | None = Field(
        None,
        description="permutation of the labels in which classes arrive; none: drawn with "
        "seeds.class_order",
    )

    @model_validator(mode="after")
    def _first_task_has_two(self) -> Self:
        if (self.base or self.increment) < 2:
            raise GraceError("the first task needs at least two classes", "raise base or increment")
        return self


class MemorySettings(Settings):
    """Number of stored images of old classes."""

    size: int | None = Field(
        2000,
        ge=0,
        description="exemplars in all; each class keeps size // classes. More: less forgetting, "
        "longer phases, a larger learner; 0: no memory; none: as many as max_mb "
        "allows",
    )
    per_class: int | None = Field(
        None,
        ge=1,
        description="exemplars of each class, in place of size // classes; the memory then "
        "grows with every class. More: less forgetting, longer phases, a larger learner",
    )
    validation: int = Field(
        0,
        ge=0,
        description="images of each class held out for good, to test updates. More: more exact "
        "tests, fewer training images",
    )
    max_mb: float | None = Field(
        None,
        gt=0,
        le=1e9,
        description="ceiling on the saved learner in megabytes (10⁶ bytes): weights, method "
        "state and exemplars. Lower: fewer exemplars and backbones; none: no "
        "ceiling",
    )

    @model_validator(mode="after")
    def _something_limits(self) -> Self:
        if self.size is None and self.per_class is None and self.max_mb is None:
            raise GraceError("without size a memory needs max_mb or per_class", "set one of them")
        return self


class BackboneSettings(Settings):
    """The network that maps images to feature vectors."""

    name: str = Field(
        "resnet32",
        description="resnet20, resnet32, resnet44, resnet56 (for small images), resnet18, "
        "resnet34, resnet50 (torchvision), or timm/<model>",
    )
    stem: Literal["conv7", "conv3", "cifar"] = Field(
        "conv7",
        description="torchvision ResNets: conv7: 7×7 stride 2 with pooling; conv3: 3×3 stride 1 "
        "with pooling; cifar: 3×3 stride 1 without pooling. Less stride and "
        "pooling: for smaller images, and slower",
    )
    weights: str = Field(
        "none",
        description="first weights of every fresh backbone. none: a random draw; timm: "
        "pre-trained weights from timm's hub, those of the tag in backbone.name, "
        "such as timm/resnet18.a1_in1k; a path ending in .safetensors: the weights "
        "in that file",
    )

    _later: ClassVar[frozenset[str]] = frozenset({"weights"})

    @model_validator(mode="after")
    def _weights_can_be_named(self) -> Self:
        if self.weights == "timm":
            model = self.name.removeprefix("timm/")
            if model == self.name:
                raise GraceError(
                    f"weights 'timm' are for timm/<model>.<tag>, not for name '{self.name}'",
                    "choose such a name, or weights=<path>.safetensors",
                )
            if "." not in model:
                raise GraceError(
                    f"weights 'timm' need a tag behind name '{self.name}', because the tag that "
                    "timm takes without it changes with timm's version",
                    f"see timm.list_pretrained('{model}.*')",
                )
        elif self.weights != "none" and not self.weights.endswith(".safetensors"):
            raise GraceError(
                f"weights '{self.weights}' should be none, timm, or a path ending in .safetensors"
            )
        return self


class SeedSettings(Settings):
    """The four seeds of a run; ``seed=N`` on the command line sets all four."""

    class_order: int = Field(1993, ge=0, description="seed of the permutation of the classes")
    initialisation: int = Field(1, ge=0, description="seed of the weights of fresh modules")
    data: int = Field(1, ge=0, description="seed of the order and augmentation of images")
    exemplars: int = Field(
        1,
        ge=0,
        description="seed of random choices of exemplars; herding makes none",
    )


class EngineSettings(Settings):
    """Device, precision and speed; results change by rounding only."""

    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="device of the computations; auto: cuda if there is one"
    )
    precision: Literal["float32", "bfloat16", "float16"] = Field(
        "float32",
        description="number format of forward passes in training; everything else is float32. "
        "bfloat16 and float16: faster on GPUs, less exact",
    )
    channels_last: bool = Field(
        True, description="memory layout of images and weights; true is usually faster"
    )
    compile: bool | Literal["auto"] = Field(
        "auto",
        description="compile training steps; auto: only phases long enough to save more time "
        "than that takes",
    )
    threads: int | None = Field(
        None,
        ge=1,
        le=1024,
        description="CPU threads. More: faster, up to the number of cores; none: torch's choice",
    )
    eval_batch_size: int = Field(
        128,
        ge=1,
        description="images per batch in passes without training. More: faster on GPUs, more "
        "memory",
    )


class ExperimentSettings(Settings):
    """Everything that decides one run."""

    # A name of dots only would be a path.
    name: str = Field(
        "digits", pattern=r"^[\w.-]*[\w-][\w.-]*$", description="name of the experiment"
    )
    description: str = Field("", description="one line for people")
    data: DataSettings = DataSettings()
    scenario: ScenarioSettings = ScenarioSettings()
    memory: MemorySettings = MemorySettings()
    backbone: BackboneSettings = BackboneSettings()
    method: MethodSettings = Field(default_factory=GraceSettings)
    seeds: SeedSettings = SeedSettings()
    engine: EngineSettings = EngineSettings()

    @field_validator("method", mode="before")
    @classmethod
    def _method_is_here(cls, value: Any) -> Any:  # noqa: ANN401 - whatever was read
        """Refuse the method of a saved learner or record that is not installed here."""
        name = value.get("name") if isinstance(value, Mapping) else None
        if isinstance(name, str) and name not in METHOD_SETTINGS:
            raise GraceError(why_unknown(name))
        return value
