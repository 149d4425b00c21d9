"""The heavy inner passes, each a plain-torch twin that defines what a GPU kernel must return."""

from importlib.util import find_spec

# Asked here and nowhere else. A file that needs triton imports it outright and is itself imported only where
# this is true and the tensors are on a GPU: the import takes a quarter of a second.
HAS_TRITON = find_spec("triton") is not None
