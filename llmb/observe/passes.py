"""Run a forward and backward pass and reduce gradients as they arrive: for worker and judges.

A pass has a name: ``live`` (the last step of the stream), ``step`` (a step inside the stream) or
the name of a probe, such as ``branches``. Collected values are named ``<pass>/<parameter>``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from llmb.observe import probes
from llmb.observe.idle import Activity
from llmb.observe.sketch import SIDE, sketch
from llmb.parallel.shards import whole
from llmb.records.places import ranges_of
from llmb.reference.data import Batch
from llmb.reference.elements import Format
from llmb.reference.formats import emulate
from llmb.reference.models import model_of, replace_parameter
from llmb.reference.shapes import Shape

LIVE, STEP = "live", "step"
LOSS = "loss"
#: The exponent of float16's largest power of two.
MOST_SCALE = 15


@dataclass(frozen=True)
class Numerics:
    """Numerics of a pass: dtype, device, and exceptions from plain rounding."""

    dtype: torch.dtype
    device: str
    #: Products are rounded to this format.
    emulated: Format | None = None
    #: The loss is computed in float32, and the loss gradient is rounded to the logits' type.
    wide_loss: bool = False
    #: Forward passes run under ``autocast`` to this type.
    autocast: torch.dtype | None = None


class Collector(Protocol):
    """Takes the gradients of a pass, a parameter at a time, possibly in parts that add up."""

    def add(self, parameter: str, gradient: Tensor) -> None:
        """Take the gradient of ``parameter``, in canonical shape."""
        ...


class Sketches:
    """The sketch of every gradient of a pass."""

    def __init__(
        self, name: str, seed: int, shape: Shape, side: int = SIDE, keep: str | None = None
    ) -> None:
        """Collect pass ``name`` with the signs of ``seed``, in squares of ``side``.

        For the parameter ``keep``, the full gradient is kept as well.
        """
        self._name, self._seed, self._side = name, seed, side
        self._keep = keep
        #: The gradient of parameter ``keep``, float32 on the host; None until the gradient arrives.
        self.kept: Tensor | None = None
        self._channels = probes.channels(shape) if name == probes.BRANCHES else {}
        parts = probes.parts(shape)
        #: Rows of a tied head that get gradients from the logits only, not from the embedding.
        self._head, self._others = parts.head, None
        if self._channels and parts.tied:
            others = torch.ones(shape.vocab_size, dtype=torch.bool)
            others[probes.batch(seed, name, shape).ids] = False
            self._others = others.nonzero().flatten()
        self.tensors: dict[str, Tensor] = {}

    def add(self, parameter: str, gradient: Tensor) -> None:
        """Add the sketch of ``gradient``; in ``branches``, also a sketch of the head per branch."""
        self._add(f"{self._name}/{parameter}", gradient)
        if parameter == self._keep:
            more = gradient.detach().to("cpu").float()
            self.kept = more.clone() if self.kept is None else self.kept + more
        if parameter == self._head:
            rows = gradient
            if self._others is not None:
                rows = gradient.index_select(0, self._others.to(gradient.device))
            for branch, own in self._channels.items():
                self._add(f"{self._name}/out/{branch}", rows[:, own.slice])

    def loss(self, value: Tensor) -> None:
        """Take the loss of the pass."""
        self.tensors[f"{self._name}/{LOSS}"] = (
            whole(value.detach()).to("cpu").double().float().view(1)
        )

    def _add(self, key: str, value: Tensor) -> None:
        found = sketch(value, self._seed, key, self._side)
        self.tensors[key] = self.tensors[key] + found if key in self.tensors else found


class Samples:
    """Some elements of the gradients of a pass, by position in the full model.

    Positions count through all canonical parameters in the model's order, row-major. Example:
    position 100 is the first element of the second parameter, after a first of 100 elements.
    """

    def __init__(
        self, where: Tensor, sizes: Mapping[str, int], activity: Activity | None = None
    ) -> None:
        """Collect the elements ``where`` (int64); ``sizes`` are the parameters' element counts.

        ``activity`` sees all elements.
        """
        self._where, self._sizes, self._activity = where, sizes, activity
        self._ranges = ranges_of(sizes)
        self.values = torch.zeros(len(where), dtype=torch.float32)

    def again(self) -> Samples:
        """Return a collector of the same elements that has seen no gradient."""
        if self._activity is not None:
            self._activity.clear()
        return Samples(self._where, self._sizes, self._activity)

    def add(self, parameter: str, gradient: Tensor) -> None:
        """Take the requested elements of ``gradient``."""
        if self._activity is not None:
            self._activity.add(parameter, gradient)
        own = self._ranges[parameter]
        mine = ((self._where >= own.start) & (self._where < own.stop)).nonzero().flatten()
        places, flat = self._where[mine] - own.start, gradient.detach().flatten()
        try:
            found = flat[places.to(flat.device)].to("cpu")
        except NotImplementedError:  # the device has no indexing kernel: copy all elements
            found = flat.to("cpu")[places]
        self.values[mine] += found.float()


class _NoInitialValues(TorchFunctionMode):
    """Skips torch's initialisation, which imports torch's compiler (1 s) even for meta tensors."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        named = kwargs or {}
        if getattr(func, "__module__", None) == "torch.nn.init":
            return args[0] if args else named["tensor"]
        return func(*args, **named)


