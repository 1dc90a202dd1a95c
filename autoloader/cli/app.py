"""The ``autoloader`` command: its commands with options, help and examples, and how it ends.

A function here is one command. Its docstring is the command's help; the section ``Options`` has the
help of its parameters. Parameters that several commands have are types at the top, with their help
in ``every_command``: they mean the same everywhere. The module that does the work is imported when
the command runs, so that help needs neither NumPy nor pydantic.

``--set`` takes a knob (``ring_slots=8``, ``bridge.cycle_length=2``) or a path in the spec
(``batch.size=32``, ``datasets.bridge.weight=2``). ``knobs.`` before a name says that it is a knob,
``spec.`` that it is not. A transform is a function that a spec names. It is found on the import
path, in the working directory or in the spec's folder; ``--no-transforms`` refuses it.

Exit codes: 0 ok; 1 ``doctor`` found something; 2 bad spec, profile or arguments; 3 the RAM floor
cannot be met; 4 a data source failed; 70 internal error; 130 interrupted. An ``AutoloaderError`` is
shown as what happened and what to do, never as a traceback. With ``--json`` every error is the one
JSON document on stdout as well, wrong arguments included.

Not here: the work (a module of the command's name, mostly), reading a spec (``spec``), finding and
calling transforms (``samples.transforms``).
"""

from __future__ import annotations

import contextlib
import copy
import inspect as inspection
import re
import resource
import sys
import traceback
import typing
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup
from typer.models import ParameterInfo

import autoloader
from autoloader.cli.output import (
    answered,
    discard_unwritable,
    emit,
    emit_json,
    flush_stdout,
    log_to_stderr,
    note,
    open_streams,
    use_json,
    write_new,
)
from autoloader.errors import (
    AutoloaderError,
    BudgetInfeasibleError,
    SpecError,
    UsageError,
    in_our_words,
    nearest,
    shown,
)
from autoloader.host.extras import needs
from autoloader.host.units import format_bytes, parse_floor, parse_seconds

if TYPE_CHECKING:
    from autoloader.spec import PipelineSpec

INTERNAL_ERROR = 70
INTERRUPTED = 130
INTERNAL_REMEDY = "this is a fault of autoloader; please report it with this message"
# Base of the errors of typer's command line library; typer gives it no name.
_CommandLineError: Any = typer.BadParameter.__mro__[2]
SETTING = re.compile(r"[A-Za-z_][\w.-]*=.*", re.DOTALL)
"""A word that ``--set`` takes."""
_spec_file: Path | None = None
"""Spec of the command that runs, for its errors."""
_Function = TypeVar("_Function", bound=Callable[..., None])
_WORDS = re.compile(r"^    (\w+): (.*?)(?=^    \w+: |\Z)", re.MULTILINE | re.DOTALL)


def permit_transforms(place: Path | None, *, allowed: bool) -> None:
    """Let the transforms of a spec be imported, or refuse them, before the spec is read."""
    from autoloader.samples.transforms import transform

    if not allowed:
        transform.refuse()
    elif place is not None:
        with contextlib.suppress(OSError):  # the working directory is gone
            transform.permit(str(Path.cwd()), str(place.absolute().parent))


def read_spec(
    place: Path, words: Sequence[str] | None = None, *, knobs_first: bool = False
) -> tuple[PipelineSpec, dict[str, str]]:
    """Give the spec in a file with ``--set`` over it, and the knobs that ``--set`` names.

    Args:
        place: path of the spec file.
        words: words such as "ring_slots=8"; of two for one name the later wins.
        knobs_first: whether a bare name of a knob is the knob where the spec has that name too.

    Raises:
        UsageError: a word is no setting, or names both a knob and a field.
        SpecError: the spec, with the settings over it, is wrong.
    """
    from autoloader.spec import PipelineSpec
    from autoloader.spec.reading import read_document

    knobs: dict[str, str] = {}
    document = read_document(place)
    for name, text in parse_settings(words).items():
        if (knob := _knob_of(name, document, knobs_first)) is None:
            _put(document, name.removeprefix("spec."), text)
        else:
            knobs[knob] = text
    return PipelineSpec.from_mapping(document, folder=place.parent), knobs


def parse_settings(words: Sequence[str] | None) -> dict[str, str]:
    """Give ``{"decode_threads": "4"}`` for "decode_threads=4"; later words win.

    Raises:
        UsageError: a word has no "=".
    """
    values = {}
    for word in words or ():
        name, equals, value = word.partition("=")
        if not equals or not name.strip() or not value.strip():
            raise UsageError(
                f"--set {word!r} is not NAME=VALUE",
                remedy="write knob=value or field=value, such as --set decode_threads=4 "
                "bridge.cycle_length=2 batch.size=32",
            )
        values[name.strip()] = value.strip()
    return values


