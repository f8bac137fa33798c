"""Networks: backbones, heads, the expandable network, merging and folding."""

from grace.networks.backbone import Backbone as Backbone
from grace.networks.backbone import WithMaps as WithMaps
from grace.networks.branching import Branch as Branch
from grace.networks.branching import Fork as Fork
from grace.networks.branching import split as split
from grace.networks.build import build_backbone as build_backbone
from grace.networks.build import without_weights as without_weights
from grace.networks.expandable import ExpandableNetwork as ExpandableNetwork
from grace.networks.expandable import ParameterCounts as ParameterCounts
from grace.networks.expandable import copy_of as copy_of
from grace.networks.folding import folded as folded
from grace.networks.heads import Head as Head
from grace.networks.heads import LinearHead as LinearHead
from grace.networks.heads import align_weights as align_weights
from grace.networks.merging import merge_backbones as merge_backbones
