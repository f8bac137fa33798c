"""Settings of one experiment: data, scenario, memory, backbone, method, seeds, engine."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import (
    Field,
    PositiveFloat,
    SerializeAsAny,
    ValidationError,
    field_validator,
    model_validator,
)

from grace.base.errors import GraceError, first_problem
from grace.base.words import printable
from grace.settings.augmentation import AugmentationSetting
from grace.settings.method import AnyMethodSettings
from grace.settings.recipe import Settings
from grace.settings.registry import METHODS, registered, why_unknown

MeasureName = Literal[
    "effective_rank",
    "fisher",
    "adversarial_sharpness",
    "expected_sharpness",
    "hessian_radius",
    "weight_norm",
]


class MeasureSettings(Settings):
    """Which measures of saturation a run records, and how exactly; they change no result."""

    measures: tuple[MeasureName, ...] = ()
    """measured after every task, before the exemplars change: effective_rank, fisher,
    adversarial_sharpness, expected_sharpness, hessian_radius, weight_norm. More: a longer run;
    none: []"""
    images: int = Field(1024, ge=1)
    """images on which the loss is measured, drawn from the task's images and the exemplars;
    effective_rank uses all of them. More: more exact measures, and slower"""
    adversarial_radius: float = Field(0.05, gt=0)
    """r: length of the largest change of all weights together. Higher: a larger value that says
    less about the neighbourhood of the weights"""
    adversarial_steps: int = Field(10, ge=1)
    """steps of gradient ascent. More: closer to the maximum, and slower"""
    expected_deviation: float = Field(0.01, gt=0)
    """s: deviation of the normal noise on every weight. Higher: a larger value that says less about
    the neighbourhood of the weights"""
    expected_pairs: int = Field(10, ge=2)
    """pairs of opposite noises. More: a smaller standard error, and slower"""
    hessian_products: int = Field(30, ge=1)
    """most products of the Hessian with a vector. More: closer to the largest eigenvalue where it
    hardly stands out, and slower"""
    hessian_tolerance: float = Field(1e-3, ge=0)
    """relative change of the value, after five products, at which they end. Higher: faster, less
    exact"""


Fit = Literal["crop", "letterbox"]
"""How an image of another shape becomes a square."""


class DataSettings(Settings):
    """The images, their split into training and test, and their augmentation."""

    source: str = "digits"
    """digits, cifar10, cifar100, imagenet100, or folder (a directory of images)"""
    root: str | None = None
    """directory of the files; cifar10 and cifar100 are downloaded into it"""
    image_size: int | None = Field(None, ge=8, le=16384)
    """side in pixels to which images are resized. Higher: more detail, slower training; none: the
    size does not change"""
    fit: Fit = "crop"
    """how an image becomes a square of image_size. crop: its shorter side is resized, and the
    centre is cut; letterbox: its longer side is resized, so that nothing is cut off, and the rest
    of the square is grey (128)"""
    channels: Literal[1, 3] | None = None
    """1: grey images; 3: colour images; none: as they are"""
    classes: tuple[str, ...] | None = None
    """use only these classes (names); none: all, or the first N sorted ones with max_classes"""
    max_classes: int | None = Field(None, ge=2)
    """use only the first N classes, sorted by name. Fewer: an easier problem and a shorter run"""
    max_train_per_class: int | None = Field(None, ge=1)
    """use only the first N training images of each class. Fewer: a shorter run and lower accuracies
    """
    max_test_per_class: int | None = Field(None, ge=1)
    """use only the first N test images of each class. Fewer: less exact accuracies"""
    test_fraction: float = Field(0.2, gt=0, lt=1)
    """share of each class held out for testing if there is no test split. Higher: fewer training
    images, more exact accuracies"""
    split_seed: int = Field(0, ge=0)
    """seed of that held-out split"""
    class_list: Literal["icarl", "sorted"] = "icarl"
    """imagenet100: the 100 classes drawn with seed 1993 (icarl), or the first 100"""
    augmentation: AugmentationSetting = "none"
    """none; shift: shifts by 1 pixel; cifar: crop with a border of an eighth of the side (4 at 32
    pixels), flip, brightness 63/255; imagenet: random resized crop and flip; autoaugment: cifar,
    then the CIFAR-10 policy and cutout; randaugment: crop, flip, two random operations; or a list
    of operations, such as [crop, flip, cutout]"""
    streaming: bool | Literal["auto"] = "auto"
    """true: decode images from disk when they are needed; false: hold them in memory; auto: stream
    more than 4 GiB"""
    max_pixels: int = Field(89_478_485, ge=64, le=178_956_970)
    """images with more pixels are refused. Higher: larger images can be read, with 8 to 16 bytes of
    memory per pixel"""
    skip_unreadable: bool = False
    """true: leave out unreadable images and count them; false: refuse them"""
    skip_duplicates: bool = False
    """true: leave out training images that are also test images; false: refuse them"""

    @field_validator("channels", mode="before")
    @classmethod
    def _no_truth_value(cls, channels: object) -> object:
        # To pydantic, true is the word 1 of a Literal.
        if isinstance(channels, bool):
            raise GraceError(f"{channels} should be 1 or 3")
        return channels

    @field_validator("root")
    @classmethod
    def _root_can_be_recorded(cls, root: str | None) -> str | None:
        if any("\ud800" <= char <= "\udfff" for char in root or ""):
            raise GraceError(f"'{printable(str(root))}' is not UTF-8: no record can hold it")
        return root


class ScenarioSettings(Settings):
    """Order of the classes, and their division into tasks."""

    base: int = Field(0, ge=0)
    """classes in the first task; 0: as many as increment. Higher: a better first backbone, fewer
    later tasks"""
    increment: int = Field(10, ge=1)
    """new classes in each later task. Higher: fewer tasks, less forgetting"""
    class_order: tuple[int, ...] | None = None
    """permutation of the labels in which classes arrive; none: drawn with seeds.class_order"""

    @model_validator(mode="after")
    def _first_task_has_two(self) -> Self:
        if (self.base or self.increment) < 2:
            raise GraceError("the first task needs at least two classes", "raise base or increment")
        return self


class MemorySettings(Settings):
    """Number of stored images of old classes."""

    size: int | None = Field(2000, ge=0)
    """exemplars in all; each class keeps size // classes. More: less forgetting, longer phases, a
    larger learner; 0: no memory; none: as many as max_mb allows"""
    per_class: int | None = Field(None, ge=1)
    """exemplars of each class, in place of size // classes; the memory then grows with every class.
    More: less forgetting, longer phases, a larger learner"""
    validation: int = Field(0, ge=0)
    """images of each class held out for good, to test updates: a fifth of the class at most, and
    above 10 no more than a fifth of max_mb. More: more exact tests, fewer training images"""
    max_mb: float | None = Field(None, gt=0, le=1e9)
    """ceiling on one saved version in megabytes (10⁶ bytes): weights, method state and all its
    images; earlier versions are kept beside it. Lower: fewer exemplars and backbones; none: no
    ceiling"""
    format: Literal["raw", "webp"] = "raw"
    """how exemplars are stored. raw: pixels; webp: compressed, about seven times as many in the
    same bytes at 32 pixels. They are decoded once when a learner is loaded"""
    quality: int = Field(75, ge=1, le=100)
    """quality of format=webp. Higher: closer to the images that were learnt, and fewer exemplars in
    max_mb; 100: the very same pixels"""

    @model_validator(mode="after")
    def _something_limits(self) -> Self:
        if self.size is None and self.per_class is None and self.max_mb is None:
            raise GraceError("without size a memory needs max_mb or per_class", "set one of them")
        return self


class BackboneSettings(Settings):
    """The network that maps images to feature vectors."""

    name: str = "resnet32"
    """resnet20, resnet32, resnet44, resnet56 (for small images), resnet18, resnet34, resnet50
    (torchvision), or timm/<model>"""
    stem: Literal["conv7", "conv3", "cifar"] = "conv7"
    """torchvision ResNets: conv7: 7×7 stride 2 with pooling; conv3: 3×3 stride 1 with pooling;
    cifar: 3×3 stride 1 without pooling. Less stride and pooling: for smaller images, and slower"""
    weights: str = "none"
    """first weights of every fresh backbone. none: a random draw; timm: pre-trained weights from
    timm's hub, those of the tag in backbone.name, such as timm/resnet18.a1_in1k; a path ending in
    .safetensors: the weights in that file"""
    train: Literal["all", "last-stages", "frozen"] | None = None
    """what of the backbone learns. all: all of it; last-stages: its last stages, over a trunk that
    stays as it is; frozen: nothing, so that only the head learns. Less: faster and less is
    forgotten, but the features fit new images less well; none: what the method trains"""
    last_stages: int = Field(1, ge=1)
    """with train=last-stages, how many stages learn. More: closer to training all of it, slower and
    larger"""
    input_size: Annotated[int, Field(ge=8, le=1024)] | Literal["model"] | None = None
    """side in pixels to which images are enlarged before the backbone, while they are stored as
    small as they are; model: that of the backbone's pre-training. Higher: more exact features up to
    that size, and slower with its square; none: as they are"""
    interpolation: Literal["bilinear", "bicubic"] | None = None
    """how images are enlarged to input_size; none: as in the backbone's pre-training"""
    mean: tuple[float, ...] | None = None
    """means that pixels in [0, 1] are normalised by, one for each channel; none: with weights those
    of the pre-training, else those of the images"""
    std: tuple[PositiveFloat, ...] | None = None
    """deviations that pixels are normalised by, likewise"""

    @model_validator(mode="after")
    def _can_be_built(self) -> Self:
        registered("backbone", self.name)
        is_tagged = re.fullmatch(r"timm/[^.]+\..+", self.name)
        if self.weights == "timm" and not is_tagged:
            # What timm takes without a tag changes with its version.
            raise GraceError(
                f"weights 'timm' are for timm/<model>.<tag>, not for name '{self.name}'",
                "choose a name of timm.list_pretrained(), or weights=<path>.safetensors",
            )
        if self.weights not in ("none", "timm") and not self.weights.endswith(".safetensors"):
            raise GraceError(
                f"weights '{self.weights}' should be none, timm, or a path ending in .safetensors"
            )
        if (self.mean is None) != (self.std is None) or len(self.mean or ()) != len(self.std or ()):
            raise GraceError("mean and std need one number for each channel", "set both")
        return self