def _knob_of(name: str, document: dict[str, Any], knobs_first: bool) -> str | None:
    """The knob that a name means; ``None``: it is a path in the spec."""
    from autoloader.spec import PipelineSpec
    from autoloader.spec.knobs import Knobs
    from autoloader.spec.reading import datasets_of

    if name.startswith("knobs."):
        return name.removeprefix("knobs.")
    head, _, rest = name.partition(".")
    if head not in {*PipelineSpec.model_fields, "defaults", "spec"}:
        return name
    bare = not rest and head in Knobs.model_fields
    if bare and knobs_first:
        return name
    datasets = [one.get("name") for one in datasets_of(document)]
    if bare or (rest in Knobs.model_fields and head in datasets):
        raise UsageError(
            f"--set {name}: this name is both a knob and a field of the spec",
            remedy=f"write knobs.{name}=… for the knob, or spec.{name}=… for the field",
        )
    return None


def _put(document: dict[str, Any], path: str, text: str) -> None:
    """Put a value, written as in YAML, at a path such as ``datasets.bridge.weight``."""
    from autoloader.host.files import DocumentError
    from autoloader.spec.reading import datasets_of, parse_yaml

    *above, leaf = path.split(".")
    holder: Any = document
    if above[:1] == ["datasets"]:
        named = {one.get("name"): one for one in datasets_of(document)}
        name, above = above[1] if above[1:] else leaf, above[2:]
        if name not in named:
            raise UsageError(
                f"--set {path}: the spec has no dataset {name!r}",
                remedy=nearest(name, [str(one) for one in named]),
            )
        holder = named[name]
    for part in above:
        inner = holder.get(part) or {}
        if not isinstance(inner, dict):
            kept = f"train: {inner}, " * (part == "split" and leaf != "train")
            raise UsageError(
                f"--set {path}: {part} is {shown(inner)}, which is no block of fields",
                remedy=f"give {part} a block, such as {{{kept}{leaf}: {text}}}, in the file or by "
                "--set",
            )
        holder[part] = dict(inner)  # an alias may share it
        holder = holder[part]
    try:
        holder[leaf] = parse_yaml(text)
    except DocumentError as error:
        raise UsageError(f"--set {path}={text}: {error.what}", remedy=error.remedy) from error


_OTHER_NAMES = {"--out": "--output", "--host-profile": "--profile"}
"""Names that options have too; help shows the second."""


def _flags(params: list[Any]) -> list[Any]:
    """``params``, whose last one is help: a flag takes no value, though typer shows "<bool>"."""
    params[-1].metavar = ""
    return params


class Program(TyperGroup):
    """Commands, and help without a type."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Parameters for parsing and for the help page; Click calls this."""
        return _flags(super().get_params(ctx))


class Command(TyperCommand):
    """A command that also takes ``--json``, and ``--no-transforms`` where it reads a spec."""

    @property
    def _reads_spec(self) -> bool:
        return any((one.name, one.param_type_name) == ("spec", "argument") for one in self.params)

    def get_params(self, ctx: Any) -> list[Any]:
        """Parameters for parsing and for the help page; Click calls this.

        Those of the command come first, then the options of every command, then help. The option
        ``--no-transforms`` is among them only where the command reads a spec.
        """
        *own, help_option = _flags(super().get_params(ctx))  # which Click puts last
        added = [one for one in _added_options() if self._reads_spec or one.name != "no_transforms"]
        return [*own, *added, help_option]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse words: ``_OTHER_NAMES``, ``--spec SPEC``, many values of ``--set``, too."""
        words = list(_one_value_each(args))
        for other, name in _OTHER_NAMES.items():
            words = [re.sub(f"^{other}(=|$)", rf"{name}\1", word) for word in words]
        if self._reads_spec:
            words = [word.removeprefix("--spec=") for word in words if word != "--spec"]
        return super().parse_args(ctx, words)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Words of the usage line, without the braces that typer puts around an argument."""
        return [one.replace("{", "").replace("}", "") for one in super().collect_usage_pieces(ctx)]


def _one_value_each(words: Sequence[str]) -> Iterator[str]:
    """Repeat ``--set`` before each further ``NAME=VALUE`` that follows one."""
    among = False
    for before, word in zip(("", *words), words, strict=False):
        if before == "--set" and not word.startswith("-"):
            parse_settings([word])  # refuses "--set decode_threads 4" by the word without "="
        elif among and SETTING.fullmatch(word):
            yield "--set"
        among = before == "--set" or (among and bool(SETTING.fullmatch(word)))
        yield word


def _refuse_transforms(context: typer.Context, refused: bool) -> None:
    """Note ``--no-transforms``, before the argument SPEC is read."""
    context.meta["no_transforms"] = refused


def _with_transforms(context: typer.Context, spec: Path | None) -> Path | None:
    """Note the command's spec, and let its transforms be imported unless they are refused."""
    global _spec_file
    if not context.resilient_parsing:
        _spec_file = spec
        permit_transforms(spec, allowed=not context.meta.get("no_transforms"))
    return spec


