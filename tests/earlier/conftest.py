from earlier_files import tiny_network as tiny_network
from earlier_files import written as written
