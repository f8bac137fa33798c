"""Any image model of the timm library as a backbone (an optional package)."""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, Literal, cast, final

import torch
from torch import Tensor, nn
from typing_extensions import override

from grace.base.errors import GraceError
from grace.base.randomness import seeded_globally
from grace.base.words import in_one_line, one_line
from grace.nn.backbone import Backbone, JoinedStage
from grace.settings.experiment import BackboneSettings

Form = Literal["resnet", "efficientnet", "map", "channels_last", "tokens", "vector"]
"""Form of a model's maps: stages; or one map (B, c, h, w), (B, h, w, c), (B, T, d), or only the
features (B, d)."""

_RESNET = ("conv1", "bn1", "act1", "maxpool", "layer1", "layer2", "layer3", "layer4")
"""The children of timm's ResNets before pooling, in the order of the pass."""
_EFFICIENTNET = ("conv_stem", "bn1", "blocks", "conv_head", "bn2")
"""Likewise of timm's EfficientNets and the models built like them."""


@final
class TimmBackbone(Backbone):
    """A timm model, freshly initialised and without its classifier.

    A model built like timm's ResNets has five stages; one built like its EfficientNets has the
    stem, a stage for each group of blocks, and in the last stage the last group together with the
    convolution after it. Every other model has one, timm's
    ``forward_features``: its map is (B, c, h, w), or the tokens (B, T, d) of a transformer with the
    class token. The pool is then timm's ``forward_head`` without the classifier. If a model does
    not have these two, its one stage is the whole model and its map is the features.

    Args:
        name: timm's name of the model, without the ``timm/`` in front.
        num_channels: channels C of the images.
        seed: seed of the initialisation.
        purpose: words and counters that set this draw apart (``grace.base.randomness``).

    Raises:
        GraceError: if timm is not installed, has no such model, or the model gives no feature
            vector.
    """

    def __init__(self, name: str, num_channels: int, seed: int, *purpose: str | int) -> None:
        super().__init__()
        self.name = f"timm/{name}"
        with seeded_globally(seed, *purpose):
            self.body = _create(name, num_channels)
            # One image is passed because timm states widths under several names, none true for all
            # models.
            height, width = self.body.default_cfg["input_size"][1:]
            image = torch.zeros(1, num_channels, height, width)
            was_training = self.body.training
            self.body.eval()
            with torch.no_grad():
                features = self.body(image)
                if not isinstance(features, Tensor) or features.ndim != 2:
                    fault = f"backbone '{self.name}' gives no feature vector per image"
                    raise GraceError(fault, "choose another model")
                self.form = _form_of(self.body, image, features)
                own: nn.Module = _Head(self.body, self.form)
                if self.form in ("resnet", "efficientnet"):
                    own = self.body.global_pool
                self.pool = nn.Identity() if self.form == "vector" else own
                maps = self.maps(image)
            self.body.train(was_training)
        self.feature_dim = features.shape[1]
        classifiers = self.body.default_cfg.get("classifier") or ()
        self.classifiers = (classifiers,) if isinstance(classifiers, str) else tuple(classifiers)
        # Tokens and vectors are as wide as their last dimension.
        self.map_channels = tuple(each.shape[1 if each.ndim == 4 else -1] for each in maps)

    @override
    def stages(self) -> tuple[nn.Module, ...]:
        """Return the stem and the layers of a ResNet or EfficientNet, or one stage of another."""
        if self.form == "efficientnet":
            body = self.body
            *groups, last_group = body.blocks
            stem = JoinedStage(body.conv_stem, body.bn1)
            return stem, *groups, JoinedStage(last_group, body.conv_head, body.bn2)
        if self.form == "resnet":
            parts = [self.body.get_submodule(name) for name in _RESNET]
            return JoinedStage(*parts[:4]), *parts[4:]
        return (_WholeBody(self.body, self.form),)

    @override
    def maps(self, images: Tensor) -> tuple[Tensor, ...]:
        """Map images (B, C, H, W) to the output of every stage."""
        body = self.body
        if self.form == "efficientnet":
            maps = [body.bn1(body.conv_stem(images))]
            for group in body.blocks:
                maps.append(group(maps[-1]))
            return *maps[:-1], body.bn2(body.conv_head(maps[-1]))
        if self.form != "resnet":
            return (_only_map(body, self.form, images),)
        stem = body.maxpool(body.act1(body.bn1(body.conv1(images))))
        first = body.layer1(stem)
        second = body.layer2(first)
        third = body.layer3(second)
        return stem, first, second, third, body.layer4(third)


@final
class _WholeBody(nn.Module):
    """The only stage of a model that is not cut."""

    def __init__(self, body: nn.Module, form: Form) -> None:
        super().__init__()
        self.body = body
        self.form: Form = form

    @override
    def forward(self, images: Tensor) -> Tensor:
        return _only_map(self.body, self.form, images)