def _checked_floor(parameter: typer.CallbackParam, text: str | None) -> str | None:
    """A floor as it is written, refused before the command does anything."""
    if text is not None:
        parse_floor(text, name=parameter.opts[0])
    return text


SpecFile = Annotated[Path, typer.Argument(metavar="SPEC", callback=_with_transforms)]
AnySpecFile = Annotated[Path | None, typer.Argument(metavar="SPEC", callback=_with_transforms)]
Settings = Annotated[list[str] | None, typer.Option("--set", metavar="NAME=VALUE ...")]
Floor = Annotated[str | None, typer.Option(callback=_checked_floor)]
OutputFile = Annotated[Path | None, typer.Option("-o", "--output")]
AtLeast1 = Annotated[int, typer.Option(min=1)]


def every_command(
    no_transforms: Annotated[
        bool, typer.Option(is_eager=True, callback=_refuse_transforms)
    ] = False,
    json: bool = False,
) -> None:
    """Describe what several commands take; nothing calls this function.

    Its signature gives the options that ``Command`` adds to each command: callbacks and
    ``run_command`` read their values. ``Options`` has the help of these and of other parameters
    that several commands have.

    Options:
    no_transforms: Refuse a spec that names a transform (a Python function) instead of running it.
    json: Write the result to stdout as one JSON document.
    spec: YAML file that describes your datasets; `autoloader init` writes one.
    settings: Use other knobs (threads, buffers) or fields of the spec in this call; several may
        follow: ring_slots=8 batch.size=32 datasets.bridge.weight=2. `autoloader plan -v SPEC`
        lists the knobs.
    profile: Host profile (a machine's limits and knobs): a name from `autoloader profile list`,
        or a path; default: the one that fits this host.
    strict: Stop with an error if this host is smaller than the profile asks for; default: lower
        its values to fit.
    ram_floor: Memory that must stay free, such as "5GB"; default: the profile's.
    disk_floor: Space that must stay free on the disk that caches remote files, such as "50GB";
        default: 10 GiB.
    split: Which split to read: train (default), or another that the spec has under split, such as
        val.
    """


def _words(function: Callable[..., None]) -> tuple[str, dict[str, str]]:
    """Help of a command, and of each parameter that its docstring describes."""
    about, _, options = (inspection.getdoc(function) or "").partition("\n\nOptions:\n")
    found = _WORDS.findall(re.sub("^", "    ", options, flags=re.MULTILINE))
    return about, {name: " ".join(text.split()) for name, text in found}


def _described(function: _Function) -> str:
    """Give a command's parameters their help and flags their names; return the command's help."""
    about, own = _words(function)
    words = _words(every_command)[1] | own
    hints = inspection.get_annotations(function, eval_str=True)
    for name, parameter in inspection.signature(function).parameters.items():
        kind, *found = typing.get_args(hints[name])[:2] if _has_info(hints[name]) else [hints[name]]
        info: ParameterInfo = copy.copy(found[0]) if found else typer.Argument()
        if not found and parameter.default is not parameter.empty:
            info = typer.Option()
        if (
            kind is bool and info.default is ... and not info.param_decls
        ):  # else there would be --no-NAME, too
            info.param_decls = (f"--{name.replace('_', '-')}",)
        info.help = info.help or words.get(name)
        info.readable = False  # the command says more of a path that it cannot read
        if kind in (bool, int):  # typer would show "<bool>" for a flag, and "<int range>"
            info.metavar = "" if kind is bool or getattr(info, "count", False) else "N"
        hints[name] = Annotated[kind, info]
    function.__annotations__ = hints
    return about


def _has_info(hint: Any) -> bool:
    return any(isinstance(one, ParameterInfo) for one in getattr(hint, "__metadata__", ()))


@cache
def _added_options() -> list[Any]:
    """Options that ``Command`` adds to a command; no value of them goes to its function."""
    alone = typer.Typer(add_completion=False)
    _described(every_command)
    alone.command()(every_command)
    found: list[Any] = typer.main.get_command(alone).params
    for option in found:
        option.expose_value = False
    return found


def _show_version(asked: bool) -> None:
    """Print the version and end, where ``--version`` is given."""
    if asked:
        emit(f"autoloader {autoloader.__version__}")
        raise typer.Exit


def _show_schema(kind: str | None) -> None:
    """Print a JSON schema and end, where ``--schema`` is given."""
    if kind is not None:
        from autoloader.controller.profile import Profile
        from autoloader.spec import PipelineSpec

        model: Any = Profile if kind == "profile" else PipelineSpec
        emit_json(model.model_json_schema())
        raise typer.Exit


