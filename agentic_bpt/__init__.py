"""An Agentic Transformer that learns in context from many whole trajectories.

Letters in array names say what each axis is, in order (`q_BLHE`):

    B batch (chains)       N trajectories of a chain     T timesteps of a trajectory
    M tokens of a timestep L positions of a sequence     S cached or key positions
    K layers               D width                       F feed-forward width
    H heads                J key-value heads             E head width
    G = B x J groups       C rows of an attention tile   R rows
    O observation          A action                      P physics state

`load` gives a trained agent that acts in any environment of its task. It is imported when it is
first used, so that `import agentic_bpt` starts no device.
"""

from typing import TYPE_CHECKING, Any

from agentic_bpt.errors import InputError

if TYPE_CHECKING:
    from agentic_bpt.acting import load

__all__ = ["InputError", "load"]


def __getattr__(name: str) -> Any:
    """Import the public names that need jax only when they are asked for (PEP 562)."""
    if name == "load":
        from agentic_bpt.acting import load

        return load
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
