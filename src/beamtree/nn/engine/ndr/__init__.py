"""The layer of the Neural Data Router as a function of tensors."""
