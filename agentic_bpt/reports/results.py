"""Result files in and out, and the report made of them: a page, a CSV and a picture."""

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from agentic_bpt.errors import InputError
from agentic_bpt.whole_file import write_whole

FORMAT = 1  # of the result file; a newer one is refused, since its numbers may mean another thing
PATTERN = "evaluation-*.json"  # result files in a run folder


class Condition(NamedTuple):
    """The returns of one run under one target return; both targets are None without one."""

    target_multiplier: float | None
    target_return: float | None
    returns: np.ndarray  # float64 [chains, trajectories]


class Dataset(NamedTuple):
    """What the run was trained on: the training episodes' returns, and their hash."""

    path: str
    data_hash: str
    episodes: int
    returns: np.ndarray  # float64 [episodes]
    mean: float
    best_tenth_mean: float
    best: float


class Protocol(NamedTuple):
    """How many trajectories and chains were rolled out, from what prompt, on which seed."""

    trajectories: int
    chains: int
    prompt_trajectories: int
    evaluation_seed: int


class Result(NamedTuple):
    """One evaluation of one training seed, as its file says it."""

    path: Path
    created: datetime
    command: str
    run: str
    method: str
    task: str
    action_repeat: int
    seed: int  # of the training
    protocol: Protocol
    settings: dict[str, Any]
    training: dict[str, Any]
    conditions: tuple[Condition, ...]
    random_returns: np.ndarray  # float64 [chains, trajectories]
    dataset: Dataset
    seconds: dict[str, Any]
    versions: dict[str, str]

    @property
    def has_target(self) -> bool:
        """Say whether the method is told a target return at all."""
        return any(condition.target_return is not None for condition in self.conditions)

    @property
    def main(self) -> Condition:
        """Give the condition that the table shows: target x 1, or the only one."""
        for condition in self.conditions:
            if condition.target_multiplier == 1.0:
                return condition
        return self.conditions[0]

    @property
    def row_key(self) -> tuple[str, str]:
        """Give what a row of the table stands for: the method and its settings."""
        return (self.method, json.dumps(self.settings, sort_keys=True))

    @property
    def is_finite(self) -> bool:
        """Say whether every return in the file is a finite number."""
        arrays = [condition.returns for condition in self.conditions]
        arrays += [self.random_returns, self.dataset.returns]
        return all(np.isfinite(array).all() for array in arrays)