class SeedSettings(Settings):
    """The four seeds of a run; ``seed=N`` on the command line sets all four."""

    class_order: int = Field(1993, ge=0)
    """seed of the permutation of the classes"""
    initialisation: int = Field(1, ge=0)
    """seed of the weights of fresh modules"""
    data: int = Field(1, ge=0)
    """seed of the order and augmentation of images"""
    exemplars: int = Field(1, ge=0)
    """seed of random choices of exemplars; herding makes none"""


class EngineSettings(Settings):
    """Device, precision and speed; results change by rounding only."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """device of the computations; auto: cuda if there is one"""
    precision: Literal["float32", "bfloat16", "float16", "auto"] = "float32"
    """number format of forward passes in training; everything else is float32. bfloat16 and
    float16: faster on GPUs, less exact; auto: bfloat16 on a CPU that has instructions for it
    (AVX-512-BF16, AMX), else float32"""
    channels_last: bool = True
    """memory layout of images and weights; true is usually faster"""
    compile: bool | Literal["auto"] = "auto"
    """compile training steps; auto: only phases long enough to save more time than that takes"""
    threads: int | None = Field(None, ge=1)
    """CPU threads. More: faster, up to the number of cores; none: torch's choice"""
    eval_batch_size: int = Field(128, ge=1)
    """images per batch in passes without training. More: faster on GPUs, more memory"""


