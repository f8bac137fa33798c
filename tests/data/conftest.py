from support.tiny_streams import quick_disk as quick_disk
from support.tiny_streams import tiny_backbones as tiny_backbones
