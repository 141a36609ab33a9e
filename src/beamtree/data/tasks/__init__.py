"""The data sets that beamtree knows, one module each."""