class BudgetSettings(Settings):
    """The training that an update of a learner may take; experiments have no budget."""

    minutes: float | None = Field(None, gt=0, le=1e6)
    """minutes of training that an update should take at most; epochs are scaled down to it, never
    up. Lower: faster updates and lower accuracies; none: all epochs"""
    passes: float | None = Field(None, gt=0, le=1e15)
    """the same in training passes of one image through one backbone. Higher: more epochs; none:
    those of minutes, measured when the learner is made"""


class GateSettings(Settings):
    """What an update of a saved learner may cost, unless a call says otherwise."""

    max_drop: float | None = Field(None, ge=0, le=100)
    """percentage points of accuracy that old classes may lose on their held-out images. Lower: more
    updates are rejected; none: no limit"""
    max_class_drop: float | None = Field(None, ge=0, le=100)
    """the same for every single old class; a paired test must show the loss. Lower: more updates
    are rejected; none: no limit"""
    min_new: float | None = Field(None, ge=0, le=100)
    """accuracy in percent that the new classes must reach on their held-out images. Higher: more
    updates are rejected; none: no limit"""


class ExperimentSettings(Settings):
    """Everything that decides one run."""

    # A name of dots only would be a path.
    name: str = Field("digits", pattern=r"^[\w.-]*[\w-][\w.-]*$")
    """name of the experiment"""
    description: str = ""
    """one line for people"""
    data: DataSettings = DataSettings()
    scenario: ScenarioSettings = ScenarioSettings()
    memory: MemorySettings = MemorySettings()
    backbone: BackboneSettings = BackboneSettings()
    method: SerializeAsAny[AnyMethodSettings] = Field(
        default_factory=lambda: METHODS["grace"].settings()
    )
    seeds: SeedSettings = SeedSettings()
    engine: EngineSettings = EngineSettings()
    budget: BudgetSettings = BudgetSettings()
    probe: MeasureSettings = MeasureSettings()
    gate: GateSettings = GateSettings()

    @field_validator("method", mode="before")
    @classmethod
    def _of_its_method(cls, value: Any) -> Any:  # noqa: ANN401 - whatever was read
        """Read the settings of a method by its own model; refuse a method that is not here."""
        if not isinstance(value, Mapping):
            return value
        name = value.get("name", "grace")
        # A forged document may hold anything here, also what no mapping can look up.
        if not isinstance(name, str) or name not in METHODS:
            raise GraceError(why_unknown(str(name)))
        try:
            return METHODS[name].settings.model_validate(value)
        except ValidationError as error:
            raise GraceError(first_problem(error)) from error

    @model_validator(mode="after")
    def _can_be_done(self) -> Self:
        """Refuse an unknown source, and a part of the backbone that the method cannot train."""
        registered("dataset", self.data.source)
        train, name = self.backbone.train, self.method.name
        if train is not None and not self.method.traits.can_train(train):
            able = [n for n, own in METHODS.items() if own.settings.traits.can_train(train)]
            raise GraceError(
                f"method {name} cannot learn with backbone.train={train}",
                f"choose {', '.join(able)}, or another backbone.train",
            )
        return self
