"""Videos: encoded small, of the very chain that is evaluated, and never an error that stops."""

import io
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from agentic_bpt.environments.tasks import Environment
from agentic_bpt.errors import InputError
from agentic_bpt.evaluation import video
from agentic_bpt.evaluation.policy import RandomPolicy
from agentic_bpt.evaluation.rollout import rollout
from agentic_bpt.evaluation.video import Recording, encode, record_video, renderer_problem

TASK, REPEAT = "cartpole_swingup", 100  # ten decisions an episode


def moving_square(frames: int) -> list[np.ndarray]:
    """A red square that moves right on grey, 8 pixels a frame."""
    made = []
    for number in range(frames):
        frame = np.full((240, 320, 3), 128, np.uint8)
        frame[100:120, 8 * number : 8 * number + 20] = (220, 20, 20)
        made.append(frame)
    return made


def noise(frames: int) -> list[np.ndarray]:
    generator = np.random.default_rng(0)
    return [generator.integers(0, 256, (48, 64, 3), dtype=np.uint8) for _ in range(frames)]


@pytest.fixture
def as_gif(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(video, "find_spec", lambda name: None)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw without a renderer."""
    frames = iter(moving_square(36))
    monkeypatch.setattr(Environment, "render", lambda self, *, height, width: next(frames))


def random_policy(trajectories: int, *, chains: int = 1) -> RandomPolicy:
    policy = RandomPolicy(1, seed=3)
    policy.start(np.zeros(chains), trajectories=trajectories)
    return policy


@pytest.mark.usefixtures("as_gif")
def test_gif_shows_the_frames_at_their_times():
    frames = moving_square(10)
    suffix, content = encode(frames, fps=10)
    assert suffix == ".gif"
    image = Image.open(io.BytesIO(content))
    assert (image.n_frames, image.size) == (10, (320, 240))  # pyright: ignore
    for number, frame in enumerate(frames):
        image.seek(number)
        assert image.info["duration"] == 100
        shown = np.asarray(image.convert("RGB"), int)
        assert np.abs(shown - frame).max() <= 8  # of 255, by the palette


@pytest.mark.usefixtures("as_gif")
def test_too_large_a_video_loses_frames_and_keeps_its_length():
    frames = noise(12)
    _, whole = encode(frames, fps=20)
    limit = len(whole) // 3
    _, content = encode(frames, fps=20, max_bytes=limit)
    assert len(content) <= limit
    image = Image.open(io.BytesIO(content))
    durations = []
    for number in range(image.n_frames):  # pyright: ignore
        image.seek(number)
        durations.append(image.info["duration"])
    assert 1 < len(durations) <= 4
    assert sum(durations) == 12 * 50


def test_no_frame_is_no_video():
    with pytest.raises(ValueError, match="got none"):
        encode([])


@pytest.mark.skipif(not find_spec("imageio_ffmpeg"), reason="needs the extra video")
def test_mp4_is_small_and_whole():
    suffix, content = encode(moving_square(30))
    assert suffix == ".mp4"
    assert content[4:8] == b"ftyp"
    assert content.index(b"moov") < content.index(b"mdat")
    assert len(content) < 100_000
    _, smaller = encode(noise(30), max_bytes=20_000)
    assert len(smaller) <= 20_000


@pytest.mark.usefixtures("as_gif", "drawn")
def test_the_video_is_of_the_chain_that_an_evaluation_rolls_out(tmp_path: Path):
    recording = record_video(
        random_policy(2),
        TASK,
        out=tmp_path / "videos" / "at-n0.5",
        trajectories=2,
        seed=5,
        action_repeat=REPEAT,
    )
    assert recording.why_not == ""
    assert recording.path is not None
    assert recording.path == tmp_path / "videos" / "at-n0.5.gif"
    evaluated = rollout(
        random_policy(2, chains=3),
        TASK,
        chains_C=np.arange(3),
        trajectories=2,
        seed=5,
        action_repeat=REPEAT,
    )
    assert recording.returns_N == tuple(evaluated.returns_CN[0])
    image = Image.open(io.BytesIO(recording.path.read_bytes()))
    assert image.n_frames == 20  # pyright: ignore
    caption = np.asarray(image.convert("RGB"))[:14]
    assert caption[:, 280:].max() < 60  # black
    assert caption.max() > 200  # with light letters
    assert [file.name for file in recording.path.parent.iterdir()] == ["at-n0.5.gif"]


@pytest.mark.usefixtures("as_gif", "drawn")
def test_a_long_chain_keeps_every_kth_frame_and_the_last_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(video, "MAX_FRAMES", 5)  # 20 decisions: every fourth
    seen: list[np.ndarray] = []
    monkeypatch.setattr(video, "encode", lambda frames: seen.extend(frames) or (".gif", b"GIF"))
    kept = record_video(
        random_policy(2), TASK, out=tmp_path / "a", trajectories=2, seed=0, action_repeat=REPEAT
    )
    assert kept.path
    assert len(seen) == 2 * 4  # decisions 1, 5, 9, and 10, the last


@pytest.mark.parametrize(
    "error", [InputError("no OpenGL\nrenderer"), AttributeError("eglQueryString")], ids=repr
)
def test_without_a_renderer_the_reason_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(Environment, "render", fail)
    recording = record_video(random_policy(1), TASK, out=tmp_path / "a", trajectories=1, seed=0)
    expected = "no OpenGL renderer" if isinstance(error, InputError) else f"AttributeError: {error}"
    assert recording == Recording(None, expected, ())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("as_gif", "drawn")
def test_a_file_that_cannot_be_written_stops_nothing(tmp_path: Path):
    (tmp_path / "file").write_text("in the way")
    recording = record_video(
        random_policy(1),
        TASK,
        out=tmp_path / "file" / "a",
        trajectories=1,
        seed=0,
        action_repeat=REPEAT,
    )
    assert recording.path is None
    assert "Error" in recording.why_not


@pytest.mark.usefixtures("as_gif")
def test_a_real_picture_where_a_renderer_works(tmp_path: Path):
    problem = renderer_problem(TASK)
    if problem:
        pytest.skip(problem)
    recording = record_video(
        random_policy(1), TASK, out=tmp_path / "a", trajectories=1, seed=0, action_repeat=REPEAT
    )
    assert recording.path is not None
    image = np.asarray(Image.open(io.BytesIO(recording.path.read_bytes())).convert("RGB"))
    assert image[20:].std() > 5  # not one colour
