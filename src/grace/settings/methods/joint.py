"""Settings of joint training, with the published values as defaults."""

from typing import Literal

from pydantic import Field
from typing_extensions import override

from grace.settings.methods.method_settings import SmoothingSettings
from grace.settings.traits import Traits


class JointSettings(SmoothingSettings):
    """Upper bound: a fresh network on all images of all seen classes, with the base recipe."""

    summary = "upper bound: a fresh network on all images of all seen classes"
    implementation = "grace.methods.joint:Joint"
    traits = Traits(memory="all images", learns_known_classes=True)

    name: Literal["joint"] = "joint"
    final_task_only: bool = Field(
        False,
        description="true: train at the last task only, as studies do, and skip all earlier tasks",
    )

    @property
    @override
    def trains_last_task_only(self) -> bool:
        """True if ``final_task_only`` is set."""
        return self.final_task_only