app = typer.Typer(
    name="autoloader",
    cls=Program,
    help="Name your datasets and a RAM floor; get the fastest stream this machine can give.",
    epilog="A spec is a YAML file that describes your datasets. The RAM floor is memory that "
    "stays free. Knobs are threads and buffers; the controller changes them in a run. First steps: "
    "autoloader init /data/oxe -o mix.yaml; autoloader plan mix.yaml",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def common(
    verbose: Annotated[int, typer.Option("--verbose", "-v", count=True)] = 0,
    version: Annotated[bool, typer.Option(callback=_show_version, is_eager=True)] = False,
    schema: Annotated[
        Literal["spec", "profile"] | None, typer.Option(callback=_show_schema, is_eager=True)
    ] = None,
    json: Annotated[bool, typer.Option("--json", hidden=True)] = False,
) -> None:
    """Adaptive, memory-aware data loading for mixtures of robot datasets.

    Options:
    verbose: Log more; -vv logs everything.
    version: Print the version.
    schema: Print the JSON schema of a `spec` or of a `profile`, for editors.
    """
    log_to_stderr(verbose)  # callbacks of the others, and ``run_command``, do the rest


_described(common)
app.callback()(common)


def _command(
    group: str, example: str, of: typer.Typer = app, name: str | None = None
) -> Callable[[_Function], _Function]:
    """Declare a function as a command.

    Args:
        group: heading above the command on the first screen.
        example: a command line, shown below the command's help.
        of: the program that has the command.
        name: the command's word; ``None``: the function's name.
    """

    def declare(function: _Function) -> _Function:
        about, below = _described(function), f"Example: autoloader {example}"
        of.command(name, cls=Command, help=about, epilog=below, rich_help_panel=group)(function)
        return function

    return declare


_LOOK, _DATA, _RUN, _TUNE = "Look at a mixture", "Data", "Runs", "Tune"


@_command(_LOOK, "inspect /data/oxe/viola")
def inspect(
    directory: Annotated[Path, typer.Argument(metavar="DIR")],
    split: str | None = None,
    episodes: AtLeast1 = 16,
) -> None:
    """Show a dataset's splits, features, first episode and value ranges.

    Options:
    directory: Local folder or file of a dataset, such as viola/0.1.0, or a folder that holds one.
    split: Which split to read; default: train, or the first.
    episodes: How many episodes to read for the table of value ranges.
    """
    from autoloader.cli.inspect import show_dataset

    show_dataset(directory, split, episodes)


@_command(_LOOK, "init /data/oxe --style octo --mix oxe_magic_soup -o mix.yaml")
def init(
    data_dir: Annotated[list[Path], typer.Argument(metavar="DATA")],
    style: Annotated[str | None, typer.Option(metavar="STYLE")] = None,
    version: Annotated[str | None, typer.Option(metavar="n1.5|n1.6|n1.7")] = None,
    policy: Annotated[str | None, typer.Option(metavar="POLICY")] = None,
    mix: str | None = None,
    output: OutputFile = None,
) -> None:
    """Write a spec (YAML) of the datasets in folders or on the Hugging Face Hub.

    Options:
    data_dir: Where datasets lie, at any depth: folders, or addresses such as gs://BUCKET/oxe;
        or datasets of the Hugging Face Hub, such as lerobot/pusht or lerobot/pusht@REVISION.
    style: Project whose conventions the spec follows (fields, image sizes, actions): octo, openvla
        or openpi; gr00t (LeRobot datasets with meta/modality.json; see --version); lerobot (see
        --policy); robomimic, act or diffusion_policy (samples like those of the original
        repositories' dataset classes); stage2 (pairs of frames about 1 s apart, for
        training/stage2, the example trainer in autoloader's repository); plain (none). Default: the
        style of --mix, else plain.
    version: With --style gr00t: release of GR00T whose rules to follow, n1.5, n1.6 (default) or
        n1.7.
    policy: With --style lerobot: policy whose samples (steps, normalisation) to write: act,
        diffusion, smolvla, pi0 or pi05. Default: act.
    mix: Take only the datasets and weights of a published mixture, such as oxe_magic_soup, or one
        dataset by the name under which it was published, such as droid; default: all of DATA.
        If octo and openvla both have a mixture of that name, --style chooses.
    output: File to write the spec to; an error if it exists with other content. Default: stdout.
    """
    from autoloader.process.draft import draft

    for option, kind, project in (("version", version, "gr00t"), ("policy", policy, "lerobot")):
        if kind is not None and style != project:
            raise UsageError(
                f"--{option} {kind} needs --style {project}", remedy=f"add --style {project}"
            )
        style = f"{style}-{kind}" if kind else style
    found = draft(data_dir, note, style, mix)
    if output is not None:
        write_new(output, found["spec"])
    if not answered({**found, "path": output}):
        emit(found["spec"].rstrip("\n") if output is None else str(output))


@_command(_LOOK, "plan mix.yaml --ram-floor 5GB --set batch.size=64")
def plan(
    spec: SpecFile,
    profile: str | None = None,
    strict: bool = False,
    settings: Settings = None,
    ram_floor: Floor = None,
    disk_floor: Floor = None,
    split: str = "train",
    ranks: AtLeast1 = 1,
    nodes: AtLeast1 = 1,
    verbose: Annotated[bool, typer.Option("--verbose", "-v")] = False,
) -> None:
    """Say whether a mixture fits in memory, how fast it can be and what limits it; starts nothing.

    Options:
    ranks: Training processes (one for each GPU) that share the epoch, over all nodes.
    nodes: Number of machines, all like this one, over which --ranks are spread.
    verbose: Also show the tables behind the answer, with all knobs and their values.
    """
    from autoloader.cli.plan import show_plan

    if strict:
        _refuse_clamps(profile)
    declared, knobs = read_spec(spec, settings)
    given = {"profile": profile, "ram_floor": ram_floor, "disk_floor": disk_floor, "split": split}
    show_plan(declared, spec, {**given, "knobs": knobs}, ranks, nodes, verbose=verbose)


def _refuse_clamps(profile: str | None) -> None:
    """Refuse a profile that this host would have to clamp, before data is looked at."""
    from autoloader.controller.profiles import load_profile

    load_profile(profile, strict=True)


@_command(_LOOK, "peek mix.yaml -o sheet.html")
def peek(
    spec: SpecFile,
    settings: Settings = None,
    output: Annotated[Path, typer.Option("-o", "--output")] = Path("contact-sheet.html"),
    samples: AtLeast1 = 64,
    episodes: AtLeast1 = 8,
    split: str = "train",
    ram_floor: Floor = None,
) -> None:
    """Draw a contact sheet of the model's input: frames, instructions, actions, dropped steps.

    Options:
    output: HTML file to write; open it in a browser. Default: contact-sheet.html.
    samples: How many samples of each dataset the histograms count; the first ones are drawn, too.
    episodes: How many episodes of each dataset to plot over time: the action after each step of the
        spec's processing, and the frames that the spec drops.
    """
    from autoloader.cli.peek import show_sheet

    declared, knobs = read_spec(spec, settings)
    given = {"split": split, "ram_floor": ram_floor, "knobs": knobs}
    show_sheet(declared, output, f"{spec.name}, split {split}", samples, episodes, given)


@_command(_LOOK, "verify mix.yaml -n 500")
def verify(
    spec: SpecFile,
    settings: Settings = None,
    samples: Annotated[int, typer.Option("-n", "--samples", min=1)] = 200,
    split: str = "train",
    ram_floor: Floor = None,
) -> None:
    """Compare samples with those of a plain, independent reader; exits 4 if they differ.

    Options:
    samples: How many samples to compare, spread over all datasets.
    """
    from autoloader.cli.verify import show_differences

    declared, knobs = read_spec(spec, settings)
    show_differences(declared, samples, {"split": split, "ram_floor": ram_floor, "knobs": knobs})


@_command(_LOOK, "doctor mix.yaml --ram-floor 5GB")
def doctor(
    spec: AnySpecFile = None,
    split: str = "train",
    profile: str | None = None,
    ram_floor: Floor = None,
) -> None:
    """Say what on this machine will hurt a run; changes nothing. Exits 1 if it finds a problem.

    Options:
    spec: Spec of a mixture whose data and memory are checked as well.
    ram_floor: Check that a loader can keep this memory free, such as "5GB"; default: the profile's.
    """
    from autoloader.cli.doctor import show_findings

    show_findings(spec, split, profile, _floor_bytes(ram_floor))


def _floor_bytes(ram_floor: str | None) -> int | None:
    return None if ram_floor is None else parse_floor(ram_floor, name="--ram-floor")


@_command(_DATA, "demo ~/demo --datasets 6 --scale 0.1")
def demo(
    directory: Annotated[Path | None, typer.Argument(metavar="DIR")] = None,
    datasets: int = 29,
    scale: float = 1.0,
    seed: int = 0,
) -> None:
    """Make synthetic robot datasets (TFDS/RLDS files) and their spec mix.yaml, to try autoloader.

    Files that are there are kept.

    Options:
    directory: Folder to write to; default: one in your cache directory.
    datasets: How many datasets, up to 29.
    scale: Factor on the number of episodes; 1 writes about 810 MB and takes minutes.
    seed: Random seed of the data written.
    """
    from autoloader.cli.demo import show_demo

    show_demo(directory, datasets=datasets, scale=scale, seed=seed)


@_command(_DATA, "index mix.yaml")
def index(
    spec: SpecFile,
    split: str = "train",
    beside: bool = False,
    output: Annotated[str | None, typer.Option("-o", "--output", metavar="URL")] = None,
    disk_floor: Floor = None,
    verify: bool = False,
) -> None:
    """Build the indexes (where each frame lies) now; else a loader does at its first start.

    Options:
    beside: Write the indexes into the datasets' folders instead of the cache directory; those
        that are in the cache already are copied there.
    output: Also upload the index, without the data, to a copy of the dataset that is in a bucket
        already, such as gs://BUCKET/NAME/1.0.0; only for a spec of one dataset.
    verify: Index the files again, and compare with the indexes that are there: one that differs
        is replaced, and the exit code is 4.
    """
    from autoloader.cli.derived import show_index

    show_index(spec, split, beside=beside, output=output, disk_floor=disk_floor, verify=verify)


@_command(_DATA, "stats mix.yaml -o statistics.json")
def stats(
    spec: SpecFile,
    output: OutputFile = None,
    layout: Annotated[str, typer.Option("--format")] = "autoloader",
    split: str = "train",
) -> None:
    """Compute statistics of action and state now; else a loader that normalizes does so.

    Options:
    output: File to write the statistics to, for normalize: {statistics: FILE} in the spec; default:
        only print (a loader finds them in the cache).
    layout: Whose layout the file has, for that project's code to read: autoloader, octo, openvla,
        openpi, lerobot or gr00t (a folder).
    """
    from autoloader.cli.derived import show_statistics

    show_statistics(spec, split, output=output, layout=layout)


@_command(_RUN, "measure mix.yaml --set ring_slots=8 decode_threads=4")
def measure(
    spec: SpecFile,
    profile: str | None = None,
    strict: bool = False,
    settings: Settings = None,
    warmup: int = 8,
    batches: AtLeast1 = 160,
    step_time: str = "0ms",
    controller: bool = False,
    ram_floor: Floor = None,
    disk_floor: Floor = None,
    split: str = "train",
    progress_fd: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> None:
    """Measure the loader alone: samples a second, latency, memory, each dataset's share.

    Options:
    warmup: Batches to discard before the measurement.
    batches: Batches to measure.
    step_time: Wait after each batch, as a trainer's step would, such as "120ms".
    controller: Let autoloader change the knobs (threads, buffers) while it measures, as in
        training; default: they stay.
    """
    from autoloader.cli.tune import show_measurement

    step_time_s = parse_seconds(step_time, name="--step-time")
    if strict:
        _refuse_clamps(profile)
    declared, knobs = read_spec(spec, settings, knobs_first=True)
    given: dict[str, Any] = {"profile": profile, "split": split, "controller": controller}
    given |= {"knobs": knobs, "ram_floor": ram_floor, "disk_floor": disk_floor}
    show_measurement(
        declared, spec, given, warmup=warmup, batches=batches, step_time_s=step_time_s,
        progress_fd=progress_fd,
    )  # fmt: skip


@_command(_RUN, "top --once")
def top(
    run: Annotated[str | None, typer.Argument(metavar="RUN")] = None, once: bool = False
) -> None:
    """Show what your running loaders do, why, and what limits them, without disturbing them.

    Options:
    run: The run to show: its name, its script, a part of either, or a process id; default: all
        your running loaders.
    once: Print one view, and end.
    """
    from autoloader.cli.top import show_runs

    show_runs(run, once=once)


@_command(_RUN, "report last -o run.html")
def report(
    run: Annotated[str | None, typer.Argument(metavar="RUN")] = None,
    other: Annotated[str | None, typer.Argument(metavar="OTHER")] = None,
    output: OutputFile = None,
) -> None:
    """Draw one HTML page of a run: what limited it, which threads and buffers changed, and why.

    Options:
    run: Name of a run or of its script; "last" (the newest that has a speed or was killed); or the
        folder that the environment variable AUTOLOADER_RUN_DIR named. Runs of 3 s or more are
        recorded. Default: list them.
    other: A second run to compare with. If it is one of AutoLoader(…, replay_one_batch=True), which
        repeats one batch and so loads nothing, the page says how much time loading costs.
    output: HTML file to write; default: RUN.html in the working directory.
    """
    from autoloader.cli.report import list_runs, show_page

    if run is None:
        list_runs()
    else:
        show_page(run, other, output)


@_command(_RUN, "replay run/decisions.jsonl")
def replay(logs: Annotated[list[Path], typer.Argument(metavar="LOG")]) -> None:
    """Debug autoloader's choice of threads and buffers: choose again from a run's log, and compare.

    A difference means a fault of autoloader, or a log of another version.

    Options:
    logs: Decision logs, or folders with some. A run writes one only if an environment variable
        says so: AUTOLOADER_RUN_DIR=FOLDER (decisions.jsonl in it) or AUTOLOADER_DECISIONS=FILE.
    """
    from autoloader.cli.report import show_replay

    show_replay(logs)


@_command(_TUNE, "tune mix.yaml --ram-floor 5GB --budget 10m")
def tune(
    spec: AnySpecFile = None,
    profile: str | None = None,
    settings: Settings = None,
    ram_floor: Floor = None,
    trials: int = 12,
    budget: str = "5m",
    storage: str | None = None,
    study: str | None = None,
    name: str | None = None,
    output: OutputFile = None,
    split: str = "train",
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1)] = 0,
    warmup: Annotated[int, typer.Option(min=0)] = 8,
    batches: AtLeast1 = 160,
) -> None:
    """Find the fastest threads and buffers that keep the RAM floor free here; save a host profile.

    Options:
    spec: YAML file that describes your datasets; default: the demo mixture, which is written first
        if it is missing (about 810 MB).
    settings: Values of knobs to start from, which the search may change, or of fields of the spec,
        which it keeps: ring_slots=8 batch.size=32 datasets.bridge.weight=2. `autoloader plan -v
        SPEC` lists the knobs.
    trials: Largest number of sets of knobs to measure, the starting one included.
    budget: Time that the whole search takes at most, such as "10m".
    storage: Where to keep results: an Optuna storage URL, such as sqlite:///FILE or
        postgresql://HOST/NAME; default: a file in --output, else in ~/.local/share/autoloader.
    study: Name of this search: a new name begins one, the name of an earlier one continues it;
        default: begin one.
    name: Save the profile under this name. Default: replace the profile that the search starts
        from (--profile); if that one came with autoloader, write its name with -tuned behind it.
    output: Folder for the profile, the HTML report and the results; default: autoloader's own
        config and data folders, where profiles are found by name.
    seed: Random seed of the search.
    warmup: Batches to discard before each measurement.
    batches: Batches of each measurement.
    """
    from autoloader.host.clock import Clock

    began_s = Clock().now_s()  # imports and planning count to the budget
    from autoloader.cli.demo import demo_spec
    from autoloader.cli.tune import show_study, typed_command

    floor_bytes = _floor_bytes(ram_floor)
    budget_s = parse_seconds(budget, name="--budget")
    with needs("the tuner"):
        from autoloader.tune.study import TuneOptions
    place = demo_spec() if spec is None else spec
    declared, knobs = read_spec(place, settings, knobs_first=True) if settings else (None, {})
    options = TuneOptions(
        spec_path=place, spec=declared, knobs=knobs, settings=settings or (), split=split,
        host_profile=profile, floor_bytes=floor_bytes, trials=trials, budget_s=budget_s,
        storage=storage, study=study, name=name, out=output, seed=seed,
        warmup=warmup, batches=batches, command=typed_command(),
    )  # fmt: skip
    show_study(options, began_s=began_s)


