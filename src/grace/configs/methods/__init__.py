"""The settings models of all methods, one file each.

A model also describes its method to the rest of the package: a summary line, its traits, and the
path of its class. This module does not import the registry, so that a method of another package can
subclass these models while the registry is built.
"""

from grace.configs.methods.beef import BeefSettings as BeefSettings
from grace.configs.methods.create import CreateSettings as CreateSettings
from grace.configs.methods.der import DERSettings as DERSettings
from grace.configs.methods.dgr import DGRSettings as DGRSettings
from grace.configs.methods.ewc import EWCSettings as EWCSettings
from grace.configs.methods.finetune import FinetuneSettings as FinetuneSettings
from grace.configs.methods.foster import FosterSettings as FosterSettings
from grace.configs.methods.grace import GraceSettings as GraceSettings
from grace.configs.methods.icarl import ICaRLSettings as ICaRLSettings
from grace.configs.methods.joint import JointSettings as JointSettings
from grace.configs.methods.memo import MemoSettings as MemoSettings
from grace.configs.methods.method_settings import AnyMethodSettings as AnyMethodSettings
from grace.configs.methods.method_settings import BaseMethodSettings as BaseMethodSettings
from grace.configs.methods.method_settings import PriorSettings as PriorSettings
from grace.configs.methods.method_settings import SmoothingSettings as SmoothingSettings
from grace.configs.methods.probe import ProbeSettings as ProbeSettings
from grace.configs.methods.replay import ReplaySettings as ReplaySettings
from grace.configs.methods.tagfex import TagFexSettings as TagFexSettings
from grace.configs.methods.wa import WASettings as WASettings
