"""Will it fit? Bytes of the real training step on a device, present or not."""

from agentic_bpt.planner.prediction import Prediction, predict, require_fit

__all__ = ["Prediction", "predict", "require_fit"]