profile = typer.Typer(
    cls=Program,
    help="Host profiles: a machine's limits, and the threads and buffers (knobs) that suit it.",
    no_args_is_help=True,
)
app.add_typer(profile, name="profile", rich_help_panel=_TUNE)


@_command("Commands", "profile list", profile, "list")
def list_profiles() -> None:
    """List the profiles on this machine, and the one that is used by default."""
    from autoloader.cli.tune import show_list

    show_list()


@_command("Commands", "profile show lab", profile, "show")
def show_profile(which: Annotated[str, typer.Argument(metavar="PROFILE")]) -> None:
    """Print a profile in full; say on stderr which values this host would lower.

    Options:
    which: A name from `autoloader profile list`, or a path to a YAML file.
    """
    from autoloader.cli.tune import show_profile as show

    show(which)


@_command("Commands", "profile diff lab team/lab.yaml", profile, "diff")
def diff_profiles(
    first: Annotated[str, typer.Argument(metavar="A")],
    second: Annotated[str | None, typer.Argument(metavar="B")] = None,
) -> None:
    """Show in which fields two profiles differ.

    Options:
    first: A profile: its name or path.
    second: The one to compare with; default: the one that fits this host.
    """
    from autoloader.cli.tune import show_diff

    show_diff(first, second)


