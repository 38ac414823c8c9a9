"""D4RL-style HDF5 files in: one row a step, cut into episodes where terminals and timeouts say."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import h5py
import numpy as np

from agentic_bpt.datasets.exchange import (
    ExchangeResult,
    below_reset,
    discount_of,
    import_episodes,
    require_widths,
)
from agentic_bpt.datasets.exorl import Episode
from agentic_bpt.datasets.listing import MAX_STEPS
from agentic_bpt.datasets.trajectory import ACTION_TOLERANCE
from agentic_bpt.environments.tasks import TaskSpec, domain_spec
from agentic_bpt.errors import InputError

_REQUIRED = ("observations", "actions", "rewards", "terminals", "timeouts")
_OPTIONAL = ("next_observations", "infos/qpos", "infos/qvel")
_FLAGS = ("terminals", "timeouts")
_WIDE = ("observations", "next_observations", "actions", "infos/qpos", "infos/qvel")
_BLOCK_ROWS = 2**16  # of flags, read at once

# The observation after a step is the one before the next step; where they differ by more than
# float32 rounding, an episode ended that no flag marks.
_CONTINUITY_TOLERANCE = 1e-5  # of the larger of 1 and the number


class _Span(NamedTuple):
    start: int
    stop: int
    """one after the last row"""
    terminated: bool
    """whether a terminal state ended it, and not the time limit"""
    whole: bool
    """whether its end is in the file"""


def import_d4rl(
    path: Path,
    *,
    domain: str,
    expl_agent: str,
    out: Path,
    progress: Callable[[int, int], None] | None = None,
) -> ExchangeResult:
    """Write the episodes of a D4RL-style HDF5 file as ExoRL does.

    A row holds s_t, a_t and r_t; `terminals` or `timeouts` mark the last row of an episode. Every
    reward is kept, so the return of an episode is the sum of its rewards in the file. Rows after
    the last mark are left out: how that episode would have ended is not known. `infos/qpos` and
    `infos/qvel`, if they are of the domain's width, become the physics.

    Args:
        path: the file.
        domain: ExoRL's word for the body in it, such as `walker`; the file does not say it.
        expl_agent: name for the collector, a folder.
        out: folder of data sets; the episodes go to `<out>/<domain>/<expl_agent>/buffer`.
        progress: called with (rows done, rows in all) after each episode.

    Raises:
        InputError: naming the file, the key, the row and what to do; nothing is left behind.
    """
    path = Path(path)
    spec = domain_spec(domain)
    notes: list[str] = []
    with _opened(path) as file:
        arrays = _arrays(file, path)
        require_widths(
            spec,
            observation_width=arrays["observations"].shape[1],
            action_width=arrays["actions"].shape[1],
            where=str(path),
        )
        episodes = _Source(path, arrays, spec, notes).episodes(progress)
        return import_episodes(episodes, out=out, domain=domain, expl_agent=expl_agent, notes=notes)


class _Source:
    """An open file, read episode by episode; every row is checked as it is read."""

    def __init__(
        self, path: Path, arrays: dict[str, h5py.Dataset], spec: TaskSpec, notes: list[str]
    ) -> None:
        self._path = path
        self._arrays = arrays
        self._notes = notes
        self._rows = len(arrays["observations"])
        self._has_next = "next_observations" in arrays
        self._has_physics = self._physics_fits(spec)
        if not self._has_next:
            notes.append(
                f"{path}: has no next_observations, so the observation after the last action of an "
                "episode is not known: the one before it stands there"
            )
        if self._has_physics:
            notes.append(
                f"{path}: infos/qpos and infos/qvel hold no state after the last action of an "
                "episode: the one before it stands there, and relabelling takes it for the last "
                "reward"
            )

    def episodes(self, progress: Callable[[int, int], None] | None) -> Iterator[Episode]:
        """Read every whole episode.

        Raises:
            InputError: a bad row, or no whole episode.
        """
        count = 0
        for span in self._spans():
            if span.whole:
                yield self._episode(span, count)
                count += 1
            elif count:
                self._notes.append(
                    f"{self._path}: left out rows {span.start} to {span.stop - 1}: no terminal or "
                    "timeout ends the last episode"
                )
            if progress is not None:
                progress(span.stop, self._rows)
        if count == 0:
            raise InputError(
                f"{self._path}: keys 'terminals' and 'timeouts': mark no end of an episode; set "
                f"one in the last row of each; got {self._rows} rows"
            )

    def _spans(self) -> Iterator[_Span]:
        """Find the episodes, holding one block of flags."""
        start = 0
        for first in range(0, self._rows, _BLOCK_ROWS):
            last = min(first + _BLOCK_ROWS, self._rows)
            terminal_R = self._flags("terminals", first, last)
            ends_R = terminal_R | self._flags("timeouts", first, last)
            for row in np.flatnonzero(ends_R):
                stop = first + int(row) + 1
                self._require_length(start, stop)
                yield _Span(start, stop, bool(terminal_R[row]), whole=True)
                start = stop
            self._require_length(start, last)
        if start < self._rows:
            yield _Span(start, self._rows, terminated=False, whole=False)

    def _require_length(self, start: int, stop: int) -> None:
        if stop - start > MAX_STEPS:
            raise InputError(
                f"{self._path}: keys 'terminals' and 'timeouts': mark no end in {MAX_STEPS} rows; "
                f"set one in the last row of each episode; got none from row {start} on"
            )

    def _episode(self, span: _Span, count: int) -> Episode:
        observations_TO = self._numbers("observations", span)
        actions_TA = self._numbers("actions", span)
        self._refuse(
            np.abs(actions_TA) > 1 + ACTION_TOLERANCE,
            actions_TA,
            span,
            "actions",
            "must lie in [-1, 1], before scaling to the actuators; scale the actions back",
        )
        final_O = observations_TO[-1]
        if self._has_next:
            next_TO = self._numbers("next_observations", span)
            self._refuse_gaps(observations_TO, next_TO, span)
            final_O = next_TO[-1]
        steps = len(actions_TA)
        return Episode(
            observation=np.vstack([observations_TO, final_O]),
            action=below_reset(actions_TA),
            reward=below_reset(self._numbers("rewards", span)[:, 0]),
            discount=discount_of(steps, terminated=span.terminated),
            physics=self._physics(span) if self._has_physics else None,
            action_repeat=1,
            name=f"episode_{count:06d}_{steps}.npz",
        )

    def _refuse_gaps(self, observations_TO: np.ndarray, next_TO: np.ndarray, span: _Span) -> None:
        scale_TO = np.maximum(np.abs(observations_TO[1:]), 1)
        self._refuse(
            np.abs(next_TO[:-1] - observations_TO[1:]) > _CONTINUITY_TOLERANCE * scale_TO,
            next_TO[:-1],
            span,
            "next_observations",
            "is not the observation of the row below, so another episode begins there; mark the "
            "end in timeouts",
        )

    def _physics_fits(self, spec: TaskSpec) -> bool:
        parts = [self._arrays[key] for key in ("infos/qpos", "infos/qvel") if key in self._arrays]
        if len(parts) < 2:
            return False
        width = sum(part.shape[1] for part in parts)
        if width != spec.physics_width:
            self._notes.append(
                f"{self._path}: left out infos/qpos and infos/qvel: the physics of {spec.domain} "
                f"has {spec.physics_width} numbers, they have {width}; only --relabel stored works"
            )
        return width == spec.physics_width

    def _physics(self, span: _Span) -> np.ndarray:
        parts = [self._numbers(key, span, np.float64) for key in ("infos/qpos", "infos/qvel")]
        physics_TP = np.hstack(parts)
        return np.vstack([physics_TP, physics_TP[-1]])

    def _numbers(self, key: str, span: _Span, dtype: type[np.floating] = np.float32) -> np.ndarray:
        """Read rows of an array as finite numbers, [T, W]."""
        values = self._read(key, span.start, span.stop)
        with np.errstate(over="ignore"):
            values_TW = values.reshape(len(values), -1).astype(dtype)
        rule = "every number must be finite; leave this episode out"
        self._refuse(~np.isfinite(values_TW), values_TW, span, key, rule)
        return values_TW

    def _flags(self, key: str, first: int, last: int) -> np.ndarray:
        flags_R = self._read(key, first, last).reshape(-1)
        wrong_R = (flags_R != 0) & (flags_R != 1)
        block = _Span(first, last, terminated=False, whole=False)
        self._refuse(wrong_R[:, None], flags_R[:, None], block, key, "must be true or false")
        return flags_R.astype(bool)

    def _read(self, key: str, start: int, stop: int) -> np.ndarray:
        try:
            return self._arrays[key][start:stop]
        except OSError as error:
            raise InputError(
                f"{self._path}: key {key!r}: rows {start} to {stop - 1} are damaged; download or "
                f"copy it again; got {error}"
            ) from error

    def _refuse(
        self, wrong_RW: np.ndarray, values_RW: np.ndarray, span: _Span, key: str, rule: str
    ) -> None:
        """Name the first wrong row of a span, as the file counts rows."""
        if wrong_RW.any():
            row, column = np.argwhere(wrong_RW)[0]
            raise InputError(
                f"{self._path}: key {key!r}: {rule}; got {values_RW[row, column]} in row "
                f"{span.start + row}"
            )


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[h5py.File]:
    if not path.is_file():
        raise InputError(f"{path}: is not a file; give the HDF5 file")
    try:
        file = h5py.File(path, "r")
    except OSError as error:
        raise InputError(f"{path}: is not a whole HDF5 file; download or copy it again") from error
    with file:
        yield file


def _arrays(file: h5py.File, path: Path) -> dict[str, h5py.Dataset]:
    """Look up the arrays without reading them; all have the same number of rows."""
    arrays = {key: _array(file, key, path) for key in (*_REQUIRED, *_OPTIONAL) if key in file}
    missing = [key for key in _REQUIRED if key not in arrays]
    if missing:
        # Without timeouts two episodes would become one where a time limit parted them.
        raise InputError(
            f"{path}: a D4RL file has the keys {', '.join(_REQUIRED)}; add what is missing, with "
            f"timeouts true in the last row before a time limit; got none named "
            f"{', '.join(missing)}"
        )
    shape = arrays["observations"].shape
    for key, array in arrays.items():
        wanted = shape if key == "next_observations" else (shape[0], *array.shape[1:])
        if array.shape != wanted:
            raise InputError(
                f"{path}: key {key!r}: must have the shape {list(wanted)} to go with observations; "
                f"download the file again; got {list(array.shape)}"
            )
    return arrays


def _array(file: h5py.File, key: str, path: Path) -> h5py.Dataset:
    array = file[key]
    if not isinstance(array, h5py.Dataset) or array.shape is None:
        raise InputError(f"{path}: key {key!r}: must be an array; write it as h5py does")
    if array.file.filename != file.filename or array.external or array.is_virtual:
        raise InputError(f"{path}: key {key!r}: points to another file: refused; copy it in")
    if array.dtype.kind not in ("biuf" if key in _FLAGS else "iuf"):
        raise InputError(
            f"{path}: key {key!r}: must hold numbers; objects are never loaded: save it as "
            f"float32, got dtype {array.dtype}"
        )
    flat = array.ndim == 2 and (key in _WIDE or array.shape[1] == 1)
    if not flat and (key in _WIDE or array.ndim != 1):
        wanted = "[steps, numbers]" if key in _WIDE else "[steps]"
        raise InputError(
            f"{path}: key {key!r}: must have the shape {wanted}; flatten it; got "
            f"{list(array.shape)}"
        )
    return array
