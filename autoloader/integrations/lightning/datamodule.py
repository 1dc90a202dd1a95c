"""``AutoLoaderDataModule``: a mixture as a Lightning data module.

Theory of operation. Loaders are opened when Lightning first asks for them and kept until the run
ends, over all epochs and validations; both live in one child. This module saves the training
position once. Lightning's streams have a state of their own only without this module.

Not here: cutting the sequence into epochs (``streams``), what is logged (``monitor``), the loader.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from lightning.pytorch import LightningDataModule
from lightning.pytorch.trainer.states import TrainerFn, TrainerStatus
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature

from autoloader.errors import UsageError
from autoloader.integrations.lightning.streams import (
    Consumer,
    HostBatch,
    ToBatch,
    TrainStream,
    ValidationStream,
)
from autoloader.loader import AutoLoader, IdleLoader, validation_specs
from autoloader.process.arguments import check_arguments, spec_of
from autoloader.process.augmentation import Augmenter, augmenter
from autoloader.process.checkpoint import join_states, read_state
from autoloader.process.transfer import mapped
from autoloader.spec import PipelineSpec, SpecSource

_READ_ON_THE_HOST = ("provenance", "dataset_index")


def delivered(
    tree: Any,
    move: Callable[[Any], Any],
    names: tuple[str, ...],
    augment: Augmenter | None,
    to_batch: ToBatch | None,
    frame_dtype: torch.dtype | None,
) -> Any:
    """A batch, or several in lists and mappings: moved, augmented, in the trainer's layout.

    The order of the steps keeps the host from waiting. Parameters of the augmentation and names of
    datasets and episodes come from numbers that are still on the host. Frames, actions and states
    go to the device as the ring holds them; augmentation, the change of type and of layout run
    there. Nothing waits for the device.

    Args:
        tree: a ``HostBatch``, or lists and mappings with some.
        move: moves tensors to the device.
        names: names by dataset index, ``loader.dataset_names``.
        augment: augments frames; ``None`` leaves them.
        to_batch: function from loader and batch to the trainer's batch.
        frame_dtype: what uint8 tensors become, in [0, 1]; ``None`` leaves them.
    """

    def finish(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dtype == torch.uint8 and frame_dtype is not None:
            return tensor.to(frame_dtype, memory_format=torch.contiguous_format).div_(255)
        return tensor if tensor.device.type == "cpu" else tensor.contiguous()

    def ready(part: Any) -> Any:
        if isinstance(part, dict) and any(isinstance(v, HostBatch) for v in part.values()):
            return {key: ready(value) for key, value in part.items()}
        if isinstance(part, (list, tuple)) and any(isinstance(v, HostBatch) for v in part):
            return type(part)(map(ready, part))
        if not isinstance(part, HostBatch):
            return move(part)
        host = {key: part[key] for key in _READ_ON_THE_HOST if key in part}
        moved = move({key: value for key, value in part.items() if key not in host})
        if augment is not None and augment.active:
            drawn = augment.parameters(np.asarray(host["provenance"]))
            moved = augment.apply(moved, drawn)
        batch: Any = {**moved, **host}
        if to_batch is not None:
            batch = to_batch(batch, names)
        return mapped(move(batch), finish)

    return ready(tree)


_STATE_VERSION = 1


class _Train(TrainStream):
    """The training stream with Lightning's state protocol.

    Under a trainer with the data module the state is the module's, and this one is empty: Lightning
    saves and restores the loader's place once, not twice.
    """

    def __init__(self, module: AutoLoaderDataModule, loader: AutoLoader) -> None:
        hooks = module.to_batch, module.describe_consumer, module.prepare_validation
        super().__init__(loader, module.batch_size, *hooks)
        self._module = module

    def state_dict(self) -> dict[str, Any]:
        """State of the loader; {} under a trainer, where the data module has it."""
        return {} if self._module.trainer is not None else self._module.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to where ``state`` was saved; nothing where it is empty."""
        if state:
            self._module.load_state_dict(dict(state))