@final
class _Head(nn.Module):
    """timm's way from the map to the feature vector; its parameters are the body's."""

    def __init__(self, body: nn.Module, form: Form) -> None:
        super().__init__()
        # In a tuple, so that they do not stand in the state under a second name.
        self.bodies: tuple[Any] = (body,)
        self.form: Form = form

    @override
    def forward(self, maps: Tensor) -> Tensor:
        own = maps.permute(0, 2, 3, 1) if self.form == "channels_last" else maps
        return cast("Tensor", self.bodies[0].forward_head(own, pre_logits=True))


def _only_map(body: Any, form: Form, images: Tensor) -> Tensor:  # noqa: ANN401 - see _create
    if form == "vector":
        return cast("Tensor", body(images))
    own: Tensor = body.forward_features(images)
    return own.permute(0, 3, 1, 2) if form == "channels_last" else own


def _form_of(body: Any, image: Tensor, whole: Tensor) -> Form:  # noqa: ANN401 - see _create
    children = tuple(dict(body.named_children()))
    if children == (*_RESNET, "global_pool", "fc"):
        return "resnet"
    if children == (*_EFFICIENTNET, "global_pool", "classifier") and not body.drop_rate:
        return "efficientnet"
    try:
        own = body.forward_features(image)
        features = body.forward_head(own, pre_logits=True)
        # Numbers cannot be compared on the meta device, where only shapes are asked for.
        same = features.shape == whole.shape if image.is_meta else torch.equal(features, whole)
    except Exception:
        # Not every model of timm has these two methods, and some give several tensors.
        return "vector"
    if not same or not isinstance(own, Tensor) or own.ndim not in (3, 4):
        return "vector"
    if own.ndim == 3:
        return "tokens"
    channels_last = own.shape[1] != body.num_features == own.shape[3]
    return "channels_last" if channels_last else "map"


def pretraining_of(name: str) -> Mapping[str, Any]:
    """Return what timm states of a model's pre-training: ``mean``, ``std``, ``input_size``, ….

    Args:
        name: timm's name with or without a tag; without one, those of the usual tag.

    Raises:
        GraceError: if timm is not installed, or has no such model or tag.
    """
    stated = _pretrained_cfg(_timm_with(name), name)
    if stated is not None:
        return cast("Mapping[str, Any]", stated.to_dict())
    with torch.device("meta"):
        return cast("Mapping[str, Any]", _create(name, 3).default_cfg)


def pretrained_state(name: str) -> dict[str, Tensor]:
    """Download a model's pre-trained weights from timm's hub, or read them from its cache.

    Args:
        name: timm's name with the tag, such as ``vit_base_patch16_224.orig_in21k``.

    Returns:
        Tensors of any shape by timm's names, without the classifier's, for images with the channels
        that they were trained on.

    Raises:
        GraceError: if timm is not installed, has no such model or weights, or cannot reach its hub.
    """
    timm = _timm_with(name)
    try:
        model = timm.create_model(name, pretrained=True, num_classes=0)
    except Exception as error:
        # Whatever lies between here and the hub has errors of its own.
        reason = one_line(in_one_line(error), 200)
        raise GraceError(
            f"timm's weights of 'timm/{name}' cannot be fetched ({reason})",
            "put them into a file and set backbone.weights=<path>.safetensors",
        ) from error
    state: dict[str, Tensor] = model.state_dict()
    return state


def _pretrained_cfg(timm: Any, name: str) -> Any:  # noqa: ANN401 - a module, and its own type
    try:
        return timm.get_pretrained_cfg(name)
    except RuntimeError as error:
        raise GraceError(
            f"timm has no weights of the name '{name}'",
            f"see timm.list_pretrained('{name.partition('.')[0]}.*')",
        ) from error


def _create(name: str, num_channels: int) -> Any:  # noqa: ANN401 - timm's models carry extra fields
    timm = _timm_with(name)
    _pretrained_cfg(timm, name)  # Refuses a tag that does not exist.
    return timm.create_model(name, pretrained=False, num_classes=0, in_chans=num_channels)


def _timm_with(name: str) -> Any:  # noqa: ANN401 - a module
    try:
        # Late, because importing timm takes seconds, and it may be missing.
        import timm
    except ImportError as error:
        raise GraceError(
            f"backbone 'timm/{name}' needs timm", "pip install 'grace-cil[timm]'"
        ) from error
    if not timm.is_model(name):
        near = get_close_matches(name, timm.list_models(), n=1)
        hint = f": did you mean 'timm/{near[0]}'?" if near else ": see timm.list_models()"
        raise GraceError(f"timm has no model '{name}'{hint}")
    return timm


def build_timm(
    settings: BackboneSettings, num_channels: int, seed: int, *purpose: str | int
) -> Backbone:
    """Build the timm model that the settings name.

    Args:
        settings: ``name`` is ``timm/`` and timm's name.
        num_channels: channels C of the images.
        seed: seed of the initialisation.
        purpose: words and counters that seed this draw too.
    """
    return TimmBackbone(settings.name.removeprefix("timm/"), num_channels, seed, *purpose)
