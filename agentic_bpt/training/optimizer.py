"""The optimiser: AdamW with warm-up, a schedule and gradient clipping, all from optax."""

import dataclasses

import optax

from agentic_bpt.errors import InputError

SCHEDULES = ("constant", "cosine")


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """AdamW and its schedule."""

    learning_rate: float = 1e-3
    """Peak learning rate."""
    warmup_steps: int = 100
    """Updates over which the learning rate grows linearly; the first is peak / warmup."""
    schedule: str = "cosine"
    """After warm-up: "constant", or "cosine" down to a hundredth of the peak at the last step."""
    weight_decay: float = 1e-4
    """Decoupled weight decay."""
    gradient_clip: float | None = 1.0
    """Largest global norm of the gradient; None: any."""

    def __post_init__(self):
        """Refuse what cannot train."""
        if self.learning_rate <= 0:
            raise InputError(f"learning_rate must be positive, got {self.learning_rate}")
        if self.schedule not in SCHEDULES:
            raise InputError(f"schedule must be one of {SCHEDULES}, got {self.schedule!r}")


def make_optimizer(config: OptimizerConfig, *, steps: int) -> optax.GradientTransformation:
    """Build the optimiser of a run of `steps` updates."""
    warmup = min(config.warmup_steps, steps)
    after: optax.Schedule = optax.constant_schedule(config.learning_rate)
    if config.schedule == "cosine":
        after = optax.cosine_decay_schedule(
            config.learning_rate, max(1, steps - warmup), alpha=0.01
        )
    warm = optax.linear_schedule(
        config.learning_rate / max(1, warmup), config.learning_rate, warmup
    )
    clip = config.gradient_clip
    return optax.chain(
        optax.identity() if clip is None else optax.clip_by_global_norm(clip),
        optax.adamw(
            optax.join_schedules([warm, after], [warmup]), weight_decay=config.weight_decay
        ),
    )
