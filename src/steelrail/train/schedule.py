"""Learning rate of each step: linear warm-up, then a cosine down to a share of the peak. Pure."""

from __future__ import annotations

import math

from steelrail.config.schema import Optimizer


def learning_rate(settings: Optimizer, steps: int, step: int) -> float:
    """Return the learning rate of ``step`` (1 to ``steps``).

    Warm-up reaches the peak at step ``warmup_steps``; the cosine ends at ``final_ratio`` x peak in the last step.
    """
    if step <= settings.warmup_steps:
        return settings.learning_rate * step / settings.warmup_steps
    length = max(1, steps - settings.warmup_steps)
    progress = min(1.0, (step - settings.warmup_steps) / length)
    height = 0.5 * (1.0 + math.cos(math.pi * progress))
    return settings.learning_rate * (settings.final_ratio + (1.0 - settings.final_ratio) * height)