@_command("Commands", "profile check --strict", profile, "check")
def check_profiles(
    which: Annotated[list[str] | None, typer.Argument(metavar="PROFILE")] = None,
    strict: bool = False,
) -> None:
    """Read profiles as a loader would on this host; exits 2 if one is broken.

    Options:
    which: Names or paths; default: all profiles of `autoloader profile list`.
    strict: Also count a profile as broken that asks for more than this host has.
    """
    from autoloader.cli.tune import show_checks

    show_checks(which, strict=strict)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and give its exit code.

    Args:
        arguments: words after the program's name; ``None``: this process's words.
    """
    return run_command(app, sys.argv[1:] if arguments is None else arguments, "autoloader")


def run_command(program: typer.Typer, arguments: Sequence[str], name: str) -> int:
    """Run one command line of ``program`` and give its exit code, as this module's says.

    Args:
        program: typer application with the commands.
        arguments: words after the program's name.
        name: the program's name in its help.
    """
    global _spec_file
    words, _spec_file = list(arguments), None
    open_streams()
    use_json("--json" in words)
    try:
        code = _run(program, words, name)
    except AutoloaderError as error:  # the error's own document has nowhere to go either
        use_json(False)
        code = _told(error, error)
    discard_unwritable()
    return code


def _run(program: typer.Typer, words: list[str], name: str) -> int:
    """Run it, all of its result written.

    Raises:
        UsageError: stdout cannot be written to.
    """
    try:
        code = typer.main.get_command(program)(args=words, prog_name=name, standalone_mode=False)
        flush_stdout()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except typer.Exit as end:
        return end.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except Exception as error:  # noqa: BLE001  (the last place before the shell: say it, with a fixed code)
        if type(error).__name__ == "NoArgsIsHelpError":  # the help is shown already
            return UsageError.exit_code
        return _told(error, _as_ours(error, name, words))
    return code if isinstance(code, int) else 0


def _as_ours(error: Exception, program: str, words: Sequence[str]) -> AutoloaderError | None:
    """The error as one of this library; ``None`` where it is an internal one."""
    if isinstance(error, SpecError) and _spec_file is not None:
        return _in_file(error, _spec_file, words)
    if isinstance(error, AutoloaderError):
        return error
    if isinstance(error, _CommandLineError):
        return as_usage_error(error, program, words)
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    limited = limit != resource.RLIM_INFINITY
    # A limited address space may have no room for a library.
    if isinstance(error, MemoryError) or (limited and isinstance(error, ImportError)):
        told = f"; ulimit -v is {format_bytes(limit)}" if limited else ""
        return BudgetInfeasibleError(
            f"the process is out of memory{told}{f': {error}' if str(error) else ''}",
            remedy=f"{'raise the limit, or ' * limited}close other programs that use memory",
        )
    return None


def _in_file(error: SpecError, place: Path, words: Sequence[str]) -> SpecError:
    """The error with the spec's name and line, unless it has them or ``--set`` gave the value."""
    from autoloader.spec.reading import in_file

    unknown = re.findall(r"unknown key '([^']+)'", error.what)
    field = ".".join([*re.findall(r"[^.\[\]]+", error.path), *unknown])
    set_by = (re.match(r"(?:--set=)?(?:spec\.)?([\w.-]+)=", word) for word in words)
    given = any(name and f"{field}.".startswith(f"{name[1]}.") for name in set_by)
    return error if given or error.what.startswith(str(place)) else in_file(error, place)


