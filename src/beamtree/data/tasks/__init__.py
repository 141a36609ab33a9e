"""The tasks of beamtree, one module for each data set."""
