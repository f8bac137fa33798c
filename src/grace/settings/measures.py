"""Settings of the probe that measures the saturation of the last backbone after every task."""

from typing import Literal

from pydantic import Field

from grace.settings.settings_model import Settings

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
