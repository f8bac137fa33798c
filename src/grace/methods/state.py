"""The state that a method saves between tasks, declared once.

A method declares its networks, tensors, modules and small values when it is made. Saving, loading,
checking what is loaded, counting bytes ahead of time and masking forgotten classes follow from
that: no method does any of it itself.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar, final

from pydantic import BaseModel, ConfigDict, ValidationError
from torch import nn

from grace.base.errors import DamagedError, first_problem
from grace.base.tensors import encoded_size
from grace.methods.module_factory import ModuleFactory, Outline
from grace.methods.slots import NetworkSlot, Parts, Slot

SlotT = TypeVar("SlotT", bound=Slot[Any])
ValuesT = TypeVar("ValuesT", bound="StateValues")


class StateValues(BaseModel):
    """Small facts that a method saves: a model with a default for each, changed by assignment."""

    model_config = ConfigDict(extra="forbid", strict=True, validate_assignment=True)

    def problem(self, num_backbones: int, num_classes: int) -> str | None:
        """Say what contradicts a network of this size; ``None`` if nothing does."""
        return None


@final
@dataclass(frozen=True)
class MethodState:
    """The saved state of a method, its exemplars left out.

    Args:
        values: small facts that JSON can hold.
        parts: tensors by name, in groups that change together.
    """

    values: Mapping[str, Any]
    parts: Parts


@final
class DeclaredState:
    """Everything that a method saves between tasks, its exemplars left out.

    Args:
        factory: makes the modules that are loaded.
    """

    def __init__(self, factory: ModuleFactory) -> None:
        self._factory = factory
        self._slots: list[Slot[Any]] = []
        self._values = StateValues()
        # What is refused by its form and then restored has one form: making it takes a while.
        self._outline = lru_cache(maxsize=1)(factory.outline)
        self.network = self.add(NetworkSlot(""))

    def add(self, slot: SlotT) -> SlotT:
        """Declare a network, a module or named tensors, and return the slot."""
        self._slots.append(slot)
        return slot

    def add_values(self, values: ValuesT) -> ValuesT:
        """Declare the small values, and return them."""
        self._values = values
        return values

    def collect(self) -> MethodState:
        """Return the present state; its tensors are the method's own, not copies."""
        parts = {name: part for slot in self._slots for name, part in slot.parts().items()}
        return MethodState(self._values.model_dump(), parts)

    def refuse_unlike(self, parts: Parts, num_classes: int) -> None:
        """Refuse saved tensors by their names, shapes and types alone.

        Args:
            parts: saved tensors, which may be on the meta device: their numbers are not read yet.
            num_classes: K of the saved method.

        Raises:
            DamagedError: if this method cannot have saved them.
        """
        self._refuse_unknown(self._not_taken(parts, num_classes))

    def restore(self, state: MethodState, num_classes: int) -> None:
        """Replace the present state by a saved one of ``num_classes`` classes.

        Raises:
            DamagedError: if this method cannot have saved such a state.
        """
        outline, left = self._outline_of(state.parts, num_classes), dict(state.parts)
        for slot in self._slots:
            slot.restore(left, outline, self._factory)
        self._refuse_unknown(left)
        count = outline.num_backbones if outline else 0
        method = self._factory.settings.method.name
        self._restore_values(dict(state.values), count, num_classes, method)

    def adopt(self, state: MethodState, num_classes: int) -> None:
        """Take over the state of the same method with other settings; errors are as in ``restore``.

        Parts that this method does not keep with its own settings are dropped.
        """
        left = self._not_taken(state.parts, num_classes)
        kept = {name: part for name, part in state.parts.items() if name not in left}
        self.restore(MethodState(state.values, kept), num_classes)

    def _outline_of(self, parts: Parts, num_classes: int) -> Outline | None:
        """Return the form of the network whose tensors were saved; ``None``: there is none."""
        count = sum(name.startswith("backbone.") for name in parts)
        return self._outline(count, num_classes) if count else None

    def _not_taken(self, parts: Parts, num_classes: int) -> Parts:
        """Return the parts that no slot holds; refuse any that do not fit their slot."""
        outline, left = self._outline_of(parts, num_classes), dict(parts)
        for slot in self._slots:
            slot.take(left, outline)
        return left

    def _refuse_unknown(self, left: Parts) -> None:
        if left:
            raise DamagedError(
                f"the saved {self._factory.settings.method.name} has parts that it never writes: "
                f"'{ascii(min(left))[1:81]}'"
            )

    def _restore_values(
        self, saved: dict[str, Any], num_backbones: int, num_classes: int, method: str
    ) -> None:
        try:
            found = type(self._values).model_validate(saved)
        except ValidationError as error:
            raise DamagedError(f"the saved {method} is damaged: {first_problem(error)}") from error
        missing = type(found).model_fields.keys() - saved.keys()
        if missing:
            raise DamagedError(f"the saved {method} is damaged: it lacks '{min(missing)}'")
        problem = found.problem(num_backbones, num_classes if num_backbones else 0)
        if problem:
            raise DamagedError(f"the saved {method} {problem}")
        for name in type(found).model_fields:
            setattr(self._values, name, getattr(found, name))

    def forget(self, classes: Collection[int]) -> None:
        """Mask these class indices and no others; the weights keep what they learnt of them."""
        for slot in self._slots:
            slot.mask(classes)

    def bytes_after(self, num_classes: int, num_more: int = 0) -> int:
        """Count the bytes of the saved files after a coming task, headers included.

        Args:
            num_classes: classes seen by then.
            num_more: backbones that the task adds to the present network. The first task builds
                one in any case.
        """
        network = self.network.value
        count = len(network.backbones) + num_more if network is not None else 1
        outline = self._factory.outline(count, num_classes)
        return sum(
            encoded_size({name: (tuple(t.shape), t.dtype) for name, t in part.items()})
            for slot in self._slots
            if network is not None or not slot.comes_later
            for part in slot.outline(outline).values()
        )

    def refuse_unfit(self, shape: tuple[int, int, int]) -> None:
        """Try the network on one image of shape (C, H, W).

        Raises:
            GraceError: if its backbone cannot take such images.
        """
        network = self.network.value
        if network is not None:
            backbone, trunk = network.backbones[0], network.trunk
            probe = backbone if trunk is None else nn.Sequential(trunk, backbone)
            self._factory.refuse_unfit_backbone(shape, probe)
