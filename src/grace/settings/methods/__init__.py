"""The settings models of all methods, one file each.

A model also describes its method to the rest of the package: a summary line, its traits, and the
path of its class. This module does not import the registry, so that a method of another package can
subclass these models while the registry is built.
"""

from grace.settings.methods.beef import BeefSettings as BeefSettings
from grace.settings.methods.create import CreateSettings as CreateSettings
from grace.settings.methods.der import DERSettings as DERSettings
from grace.settings.methods.dgr import DGRSettings as DGRSettings
from grace.settings.methods.ewc import EWCSettings as EWCSettings
from grace.settings.methods.finetune import FinetuneSettings as FinetuneSettings
from grace.settings.methods.foster import FosterSettings as FosterSettings
from grace.settings.methods.grace import GraceSettings as GraceSettings
from grace.settings.methods.icarl import ICaRLSettings as ICaRLSettings
from grace.settings.methods.joint import JointSettings as JointSettings
from grace.settings.methods.memo import MemoSettings as MemoSettings
from grace.settings.methods.method_settings import AnyMethodSettings as AnyMethodSettings
from grace.settings.methods.method_settings import BaseMethodSettings as BaseMethodSettings
from grace.settings.methods.method_settings import PriorSettings as PriorSettings
from grace.settings.methods.method_settings import SmoothingSettings as SmoothingSettings
from grace.settings.methods.probe import ProbeSettings as ProbeSettings
from grace.settings.methods.replay import ReplaySettings as ReplaySettings
from grace.settings.methods.tagfex import TagFexSettings as TagFexSettings
from grace.settings.methods.wa import WASettings as WASettings