class ReportFiles(NamedTuple):
    """Where a report was written."""

    markdown: Path
    csv: Path
    latex: Path
    png: Path


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Write a result atomically; numbers that are not finite become null, as JSON has no NaN.

    Raises:
        TypeError: A value that has no JSON form.
    """
    text = json.dumps(_plain(document), indent=1, allow_nan=False, ensure_ascii=False)
    write_whole(path, (text + "\n").encode())


def _plain(value: Any) -> Any:
    """Turn NumPy's values, paths and tuples into JSON's own kinds."""
    match value:
        case Mapping():
            return {str(key): _plain(item) for key, item in value.items()}
        case np.ndarray() | np.generic():
            return _plain(value.tolist())
        case list() | tuple():
            return [_plain(item) for item in value]
        case float():
            return value if np.isfinite(value) else None
        case Path():
            return str(value)
    return value


def read_result(path: Path) -> Result:
    """Read one result file.

    Raises:
        InputError: Missing, not JSON, of another kind or a newer format, a key that is missing,
            or returns of another shape than the protocol says.
    """
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); give a result file") from None
    except ValueError as error:
        raise InputError(f"{path}: not a JSON file ({error}); evaluate the run again") from None
    if not isinstance(document, dict) or document.get("kind") != "evaluation":
        kind = document.get("kind") if isinstance(document, dict) else document
        raise InputError(f'{path}: key "kind" must be "evaluation", got {kind!r}')
    if document.get("format") != FORMAT:
        raise InputError(
            f'{path}: key "format" must be {FORMAT}, got {document.get("format")!r}; '
            "evaluate again, or read it with the version that wrote it"
        )
    try:
        return _parsed(Path(path), document)
    except KeyError as error:
        raise InputError(f"{path}: key {error} is missing; evaluate the run again") from None
    except InputError:
        raise
    except (TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{path}: a value is malformed ({error}); evaluate again") from None


def _parsed(path: Path, document: dict[str, Any]) -> Result:
    protocol = Protocol(**{name: int(document["protocol"][name]) for name in Protocol._fields})
    shape = (protocol.chains, protocol.trajectories)
    if min(shape) < 1:
        raise InputError(f"{path}: protocol needs a chain and a trajectory, got {shape}")
    conditions = tuple(
        Condition(
            target_multiplier=_number(entry["target_multiplier"]),
            target_return=_number(entry["target_return"]),
            returns=_returns(entry["returns"], shape, f'{path}: key "conditions[{i}].returns"'),
        )
        for i, entry in enumerate(document["conditions"])
    )
    # Without a target return a multiplier multiplies nothing.
    conditions = tuple(
        condition._replace(target_multiplier=None) if condition.target_return is None else condition
        for condition in conditions
    )
    if not conditions:
        raise InputError(f'{path}: key "conditions" is empty; evaluate the run again')
    multipliers = [condition.target_multiplier for condition in conditions]
    if len(conditions) > 1 and (1.0 not in multipliers or len(set(multipliers)) < len(multipliers)):
        raise InputError(
            f'{path}: key "conditions" must hold target_multiplier 1, and none twice, '
            f"got {multipliers}; evaluate again"
        )
    data = document["dataset"]
    returns_E = np.array(data["returns"], dtype=np.float64)
    if returns_E.ndim != 1 or returns_E.size == 0:
        raise InputError(f'{path}: key "dataset.returns" must be a list, got {returns_E.shape}')
    created = datetime.fromisoformat(document["created"])
    return Result(
        path=path,
        created=created if created.tzinfo else created.replace(tzinfo=UTC),
        command=str(document["command"]),
        run=str(document["run"]),
        method=str(document["method"]),
        task=str(document["task"]),
        action_repeat=int(document["action_repeat"]),
        seed=int(document["seed"]),
        protocol=protocol,
        settings=dict(document["settings"]),
        training=dict(document["training"]),
        conditions=conditions,
        random_returns=_returns(
            document["random"]["returns"], shape, f'{path}: key "random.returns"'
        ),
        dataset=Dataset(
            path=str(data["path"]),
            data_hash=str(data["data_hash"]),
            episodes=int(data["episodes"]),
            returns=returns_E,
            mean=float(data["mean"]),
            best_tenth_mean=float(data["best_tenth_mean"]),
            best=float(data["best"]),
        ),
        seconds=dict(document["seconds"]),
        versions={str(name): str(version) for name, version in document["versions"].items()},
    )


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _returns(rows: Any, shape: tuple[int, int], where: str) -> np.ndarray:
    """Read returns [chains, trajectories]; null is a return that was not a finite number."""
    returns_CN = np.array(rows, dtype=np.float64)
    if returns_CN.shape != shape:
        raise InputError(
            f"{where} must be [chains, trajectories] = {list(shape)}, got {list(returns_CN.shape)}"
        )
    return returns_CN


def read_results(paths: Iterable[Path]) -> list[Result]:
    """Read result files and run folders, in the order given.

    Of a folder only the newest protocol is taken, and of that the newest file of each method,
    settings and seed; a file that is named is always taken, and none is taken twice.

    Raises:
        InputError: As `read_result`, or a folder without results, or nothing given.
    """
    results: dict[Path, Result] = {}
    for path in map(Path, paths):
        found = _newest(path) if path.is_dir() else [read_result(path)]
        for result in found:
            results.setdefault(result.path.resolve(), result)
    if not results:
        raise InputError("no results given: name result files or run folders")
    return list(results.values())


def _newest(folder: Path) -> list[Result]:
    files = sorted(folder.glob(PATTERN))
    if not files:
        below = sorted({str(file.parent) for file in folder.glob(f"*/{PATTERN}")})
        hint = f"name the run folders in it: {' '.join(below)}" if below else "evaluate the run"
        raise InputError(f"{folder}: no {PATTERN} in this folder; {hint}")
    results = sorted(map(read_result, files), key=lambda result: result.created)
    protocol = results[-1].protocol
    kept = {(r.row_key, r.seed): r for r in results if r.protocol == protocol}
    return sorted(kept.values(), key=lambda result: result.path)


def check_comparable(results: Sequence[Result]) -> None:
    """Refuse results that do not belong in one table.

    The prompt is compared between methods that are told a target only: a policy without a target
    takes no prompt.

    Raises:
        InputError: Another task, action repeat, protocol or dataset, saying which files differ in
            what; or the same seed of the same method and settings twice.
    """
    told = [result for result in results if result.has_target]
    compared = [
        ("task", [(r.task, r) for r in results]),
        ("action_repeat", [(r.action_repeat, r) for r in results]),
        ("protocol.trajectories", [(r.protocol.trajectories, r) for r in results]),
        ("protocol.chains", [(r.protocol.chains, r) for r in results]),
        ("protocol.prompt_trajectories", [(r.protocol.prompt_trajectories, r) for r in told]),
        ("protocol.evaluation_seed", [(r.protocol.evaluation_seed, r) for r in results]),
        ("conditions' main target_return", [(r.main.target_return, r) for r in told]),
        ("dataset.data_hash", [(r.dataset.data_hash, r) for r in results]),
    ]
    differences = []
    for name, values in compared:
        files: dict[Any, list[str]] = {}
        for value, result in values:
            files.setdefault(value, []).append(str(result.path))
        if len(files) > 1:
            parts = [f"{value!r} in {', '.join(where)}" for value, where in files.items()]
            differences.append(f"{name} is {' but '.join(parts)}")
    if differences:
        raise InputError(
            f"these results are not one table: {'; '.join(differences)}; "
            "name files that are alike, or evaluate again"
        )
    seen: dict[Any, Result] = {}
    for result in results:
        first = seen.setdefault((result.row_key, result.seed), result)
        if first is not result:
            raise InputError(
                f"{result.path}: seed {result.seed} of {result.method} with these settings is "
                f"also in {first.path}; a training seed counts once: leave one out"
            )


def exclude_unfinished(results: Sequence[Result]) -> tuple[list[Result], list[Result]]:
    """Part the results into those with finite returns only, and those left out by that rule.

    Raises:
        InputError: No result is left.
    """
    kept = [result for result in results if result.is_finite]
    excluded = [result for result in results if not result.is_finite]
    if not kept:
        files = ", ".join(str(result.path) for result in excluded)
        raise InputError(f"every run has returns that are not finite, so no table: {files}")
    return kept, excluded


def write_report(paths: Iterable[Path], out: Path) -> ReportFiles:
    """Write report.md, .csv, .tex and .png of these results into the folder `out`.

    Raises:
        InputError: As `read_results` and `check_comparable`, or `out` is a file.
    """
    # Imported here so that whoever only reads or writes results does not load matplotlib.
    from agentic_bpt.reports.latex import render_latex
    from agentic_bpt.reports.plots import chain_png
    from agentic_bpt.reports.table import build_table, render_csv, render_markdown

    out = Path(out)
    if out.is_file():
        raise InputError(f"{out}: is a file; name a folder for report.md, .csv, .tex and .png")
    results = read_results(paths)
    table = build_table(results)
    files = ReportFiles(*(out / f"report.{kind}" for kind in ("md", "csv", "tex", "png")))
    write_whole(files.png, chain_png(results))
    write_whole(files.csv, render_csv(table).encode())
    write_whole(files.latex, render_latex(table).encode())
    page = [
        f"# {table.task}: {len(results)} result{'s' if len(results) > 1 else ''}",
        f"![Return along the chain, and the dataset's returns]({files.png.name})",
        render_markdown(table),
        provenance(results),
    ]
    write_whole(files.markdown, ("\n\n".join(page) + "\n").encode())
    return files


def provenance(results: Sequence[Result]) -> str:
    """Say in Markdown what the numbers were made with: data, protocol, runs, commands, versions."""
    first = results[0]
    data, protocol = first.dataset, first.protocol
    prompts = sorted({r.protocol.prompt_trajectories for r in results if r.has_target})
    lines = [
        "## Provenance",
        "",
        f"- Data: `{data.path}`, {len(data.returns)} training episodes of {data.episodes}, hash "
        f"`{data.data_hash}`",
        f"- Protocol: chains of n = {protocol.trajectories} trajectories, {protocol.chains} chains "
        f"a run, prompt of {', '.join(map(str, prompts)) or 'no'} trajectories, evaluation seed "
        f"{protocol.evaluation_seed}, action repeat {first.action_repeat}",
    ]
    for name in sorted({name for result in results for name in result.versions}):
        versions = sorted({result.versions.get(name, "not recorded") for result in results})
        differ = " (differs between the runs)" if len(versions) > 1 else ""
        lines.append(f"- {name}: {', '.join(versions)}{differ}")
    lines += [
        "",
        "| run | method | seed | settings | training | evaluation | created |",
        "|---|---|---|---|---|---|---|",
    ]
    for result in results:
        settings = ", ".join(f"{key} = {value}" for key, value in result.settings.items())
        training = ", ".join(f"{key} {_short(value)}" for key, value in result.training.items())
        seconds = ", ".join(f"{key} {_short(value)} s" for key, value in result.seconds.items())
        lines.append(
            f"| `{result.run}` | {result.method} | {result.seed} | {settings} | {training} "
            f"| {seconds} | {result.created.isoformat(timespec='seconds')} |"
        )
    commands = dict.fromkeys(result.command for result in results)
    lines += ["", "Commands:", "", "```", *commands, "```"]
    return "\n".join(lines)


def _short(value: Any) -> str:
    return f"{value:.1f}" if isinstance(value, float) else str(value)
