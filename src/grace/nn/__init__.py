"""Networks: backbones, heads, the expandable network, merging and folding."""

from grace.nn.backbone import Backbone as Backbone
from grace.nn.backbone import WithMaps as WithMaps
from grace.nn.branching import Branch as Branch
from grace.nn.branching import Fork as Fork
from grace.nn.branching import split as split
from grace.nn.build import build_backbone as build_backbone
from grace.nn.build import without_weights as without_weights
from grace.nn.expandable import ExpandableNetwork as ExpandableNetwork
from grace.nn.expandable import ParameterCounts as ParameterCounts
from grace.nn.expandable import copy_of as copy_of
from grace.nn.folding import folded as folded
from grace.nn.heads import Head as Head
from grace.nn.heads import LinearHead as LinearHead
from grace.nn.heads import align_weights as align_weights
from grace.nn.merging import merge_backbones as merge_backbones
