"""The model in memory: score images, calibrate the scores, forget classes."""

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from grace.data.images import LabelledImages, concatenate
from grace.engine.progress import Progress
from grace.engine.ranks import Ranks
from grace.learner.admit import Ceiling, check_input, class_indices, split_validation
from grace.learner.calibration import MOST_EXEMPLARS, Recogniser, Seen, divided
from grace.learner.document import Creation
from grace.learner.given_images import AnyImages, as_images
from grace.learner.model_state import ModelState, Size
from grace.methods.build import build
from grace.methods.classifier import Classifier
from grace.methods.feature_cache import FeatureCache
from grace.methods.preprocessing import enlargement
from grace.methods.scoring import finite, scores
from grace.settings.experiment import ExperimentSettings


@final
class Model:
    """A model in memory: a method with its network, images and class names; nothing on disk.

    Args:
        settings: method, backbone, memory, augmentation, seeds, engine; the scenario is not used.
        shape: (C, H, W) of every image.
        mean: normalisation constants per channel, of pixels in [0, 1].
        std: likewise.
        progress: receives the events of the work.
        is_saved: a saved version will be loaded: the backbone is not tried out before.
        ranks: the processes that train together, each with its own model and the same images;
            ``None``: this process alone. Only the model of the first process may have a home.
    """

    def __init__(
        self,
        settings: ExperimentSettings,
        shape: tuple[int, int, int],
        mean: Sequence[float],
        std: Sequence[float],
        progress: Progress | None = None,
        *,
        is_saved: bool = False,
        ranks: Ranks | None = None,
    ) -> None:
        # Settings that could be saved but not loaded again are refused at once.
        self.creation = Creation.of(settings, shape, mean, std)
        self.settings = settings
        self.shape = shape
        self.mean = tuple(mean)
        self.std = tuple(std)
        self.enlarge = enlargement(settings.backbone, shape)
        self.trainer, method = build(
            settings, shape, self.mean, self.std, progress, ranks, is_saved=is_saved
        )
        self.state = ModelState(method)
        self.ceiling: Ceiling | None = None
        """The ceiling on the bytes of a version; ``None``: there is no ceiling."""
        if settings.memory.max_mb is not None:
            # Two bytes for each number of the features that are saved beside an image.
            width = method.factory.sketch.feature_dim if method.features is not None else 0
            self.ceiling = Ceiling(settings, shape, self.trainer.ranks, 2 * width)

    def size(self) -> Size:
        """Count the network's backbones, parameters and bytes; all 0 before the first update."""
        if not self.state.method.classifiers():
            return Size()
        network = self.state.method.network
        counts = network.num_parameters()
        return Size(len(network.backbones), counts.backbones, counts.heads, network.num_bytes())

    def scores(self, images: AnyImages) -> dict[str, Tensor]:
        """Score images with every predictor: (N, K) by name, the primary predictor first.

        Raises:
            GraceError: for images of another shape, or scores that are not finite.
        """
        classifiers = dict(self.state.method.classifiers())
        return finite(scores(self.trainer, classifiers, self._unlabelled(images)))

    def classifier(self) -> Classifier:
        """Return the primary predictor, calibrated."""
        primary = next(iter(self.state.method.classifiers().values()))
        return Classifier(primary.backbones, divided(primary.score, self.state.temperature))

    def recall(self, images: AnyImages, labels: Sequence[str]) -> None:
        """Give a loaded model all its training images again; they are not saved with it.

        Held-out images and images of forgotten classes are left out.
        """
        state, memory = self.state, self.state.method.memory
        given = check_input(images, labels, None, self.shape, settings=self.settings.data)
        index = class_indices(state.class_names, given.labels)
        assert len(index) == len(state.class_names), "these classes were never learnt"
        data, _ = split_validation(given, index, state.held_out, memory, 0, 0, 0)
        hidden = torch.isin(data.labels, torch.tensor(sorted(state.forgotten)))
        if bool(hidden.any()):
            data = data.subset((~hidden).nonzero().flatten())
        memory.keep(data)

    def hide(self, classes: set[int]) -> None:
        """Forget some classes, by index: drop their images and never predict them."""
        self.state.forgotten |= classes
        for index in classes:
            self.state.held_out.forget(index)
        self.mask_forgotten()
        self.calibrate()

    def mask_forgotten(self) -> None:
        """Mask exactly the forgotten classes, and drop their exemplars.

        Their rows of the head and all other weights stay.
        """
        for index in self.state.forgotten:
            self.state.method.memory.forget(index)
        self.state.method.state.forget(self.state.forgotten)

    def calibrate(self) -> None:
        """Fit the score of unknown images, and compute that of the held-out images again."""
        state, data = self.state, self.state.held_out.data()
        state.recogniser = Recogniser()
        if data is None or not state.method.classifiers():
            return
        # Under a ceiling, what the score remembers of exemplars would take the place of exemplars.
        exemplars = None if self.ceiling is not None else self.exemplars()
        cache = state.method.features
        seen = None if exemplars is None else self.see(exemplars, cache)
        state.recogniser = Recogniser.fitted(seen, self.see(data, cache))

    def recognise(self, images: AnyImages) -> tuple[Tensor, Tensor]:
        """Score images with the primary predictor, calibrated, and say how familiar they look.

        Returns:
            Scores (N, K) and familiarity (N,).

        Raises:
            GraceError: for images of another shape, or scores that are not finite.
        """
        seen = self.see(self._unlabelled(images))
        return seen.logits, self.state.recogniser(seen.features, seen.logits)

    def see(self, data: LabelledImages, cache: FeatureCache | None = None) -> Seen:
        """Compute what the primary predictor makes of images; refuse damaged weights.

        Args:
            data: N images.
            cache: remembers their features, if the backbones never change.
        """
        chosen = self.classifier()
        both = {"features": Classifier(chosen.backbones, lambda found: found), "": chosen}
        found = finite(scores(self.trainer, both, data, cache))
        return Seen(found["features"], found[""], data.labels)

    def exemplars(self) -> LabelledImages | None:
        """Return the first exemplars of every class, equally many; ``None`` without any."""
        memory = self.state.method.memory
        most = max(1, MOST_EXEMPLARS // max(1, len(memory.classes)))
        parts = []
        for index in memory.classes:
            images = memory.of_class(index)
            images = images.subset(torch.arange(min(most, len(images))))
            parts.append(LabelledImages(images, torch.full((len(images),), index)))
        return concatenate(parts) if parts else None

    def _unlabelled(self, images: AnyImages) -> LabelledImages:
        """Return images of any form, (N, C, H, W), with labels that mean nothing."""
        data = as_images(images, self.shape, self.settings.data)
        return LabelledImages(data, torch.zeros(len(data), dtype=torch.int64))