class _WideLoss(TorchFunctionMode):
    """Computes cross-entropies in float32, from logits of any type."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is F.cross_entropy:
            args = (args[0].float(), *args[1:])
        return func(*args, **(kwargs or {}))


def bare(shape: Shape) -> nn.Module:
    """Return the model without weights: the parameters have shapes and no memory."""
    with torch.device("meta"), _NoInitialValues():
        return model_of(shape)


def copies_of(batch: Batch, dtype: str) -> int:
    """Return the loss factor of a probe: 1; in float16 16 for each token of ``batch``.

    The factor in float16 is rounded down to a power of two, 2^15 at most: 2^16 is beyond float16.
    The factor is never below the number of sequences. Without a factor the gradients of a mean over
    4,096 tokens underflow in float16 if the vocabulary has 151,936 words.
    """
    if dtype != "float16":
        return 1
    return max(len(batch.ids), 1 << min(MOST_SCALE, 3 + batch.ids.numel().bit_length()))


def plain_pass(
    weights: Callable[[str], Tensor],
    shape: Shape,
    batch: Batch,
    numerics: Numerics,
    collect: Collector,
    *,
    parts: int = 1,
    sums: int = 0,
    copies: int = 1,
    finish: Callable[[], None] | None = None,
    watch: Callable[[nn.Module], AbstractContextManager[object]] | None = None,
    masks: Sequence[int] = (),
    seeds: Callable[[int], object] = torch.manual_seed,
) -> float:
    """Run the reference model once on ``batch``, and return the loss.

    Dropout is off, or on with masks drawn from the seeds ``masks``, set by ``seeds``: each seed is
    for an equal share of the batch.

    ``weights`` gives any parameter by name. Gradients go to ``collect`` and are dropped at once:
    besides the weights, memory holds the gradients of about a layer. With ``finish``, which waits
    for the device, all gradients stay until the pass is over: a lazy device would repeat the
    pass for each gradient. With ``parts``, the batch is split into equal pieces, and the losses are
    averaged. With ``sums`` the gradients of as many equal shares of the pieces are each added up in
    the dtype of the weights, as the train loop of a replica does: in 16 bits each addition rounds.
    Memory holds all gradients then. The loss is multiplied by ``copies`` before the backward pass,
    and gradients are divided by ``copies`` after (``copies_of``). ``watch`` gives a context for the
    forward passes of the model.
    """
    model, device = bare(shape), numerics.device
    for name, _ in list(model.named_parameters()):
        replace_parameter(model, name, weights(name).to(device=device, dtype=numerics.dtype))
    if numerics.emulated is not None:
        model = emulate(model, numerics.emulated)
    model.train(bool(masks))
    of_a_seed = parts // max(1, len(masks))
    total, takes_now = 0.0, True  # gradients that are not taken stay for the next part

    def take(name: str, parameter: Tensor) -> None:
        if takes_now:
            gradient = parameter.grad
            assert gradient is not None
            collect.add(name, gradient.float() / copies if copies > 1 else gradient)
            parameter.grad = None

    if finish is None:
        for name, parameter in model.named_parameters():
            parameter.register_post_accumulate_grad_hook(partial(take, name))  # type: ignore[no-untyped-call]
    for number, part in enumerate(batch.to(device).split(parts)):
        takes_now = not sums or (number + 1) % (parts // sums) == 0
        if masks and number % of_a_seed == 0:
            seeds(masks[number // of_a_seed])
        kind = torch.device(device).type
        with ExitStack() as stack:
            if numerics.wide_loss:
                stack.enter_context(_WideLoss())
            if numerics.autocast is not None:
                stack.enter_context(torch.autocast(kind, numerics.autocast))
            if watch is not None:
                stack.enter_context(watch(model))
            loss = model(part.ids, labels=part.labels, **part.extra)
        loss = loss / parts
        (loss * copies).backward()
        if finish is not None:
            finish()
            for name, parameter in model.named_parameters():
                take(name, parameter)
        total += float(loss.detach())
    return total


def without_layers(shape: Shape) -> Shape:
    """Return the shape of the model without layers: the model with all branches silent."""
    return replace(shape, num_hidden_layers=0)
