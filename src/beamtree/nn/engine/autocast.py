"""Autocast in backward passes: PyTorch leaves it on in the forward of a custom function, and off in its backward."""

import torch


class Autocast:
    """The autocast state at the time of construction."""

    def __init__(self, device: str) -> None:
        self.device, self.enabled = device, torch.is_autocast_enabled(device)
        self.dtype = torch.get_autocast_dtype(device)

    def again(self, cache: bool | None = None) -> torch.autocast:
        """A context with the same state.

        cache: whether a weight that is used several times is cast once; None: as set outside.
        """
        return torch.autocast(self.device, self.dtype, self.enabled, cache)
