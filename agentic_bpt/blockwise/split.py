"""Into and out of a part of a layer whose columns are split over devices (tensor parallelism).

Megatron's pair of operators: between `enter_split` and `leave_split` every device of the axis has
some of the columns (heads, hidden units) and all of the rows. One sum over devices on the way out,
and one on the way back. Outside, all devices of the axis hold the same numbers.
"""

from functools import partial

import jax
from jax import lax


def enter_split(x: jax.Array, axis: str | None) -> jax.Array:
    """Hand the same x to every device; its gradient is added up over them. No axis: just x."""
    return x if axis is None else _enter(x, axis)


def leave_split(x: jax.Array, axis: str | None) -> jax.Array:
    """Add up the devices' shares of x; its gradient goes to each of them. No axis: just x."""
    return x if axis is None else _leave(x, axis)


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def _enter(x, axis):
    return x


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def _leave(x, axis):
    return lax.psum(x, axis)


_enter.defvjp(lambda x, axis: (x, None), lambda axis, _, dx: (lax.psum(dx, axis),))
_leave.defvjp(lambda x, axis: (lax.psum(x, axis), None), lambda axis, _, dx: (dx,))
