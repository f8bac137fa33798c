from support.tiny_streams import tiny_backbones as tiny_backbones
