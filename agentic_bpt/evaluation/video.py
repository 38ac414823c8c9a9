"""A video of one chain: rendered while it is rolled out, captioned, and encoded small."""

import io
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np

from agentic_bpt.environments.tasks import Environment, task_spec
from agentic_bpt.errors import InputError
from agentic_bpt.evaluation.policy import Policy
from agentic_bpt.evaluation.rollout import rollout
from agentic_bpt.whole_file import write_whole

HEIGHT, WIDTH = 240, 320  # pixels; multiples of 16, which H.264 wants
FRAMES_PER_SECOND = 12
MAX_FRAMES = 240
"""Drawn of a chain: 20 seconds, however long it is. One costs up to 0.15 s without a GPU."""
MAX_BYTES = 2_000_000
"""Of a file; a longer video loses frames, evenly, until it is smaller."""
_CAPTION_HEIGHT = 14  # pixels
_GIF_COLORS = 64
_MP4_QUALITY = 6  # of 10, in imageio-ffmpeg's words


class Recording(NamedTuple):
    """What came of `record_video`."""

    path: Path | None
    """The video, .mp4 or .gif; None where there is none."""
    why_not: str
    """Why there is no video, in one line; empty where there is one."""
    returns_N: tuple[float, ...]
    """Return of each trajectory in the video; empty without one."""


class _Film:
    """Keeps every k-th picture of a chain, and the last one of each trajectory."""

    def __init__(self, *, trajectories: int, every: int):
        self.frames: list[np.ndarray] = []
        self._trajectories, self._every = trajectories, every
        self._trajectory, self._decisions, self._return = -1, 0, 0.0

    def watch(
        self, environments: Sequence[Environment], trajectory: int, rewards_C: np.ndarray
    ) -> None:
        """Look at the first environment after a step, as `rollout` asks."""
        if trajectory != self._trajectory:
            self._trajectory, self._decisions, self._return = trajectory, 0, 0.0
        self._decisions += 1
        self._return += float(rewards_C[0])
        last = self._decisions == environments[0].episode_steps
        if last or self._decisions % self._every == 1 % self._every:
            caption = f"trajectory {trajectory + 1} of {self._trajectories}, return so far "
            frame = environments[0].render(height=HEIGHT, width=WIDTH)
            self.frames.append(_captioned(frame, f"{caption}{self._return:.1f}"))


def record_video(
    policy: Policy,
    task: str,
    *,
    out: Path,
    trajectories: int,
    seed: int,
    action_repeat: int = 1,
) -> Recording:
    """Roll out one chain and write a video of it; the policy has been started for one chain.

    It is chain 0 of an evaluation on the same seed: the same episodes and, in groups of one size,
    the same returns. Without a renderer, or where the file cannot be written, nothing is raised:
    the reason stands in what is returned, since a missing picture must not stop an evaluation.

    Args:
        policy: acts; started with one target return.
        task: full name of the task.
        out: the file without its suffix, which says how it is encoded: .mp4 with the extra
            `video`, an animated .gif without it.
        trajectories: episodes in the chain, n.
        seed: of the evaluation.
        action_repeat: control steps an action is held.
    """
    problem = renderer_problem(task)
    if problem:
        return Recording(None, problem, ())
    decisions = trajectories * (task_spec(task).episode_steps // action_repeat)
    film = _Film(trajectories=trajectories, every=-(-decisions // MAX_FRAMES))
    try:
        rolled = rollout(
            policy,
            task,
            chains_C=np.zeros(1, int),
            trajectories=trajectories,
            seed=seed,
            action_repeat=action_repeat,
            watch=film.watch,
        )
        suffix, content = encode(film.frames)
        path = out.with_name(out.name + suffix)
        write_whole(path, content)
    except (InputError, OSError) as error:
        return Recording(None, _in_one_line(error), ())
    return Recording(path, "", tuple(float(total) for total in rolled.returns_CN[0]))


def renderer_problem(task: str) -> str:
    """Say in one line why no picture of a task can be drawn here; empty if one can."""
    try:
        environment = Environment(task)
        environment.reset(0)
        environment.render(height=HEIGHT, width=WIDTH)
    except Exception as error:  # whatever an OpenGL driver raises is the reason
        return _in_one_line(error)
    return ""


def encode(
    frames: Sequence[np.ndarray], *, fps: float = FRAMES_PER_SECOND, max_bytes: int = MAX_BYTES
) -> tuple[str, bytes]:
    """Give the suffix and the bytes of a video of frames, uint8 [H, W, 3].

    Where it would be larger than `max_bytes`, frames are left out evenly and shown for longer, so
    that its length in seconds stays.

    Raises:
        ValueError: there is no frame.
        OSError: ffmpeg wrote no video.
    """
    if not frames:
        raise ValueError("a video needs a frame, got none")
    suffix, encoder = (".mp4", _mp4) if find_spec("imageio_ffmpeg") else (".gif", _gif)
    content = encoder(frames, fps)
    while len(content) > max_bytes and len(frames) > 1:
        fewer = -(-len(content) // max_bytes)
        frames, fps = frames[::fewer], fps / fewer
        content = encoder(frames, fps)
    return suffix, content


def _gif(frames: Sequence[np.ndarray], fps: float) -> bytes:
    """Encode with one palette for all frames, so that only what moved is stored."""
    from PIL import Image

    some = frames[:: max(1, len(frames) // 8)]
    palette = Image.fromarray(np.concatenate(some)).quantize(_GIF_COLORS)
    images = [
        Image.fromarray(frame).quantize(palette=palette, dither=Image.Dither.NONE)
        for frame in frames
    ]
    stream = io.BytesIO()
    images[0].save(
        stream,
        format="GIF",
        save_all=True,
        append_images=images[1:],
        duration=round(1000 / fps),  # milliseconds a frame
        loop=0,
    )
    return stream.getvalue()


def _mp4(frames: Sequence[np.ndarray], fps: float) -> bytes:
    """Encode in H.264, with the index in front so that it plays while it loads."""
    import imageio_ffmpeg  # pyright: ignore[reportMissingImports]

    height, width = frames[0].shape[:2]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "chain.mp4"
        writer = imageio_ffmpeg.write_frames(
            str(path),
            (width, height),
            fps=fps,
            quality=_MP4_QUALITY,
            output_params=["-movflags", "+faststart"],
        )
        writer.send(None)  # runs the generator up to its first frame
        for frame in frames:
            writer.send(frame.tobytes())
        writer.close()
        content = path.read_bytes()
    if b"ftyp" not in content[:16]:
        raise OSError(f"ffmpeg wrote no video, got {len(content)} bytes")
    return content


def _captioned(frame: np.ndarray, text: str) -> np.ndarray:
    """Write a line of text on a black band at the top of a frame."""
    from PIL import Image, ImageDraw

    image = Image.fromarray(frame)
    draw = ImageDraw.Draw(image)
    draw.rectangle((0, 0, image.width, _CAPTION_HEIGHT), fill=(0, 0, 0))
    draw.text((4, 1), text, fill=(255, 255, 255))
    return np.asarray(image)


def _in_one_line(error: Exception) -> str:
    text = str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
    return " ".join(text.split())