def _told(error: Exception, known: AutoloaderError | None) -> int:
    """Show an error, and give the exit code."""
    if known is None:
        flush_stdout()  # where stdout is what failed, that is what to say
        note("".join(traceback.format_exception(error)))
        kind, what, remedy, code = type(error), str(error), INTERNAL_REMEDY, INTERNAL_ERROR
    else:
        note(f"error: {known}")
        kind, what, remedy, code = type(known), known.what, known.remedy, known.exit_code
    shown = {"kind": kind.__name__, "what": what, "remedy": remedy, "exit_code": code}
    if answered({"error": shown}):
        flush_stdout()
    return code


_NO_COMMAND = re.compile(r"No such command '([^']*)'")
_EXTRA = "Got unexpected extra argument(s)"


def as_usage_error(error: Any, program: str, words: Sequence[str]) -> UsageError:
    """Translate an error of the command line's library into a ``UsageError``.

    Args:
        error: error of the library, of any class.
        program: name of the program, for errors that name no command.
        words: the arguments of the program.
    """
    context = getattr(error, "ctx", None)
    command = " ".join([program, *(one for one in words[:1] if not one.startswith("-"))])
    if context is not None:
        command = context.command_path
    remedy = f"see `{command} --help`"
    parameter = getattr(error, "param", None)
    said = error.format_message()
    if parameter is None:
        if (unknown := _NO_COMMAND.match(said)) and context is not None:
            remedy, said = f"{nearest(unknown[1], context.command.commands)}; {remedy}", unknown[0]
        if said.startswith(_EXTRA):
            remedy = f"quote a value that has spaces; {remedy}"
        return UsageError(said.replace(_EXTRA, "no argument or option takes"), remedy=remedy)
    name = parameter.opts[0] if parameter.param_type_name == "option" else parameter.metavar
    name = name or parameter.name.upper()
    if said.startswith("Missing"):
        told = f"give {name}: {parameter.help.rstrip('.')}; {remedy}"
        return UsageError(f"{name} is required and missing", remedy=told)
    message = error.message.removeprefix("Value error, ")
    found = _value(parameter.opts, words)
    if found is None or repr(found) in error.message:
        return UsageError(f"{name}: {message}", remedy=remedy)
    rule = in_our_words(message)
    return UsageError(f"{name}: {found!r} is not allowed", remedy=f"{rule}; {remedy}")


def _value(options: Sequence[str], words: Sequence[str]) -> str | None:
    """Value that the words give the last of these options; ``None`` where they give none."""
    found = None
    for word, after in zip(words, [*words[1:], None], strict=True):
        option, equals, value = word.partition("=")
        if option in options:
            found = value if equals else after
    return found
