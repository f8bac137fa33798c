"""Settings of every method: one frozen model each, in a file of its own.

A model also describes its method to the rest of the package: in a line, by its traits, and by the
place of the class that carries it out. This module imports no registry, so that the settings of a
method in another package can be derived from it while the registry is being made.
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
from grace.configs.methods.replay import ReplaySettings as ReplaySettings
from grace.configs.methods.tagfex import TagFexSettings as TagFexSettings
from grace.configs.methods.wa import WASettings as WASettings
