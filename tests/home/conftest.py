from support.hostile_model import sound_model as sound_model
from support.hostile_model import spoilt as spoilt
from support.tiny_streams import tiny_backbones as tiny_backbones
