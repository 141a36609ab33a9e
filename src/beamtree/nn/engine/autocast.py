"""Autocast in backward passes: PyTorch leaves it on in the forward of a custom function, and off in its backward."""

import torch


class Autocast:
    """The autocast state at the time of construction."""

    def __init__(self, device: str) -> None:
        self.device, self.enabled = device, torch.is_autocast_enabled(device)
        self.dtype = torch.get_autocast_dtype(device)

    def again(self) -> torch.autocast:
        """A context with the same state."""
        return torch.autocast(self.device, self.dtype, self.enabled)
