"""The part of a model that an update changes, and the size of its network."""

import copy
from dataclasses import dataclass, field
from typing import final

from grace.learner.document import UpdateRecord
from grace.learner.held_out import HeldOut
from grace.learner.predictor import Predictor
from grace.learner.setting_changes import SettingChange
from grace.learner.unknown import Recogniser
from grace.methods.method import Method


@final
@dataclass(frozen=True)
class Size:
    """The size of a learner's network; images are not counted."""

    num_backbones: int = 0
    backbone_parameters: int = 0
    head_parameters: int = 0
    weight_bytes: int = 0
    """Weights and buffers."""

    @property
    def num_parameters(self) -> int:
        """Number of parameters of backbones and heads together."""
        return self.backbone_parameters + self.head_parameters


@final
@dataclass
class ModelState:
    """The part of a model that an update changes.

    Args:
        method: the method with its network, exemplars and other state.
        class_names: names of all classes; a class's index is its place here.
        forgotten: indices of the classes that are hidden.
        history: the record of every update.
        held_out: images that measure updates and are never trained on.
        recogniser: recognises images that are unlike anything learnt.
        predictor: the predictor that the model answers with.
        version: number of the version that is loaded; ``None``: the model is not saved.
        changed: settings that differ from those of that version.
    """

    method: Method
    class_names: list[str] = field(default_factory=list)
    forgotten: set[int] = field(default_factory=set)
    history: list[UpdateRecord] = field(default_factory=list)
    held_out: HeldOut = field(default_factory=HeldOut)
    recogniser: Recogniser = field(default_factory=Recogniser)
    predictor: Predictor = field(default_factory=Predictor)
    version: int | None = None
    changed: tuple[SettingChange, ...] = ()

    @property
    def live_class_names(self) -> list[str]:
        """Names of the classes that are not forgotten."""
        return [n for i, n in enumerate(self.class_names) if i not in self.forgotten]

    def copy(self) -> "ModelState":
        """Return a copy that no update of this one changes."""
        # Exemplars and the factory are shared with the copy: updates never write into them.
        method = self.method
        shared = {id(method.memory): method.memory.copy(), id(method.factory): method.factory}
        return ModelState(
            method=copy.deepcopy(method, shared),
            class_names=list(self.class_names),
            forgotten=set(self.forgotten),
            history=list(self.history),
            held_out=self.held_out.copy(),
            recogniser=self.recogniser,
            predictor=self.predictor,
            version=self.version,
            changed=self.changed,
        )