class AutoLoaderDataModule(LightningDataModule):
    """Training and validation batches of a mixture, for ``Trainer.fit(model, datamodule=...)``.

    Args:
        spec: as for ``AutoLoader``. Training uses its split ``train``. If its datasets have a split
            ``val``, validation is the first ``validation.samples`` samples of that, the same ones
            at every call (``autoloader.loader``). With ``validation.per_dataset`` Lightning gets
            one dataloader for each dataset.
        profile, ram_floor, disk_floor, knobs, isolation, controller, reproducible, helpers: as for
            ``AutoLoader``.
        replay_one_batch: as for ``AutoLoader``, of the training alone.
        batch_size: over the spec's, per rank. May be set at any time (Lightning's batch-size finder
            does) and holds from the next ``*_dataloader`` call.
        to_batch: maps a batch to the trainer's own layout: ``to_batch(batch, dataset_names)``;
            see ``autoloader.layouts``.
        frame_dtype: what the batch's uint8 tensors (the frames) become when they are moved to the
            device, in [0, 1]; ``None`` leaves them uint8.

    Raises:
        SpecError: the spec cannot be read.

    Attributes:
        loader: the training ``AutoLoader`` while there is one.
        validation_loader: the validation one, or the first of several.
        validation_loaders: all of them: "val", or by dataset with ``validation.per_dataset``.
    """

    def __init__(
        self,
        spec: SpecSource,
        *,
        profile: str | Path | None = None,
        ram_floor: str | int | None = None,
        disk_floor: str | int | None = None,
        batch_size: int | None = None,
        knobs: Mapping[str, Any] | None = None,
        isolation: Literal["process", "thread"] = "process",
        controller: bool = True,
        reproducible: bool = False,
        replay_one_batch: bool = False,
        helpers: str | None = None,
        to_batch: ToBatch | None = None,
        frame_dtype: torch.dtype | None = None,
    ) -> None:
        given = dict(locals())
        super().__init__()
        own = ("self", "__class__", "to_batch", "frame_dtype")
        check_arguments({name: value for name, value in given.items() if name not in own})
        self.spec = spec_of(spec)
        self.batch_size = self.spec.batch.size if batch_size is None else batch_size
        self.to_batch = to_batch
        self.frame_dtype = frame_dtype
        self._knobs = dict(knobs or {})
        both = ("profile", "ram_floor", "disk_floor", "isolation", "controller", "helpers")
        self._options: dict[str, Any] = {name: given[name] for name in both}
        self._of_training = {"reproducible": reproducible, "replay_one_batch": replay_one_batch}
        self._pid = os.getpid()
        self._train: _Train | None = None
        self._validation: dict[str, ValidationStream] = {}
        self._resume: dict[str, Any] | None = None
        self._ended: dict[str, Any] | None = None

    def __repr__(self) -> str:
        told = f"not started, {self.spec!r}" if self.loader is None else repr(self.loader)
        return f"AutoLoaderDataModule: {told}"

    @property
    def loader(self) -> AutoLoader | None:
        """The training loader, once Lightning has asked for it."""
        return self._train.loader if self._train is not None else None

    @property
    def validation_loader(self) -> AutoLoader | None:
        """The validation loader, once Lightning has asked for it."""
        return next(iter(self.validation_loaders.values()), None)

    @property
    def validation_loaders(self) -> dict[str, AutoLoader]:
        """The validation loaders by name, in the order of ``dataloader_idx``; see above."""
        return {name: stream.loader for name, stream in self._validation.items()}

    @property
    def dataset_names(self) -> tuple[str, ...]:
        """Names that ``batch["dataset_index"]`` counts."""
        return tuple(d.name for d in self.spec.datasets if d.split.get("train") is not None)

    def setup(self, stage: str) -> None:
        """Nothing is opened yet; a new fit begins with the first sample. May be called twice."""
        if stage == TrainerFn.FITTING:
            self._ended = None

    def train_dataloader(self) -> TrainStream:
        """The training stream: the same one until the run ends or ``batch_size`` changes.

        Raises:
            SourceError, ProfileError, KnobError, BudgetInfeasibleError: as ``AutoLoader`` does.
        """
        if self._train is not None and self._train.batch_size != self.batch_size:
            self._resume = self._train.loader.state_dict()
            self._train.loader.close()
            self._train = None
        if self._train is None:
            own = {"knobs": self._knobs, **self._of_training}
            loader = self._open(AutoLoader, self._sized(self.spec), split="train", **own)
            train = _Train(self, loader)
            if self._resume is not None:
                try:
                    train.restore(self._resume)
                except UsageError:
                    loader.close()
                    raise
                self._resume = None
            self._train = train
        if self._train.resumed:
            self._count_anew(self._train.loader)
        return self._train

    def _count_anew(self, loader: AutoLoader) -> None:
        """Have Lightning count what it has had of this epoch in batches and ranks of today.

        It restores a number of batches, which may have been of another size.
        """
        trainer, epoch = self.trainer, loader.even_epoch
        if trainer is None or epoch is None or getattr(trainer, "overfit_batches", 0) > 0:
            return
        had = trainer.fit_loop.epoch_loop.batch_progress.current
        limit = trainer.limit_train_batches
        if had.ready and isinstance(limit, float) and limit == 1:  # its epochs are the loader's
            more = epoch.length - epoch.left % epoch.length - had.ready
            for name in ("ready", "started", "processed", "completed"):
                setattr(had, name, getattr(had, name) + more)

    def val_dataloader(self) -> ValidationStream | list[ValidationStream]:
        """The validation stream; an empty list where the spec has no split ``val``.

        With ``validation.per_dataset`` a list with one for each dataset of that split.
        """
        if any(one.batch_size != self.batch_size for one in self._validation.values()):
            self._close_validation()
        if not self._validation:
            # A stream reader gets the fewest threads and files: validation shares the budget, and
            # its split may have fewer shards than the split that the knobs are for.
            few = {"cycle_length": 1, "num_parallel_calls": 1}
            theirs = {k: v for k, v in self._knobs.items() if k.rpartition(".")[2] not in few}
            knobs = {"ring_slots": 4, **theirs, **few}
            for name, spec in validation_specs(self._sized(self.spec), "val").items():
                known = [one.name for one in spec.datasets if one.split["val"] is not None]
                own = {k: v for k, v in knobs.items() if k.rpartition(".")[0] in ("", *known)}
                quiet = {"knobs": own, "reproducible": True, "controller": False}
                # It begins to read as soon as training has its first batch, not before.
                loader = self._open(IdleLoader, spec, split="val", **quiet)
                self._validation[name] = ValidationStream(
                    loader,
                    self.batch_size,
                    self.to_batch,
                    partial(self._begin_validation, name),
                    partial(self._end_validation, name),
                )
        streams = list(self._validation.values())
        return streams if self.spec.validation.per_dataset or not streams else streams[0]

    def _close_validation(self) -> None:
        for stream in self._validation.values():
            stream.loader.close()
        self._validation.clear()

    def _open(self, kind: type[AutoLoader], spec: PipelineSpec, **own: Any) -> AutoLoader:
        trainer, options = self.trainer, {**self._options, **own}
        if trainer is not None and trainer.world_size > 1:
            options |= {"rank": trainer.global_rank, "world_size": trainer.world_size}
        self._pid = os.getpid()
        return kind(spec, **options)

    def _sized(self, spec: PipelineSpec) -> PipelineSpec:
        check_arguments({"batch_size": self.batch_size})
        return spec.having(batch={"size": int(self.batch_size)})

    def _begin_validation(self, name: str) -> Consumer:
        if self._train is not None:
            self._train.park()
        # Of several, two have batches at a time: the one in use, and the one that is next.
        behind = self._behind(name)
        self._have_ready(behind[0] if behind else None, in_use=self._validation[name])
        return Consumer(moves=self._moves("validation_step"))

    def _end_validation(self, name: str) -> None:
        self._have_ready((self._behind(name) or [*self._validation.values()])[0])

    def _behind(self, name: str) -> list[ValidationStream]:
        """The streams that come after one."""
        names = list(self._validation)
        return [self._validation[one] for one in names[names.index(name) + 1 :]]

    def prepare_validation(self) -> None:
        """While training runs, the next validation fills its ring; the others hold no memory."""
        self._have_ready(next(iter(self._validation.values()), None))

    def _have_ready(
        self, ready: ValidationStream | None, in_use: ValidationStream | None = None
    ) -> None:
        """Have one stream fill its ring; all others but that in use hold no memory."""
        for stream in self._validation.values():
            if stream is ready:
                stream.prepare()
            elif stream is not in_use:
                stream.release()

    def _moves(self, step: str) -> bool:
        """True if a running trainer hands every batch to ``transfer_batch_to_device``."""
        trainer = self.trainer
        if trainer is None or trainer.state.status != TrainerStatus.RUNNING:
            return False
        function = getattr(trainer.lightning_module, step)
        return not is_param_in_hook_signature(function, "dataloader_iter", explicit=True)

    def describe_consumer(self) -> Consumer:
        """The consumer that iterates the training stream now; see ``streams.Consumer``."""
        trainer = self.trainer
        if trainer is None or not (
            trainer.state.fn == TrainerFn.FITTING and trainer.state.status == TrainerStatus.RUNNING
        ):
            return Consumer()
        overfits = getattr(trainer, "overfit_batches", 0) > 0
        return Consumer(counts=True, repeats=overfits, moves=self._moves("training_step"))

    def transfer_batch_to_device(
        self, batch: Any, device: torch.device, dataloader_idx: int
    ) -> Any:
        """Move a batch, augment it, and give it the trainer's layout.

        To a CUDA device through the loader's own transfer, without waiting. A model that has a
        ``transfer_batch_to_device`` of its own gets the finished batch to move.
        """
        trainer = self.trainer
        training = trainer is not None and trainer.training
        validation = dict(enumerate(self._validation.values()))
        stream = self._train if training else validation.get(dataloader_idx)
        if stream is None:
            return super().transfer_batch_to_device(batch, device, dataloader_idx)
        model = trainer.lightning_module if trainer is not None else None
        theirs = model is not None and is_overridden("transfer_batch_to_device", model)
        by_lightning = super().transfer_batch_to_device

        def move(tree: Any) -> Any:
            return by_lightning(tree, torch.device("cpu") if theirs else device, dataloader_idx)

        if device.type == "cuda" and not theirs:
            stream.move = stream.loader.transfer(device)
        ready = delivered(
            batch,
            stream.move or move,
            stream.loader.dataset_names,
            augmenter(self.spec) if training else None,
            self.to_batch,
            self.frame_dtype,
        )
        if theirs and model is not None:
            ready = model.transfer_batch_to_device(ready, device, dataloader_idx)
        one = self._train.loader.shown() if training and self._train is not None else None
        if one is None:
            return ready
        held = one.batch
        try:
            del one.batch  # from here on the training step has it
            return ready  # noqa: TRY300 right behind it
        except BaseException:  # it was not returned
            one.batch = held
            raise

    def state_dict(self) -> dict[str, Any]:
        """Where the training step is; Lightning puts it into every checkpoint.

        With the stream reader on several ranks all of them must call it, as Lightning does.
        """
        place = self._resume or self._ended
        if self._train is not None:
            place = self._train.loader.state_dict()
        if place is not None and "part" in place and "parts" not in place:
            place = join_states(_of_all_ranks(place))
        return {"schema_version": _STATE_VERSION, "train": place}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go where ``state_dict`` was saved, now or when the training loader is opened.

        Raises:
            UsageError: the state was saved by another version, is damaged, or is of another
                mixture; the module stays as it was.
        """
        if not isinstance(state_dict, Mapping) or set(state_dict) != {"schema_version", "train"}:
            raise UsageError(
                f"this is not the state of an AutoLoaderDataModule: {str(state_dict)[:80]!r}; that "
                "has the fields schema_version and train",
                remedy="pass what state_dict() of the data module returned; the state of an "
                "AutoLoader is for its own load_state_dict",
            )
        version, place = state_dict["schema_version"], state_dict["train"]
        if version != _STATE_VERSION:
            raise UsageError(
                f"the data module's state has schema_version {version!r}, and this version of "
                f"autoloader reads {_STATE_VERSION}",
                remedy="resume with the version of autoloader that wrote the checkpoint",
            )
        if place is not None:
            read_state(place)
        if self._train is not None:
            self._train.restore(place)
        else:
            self._resume = place

    def teardown(self, stage: str) -> None:
        """The run is over: close both loaders."""
        self.close()

    def on_exception(self, exception: BaseException) -> None:
        """The run is over, by an exception, Ctrl-C or a signal: close both loaders."""
        self.close()

    def close(self) -> None:
        """Close both loaders; may be called twice. ``state_dict`` still tells where it ended.

        In a fork of the process that opened them nothing is closed.
        """
        if self._train is not None and self._pid == os.getpid():
            self._ended = self._train.loader.state_dict()
            self._train.loader.close()
            self._train = None
        self._close_validation()


def _of_all_ranks(state: dict[str, Any]) -> list[dict[str, Any]]:
    """Every rank's, in order, where there is a process group."""
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return [state]
    states: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(states, state)
    return states
