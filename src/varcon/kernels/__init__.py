"""The heavy inner passes, each a plain-torch twin that defines what a GPU kernel must return."""
